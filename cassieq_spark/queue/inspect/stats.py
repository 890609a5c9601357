"""Look at a queue without changing it: its visible messages, and the counts of `stats`.

Everything is counted from bucket rows: there is no counter that could drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from cassieq_spark.errors import CassieqError, RowCorrupt, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.frozen import freeze, frozen
from cassieq_spark.model.ids import ID_LIMIT, BucketNo, Runs
from cassieq_spark.model.lease import expired_of, is_expired, later, visible
from cassieq_spark.model.sink_txn import Fate, SinkRow, fate
from cassieq_spark.queue.expired import alive
from cassieq_spark.queue.lane import Lane, live_buckets, windows
from cassieq_spark.queue.message import time_of
from cassieq_spark.queue.per_bucket import first_of, named, read_rows
from cassieq_spark.queue.schedule import as_read, begun_and_later
from cassieq_spark.store.cas import Stored
from cassieq_spark.store.tables.messages import ChunkRow

Seen = Callable[[Lane, BucketNo, Stored[Bucket] | None, list[ChunkRow]], None]


_WINDOW = 64
_logger = get_logger("queue")


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The content of a queue, in messages; the first four are disjoint.

    Attributes:
        visible: A get would deliver them now; messages of open buckets count too.
        invisible: Under a lease.
        delayed: Not due yet, excluding `scheduled`.
        scheduled: Put with a time much later, and not due yet. Disjoint from all others.
        dead: Out of deliveries, rejected or redriven, waiting for repair to move them.
        oldest_age: Seconds since the oldest unacked message was put; None if there is none.
        buckets: Bucket rows by status, from the repair pointer on; ``open`` = without a row.
        consumers: Messages under a lease, by the consumer that holds them.
        applied_lwts: The number of LWTs that made these rows. Each row counts its own.
        by_priority: The visible messages of each priority.
    """

    visible: int = 0
    invisible: int = 0
    delayed: int = 0
    scheduled: int = 0
    dead: int = 0
    oldest_age: float | None = None
    buckets: dict[str, int] = field(default_factory=dict)
    consumers: dict[str, int] = field(default_factory=dict)
    applied_lwts: int = 0
    by_priority: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze(self, "buckets", "consumers", "by_priority")

    @property
    def total(self) -> int:
        """The number of all messages in the queue."""
        return self.visible + self.invisible + self.delayed + self.scheduled + self.dead


async def stats(lane: Lane, *, with_later: bool = True, seen: Seen | None = None) -> QueueStats:
    """Count a queue: one read per bucket from the repair pointer on, and a scan per open one.

    Args:
        with_later: Also count the messages that `waiting.scheduled_later` counts: some reads for
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
        invisible=sum(total.consumers.values()),
        delayed=total.delayed - not_due,
        scheduled=not_due + (await count_all(later) if with_later else 0),
        dead=total.dead,
        oldest_age=None if total.oldest_us is None else max(0, now_us - total.oldest_us) / 1e6,
        buckets=dict(total.buckets),
        consumers=dict(total.consumers),
        applied_lwts=total.lwts,
        by_priority=by_priority,
    )


async def not_due_in(lane: Lane) -> int:
    """Count the messages of one lane that are not due yet, as `stats` does."""
    return (await _of_lane(lane)).delayed


async def visible_in(lane: Lane) -> int:
    """Count the messages of one lane that a get would deliver, as `stats` does."""
    due = lane.due
    if due is not None and due.begins_us(lane.settings.period_us) > lane.clock.now_us():
        return 0
    return (await _of_lane(lane)).visible


async def _of_lane(lane: Lane) -> _Count:
    await _count(lane, total := _Count(lane.clock.now_us()), Sinks(lane))
    return total


async def _count(lane: Lane, total: _Count, sinks: Sinks, seen: Seen | None = None) -> None:
    monoton = await lane.monotons.find()
    total.lwts += 0 if monoton is None else monoton.version.row_version
    oldest_us: int | None = None
    async for bucket, row, waiting in live_rows(lane, sinks=sinks):
        if seen is not None:
            seen(lane, bucket, row, waiting)
        total.add_open(waiting)
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
        total.add(row)
    known = [time_us for time_us in (oldest_us, total.oldest_us) if time_us is not None]
    total.oldest_us = min(known, default=None)


class _Count:
    """The counts of `stats` so far."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self.visible = self.delayed = self.dead = self.lwts = 0
        self.oldest_us: int | None = None
        self.buckets: Counter[str] = Counter()
        self.consumers: Counter[str] = Counter()

    def add_open(self, waiting: list[ChunkRow]) -> None:
        """Count a bucket that is not sealed."""
        for chunk in waiting:
            is_now = is_due(chunk, self._now_us)
            self.visible += chunk.count * is_now
            self.delayed += chunk.count * (not is_now)

    def add(self, row: Stored[Bucket] | None) -> None:
        """Count one bucket's row."""
        if row is None:
            self.buckets["open"] += 1
            return
        value = row.value
        self.buckets[value.status.value] += 1
        self.lwts += row.version.row_version
        if value.status is not Status.SEALED:
            return
        self.visible += sum(part.runs.count for part in visible(value, self._now_us))
        for lease in value.leases:
            if not is_expired(lease, self._now_us):
                self.consumers[lease.owner] += lease.runs.count
        self.delayed += later(value, self._now_us)
        self.dead += sum(part.runs.count for part in value.dead)


