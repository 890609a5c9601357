"""Look whether open buckets hold messages, without a long wait for any (ADR 21)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.errors import StoreError
from cassieq_spark.queue.apart import named
from cassieq_spark.queue.get.claim import GRACE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cassieq_spark.errors import CassieqError
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.lane import Lane


def begin_peek(
    lane: Lane,
    buckets: Iterable[BucketNo],
    pass_over: Callable[[BucketNo, CassieqError], None],
) -> Callable[[], dict[BucketNo, bool]]:
    """Begin to ask all of these buckets at once.

    Args:
        pass_over: Told of each that does not answer, and why.

    Returns:
        To be called, once: waits, and says which of those that answer hold something.
    """
    with lane.store.session.within(each_s=GRACE_S):
        asked = {bucket: lane.messages.begin_has_any(bucket) for bucket in buckets}

    def wait() -> dict[BucketNo, bool]:
        found: dict[BucketNo, bool] = {}
        for bucket, has_any in asked.items():
            try:
                found[bucket] = has_any()
            except StoreError as error:
                pass_over(bucket, named(error, lane, bucket))
        return found

    return wait
