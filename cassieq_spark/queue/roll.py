"""Carry decided transactions to their end: listed buckets visible, the others void (design 8).

Anybody may do this for a *decided* bucket, and nobody for an undecided one. Holds I7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.errors import RowCorrupt
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.sink_txn import BucketList, Fate, fate
from cassieq_spark.queue.apart import each_bucket
from cassieq_spark.queue.seal import hint_returns

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.model.sink_txn import SinkRow
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

VISIBLE = frozenset({Status.SEALED, Status.DRAINED})

_logger = get_logger("queue")


def roll_forward(lane: Lane, sink_id: str, listed: BucketList) -> None:
    """Make every bucket of a committed batch visible. Idempotent; up to 16 at once.

    Raises:
        StoreError: A bucket could not be reached; the others are visible [T5].
        RowCorrupt: A listed bucket is void and was not dropped, or holds another number of messages
            than was committed: the protocol does not do that, so nothing more is done to it.
    """
    counts = dict(listed)

    def one(bucket: BucketNo) -> None:
        count = counts[bucket]

        def change(row: Bucket) -> Bucket | None:
            # A list is rolled again by the next commit, when its buckets may be dropped long since:
            # what was sent twice may have landed after that, and made a ghost (G5).
            if row.status in VISIBLE or lane.is_dropped(bucket):
                return None
            if row.status is not Status.PREPARED:
                raise RowCorrupt(
                    f"bucket {bucket} of queue {lane.queue!r} is {row.status.value}, but the "
                    f"commit of sink {sink_id!r} lists it. Run a verify pass"
                )
            if row.sink is None or row.sink.sink_id != sink_id or row.manifest.count != count:
                raise RowCorrupt(
                    f"bucket {bucket} of queue {lane.queue!r} holds {row.manifest.count} messages "
                    f"of {row.sink}, the commit of sink {sink_id!r} lists {count}. Run a "
                    "verify pass"
                )
            hint_returns(lane, bucket, row)
            return rules.published(row, now_us=lane.clock.now_us())

        lane.change_bucket(bucket, change)

    each_bucket(lane, one, counts)


def settle_decided(
    lane: Lane, rows: dict[BucketNo, Stored[Bucket]]
) -> dict[BucketNo, Stored[Bucket]]:
    """Act on those of these ``writing`` and ``prepared`` rows that their sinks have decided.

    One quorum read per sink, after the rows were read (before, it would mean nothing).

    Returns:
        The rows that changed, as they are now.
    """
    by_sink: dict[str, list[BucketNo]] = {}
    for bucket, row in rows.items():
        if row.value.sink is not None:
            by_sink.setdefault(row.value.sink.sink_id, []).append(bucket)
    changed: dict[BucketNo, Stored[Bucket]] = {}
    for sink_id, buckets in by_sink.items():
        stored = lane.store.sinks.read(sink_id)
        sink = None if stored is None else stored.value
        fates = {bucket: _fate(sink, bucket, rows[bucket].value) for bucket in buckets}
        if sink is not None and Fate.SEAL in fates.values():
            event(_logger, "rolled_forward_by_reader", queue=lane.queue, sink=sink_id)
            roll_forward(lane, sink_id, sink.listed)
        for bucket in buckets:
            now: Stored[Bucket] | None = None
            if fates[bucket] is Fate.SEAL:
                now = lane.store.buckets.read(lane.lane_id, bucket)
            elif fates[bucket] is Fate.VOID:
                now = lane.change_bucket(bucket, _void(lane), known=rows[bucket])
            if now is not None:
                changed[bucket] = now
    return changed


def _fate(sink: SinkRow | None, bucket: BucketNo, row: Bucket) -> Fate:
    if row.sink is None:
        return Fate.UNDECIDED
    return fate(sink, bucket=bucket, epoch=row.sink.epoch)


def _void(lane: Lane) -> Callable[[Bucket], Bucket | None]:
    def change(row: Bucket) -> Bucket | None:
        if row.status not in (Status.WRITING, Status.PREPARED):
            return None
        return rules.voided(row, now_us=lane.clock.now_us())

    return change