async def _put_us(lane: Lane, bucket: BucketNo, runs: Runs) -> int | None:
    """Return the time when the first of these messages was put."""
    first = Runs.span(runs.first, runs.first)
    async for _, chunks in lane.messages.read([(bucket, first)]):
        for chunk in chunks:
            if chunk.first <= runs.first <= chunk.last:
                return chunk.enqueued_us
    return None


def is_due(chunk: ChunkRow, now_us: int) -> bool:
    """Whether the chunk's messages may be delivered by now."""
    return chunk.due_us is None or chunk.due_us <= now_us


async def live_rows(
    lane: Lane,
    spans: Iterable[range] | None = None,
    *,
    scans: bool = True,
    away: dict[BucketNo, CassieqError] | None = None,
    sinks: Sinks | None = None,
) -> AsyncIterator[tuple[BucketNo, Stored[Bucket] | None, list[ChunkRow]]]:
    """Yield a lane's live buckets, ascending, with the messages of unsealed ones.

    A row below the repair pointer, as read after the row, is a ghost and left out (G5, ADR 11).

    Args:
        spans: Only these buckets, ascending.
        scans: Whether to read the messages of unsealed buckets; otherwise none are yielded.
        away: Receives the errors of buckets that do not answer, by bucket. None: one error is
            raised after the other buckets of its window [T5].
        sinks: The sinks that a look at several lanes has read so far: a batch is in all of them or
            in none (I7).

    Raises:
        StoreError: Some buckets did not answer; the error names the first.
    """
    missed: dict[BucketNo, CassieqError] = {} if away is None else away
    live = await live_buckets(lane)
    sinks = sinks or Sinks(lane)
    for span in [live] if spans is None else spans:
        first, end = max(live.start, span.start), min(live.stop, span.stop)
        for window in windows(range(first, end), _WINDOW):
            rows = await read_rows(lane, window, missed)
            low = (await lane.read_pointers()).repair
            for bucket in [at for at in missed if at < low]:
                del missed[bucket]  # dropped: nothing is missed
            for bucket in [at for at in window if at >= low and at in rows]:
                row = rows[bucket]
                found: tuple[Stored[Bucket] | None, list[ChunkRow]] | None = row, []
                try:
                    if row is not None and row.value.status is Status.PREPARED:
                        found = await _as_decided(lane, bucket, row, sinks), []
                    elif scans and is_unsealed(row):
                        found = await _look_into(lane, bucket)
                except StoreError as error:
                    missed[bucket] = named(error, lane, bucket)
                    found = None
                if found is not None:
                    yield bucket, *found
            if missed and away is None:
                raise first_of(missed)


class Sinks:
    """Reads each sink's row once, and does not wait twice for one that does not answer [T5]."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._known: dict[str, SinkRow | StoreError | None] = {}

    async def read(self, sink_id: str) -> SinkRow | None:
        """Return the row as it was at the first read; None if there is none.

        Raises:
            StoreError: The first read failed.
        """
        if sink_id not in self._known:
            try:
                stored = await self._lane.store.sinks.read(sink_id)
            except StoreError as error:
                self._known[sink_id] = error
            else:
                self._known[sink_id] = None if stored is None else stored.value
        known = self._known[sink_id]
        if isinstance(known, StoreError):
            raise copy(known)
        return known


async def _as_decided(
    lane: Lane, bucket: BucketNo, row: Stored[Bucket], sinks: Sinks
) -> Stored[Bucket]:
    """Return a committed bucket as it will be after the roll-forward, as a get would do.

    Otherwise a look would see only a part of a batch whose driver died after its commit (I7). A
    sink's row is read once, after the first of its buckets: a sink row that is older than a
    bucket's can only miss a commit, never invent one.
    """
    sink = row.value.sink
    if sink is None:
        return row
    try:
        found = await sinks.read(sink.sink_id)
    except RowCorrupt as error:
        # A get does not deliver from it either, and goes on [T21].
        told = str(error)
        event(_logger, "settling_failed", queue=lane.queue, sink=sink.sink_id, error=told)
        return row
    if fate(found, place=lane.place(bucket), epoch=sink.epoch) is not Fate.SEAL:
        return row
    return replace(row, value=rules.published(row.value, now_us=row.value.changed_us))


async def _look_into(
    lane: Lane, bucket: BucketNo
) -> tuple[Stored[Bucket] | None, list[ChunkRow]] | None:
    """Read the row and messages of a bucket that was unsealed a moment ago; None if it was dropped.

    The row is read after the messages: a transaction may have begun to write here meanwhile, and
    none of it may be seen before its commit (I7). The repair pointer is read after the row (G5).
    """
    waiting = await lane.messages.scan(bucket)
    now = await lane.buckets.read(bucket)
    if await lane.is_dropped(bucket):
        return None
    return now, alive(lane, waiting) if is_unsealed(now) else []


WINDOW: Final = 64
"""The number of bucket rows that are read together."""


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


def is_unsealed(row: Stored[Bucket] | None) -> bool:
    """Whether a bucket is open, or about to be sealed."""
    return row is None or row.value.status is Status.SEALING


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
    counting = [(one, not_due_in) for one in begun]
    counting += [(one, count_scheduled) for one in later]
    found = await lane.store.session.map(lambda pair: pair[1](pair[0]), counting)
    for (one, _), messages in zip(counting, found, strict=True):
        if messages and (due := one.due) is not None:
            hour = due.begins_us(period_us) // HOUR_US * HOUR_US
            counts[hour, -due.priority] += messages
    return [
        ScheduledHour(due_from=time_of(hour), priority=-priority, messages=counts[hour, priority])
        for hour, priority in sorted(counts)
    ]
