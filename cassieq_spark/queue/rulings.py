"""Ack, release or bury messages as a program rules, each its own way: one CAS a bucket (design 5).

Holds I3, I4. To carry the same rulings out again changes nothing: a task may run twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark import metrics
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import UsageError
from cassieq_spark.model import ruling as rules
from cassieq_spark.model.ids import EMPTY, Runs, union
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.ruling import Judged, Ruling
from cassieq_spark.queue.apart import each_bucket
from cassieq_spark.queue.receipts import foreign
from cassieq_spark.queue.returns import Returns, moved_times_us
from cassieq_spark.queue.verdict import by_lease

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.lane import Lane

    Rulings = Mapping[UUID, Mapping[Ruling, Runs]]

STALE_NAMED: Final = 1_000
"""So many stale receipts are named; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of messages, counted.

    Attributes:
        acked: Done, by these receipts.
        released: Back in the queue.
        dead: On their way to the dead-letter queue, by the next repair.
        already_acked: Done before: by a task that ran twice, a later delivery, or a purge.
        stale: Not settled: their receipts had expired, nobody held them by these any more.
        left: Without a verdict: they come back when their lease ends.
        stale_receipts: The first 1,000 of the stale ones.
    """

    acked: int = 0
    released: int = 0
    dead: int = 0
    already_acked: int = 0
    stale: int = 0
    left: int = 0
    stale_receipts: tuple[str, ...] = ()


def total(parts: Sequence[Settled], *, left: int = 0) -> Settled:
    """All of them together."""
    named = (receipt for part in parts for receipt in part.stale_receipts)
    return Settled(
        acked=sum(part.acked for part in parts),
        released=sum(part.released for part in parts),
        dead=sum(part.dead for part in parts),
        already_acked=sum(part.already_acked for part in parts),
        stale=sum(part.stale for part in parts),
        left=left,
        stale_receipts=tuple(
            receipt for receipt, _ in zip(named, range(STALE_NAMED), strict=False)
        ),
    )


def settle_bucket(
    lane: Lane, bucket: BucketNo, rulings: Rulings, *, reason: str, due_us: int | None = None
) -> Settled:
    """Carry out what is ruled about one bucket's messages: one read, and at most one CAS.

    Args:
        rulings: By lease; no message has two under one lease.
        reason: Of those that are dead.
        due_us: Nobody gets what is released before this time; None: at once.

    Raises:
        ReceiptInvalid: Some were never there. The others are settled.
        QueueDeleted: The lane is dead.
        CasAmbiguous, CasContention, StoreTimeout, StoreUnavailable: Settle again: that is safe.
    """
    judged = _carry_out(lane, bucket, rulings, reason=reason, due_us=due_us)
    if judged.unknown:
        raise foreign(lane, "names messages that were never there")
    stale = (
        Receipt(lane=lane.lane_id, bucket=bucket, lease_id=lease_id, first=offset, last=offset)
        for lease_id, runs in judged.stale.items()
        for offset in runs.offsets()
    )
    return Settled(
        acked=_count(judged, Ruling.ACK),
        released=_count(judged, Ruling.RELEASE),
        dead=_count(judged, Ruling.DEAD),
        already_acked=judged.acked.count,
        stale=sum(runs.count for runs in judged.stale.values()),
        stale_receipts=tuple(
            receipt.encode() for receipt, _ in zip(stale, range(STALE_NAMED), strict=False)
        ),
    )


def reject(lane: Lane, receipts: Iterable[Receipt], *, reason: str) -> list[Receipt]:
    """Bury messages, whatever deliveries they had left.

    Returns:
        Those refused: their delivery has ended, or the message was acked. To say it again of those
        that wait for repair is no error.

    Raises:
        UsageError: There is no dead-letter queue; nothing was changed.
        ReceiptInvalid: Some were never there. The others are dead.
    """
    check_dead_letter_queue(lane)
    by_bucket: dict[BucketNo, list[Receipt]] = {}
    for receipt in receipts:
        by_bucket.setdefault(receipt.bucket, []).append(receipt)

    def one(bucket: BucketNo) -> Judged:
        asked = by_lease(by_bucket[bucket])
        rulings = {lease_id: {Ruling.DEAD: runs} for lease_id, runs in asked.items()}
        return _carry_out(lane, bucket, rulings, reason=reason)

    judged = each_bucket(lane, one, by_bucket)
    if any(of_bucket.unknown for of_bucket in judged.values()):
        raise foreign(lane, "names messages that were never there")
    return [
        receipt
        for bucket, some in by_bucket.items()
        for receipt in some
        if Runs.span(receipt.first, receipt.last)
        & (judged[bucket].stale.get(receipt.lease_id, EMPTY) | judged[bucket].acked)
    ]


def check_dead_letter_queue(lane: Lane) -> None:
    """Whether messages of this queue may die at all.

    Raises:
        UsageError: They would stay for ever [R22].
    """
    if lane.settings.dead_letter_queue is None:
        raise UsageError(
            f"queue {lane.queue!r} has no dead-letter queue that a dead message could go to; "
            "nothing was changed. Give it one by client.alter_queue(name, dead_letter_queue=...), "
            "or ack what nobody is to get again"
        )


def _carry_out(
    lane: Lane, bucket: BucketNo, rulings: Rulings, *, reason: str, due_us: int | None = None
) -> Judged:
    judged = Judged(
        unknown={lease_id: union(asked.values()) for lease_id, asked in rulings.items()}
    )
    returns = Returns(lane, bucket)

    def change(row: Bucket) -> Bucket | None:
        nonlocal judged
        judged = rules.judge(row, rulings)
        if not judged.held:
            return None
        now_us = lane.clock.now_us()
        new = rules.carry_out(
            row, judged.held, new_uuid, reason=reason, now_us=now_us, due_us=due_us
        )
        if released := judged.held.get(Ruling.RELEASE):
            # Before the CAS: the reader pointer may be past this bucket [R12].
            returns.hint(moved_times_us(row, new, union(released.values())))
        return new

    lane.change_bucket(bucket, change)
    returns.confirm()
    if acked := _held(judged, Ruling.ACK):
        metrics.ACKS.inc()
        metrics.MESSAGES_ACKED.inc(acked)
    in_doubt = union([*judged.stale.values(), *judged.unknown.values()])
    if in_doubt and lane.is_dropped(bucket):
        # Below the repair pointer all is over; a row that is there is a ghost (G5, ADR 11).
        return Judged(held=judged.held, repeated=judged.repeated, acked=judged.acked | in_doubt)
    return judged


def _count(judged: Judged, ruling: Ruling) -> int:
    return _held(judged, ruling) + judged.repeated.get(ruling, EMPTY).count


def _held(judged: Judged, ruling: Ruling) -> int:
    return sum(runs.count for runs in judged.held.get(ruling, {}).values())
