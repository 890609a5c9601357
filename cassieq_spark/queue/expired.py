"""Find the expired messages of an unsealed bucket, and count expired messages."""

from __future__ import annotations

from collections.abc import Sequence

from cassieq_spark import metrics
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.expiry import kept_until
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.queue.lane import Lane
from cassieq_spark.store.tables.messages import ChunkRow

_logger = get_logger("queue")


def alive(lane: Lane, waiting: Sequence[ChunkRow]) -> list[ChunkRow]:
    """Leave out the messages of an unsealed bucket that a seal by now would find expired.

    Args:
        waiting: All messages of the bucket: retention counts from the latest.
    """
    if not waiting:
        return []
    now_us = lane.clock.now_us()
    put_us = max(chunk.enqueued_us for chunk in waiting)
    due_us = [chunk.due_us for chunk in waiting if chunk.due_us is not None]
    until_us = kept_until(put_us, due_us, lane.retention_us)
    if until_us is not None and until_us <= now_us:
        return []
    return [one for one in waiting if one.expires_us is None or one.expires_us > now_us]


def note_expired(lane: Lane, bucket: BucketNo, gone: Runs) -> None:
    """Count expired messages that a CAS has removed, after that CAS took effect."""
    if not gone:
        return
    metrics.MESSAGES_EXPIRED.inc(lane.queue, gone.count)
    event(
        _logger,
        "messages_expired",
        **lane.as_fields(bucket),
        messages=gone.count,
        dead=lane.expired_die,
    )
