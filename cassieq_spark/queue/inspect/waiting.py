"""Count messages in lanes whose time has not come. None of them can be due, leased or dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import ID_LIMIT
from cassieq_spark.queue.lane import live_buckets, windows
from cassieq_spark.queue.per_bucket import first_of
from cassieq_spark.queue.schedule import begun_and_later

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

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
