"""Reserve whole buckets of a lane, which is the only way to get ids. Holds I6."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.ids import FIRST_BUCKET, BucketNo
from cassieq_spark.store.cas import Applied
from cassieq_spark.store.tables.monotons import Monoton

if TYPE_CHECKING:
    from cassieq_spark.queue.lane import Lane


CREATED: Final = 1
"""The version of a monoton row that nobody has changed since it was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive buckets that are one writer's own [P15]: from ``first`` to before ``end``."""

    first: BucketNo
    end: BucketNo


def _begin_queue(first: Lane) -> None:
    """See to it that the first lane's monoton row has changed before another lane is used.

    Whoever gives up a queue that lost its name, and whose INSERT may have landed since, ends it by
    a CAS on that row as it was made. So it never ends a queue that is in use (I1) [T14].
    """
    known = first.store.begun
    if first.lane_id in known:
        return
    for _ in first.attempts():
        found = first.monotons.read()
        if found is None:
            raise first.deleted()
        if found.version.row_version > CREATED:
            known.add(first.lane_id)
            return
        # Whatever becomes of it: the row is read again.
        first.monotons.update(found, replace(found.value, reserved_us=first.clock.now_us()))
    raise first.contended("the monoton row")


def reserve(lane: Lane, buckets: int, *, above: BucketNo = FIRST_BUCKET) -> Block:
    """Take the next whole buckets.

    One quorum read and one LWT. A block whose reservation could not be settled is lost: it is a
    gap, which readers close.

    Args:
        buckets: 1 or more.
        above: A bucket known to be closed; the block begins after it.

    Raises:
        QueueDeleted: The lane has no monoton row: never create it here [P13].
        CasContention: It lost too many times in a row.
    """
    if not lane.is_first:
        _begin_queue(lane.first)
    size = lane.bucket_size
    for _ in lane.attempts():
        old = lane.monotons.read()
        if old is None:
            raise lane.deleted()
        first = max(-(-old.value.next_id // size), above)
        new = Monoton(next_id=(first + buckets) * size, reserved_us=lane.clock.now_us())
        outcome = lane.monotons.update(old, new)
        if isinstance(outcome, Applied):
            return Block(first=BucketNo(first), end=BucketNo(first + buckets))
    raise lane.contended("the monoton row")
