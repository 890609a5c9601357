"""Read a queue's rows without changing it: as plain facts, and as the messages that are visible.

`bucket_facts` and `lease_facts` are pure, for `stats` and the views of `spark.read`; `live_rows`
reads what they describe. `peek`, `browse` and `page` show messages, which stay visible. Ids are
those that users see; times are cluster microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from cassieq_spark.errors import CassieqError, OptionInvalid, RowCorrupt, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Bucket, Returned, Status
from cassieq_spark.model.ids import (
    ID_LIMIT,
    BucketNo,
    LaneId,
    Place,
    Runs,
    bucket_of,
    first_id,
    union,
)
from cassieq_spark.model.lease import is_expired, later, visible
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.pointer import Pointers
from cassieq_spark.model.sink_txn import Fate, SinkRow, fate
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.lane import Lane, first_of, live_buckets, named, read_rows, windows
from cassieq_spark.queue.message import Message, read_messages
from cassieq_spark.queue.schedule import looked_at_lanes
from cassieq_spark.queue.seal import alive
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.messages import ChunkRow
from cassieq_spark.store.tables.queues import QueueRow, QueueStatus

OPEN = "open"
"""The status of a bucket without a row."""

WINDOW: Final = 64
"""The number of bucket rows that are read together."""

_logger = get_logger("queue")


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


@dataclass(slots=True, kw_only=True)
class LaneName:
    """The names of a lane of a queue.

    Attributes:
        shard: None for a lane of scheduled messages.
        due_us: The begin of the period of a lane of scheduled messages; None for others.
    """

    lane: str
    priority: int
    shard: int | None
    due_us: int | None


def names_of(lane: Lane) -> dict[str, Any]:
    """Return the fields of `LaneName`."""
    due = lane.due
    return {
        "lane": str(lane.lane_id),
        "priority": lane.priority,
        "shard": lane.shard,
        "due_us": None if due is None else due.begins_us(lane.settings.period_us),
    }


@dataclass(slots=True, kw_only=True)
class LaneFacts(LaneName):
    """The facts of one lane of a queue.

    Attributes:
        next_id: The first id in it that is not reserved.
        visible: Messages that a get would deliver now.
    """

    next_id: int
    pointers: Pointers
    visible: int


async def lane_facts(lane: Lane, visible: int) -> LaneFacts:
    """Return the facts of a lane, with two reads.

    Raises:
        QueueDeleted: The queue is gone.
    """
    next_id = (await lane.read_monoton()).next_id
    pointers = await lane.read_pointers()
    return LaneFacts(**names_of(lane), next_id=next_id, pointers=pointers, visible=visible)


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
    facts = partial(
        BucketFacts,
        lane=str(lane.lane_id),
        priority=lane.priority,
        bucket=bucket,
        status=OPEN if row is None else row.value.status.value,
        first_id=base,
        last_id=base + lane.bucket_size - 1,
        changed_us=None if row is None else row.value.changed_us,
        row_version=None if row is None else row.version.row_version,
    )
    if row is None or is_unsealed(row):
        due = sum(chunk.count for chunk in waiting if is_due(chunk, now_us))
        count = sum(chunk.count for chunk in waiting)
        size_bytes = sum(len(chunk.payload) for chunk in waiting)
        return facts(messages=count, fresh=due, delayed=count - due, stored_bytes=size_bytes)
    value = row.value
    consumers: Counter[str] = Counter()
    for lease in value.leases:
        if not is_expired(lease, now_us):
            consumers[lease.owner] += lease.runs.count
    free = visible(value, now_us)
    return facts(
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
        sink_id=None if value.sink is None else value.sink.sink_id,
        epoch=None if value.sink is None else value.sink.epoch,
        block_end=None if value.sink is None else value.sink.block_end,
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


def is_unsealed(row: Stored[Bucket] | None) -> bool:
    """Whether a bucket is open, or about to be sealed."""
    return row is None or row.value.status is Status.SEALING


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
        for window in windows(range(first, end), WINDOW):
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


async def peek(lane: Lane, at_most: int) -> list[Message]:
    """Return up to ``at_most`` visible messages, highest priority first.

    Raises:
        StoreError: Some buckets did not answer, and the others have no visible message.
    """
    plan: list[Planned] = []
    left = at_most
    away: dict[Place, CassieqError] = {}
    async for planned in plan_visible(lane, away=away):
        taken, _ = planned.runs.take(left)
        plan.append(replace(planned, runs=taken))
        left -= taken.count
        if left <= 0:
            break
    if away and not plan:
        raise first_of(away)
    return [one async for one in read_messages(lane, plan)]


async def browse(lane: Lane) -> AsyncIterator[Message]:
    """Yield all visible messages by lane, bucket and id, planned when the first is asked for.

    Raises:
        StoreError: Some buckets did not answer; raised after the messages of all others.
    """
    away: dict[Place, CassieqError] = {}
    plan = [planned async for planned in plan_visible(lane, away=away)]
    async for message in read_messages(lane, plan):
        yield message
    if away:
        raise first_of(away)


async def plan_visible(
    lane: Lane,
    spans: Iterable[range] | None = None,
    *,
    away: dict[Place, CassieqError] | None = None,
) -> AsyncIterator[Planned]:
    """Plan all that a get could deliver: by lane, highest priority first, bucket, deliveries.

    Args:
        spans: Only these buckets of each lane.
        away: See `live_rows`.
    """
    async for together in _visible(lane, spans, away=away):
        for planned in together:
            yield planned


async def _visible(
    lane: Lane,
    spans: Iterable[range] | None = None,
    *,
    after: Spot | None = None,
    away: dict[Place, CassieqError] | None = None,
) -> AsyncIterator[list[Planned]]:
    """Plan as `plan_visible` does, bucket by bucket, from the bucket of ``after`` on."""
    sinks = Sinks(lane)
    for one in await looked_at_lanes(lane):
        its_spans = spans
        if after is not None:
            if one.fixed.rank(one.lane_id) < one.fixed.rank(after.lane):
                continue
            if one.lane_id == after.lane:
                its_spans = [range(bucket_of(after.id, one.bucket_size), ID_LIMIT)]
        now_us = one.clock.now_us()
        missed: dict[BucketNo, CassieqError] | None = None if away is None else {}
        async for bucket, stored, waiting in live_rows(one, its_spans, away=missed, sinks=sinks):
            row = None if stored is None else stored.value
            due = runs_of(chunk for chunk in waiting if is_due(chunk, now_us))
            parts = [Returned(deliveries=0, runs=due)]
            if row is not None and row.status is Status.SEALED:
                parts = visible(row, now_us)
            if together := looks_at(one, bucket, row, parts):
                yield together
        if away is not None:
            away |= {one.place(bucket): error for bucket, error in (missed or {}).items()}


def looks_at(
    lane: Lane, bucket: BucketNo, row: Bucket | None, parts: Iterable[Returned]
) -> list[Planned]:
    """Plan to read messages of one bucket without a lease: those that are gone are skipped."""
    return [
        Planned(
            lane=lane.lane_id,
            bucket=bucket,
            runs=part.runs,
            delivery_count=part.deliveries,
            lease_id=None,
            revisions=() if row is None else row.revisions_of(part.runs),
            is_look=True,
        )
        for part in parts
        if part.runs
    ]


def runs_of(chunks: Iterable[ChunkRow]) -> Runs:
    """Return the offsets of the messages of some stored rows."""
    return Runs.of(*((chunk.first, chunk.last) for chunk in chunks))


class Spot(NamedTuple):
    """A message's place in the order of the pages."""

    lane: LaneId
    id: int


