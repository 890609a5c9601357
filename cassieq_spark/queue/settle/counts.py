"""`Settled` counts what `cassieq_spark.settle` did with the messages of a DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.frozen import frozen
from cassieq_spark.model.ids import EMPTY
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.settlement import Ack, Reject, Release
from cassieq_spark.queue.settle.receipts import NEVER, foreign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.model.settlement import Judged
    from cassieq_spark.queue.lane import Lane

STALE_NAMED: Final = 1_000
"""The maximum number of stale receipts that are named. All are counted."""


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The outcome of settling messages, as counts.

    Attributes:
        acked: Done, by these receipts.
        released: Given back to the queue.
        rejected: Dead: the next repair moves them to the dead-letter queue.
        already_acked: Done before: by a task that ran twice, a later delivery, or a purge.
        stale: Not settled, because their receipts had expired.
        left: Without a verdict: they come back when their lease ends.
        stale_receipts: The first 1,000 of the stale receipts.
    """

    acked: int = 0
    released: int = 0
    rejected: int = 0
    already_acked: int = 0
    stale: int = 0
    left: int = 0
    stale_receipts: tuple[str, ...] = ()


def counted(lane: Lane, bucket: BucketNo, judged: Judged) -> Settled:
    """Count the outcome of one bucket.

    Raises:
        ReceiptInvalid: Some messages never existed. The others are settled.
    """
    if judged.never:
        raise foreign(lane, NEVER)
    stale = (
        Receipt(lane=lane.lane_id, bucket=bucket, lease_id=lease_id, first=offset, last=offset)
        for lease_id, runs in judged.stale.items()
        for offset in runs.offsets()
    )
    return Settled(
        acked=_count(judged, Ack),
        released=_count(judged, Release),
        rejected=_count(judged, Reject),
        already_acked=judged.acked.count,
        stale=sum(runs.count for runs in judged.stale.values()),
        stale_receipts=tuple(
            receipt.encode() for receipt, _ in zip(stale, range(STALE_NAMED), strict=False)
        ),
    )


def total(parts: Sequence[Settled], *, left: int = 0) -> Settled:
    """Add up the counts of all parts."""
    named = (receipt for part in parts for receipt in part.stale_receipts)
    return Settled(
        acked=sum(part.acked for part in parts),
        released=sum(part.released for part in parts),
        rejected=sum(part.rejected for part in parts),
        already_acked=sum(part.already_acked for part in parts),
        stale=sum(part.stale for part in parts),
        left=left,
        stale_receipts=tuple(
            receipt for receipt, _ in zip(named, range(STALE_NAMED), strict=False)
        ),
    )


def _count(judged: Judged, kind: type) -> int:
    """Count messages on which actions of this kind took effect, now or before."""
    return sum(
        judged.done(action) + judged.repeated.get(action, EMPTY).count
        for action in {*judged.held, *judged.repeated}
        if isinstance(action, kind)
    )
