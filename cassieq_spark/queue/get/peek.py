"""Look whether open buckets hold messages, without a long wait for any (ADR 21)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.errors import StoreError
from cassieq_spark.queue.apart import apart
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
        said = {bucket: has_any() for bucket, has_any in asked.items()}
        found = {bucket: has_any for bucket, has_any in said.items() if has_any is not None}
        # Side by side, so that many without an answer take no longer than one (I10).
        with lane.store.session.within(each_s=GRACE_S):
            more, failed = apart(lane, lane.messages.has_any, said.keys() - found.keys())
        for bucket, error in failed.items():
            if not isinstance(error, StoreError):
                raise error
            pass_over(bucket, error)
        return found | more

    return wait
