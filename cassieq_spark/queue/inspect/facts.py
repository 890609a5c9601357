"""Turn a queue's rows into plain facts, for the views of `spark.read` and for a picture.

`bucket_facts` and `lease_facts` are pure. `look` takes facts of all lanes; of long lanes, of a
part. Ids are those that users see; times are cluster microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from cassieq_spark.errors import CassieqError
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.ids import BucketNo, first_id
from cassieq_spark.model.lease import is_expired, later, visible
from cassieq_spark.model.pointer import Pointers
from cassieq_spark.queue.inspect.stats import QueueStats, Sinks, live_rows, stats
from cassieq_spark.queue.lane import Lane, live_buckets
from cassieq_spark.queue.schedule import as_read, begun_and_later
from cassieq_spark.store.cas import Stored
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.messages import ChunkRow
from cassieq_spark.store.tables.queues import QueueRow, QueueStatus

OPEN = "open"
"""The status of a bucket without a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFacts:
    """The facts of one live bucket.

    Attributes:
        lane, priority: Its lane, and the lane's priority.
        first_id, last_id: The first and last id that it has room for.
        messages: All messages that it ever held; for an unsealed bucket, the messages in it by now.
            The next six are disjoint, and add up to this.
        fresh: Never delivered, and due. A get finds them, unless the status is ``prepared``.
        returned: Delivered before, and not held by any consumer now.
        leased: Under a lease that has not run out.
        delayed: Not due yet.
        dead: Waiting for repair to move them to the dead-letter queue, or to a redrive's target.
        acked: Done: acked, moved to another queue, or purged.
        updated: Unacked messages that have another body than the one that was put.
        leases: Entries of the row, including those that ran out.
        consumers: Messages under a lease, by the consumer that holds them.
        stored_bytes: Size of the messages; 0 if it was not counted.
        changed_us: Time of the CAS that wrote the row.
        row_version: The number of CAS that have written this row.
    """

    lane: str
    priority: int
    bucket: BucketNo
    status: str
    first_id: int
    last_id: int
    messages: int = 0
    fresh: int = 0
    returned: int = 0
    leased: int = 0
    delayed: int = 0
    dead: int = 0
    acked: int = 0
    updated: int = 0
    leases: int = 0
    consumers: Mapping[str, int] = field(default_factory=dict)
    stored_bytes: int = 0
    changed_us: int | None = None
    sink_id: str | None = None
    epoch: int | None = None
    block_end: int | None = None
    row_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFacts:
    """The facts of one lease. A lease of which a part was extended has several entries.

    Attributes:
        run: The Spark run that holds it.
        until_us: The time when it runs out.
        is_expired: Whether it has run out, so that any consumer may claim its messages, and none
            has.
        id_runs: (first, last) id of each run of its unacked messages.
    """

    lane: str
    priority: int
    bucket: BucketNo
    consumer: str
    lease_id: str
    run: str | None
    messages: int
    delivery_count: int
    until_us: int
    is_expired: bool
    id_runs: tuple[tuple[int, int], ...]

    @property
    def first_id(self) -> int:
        """The lowest id in the lease."""
        return self.id_runs[0][0]

    @property
    def last_id(self) -> int:
        """The highest id in the lease."""
        return self.id_runs[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The facts of one queue.

    Attributes:
        next_id: The first id that is not reserved. It and the pointers are None in these cases: the
            queue is being deleted; its home is another data centre, as they are known only there;
            or it has several lanes (see `LaneFacts`).
    """

    row: QueueRow
    next_id: int | None = None
    pointers: Pointers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFacts:
    """The facts of one lane of a queue.

    Attributes:
        shard: None for a lane of scheduled messages.
        due_us: The begin of the period of a lane of scheduled messages; None for others.
        next_id: The first id in it that is not reserved.
        visible: Messages that a get would deliver now.
    """

    lane: str
    priority: int
    shard: int | None
    due_us: int | None
    next_id: int
    pointers: Pointers
    visible: int


async def lane_facts(lane: Lane, visible: int) -> LaneFacts:
    """Return the facts of a lane, with two reads.

    Raises:
        QueueDeleted: The queue is gone.
    """
    due = lane.due
    return LaneFacts(
        lane=str(lane.lane_id),
        priority=lane.priority,
        shard=lane.fixed.class_and_shard(lane.lane_id)[1] if due is None else None,
        due_us=None if due is None else due.begins_us(lane.settings.period_us),
        next_id=(await lane.read_monoton()).next_id,
        pointers=await lane.read_pointers(),
        visible=visible,
    )


def bucket_facts(
    lane: Lane,
    bucket: BucketNo,
    row: Stored[Bucket] | None,
    waiting: Sequence[ChunkRow],
    *,
    now_us: int,
) -> BucketFacts:
    """Return the facts of one bucket's row, or of its messages if it is not sealed."""
    base = first_id(bucket, lane.bucket_size)
    last = base + lane.bucket_size - 1
    if row is None or row.value.status is Status.SEALING:
        due = sum(chunk.count for chunk in waiting if (chunk.due_us or 0) <= now_us)
        count = sum(chunk.count for chunk in waiting)
        return BucketFacts(
            lane=str(lane.lane_id),
            priority=lane.priority,
            bucket=bucket,
            status=OPEN if row is None else row.value.status.value,
            first_id=base,
            last_id=last,
            messages=count,
            fresh=due,
            delayed=count - due,
            stored_bytes=sum(len(chunk.payload) for chunk in waiting),
            changed_us=None if row is None else row.value.changed_us,
            row_version=None if row is None else row.version.row_version,
        )
    value = row.value
    consumers: Counter[str] = Counter()
    for lease in value.leases:
        if not is_expired(lease, now_us):
            consumers[lease.owner] += lease.runs.count
    free = visible(value, now_us)
    return BucketFacts(
        lane=str(lane.lane_id),
        priority=lane.priority,
        bucket=bucket,
        status=value.status.value,
        first_id=base,
        last_id=last,
        messages=value.manifest.count,
        fresh=sum(part.runs.count for part in free if not part.deliveries),
        returned=sum(part.runs.count for part in free if part.deliveries),
        leased=sum(consumers.values()),
        delayed=later(value, now_us),
        dead=sum(part.runs.count for part in value.dead),
        acked=value.manifest.count - value.unacked.count,
        updated=len(value.revisions),
        leases=len(value.leases),
        consumers=dict(consumers),
        stored_bytes=value.size_bytes,
        changed_us=value.changed_us,
        sink_id=None if value.sink is None else value.sink.sink_id,
        epoch=None if value.sink is None else value.sink.epoch,
        block_end=None if value.sink is None else value.sink.block_end,
        row_version=row.version.row_version,
    )


def lease_facts(lane: Lane, bucket: BucketNo, row: Bucket, *, now_us: int) -> Iterator[LeaseFacts]:
    """Yield the leases of one bucket, in the order of its row."""
    base = first_id(bucket, lane.bucket_size)
    for lease in row.leases:
        yield LeaseFacts(
            lane=str(lane.lane_id),
            priority=lane.priority,
            bucket=bucket,
            consumer=lease.owner,
            lease_id=str(lease.lease_id),
            run=None if lease.run is None else str(lease.run),
            messages=lease.runs.count,
            delivery_count=lease.delivery_count,
            until_us=lease.until_us,
            is_expired=is_expired(lease, now_us),
            id_runs=tuple((base + first, base + last) for first, last in lease.runs.pairs),
        )


async def queue_facts(store: Store, row: QueueRow) -> QueueFacts:
    """Return a queue's row with its lane's next id and pointers, with two reads."""
    is_known = row.status is QueueStatus.ACTIVE and row.home_datacenter == store.session.datacenter
    if not is_known or len(row.lanes) > 1:
        return QueueFacts(row=row)
    monoton = await store.lane(row.lanes[0]).monotons.read()
    pointers = await store.lane(row.lanes[0]).pointers.read()
    if monoton is None or pointers.is_deleted:
        return QueueFacts(row=row)
    return QueueFacts(row=row, next_id=monoton.value.next_id, pointers=pointers)


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
