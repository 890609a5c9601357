"""Look at the buckets and leases of a queue's lanes, for a picture; of long lanes, at a part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cassieq_spark.model.bucket import Status
from cassieq_spark.queue.inspect.facts import BucketFacts, LeaseFacts, bucket_facts, lease_facts
from cassieq_spark.queue.inspect.stats import QueueStats, Sinks, live_rows, stats
from cassieq_spark.queue.lane import live_buckets
from cassieq_spark.queue.schedule import as_read, begun_and_later

if TYPE_CHECKING:
    from cassieq_spark.errors import CassieqError
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.model.pointer import Pointers
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored
    from cassieq_spark.store.tables.messages import ChunkRow


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLook:
    """The facts of one lane.

    Attributes:
        shard: None for a lane of scheduled messages.
        due_us: The begin of the period of a lane of scheduled messages; None for others.
        reader: The bucket that R names: no bucket below it has a fresh message.
        repair: The bucket that L names: every bucket below it is dropped.
        live: The number of buckets from L on.
        buckets: The buckets that were looked at, ascending.
        away: Those of them that did not answer.
    """

    lane: str
    priority: int
    shard: int | None
    due_us: int | None
    reader: int
    repair: int
    live: int
    buckets: tuple[BucketFacts, ...]
    leases: tuple[LeaseFacts, ...]
    away: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLook:
    """The lanes that were looked at, highest priority first, and scheduled messages last.

    Attributes:
        stats: The counts of the whole queue, from the same reads.
        left_out: The number of lanes that were not looked at.
        now_us: The time of the look.
    """

    stats: QueueStats
    lanes: tuple[LaneLook, ...]
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
    lookings = {one.lane_id: await _Looking.of(one, most_buckets) for one in lanes[:most_lanes]}
    apart = [found for one in later if (found := lookings.get(one.lane_id)) is not None]
    counted = {key: one for key, one in lookings.items() if one not in apart}

    def seen(
        one: Lane, bucket: BucketNo, row: Stored[Bucket] | None, waiting: list[ChunkRow]
    ) -> None:
        if (found := counted.get(one.lane_id)) is not None:
            found.add(bucket, row, waiting)

    total = await stats(lane, seen=seen)
    sinks = Sinks(lane)
    for one in apart:
        await one.read(sinks)
    return QueueLook(
        stats=total,
        lanes=tuple(one.look() for one in lookings.values()),
        left_out=max(0, len(lanes) - most_lanes),
        now_us=lane.clock.now_us(),
    )


class _Looking:
    """The facts of one lane that are collected while its buckets are read."""

    def __init__(self, lane: Lane, live: range, pointers: Pointers, most: int) -> None:
        self._lane = lane
        self._live = live
        self._pointers = pointers
        self._now_us = lane.clock.now_us()
        self._spans = spans_of(self._live, self._pointers.reader, most)
        self._away: dict[BucketNo, CassieqError] = {}
        self._buckets: list[BucketFacts] = []
        self._leases: list[LeaseFacts] = []

    @classmethod
    async def of(cls, lane: Lane, most: int) -> Self:
        """Begin with a lane."""
        return cls(lane, await live_buckets(lane), await lane.read_pointers(), most)

    def add(self, bucket: BucketNo, row: Stored[Bucket] | None, waiting: list[ChunkRow]) -> None:
        """Keep the facts of a bucket, if the picture shows it."""
        if not any(bucket in span for span in self._spans):
            return
        lane, now_us = self._lane, self._now_us
        self._buckets.append(bucket_facts(lane, bucket, row, waiting, now_us=now_us))
        if row is not None and row.value.status is Status.SEALED:
            self._leases += lease_facts(lane, bucket, row.value, now_us=now_us)

    async def read(self, sinks: Sinks) -> None:
        """Read the buckets that the picture shows."""
        async for one in live_rows(self._lane, self._spans, away=self._away, sinks=sinks):
            self.add(*one)

    def look(self) -> LaneLook:
        """Return the collected facts."""
        lane, due = self._lane, self._lane.due
        return LaneLook(
            lane=str(lane.lane_id),
            priority=lane.priority,
            shard=None if due is not None else lane.fixed.class_and_shard(lane.lane_id)[1],
            due_us=None if due is None else due.begins_us(lane.settings.period_us),
            reader=self._pointers.reader,
            repair=self._pointers.repair,
            live=len(self._live),
            buckets=tuple(self._buckets),
            leases=tuple(self._leases),
            away=tuple(sorted(self._away)),
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
