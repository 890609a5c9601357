"""Complete the deletion of a queue, from wherever it stopped. See docs/design/repair.md.

L = 2^62  ->  no monoton row  ->  no data  ->  no schedule  ->  no queue row
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from cassieq_spark import metrics
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ending import Close, Drop, Over, Raise, next_step
from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.model.lanes import DueLane, first_period, periods_end
from cassieq_spark.model.pointer import DELETED, Pointer
from cassieq_spark.queue.find import check_home
from cassieq_spark.store.cas import Stored
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.queues import QueueRow

WINDOW: Final = 256
"""The number of buckets that are dropped together."""

_logger = get_logger("queue")


async def finish_deletion(store: Store, found: Stored[QueueRow]) -> None:
    """Complete a deletion, from wherever it stopped.

    The repair pointer comes first. From then on every put, get and commit fails its check against
    it, so no message is acknowledged that the drop after it would take away [P13] [R25].
    """
    row = found.value
    check_home(store, row)
    # The first lane dies first: it stands for the queue. Then all others, before data is removed.
    for lane in row.lanes:
        await _raise(store, lane)
    # A client that creates a due lane reads L of the first lane afterwards, and undoes its
    # creation.
    scheduled = await _scheduled(store, row)
    due = [one.lane_id(row.lanes[0]) for one in scheduled]
    await store.session.map(lambda lane: _raise(store, lane), due)
    lanes = [*row.lanes, *due]
    await store.session.map(lambda lane: end_lane(store, lane, row.settings.bucket_size), lanes)
    period_us = row.settings.period_us
    await store.session.map(
        lambda one: store.schedules.remove(row.lanes[0], one, period_us=period_us), scheduled
    )
    await store.queues.delete(found)
    metrics.forget_queue(row.name)
    event(_logger, "queue_deleted", queue=row.name)


async def _scheduled(store: Store, row: QueueRow) -> list[DueLane]:
    period_us = row.settings.period_us
    register = (await store.lane(row.lanes[0]).pointers.read()).schedule
    first = first_period(register, created_us=row.created_us, period_us=period_us)
    end = periods_end(store.clock.now_us(), period_us)
    return await store.schedules.read(row.lanes[0], first, end, period_us=period_us)


async def _raise(store: Store, lane: LaneId) -> None:
    """Take the first step of a lane's end, if it was not taken."""
    step = next_step(None, await store.lane(lane).pointers.read(), at_most=1)
    if isinstance(step, Raise):
        await _take(store, lane, step)


async def _take(store: Store, lane: LaneId, step: Raise) -> None:
    await _note(store, lane, Pointer.DROPPED, step.dropped)
    await store.lane(lane).pointers.advance(Pointer.REPAIR, DELETED)


async def end_lane(store: Store, lane: LaneId, bucket_size: int) -> None:
    """Take all steps of `model.ending` that are left."""
    while True:
        # Read it before the pointers: if it is gone, they say how far the data goes.
        monoton = await store.lane(lane).monotons.find()
        ids_end = None
        if monoton is not None:
            ids_end = BucketNo(max(0, -(-monoton.value.next_id // bucket_size)))
        match next_step(ids_end, await store.lane(lane).pointers.read(), at_most=WINDOW):
            case Raise() as step:
                await _take(store, lane, step)
            case Close(end=end):
                await _note(store, lane, Pointer.END, end)
                if monoton is not None:
                    await store.lane(lane).monotons.delete(monoton)
            case Drop(first=first, end=end):
                await drop_dead(store, lane, [BucketNo(at) for at in range(first, end)])
                await _note(store, lane, Pointer.DROPPED, end)
            case Over():
                return
            case other:
                assert_never(other)


async def _note(store: Store, lane: LaneId, pointer: Pointer, value: int) -> None:
    """Write a pointer, answered at quorum before what it records is destroyed (G4).

    Absent means 0.
    """
    if value:
        await store.lane(lane).pointers.advance(pointer, value)


async def drop_dead(store: Store, lane: LaneId, buckets: Iterable[BucketNo]) -> None:
    """Remove messages, overlays and rows of a dead lane's buckets."""

    async def one(bucket: BucketNo) -> None:
        await store.lane(lane).messages.drop(bucket)
        await store.lane(lane).overlays.drop(bucket)
        await store.lane(lane).buckets.delete(bucket)

    await store.session.map(one, buckets)
