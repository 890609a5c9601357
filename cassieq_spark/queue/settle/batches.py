"""Settle the leases of a streaming query: take over, ack, and count what its program settled.

Holds I3, I4: a lease that has ended is skipped. This module shows what a batch's offset is used
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final
from uuid import UUID

from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.frozen import frozen
from cassieq_spark.model.ids import EMPTY, BucketNo, Place, Runs, union
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.settlement import Ack, Action, Judged, Reject, Release, TakeOver, rejected
from cassieq_spark.queue.lane import Lane, by_lane, each_bucket
from cassieq_spark.queue.settle.settle import NEVER, Outcome, foreign, of_leases, settle_bucket

TAKE_OVERS_AT_MOST: Final = 3
"""After this many take-overs that were answered too late, the batch goes out as it is: other
consumers may have its messages, too."""

_logger = get_logger("queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """The result of an ack by lease ids.

    Attributes:
        count: The number of messages that this call has acked: those that were still held.
        late: By bucket, the leases that had run out, with their messages, which are not acked.
    """

    count: int
    late: Mapping[Place, Mapping[UUID, Runs]]


async def take_over(
    lane: Lane, bucket: BucketNo, lease_ids: Iterable[UUID], action: TakeOver
) -> Stored[Bucket] | None:
    """Make leases this run's. A CAS that is answered after the end it has written is sent again.

    Returns:
        The row after that: the leases that are still in it are ours. None if there is no row.
    """
    wanted = frozenset(lease_ids)
    row: Stored[Bucket] | None = None
    for _ in range(TAKE_OVERS_AT_MOST):
        row = (await settle_bucket(lane, bucket, of_leases(wanted, action))).row
        ours = [] if row is None else [one for one in row.value.leases if one.lease_id in wanted]
        if all(lease.until_us > lane.clock.now_us() for lease in ours):
            break
    return row


async def ack_leases(
    lane: Lane,
    acked: Mapping[Place, Mapping[UUID, Runs | None]],
    *,
    known: Mapping[Place, Stored[Bucket]] | None = None,
    unbroken: Callable[[], Mapping[UUID, Runs]] = dict,
) -> Acked:
    """Ack messages by lease id, whatever run the lease carries [R17].

    A message that a lease no longer holds is skipped. Either it was settled by its receipt, or the
    lease ran out and another consumer has claimed it; the latter is reported. A bucket that was
    dropped is skipped, too.

    Args:
        acked: Per bucket and lease the messages that are done; None = all of the lease.
        known: Rows as last seen, to save reads.
        unbroken: Called after the CASes; returns the messages whose leases cannot have run out by
            then.

    Raises:
        StoreError: A bucket could not be reached; the others' messages are acked [T5].
    """

    async def ack(place: Place) -> Outcome:
        asked: dict[UUID, dict[Action, Runs | None]] = {
            lease_id: {Ack(): runs} for lease_id, runs in acked[place].items()
        }
        its_lane = lane.sibling(place.lane)
        return await settle_bucket(its_lane, place.bucket, asked, known=(known or {}).get(place))

    outcomes = await each_bucket(lane, ack, acked)
    settled = unbroken()
    late: dict[Place, dict[UUID, Runs]] = {}
    for place, one in outcomes.items():
        over = EMPTY if one.row is None else rejected(one.row.value)
        for lease_id, runs in one.judged.stale.items():
            if left := runs - over - settled.get(lease_id, EMPTY):
                late.setdefault(place, {})[lease_id] = left
    for place, leases in late.items():
        event(
            _logger,
            "acks_expired",
            **lane.sibling(place.lane).as_fields(place.bucket),
            messages=union(leases.values()).count,
        )
    count = sum(outcome.judged.done(Ack()) for outcome in outcomes.values())
    return Acked(count=count, late=late)


async def count_settled(lane: Lane, delivered: Mapping[Place, Mapping[UUID, Runs | None]]) -> int:
    """Count which of these messages are done, whoever has acked them, in buckets that answer.

    It makes one read per bucket. A bucket without a row was dropped, so all its messages were done
    before (G5).
    """
    rows: dict[Place, Stored[Bucket] | None] = {}
    for lane_id, buckets in by_lane(delivered).items():
        found, _ = await lane.sibling(lane_id).buckets.read_some(buckets)
        rows |= {Place(lane_id, bucket): row for bucket, row in found.items()}
    count = 0
    for place, row in rows.items():
        asked = union(runs for runs in delivered[place].values() if runs is not None)
        left = EMPTY if row is None else asked & (row.value.unacked | row.value.purged)
        count += asked.count - left.count
    return count


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
        stale_receipts=tuple(receipt.encode() for receipt in islice(stale, STALE_NAMED)),
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
        stale_receipts=tuple(islice(named, STALE_NAMED)),
    )


def _count(judged: Judged, kind: type) -> int:
    """Count messages on which actions of this kind took effect, now or before."""
    return sum(
        judged.done(action) + judged.repeated.get(action, EMPTY).count
        for action in {*judged.held, *judged.repeated}
        if isinstance(action, kind)
    )
