"""Cancel a message that no consumer was given yet.

Holds I2: no message is both delivered and cancelled [U14].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark import metrics
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.rows.intents import Cancel
from cassieq_spark.queue import seal

if TYPE_CHECKING:
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored


async def cancel(lane: Lane, message_id: UUID) -> bool:
    """Take a message back. Return whether it is cancelled, by this call or an earlier one.

    Args:
        lane: Any lane of the queue.

    Raises:
        QueueDeleted: The queue is gone.
        CasAmbiguous, CasContention, StoreTimeout, StoreUnavailable: It is safe to cancel again.
    """
    place = lane.fixed.of_message(message_id)
    if place is None:
        return False
    lane_id, number = place
    its_lane = lane.sibling(lane_id)
    bucket, offset = divmod(number, lane.bucket_size)
    is_cancelled = await _cancel(its_lane, BucketNo(bucket), Runs.span(offset, offset))
    # Read L after the CAS: a row below L is a ghost, and its message was settled long ago (G5). Of
    # a finished due lane, every message was settled.
    if (await its_lane.pointers.read()).repair > bucket:
        await lane.first.read_pointers()  # raises if the queue is gone
        return False
    return is_cancelled


async def _cancel(lane: Lane, bucket: BucketNo, one: Runs) -> bool:
    row = await lane.buckets.read(bucket)
    if row is None or row.value.status is Status.SEALING:
        row = await _sealed(lane, bucket, one, row)
    if row is None:
        return False
    answer = await lane.apply(bucket, Cancel(runs=one), known=row)
    if answer.changed is not answer.before:
        metrics.MESSAGES_CANCELLED.inc(lane.queue)
    return answer.result is True


async def _sealed(
    lane: Lane, bucket: BucketNo, one: Runs, row: Stored[Bucket] | None
) -> Stored[Bucket] | None:
    """Return the row of a bucket whose content is fixed; None if the message was never in it."""
    if row is not None:
        closed = await seal.finish(lane, bucket, row)
    # An open bucket is not sealed for a message that it does not hold.
    elif await lane.messages.has(bucket, one.first):
        closed = await seal.close(lane, bucket)
    else:
        return None
    return None if closed is None else closed.row
