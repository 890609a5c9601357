"""Ack by receipt, with a verdict for each message. See docs/design/settle.md.

Holds I3, I4: a receipt acks its own delivery, or nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from cassieq_spark.errors import StoreError
from cassieq_spark.model.ids import EMPTY
from cassieq_spark.model.rows.intents import ACK
from cassieq_spark.queue.per_bucket import first_of, per_bucket
from cassieq_spark.queue.settle import settle
from cassieq_spark.queue.settle.receipts import NEVER, foreign
from cassieq_spark.queue.settle.settle import Outcome, by_lease, expired, runs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cassieq_spark.errors import CassieqError
    from cassieq_spark.model.ids import BucketNo, Place
    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.model.rows.events import Answer
    from cassieq_spark.model.rows.intents import Settle
    from cassieq_spark.queue.lane import Lane


class Verdict(StrEnum):
    """The outcome of one ack.

    Attributes:
        ACKED: The message is done, by this receipt.
        ALREADY_ACKED: The message was done before: by this receipt, by a later delivery, by a
            purge, or by its move to the dead-letter queue.
        STALE: The delivery ended: the message came back, or another consumer holds it now.
        INVALID: The receipt names a message that this queue never had. Nothing was done, and asking
            again is of no use.
        UNKNOWN: The store could not say. It is safe to ask again.
    """

    ACKED = "acked"
    ALREADY_ACKED = "already_acked"
    STALE = "stale"
    INVALID = "invalid"
    UNKNOWN = "unknown"


async def ack(lane: Lane, receipts: Sequence[Receipt]) -> tuple[list[Verdict], CassieqError | None]:
    """Return a verdict for each receipt, and the error that made some of them unknown.

    Receipts of a bucket that cannot be reached are unknown; the others are acked [T5].

    Raises:
        QueueDeleted: The lane is dead.
    """
    places: dict[Place, list[int]] = {}
    for at, receipt in enumerate(receipts):
        places.setdefault(receipt.place, []).append(at)

    async def one(place: Place) -> list[Verdict]:
        its_lane = lane.sibling(place.lane)
        return await ack_bucket(its_lane, place.bucket, [receipts[at] for at in places[place]])

    done, failed = await per_bucket(lane, one, places)
    verdicts = [Verdict.UNKNOWN] * len(receipts)
    for place, some in done.items():
        for at, verdict in zip(places[place], some, strict=True):
            verdicts[at] = verdict
    failure = first_of(failed) if failed else None
    if failure is not None and not isinstance(failure, StoreError):
        raise failure
    return verdicts, failure


def check_verdicts(lane: Lane, given: Sequence[Receipt], verdicts: Sequence[Verdict]) -> None:
    """Raise the error that the verdicts call for, if all messages were to be acked.

    Raises:
        ReceiptInvalid: Some messages never existed.
        ReceiptExpired: Some deliveries had ended; the error names their receipts.
    """
    if Verdict.INVALID in verdicts:
        raise foreign(lane, NEVER)
    pairs = zip(given, verdicts, strict=True)
    if stale := [one for one, verdict in pairs if verdict is Verdict.STALE]:
        raise expired(lane, stale)


async def ack_bucket(lane: Lane, bucket: BucketNo, receipts: Sequence[Receipt]) -> list[Verdict]:
    """Ack one bucket's receipts with at most one CAS. Return a verdict for each.

    Raises:
        CasAmbiguous, StoreTimeout, StoreUnavailable: The outcome is unknown; ask again.
    """
    return await verdicts_of(lane, bucket, receipts, await lane.apply(bucket, wanted(receipts)))


def wanted(receipts: Sequence[Receipt]) -> Settle:
    """Return the acks of one bucket's receipts, for `store.row_port.Company`."""
    return settle.wanted(by_lease(receipts, ACK))


def are_done(lane: Lane, answer: Answer) -> bool:
    """Count the messages that the answer to `wanted` has acked. Return whether it acked all."""
    judged: Any = answer.result
    settle.count(lane, judged)
    return bool(judged.is_whole)


async def verdicts_of(
    lane: Lane, bucket: BucketNo, receipts: Sequence[Receipt], answer: Answer
) -> list[Verdict]:
    """Return a verdict for each receipt, from the answer to `wanted`."""
    outcome = await settle.outcome_of(lane, bucket, answer, tells_acked=True)
    if outcome.judged.is_whole:
        return [Verdict.ACKED] * len(receipts)  # nearly always
    return [_verdict(outcome, receipt) for receipt in receipts]


def _verdict(outcome: Outcome, receipt: Receipt) -> Verdict:
    runs, judged = runs_of(receipt), outcome.judged
    if outcome.is_done(receipt, ACK):
        return Verdict.ACKED
    if runs & judged.never.get(receipt.lease_id, EMPTY):
        return Verdict.INVALID
    if runs & judged.stale.get(receipt.lease_id, EMPTY):
        return Verdict.STALE
    return Verdict.ALREADY_ACKED
