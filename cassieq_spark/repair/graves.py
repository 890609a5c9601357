"""Remove rows that were born again in lanes of deleted queues (design 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.model.pointer import DELETED, Pointer
from cassieq_spark.queue.admin import drop_dead

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cassieq_spark.model.ids import BucketNo, LaneId
    from cassieq_spark.store.store import Store


def sweep_lanes(
    store: Store, rows: Mapping[LaneId, list[BucketNo]], messages: Mapping[LaneId, list[BucketNo]]
) -> int:
    """Remove what late statements have left in lanes whose L is 2^62; return how many lanes.

    It means nothing to anybody there (G5), takes space, and nobody would ever look for it [T15].
    A lane that a queue row still names is left to its deletion, which must know how far the data
    goes.

    Args:
        rows: Of all lanes, the buckets that have a row.
        messages: Of all lanes, the buckets in which messages are stored.
    """
    monotons = set(store.everything.monotons())
    found = monotons | {lane for lane, some in [*rows.items(), *messages.items()] if some}
    named = {lane for row in store.queues.read_all() for lane in row.lanes}
    return sum(
        _sweep(store, lane, {*rows.get(lane, ()), *messages.get(lane, ())})
        for lane in sorted(found - named)
    )


def _sweep(store: Store, lane: LaneId, buckets: set[BucketNo]) -> bool:
    monoton = store.lane(lane).monotons.find()
    if monoton is not None and monoton.value.is_closed:
        # Its creator died while it gave the lane up: before L goes up, the lane is only closed.
        store.lane(lane).pointers.advance(Pointer.REPAIR, DELETED)
    elif not store.lane(lane).pointers.read().is_deleted:
        return False  # a queue that is being created
    drop_dead(store, lane, buckets)
    if monoton is not None:
        store.lane(lane).monotons.delete(monoton)
    return True