async def page(lane: Lane, at_most: int, *, after: Spot | None = None) -> list[Message]:
    """Return the first ``at_most`` visible messages, or those after a spot.

    No bucket row before the spot is read. Messages that are claimed meanwhile are not shown.
    Messages that come back before the spot are not shown again.

    Raises:
        OptionInvalid: The spot is in no lane of this queue.
        QueueDeleted: The queue is gone.
        StoreError: Some buckets did not answer; nothing is shown of the others.
    """
    if after is not None and not lane.fixed.has(after.lane):
        raise OptionInvalid(
            f"lane {after.lane} is not of queue {lane.queue!r}. Begin at the first page"
        )
    plan: list[Planned] = []
    left = at_most
    async for together in _visible(lane, after=after):
        wanted = union(one.runs for one in together)
        taken, _ = (wanted - _shown(lane, together[0], after)).take(left)
        plan += [replace(one, runs=one.runs & taken) for one in together if one.runs & taken]
        left -= taken.count
        if left <= 0:
            break
    order = {one.lane: at for at, one in enumerate(plan)}
    found = [one async for one in read_messages(lane, plan)]
    return sorted(found, key=lambda one: (order[one.lane], one.id))


def _shown(lane: Lane, one: Planned, after: Spot | None) -> Runs:
    """Return the offsets of a bucket that earlier pages have shown."""
    if after is None or one.lane != after.lane:
        return Runs.of()
    base = first_id(one.bucket, lane.bucket_size)
    return Runs.span(0, after.id - base) if after.id >= base else Runs.of()
