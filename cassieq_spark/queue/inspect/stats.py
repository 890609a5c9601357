"""Look at a queue without changing it: its visible messages, and the counts of `stats`.

Everything is counted from bucket rows: there is no counter that could drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Self

from cassieq_spark.errors import CassieqError
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.frozen import freeze, frozen
from cassieq_spark.model.ids import ID_LIMIT, BucketNo, Runs
from cassieq_spark.model.lease import expired_of
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.outcome import Stored
from cassieq_spark.queue.inspect.facts import (
    OPEN,
    WINDOW,
    BucketFacts,
    LaneName,
    LeaseFacts,
    Sinks,
    bucket_facts,
    is_unsealed,
    lease_facts,
    live_rows,
    names_of,
)
from cassieq_spark.queue.lane import Lane, first_of, live_buckets, windows
from cassieq_spark.queue.pause import paused
from cassieq_spark.queue.schedule import as_read, begun_and_later

Seen = Callable[[Lane, BucketFacts, Stored[Bucket] | None], None]

COUNTED: Final = frozenset({OPEN, Status.SEALING.value, Status.SEALED.value})
"""The states of a bucket whose messages are counted: those of a transaction are not there yet."""


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The content of a queue, in messages; the first five are disjoint.

    Attributes:
        visible: A get would deliver them now; messages of open buckets count too.
        in_flight: Under a lease.
        delayed: Not due yet, excluding `scheduled`.
        scheduled: Put with a time much later, and not due yet.
        dead: Out of deliveries, rejected or redriven, waiting for repair to move them.
        oldest_age: Seconds since the oldest unacked message was put; None if there is none.
        buckets: Bucket rows by status, from the repair pointer on; ``open`` = without a row.
        consumers: Messages under a lease, by the consumer that holds them.
        applied_lwts: The number of LWTs that made these rows. Each row counts its own.
        by_priority: The visible messages of each priority.
        paused: The priorities that are paused: no get returns their messages.
    """

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    scheduled: int = 0
    dead: int = 0
    oldest_age: float | None = None
    buckets: dict[str, int] = field(default_factory=dict)
    consumers: dict[str, int] = field(default_factory=dict)
    applied_lwts: int = 0
    by_priority: dict[int, int] = field(default_factory=dict)
    paused: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        freeze(self, "buckets", "consumers", "by_priority")

    @property
    def total(self) -> int:
        """The number of all messages in the queue."""
        return self.visible + self.in_flight + self.delayed + self.scheduled + self.dead


async def stats(lane: Lane, *, with_later: bool = True, seen: Seen | None = None) -> QueueStats:
    """Count a queue: one read per bucket from the repair pointer on, and a scan per open one.

    Args:
        with_later: Also count the messages that `scheduled_later` counts: some reads for
            each period that has scheduled messages.
        seen: Called with every bucket that is read.

    Raises:
        StoreError: Some buckets did not answer: a count without them would be wrong.
    """
    total = _Count(now_us := lane.clock.now_us())
    by_priority = dict.fromkeys(range(lane.settings.priorities), 0)
    sinks = Sinks(lane)
    not_due = 0
    begun, later = await begun_and_later(lane)
    for one in as_read([*lane.all, *begun]):
        before = total.visible, total.delayed
        await _count(one, total, sinks, seen)
        by_priority[one.priority] += total.visible - before[0]
        if one.due is not None:
            not_due += total.delayed - before[1]
    return QueueStats(
        visible=total.visible,
        in_flight=sum(total.consumers.values()),
        delayed=total.delayed - not_due,
        scheduled=not_due + (await count_all(later) if with_later else 0),
        dead=total.dead,
        oldest_age=None if total.oldest_us is None else max(0, now_us - total.oldest_us) / 1e6,
        buckets=dict(total.buckets),
        consumers=dict(total.consumers),
        applied_lwts=total.lwts,
        by_priority=by_priority,
        paused=await paused(lane),
    )


async def visible_in(lane: Lane) -> int:
    """Count the messages of one lane that a get would deliver, as `stats` does."""
    due = lane.due
    if due is not None and due.begins_us(lane.settings.period_us) > lane.clock.now_us():
        return 0
    return (await _counted(lane)).visible


async def _counted(lane: Lane) -> _Count:
    await _count(lane, total := _Count(lane.clock.now_us()), Sinks(lane))
    return total


