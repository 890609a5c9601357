"""Run a bulk bucket's two CASes, and open many buckets at once. Holds I7.

Two writers share this: a task that opens its buckets one by one (`queue.sink.writer`), and a driver
that opens all buckets of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cassieq_spark import metrics
from cassieq_spark.errors import SinkFenced
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Bucket, SinkRef, Status
from cassieq_spark.model.expiry import Life
from cassieq_spark.model.ids import BucketNo, Place, Runs
from cassieq_spark.queue.reserve import reserve
from cassieq_spark.store.cas import Applied, Stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.queue.lane import Lane

LARGEST_BLOCK = 64
"""The maximum number of buckets that are reserved at once, in all lanes together. All of them have
their rows long before the gap timeout. After it, a reader would take those without a row for gaps
[R11]."""

_logger = get_logger("queue")


@dataclass(slots=True, kw_only=True)
class OpenBucket:
    """A bucket that is being filled.

    Attributes:
        row: The row as this writer's CAS to ``writing`` left it.
        due_us: Due times by offset, only for delayed messages.
    """

    bucket: BucketNo
    row: Stored[Bucket]
    sink: SinkRef
    count: int = 0
    size_bytes: int = 0
    due_us: dict[int, int] = field(default_factory=dict)


async def insert_writing(lane: Lane, bucket: BucketNo, sink: SinkRef) -> Stored[Bucket] | None:
    """CAS from no row to ``writing``; return None if another client closed the bucket before [R11].

    The result means nothing until the repair pointer was read after it (G5) [P5].
    """
    outcome = await lane.buckets.insert(bucket, rules.writing(sink, now_us=lane.clock.now_us()))
    is_ours = isinstance(outcome, Applied) and outcome.now.value.status is Status.WRITING
    return outcome.now if is_ours else None


async def open_buckets(
    wanted: Sequence[tuple[Lane, int]], *, sink_id: str, epoch: int
) -> list[list[OpenBucket]]:
    """Open new buckets in lanes of a queue, all lanes side by side.

    It costs one LWT for each block, of up to 64 buckets in all lanes together, and one for each
    bucket.

    Args:
        wanted: Lanes, each with the number of buckets to open in it.

    Returns:
        For each lane its buckets, ascending, each with its ``writing`` row.

    Raises:
        QueueDeleted: The queue does not exist any more.
    """
    opened: dict[LaneId, list[OpenBucket]] = {lane.lane_id: [] for lane, _ in wanted}
    while True:
        todo = {lane: number - len(opened[lane.lane_id]) for lane, number in wanted}
        todo = {lane: number for lane, number in todo.items() if number > 0}
        if not todo:
            return [opened[lane.lane_id] for lane, _ in wanted]
        async for lane, bucket in _open_blocks(todo, sink_id=sink_id, epoch=epoch):
            opened[lane.lane_id].append(bucket)


async def _open_blocks(
    todo: Mapping[Lane, int], *, sink_id: str, epoch: int
) -> AsyncIterator[tuple[Lane, OpenBucket]]:
    """Open a block in each lane. Some of its buckets may be lost."""
    lanes = list(todo)[:LARGEST_BLOCK]
    session = lanes[0].store.session
    most = LARGEST_BLOCK // len(lanes)
    blocks = await session.map(lambda lane: reserve(lane, min(todo[lane], most)), lanes)
    places = [
        (lane, BucketNo(bucket), SinkRef(sink_id=sink_id, epoch=epoch, block_end=block.end))
        for lane, block in zip(lanes, blocks, strict=True)
        for bucket in range(block.first, block.end)
    ]
    rows = await session.map(lambda place: insert_writing(*place), places)
    # Read each lane once, after the last row (G5): buckets below L are closed and dropped [P5].
    pointers = await session.map(lambda lane: lane.read_pointers(), lanes)
    dropped_below = {lane: one.repair for lane, one in zip(lanes, pointers, strict=True)}
    for (lane, bucket, sink), row in zip(places, rows, strict=True):
        if row is None or bucket < dropped_below[lane]:
            event(_logger, "reserved_bucket_lost", **lane.as_fields(bucket))
        else:
            yield lane, OpenBucket(bucket=bucket, row=row, sink=sink)


async def prepare(lane: Lane, filled: OpenBucket) -> tuple[Place, int]:
    """CAS ``writing`` to ``prepared`` with the manifest, once all chunks are stored.

    Returns:
        (its place, messages in it).

    Raises:
        IllegalMove: It holds more messages than a bucket has ids; nothing was changed.
        SinkFenced: Another client closed it while it was written: the transaction was aborted.
        QueueDeleted: It is gone, with its queue.
    """
    if filled.count > lane.bucket_size:
        # The surplus would have ids of the next bucket: two messages with one id (I6) [T1].
        raise rules.IllegalMove(
            f"{lane.bucket_title(filled.bucket)} has {lane.bucket_size} ids, but "
            f"{filled.count} messages were written into it"
        )
    now_us = lane.clock.now_us()
    outcome = await lane.buckets.fill(
        filled.bucket,
        filled.row,
        rules.prepared(
            filled.row.value,
            manifest=Runs.span(0, filled.count - 1),
            due_us=filled.due_us,
            size_bytes=filled.size_bytes,
            now_us=now_us,
            life=Life(put_us=now_us, retention_us=lane.retention_us),
        ),
    )
    if not isinstance(outcome, Applied):
        await lane.read_pointers()  # raises if the queue was deleted [R25]
        sink_id = filled.sink.sink_id
        raise SinkFenced(
            f"{lane.bucket_title(filled.bucket)} was closed while it was written: "
            f"the transaction of sink {sink_id!r} was aborted. Nothing of it is visible",
            sink_id=sink_id,
        )
    metrics.MESSAGES_PREPARED.inc(lane.queue, filled.count)
    return lane.place(filled.bucket), filled.count