async def _count(lane: Lane, total: _Count, sinks: Sinks, seen: Seen | None = None) -> None:
    monoton = await lane.monotons.find()
    total.lwts += 0 if monoton is None else monoton.version.row_version
    oldest_us: int | None = None
    async for bucket, row, waiting in live_rows(lane, sinks=sinks):
        facts = bucket_facts(lane, bucket, row, waiting, now_us=total.now_us)
        total.add(facts)
        if seen is not None:
            seen(lane, facts, row)
        put_us = min((chunk.enqueued_us for chunk in waiting), default=None)
        if (
            oldest_us is None
            and row is not None
            and row.value.status is Status.SEALED
            and (left := row.value.unacked - expired_of(row.value, lane.clock.now_us()))
        ):
            put_us = await _put_us(lane, bucket, left)
        # One producer's ids ascend, so the first bucket with a message has about the oldest.
        oldest_us = put_us if oldest_us is None else oldest_us
    known = [time_us for time_us in (oldest_us, total.oldest_us) if time_us is not None]
    total.oldest_us = min(known, default=None)


class _Count:
    """The counts of `stats` so far."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.visible = self.delayed = self.dead = self.lwts = 0
        self.oldest_us: int | None = None
        self.buckets: Counter[str] = Counter()
        self.consumers: Counter[str] = Counter()

    def add(self, facts: BucketFacts) -> None:
        """Count one bucket."""
        self.buckets[facts.status] += 1
        self.lwts += facts.row_version or 0
        if facts.status in COUNTED:
            self.visible += facts.fresh + facts.returned
            self.delayed += facts.delayed
            self.dead += facts.dead
            self.consumers.update(facts.consumers)


async def _put_us(lane: Lane, bucket: BucketNo, runs: Runs) -> int | None:
    """Return the time when the first of these messages was put."""
    first = Runs.span(runs.first, runs.first)
    async for _, chunks in lane.messages.read([(bucket, first)]):
        for chunk in chunks:
            if chunk.first <= runs.first <= chunk.last:
                return chunk.enqueued_us
    return None


async def scheduled_later(lane: Lane) -> int:
    """Count the messages of the lane's queue in periods that have not begun.

    Raises:
        StoreError: A part did not answer: a count without it would be wrong.
    """
    return await count_all((await begun_and_later(lane))[1])


async def count_all(lanes: Sequence[Lane]) -> int:
    """Count the messages in lanes of one queue whose time has not come."""
    return sum(await lanes[0].store.session.map(count_scheduled, lanes)) if lanes else 0


async def count_scheduled(lane: Lane) -> int:
    """Count the messages in a lane whose time has not come. No payload is read."""
    found = 0
    for window in windows(await live_buckets(lane), WINDOW):
        rows, unread = await lane.buckets.read_many(window)
        if unread:
            raise first_of({lane.place(bucket): error for bucket, error in unread.items()})
        for bucket, row in rows.items():
            if is_unsealed(row):
                found += await lane.messages.count(
                    bucket, now_us=lane.clock.now_us(), due_by_us=ID_LIMIT
                )
            elif row is not None:
                found += row.value.unacked.count
    return found


HOUR_US: Final = 3_600_000_000


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledHour:
    """Messages of one priority that fall due in one hour.

    Attributes:
        due_from: The begin of the hour, UTC; with a ``schedule_period`` longer than an hour, the
            begin of the period.
        priority: Their priority.
        messages: Their number.
    """

    due_from: datetime
    priority: int
    messages: int


async def by_hour(lane: Lane) -> list[ScheduledHour]:
    """Count scheduled messages that are not due yet, soonest first, highest priority first.

    Raises:
        StoreError: Some buckets did not answer: a count without them would be wrong.
    """
    period_us = lane.settings.period_us
    counts: Counter[tuple[int, int]] = Counter()
    begun, later = await begun_and_later(lane)
    session = lane.store.session
    found = [one.delayed for one in await session.map(_counted, begun)]
    found += await session.map(count_scheduled, later)
    for one, messages in zip([*begun, *later], found, strict=True):
        if messages and (due := one.due) is not None:
            hour = due.begins_us(period_us) // HOUR_US * HOUR_US
            counts[hour, -due.priority] += messages
    return [
        ScheduledHour(due_from=time_of(hour), priority=-priority, messages=counts[hour, priority])
        for hour, priority in sorted(counts)
    ]


@dataclass(slots=True, kw_only=True)
class LaneLook(LaneName):
    """The facts of one lane, which are collected while its buckets are read.

    Attributes:
        reader: The bucket that R names: no bucket below it has a fresh message.
        repair: The bucket that L names: every bucket below it is dropped.
        live: The number of buckets from L on.
        spans: The buckets that are looked at.
        now_us: The time for which leases count as expired.
        buckets: Those of them that were read, ascending.
        away: Those of them that did not answer.
    """

    reader: int
    repair: int
    live: int
    spans: list[range]
    now_us: int
    buckets: list[BucketFacts] = field(default_factory=list)
    leases: list[LeaseFacts] = field(default_factory=list)
    away: dict[BucketNo, CassieqError] = field(default_factory=dict)

    @classmethod
    async def of(cls, lane: Lane, most: int) -> Self:
        """Begin with a lane."""
        live, pointers = await live_buckets(lane), await lane.read_pointers()
        return cls(
            **names_of(lane),
            reader=pointers.reader,
            repair=pointers.repair,
            live=len(live),
            spans=spans_of(live, pointers.reader, most),
            now_us=lane.clock.now_us(),
        )

    def add(self, lane: Lane, facts: BucketFacts, row: Stored[Bucket] | None) -> None:
        """Keep the facts of a bucket, if the picture shows it."""
        if any(facts.bucket in span for span in self.spans):
            self.buckets.append(facts)
            if row is not None and row.value.status is Status.SEALED:
                self.leases += lease_facts(lane, facts.bucket, row.value, now_us=self.now_us)

    async def read(self, lane: Lane, sinks: Sinks) -> None:
        """Read the buckets that the picture shows."""
        async for bucket, row, waiting in live_rows(lane, self.spans, away=self.away, sinks=sinks):
            facts = bucket_facts(lane, bucket, row, waiting, now_us=self.now_us)
            self.add(lane, facts, row)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLook:
    """The lanes that were looked at, highest priority first, and scheduled messages last.

    Attributes:
        stats: The counts of the whole queue, from the same reads.
        left_out: The number of lanes that were not looked at.
        now_us: The time of the look.
    """

    stats: QueueStats
    lanes: list[LaneLook]
    left_out: int
    now_us: int


async def look(lane: Lane, *, most_lanes: int, most_buckets: int) -> QueueLook:
    """Look at a queue and count it: one read per bucket, and a scan per open one.

    Buckets of periods that have not begun are read once for their count and once for the look.

    Args:
        most_buckets: The maximum in each lane. Of a longer lane, it takes buckets from L on, around
            R and at the end.

    Raises:
        QueueDeleted: The queue is gone.
        StoreError: Some buckets did not answer: a count without them would be wrong.
    """
    # Scheduled messages come last: there may be a lane for each hour of a year.
    begun, later = await begun_and_later(lane)
    lanes = sorted(as_read([*lane.all, *begun, *later]), key=lambda one: one.due is not None)
    looks = {one.lane_id: await LaneLook.of(one, most_buckets) for one in lanes[:most_lanes]}
    apart = {one.lane_id: one for one in later if one.lane_id in looks}

    def seen(one: Lane, facts: BucketFacts, row: Stored[Bucket] | None) -> None:
        if one.lane_id in looks and one.lane_id not in apart:
            looks[one.lane_id].add(one, facts, row)

    total = await stats(lane, seen=seen)
    sinks = Sinks(lane)
    for lane_id, one in apart.items():
        await looks[lane_id].read(one, sinks)
    return QueueLook(
        stats=total,
        lanes=list(looks.values()),
        left_out=max(0, len(lanes) - most_lanes),
        now_us=lane.clock.now_us(),
    )


def spans_of(live: range, reader: int, most: int) -> list[range]:
    """Choose at most ``most`` buckets: all, or a third each from the start, at R, and at the end.

    Returns:
        Spans, ascending and disjoint.
    """
    if len(live) <= most:
        return [live]
    third = most // 3
    middle = max(live.start, min(reader - third // 2, live.stop - third))
    starts = (live.start, middle, live.stop - (most - 2 * third))
    found: list[range] = []
    for start, count in zip(starts, (third, third, most - 2 * third), strict=True):
        first = max(start, found[-1].stop) if found else start
        if first < start + count:
            found.append(range(first, start + count))
    return found
