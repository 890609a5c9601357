"""Settle deliveries: ack, release, extend, reject, update, take over; and cancel messages.

One CAS per bucket carries out any mix of actions, for all callers that ask at the same time. See
`RowWriter` and docs/design/settle.md. All receipts of a user are checked before the first is used.
An action on a delivery that ended changes nothing. Holds I2, I3, I4. It is safe to ask the same
again: a task may run twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from cassieq_spark import metrics, tracing
from cassieq_spark.errors import (
    CassieqError,
    ReceiptExpired,
    ReceiptInvalid,
    StoreError,
    UsageError,
)
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import settlement as rules
from cassieq_spark.model.bucket import Bucket, Lease, Status
from cassieq_spark.model.ids import EMPTY, BucketNo, Place, Runs, union
from cassieq_spark.model.lanes import Fixed
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.pointer import DELETED
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.rows.intents import Ask, Cancel, Settle
from cassieq_spark.model.settlement import Ack, Action, Judged, Reject, Update
from cassieq_spark.options import arguments
from cassieq_spark.queue import seal
from cassieq_spark.queue.lane import Lane, first_of, per_bucket
from cassieq_spark.queue.message import Delivery, Message, proof_of

if TYPE_CHECKING:
    from cassieq_spark.model.settlement import Asked

DROP_BODY_S: Final = 2.0
"""The time limit for dropping a body. Closing the client waits for it."""

NEVER: Final = "names messages that never existed"

_logger = get_logger("queue")


# --- receipts of a user ---------------------------------------------------------------------------


def checked(lane: Lane, messages: Delivery | str | Iterable[Delivery | str]) -> list[Receipt]:
    """Return the receipts of a message, a receipt, or a list of either, in order.

    Raises:
        ReceiptInvalid: An entry is malformed, or belongs to another queue.
    """
    if isinstance(messages, Message | str):
        return [_checked(lane, lane.fixed, messages)]
    several = arguments.listed(messages)
    if several is None:
        raise ReceiptInvalid(
            f"{type(messages).__name__} is not a message, a receipt or a list of them. Nothing "
            "was done. Pass what get returned, or list(...) of it"
        )
    fixed = lane.fixed
    return [_checked(lane, fixed, one) for one in several]


def foreign(
    lane: Lane,
    why: str,
    *,
    refused: Iterable[Receipt] = (),
    expired: Iterable[Receipt] = (),
) -> ReceiptInvalid:
    """Make the error for a receipt that is well-formed but not of this queue."""
    return ReceiptInvalid(
        f"a message or receipt given to queue {lane.queue!r} {why}. Pass what this queue's get "
        "returned",
        refused=tuple(one.encode() for one in refused),
        expired=tuple(one.encode() for one in expired),
    )


def _checked(lane: Lane, fixed: Fixed, held: object) -> Receipt:
    if isinstance(held, Delivery):
        receipt = proof_of(held)
    elif isinstance(held, Message):
        raise foreign(lane, "has no receipt: it was only looked at")
    else:
        receipt = Receipt.decode(held)
    if not fixed.has(receipt.lane):
        raise foreign(lane, "is of another queue, or of an earlier queue of this name")
    if not receipt.first <= receipt.last < lane.bucket_size or receipt.bucket >= DELETED:
        raise foreign(lane, NEVER)
    return receipt


class AckResult(StrEnum):
    """The outcome of one ack, or of another action on one receipt.

    Attributes:
        ACKED: The message is done, by this receipt; or the other action took effect.
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


# --- one bucket -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of the actions on one bucket.

    Attributes:
        judged: What the row said about each action.
        before: The row that this call's last CAS was to change; None if none was sent.
        changed: The row as that CAS was to change it; None if none was sent.
        row: The row as it is now; None if there is none.
    """

    judged: Judged
    before: Bucket | None
    changed: Bucket | None
    row: Stored[Bucket] | None

    def is_done(self, receipt: Receipt, action: Action, *, or_before: bool = False) -> bool:
        """Whether the action took effect on all messages of a receipt.

        Args:
            or_before: Count an effect of an earlier call, too.
        """
        held = self.judged.held.get(action, {}).get(receipt.lease_id, EMPTY)
        if or_before:
            held |= self.judged.repeated.get(action, EMPTY)
        return runs_of(receipt).issubset(held)

    def verdict(self, receipt: Receipt, action: Action) -> AckResult:
        """Return the outcome of an action on a receipt."""
        runs, judged = runs_of(receipt), self.judged
        is_reject = isinstance(action, Reject)
        # Nearly always, all are done.
        if judged.is_whole or self.is_done(receipt, action, or_before=is_reject):
            return AckResult.ACKED
        # Without a row, only L says whether there ever was one.
        is_known = self.row is not None or is_reject or isinstance(action, Ack)
        if is_known and runs & judged.never.get(receipt.lease_id, EMPTY):
            return AckResult.INVALID
        if runs & judged.stale.get(receipt.lease_id, EMPTY):
            return AckResult.STALE
        return AckResult.ALREADY_ACKED


async def settle_bucket(
    lane: Lane,
    bucket: BucketNo,
    asked: Asked,
    *,
    known: Stored[Bucket] | None = None,
    tells_acked: bool = False,
) -> Outcome:
    """Carry out actions on one bucket's deliveries, with at most one CAS.

    Args:
        known: The row as last seen, to save a read.
        tells_acked: Whether the caller needs to know which of the messages that are not held were
            acked. Then L is read after a row that does not say so. Otherwise, nothing is read after
            the CAS.

    Raises:
        QueueDeleted: The lane is dead.
        CasAmbiguous, CasContention, StoreTimeout, StoreUnavailable: It is safe to ask again.
    """
    answer = await lane.apply(bucket, wanted(asked), known=known)
    judged: Any = answer.result
    before, changed = answer.before, answer.changed
    if changed is before:
        before = changed = None
    count(lane, judged)
    if tells_acked:
        in_doubt = union([*judged.stale.values(), *judged.never.values()])
        if in_doubt and await lane.is_dropped(bucket):
            # Every message below the repair pointer is settled: only drained buckets are dropped. A
            # row that exists there is a ghost, and does not know what was acked (G5, ADR 11).
            acked = judged.acked | in_doubt
            judged = Judged(held=judged.held, repeated=judged.repeated, acked=acked)
    row: Any = answer.row
    return Outcome(judged=judged, before=before, changed=changed, row=row)


def wanted(asked: Asked) -> Settle:
    """Return the actions on one bucket's deliveries in the form that its `RowWriter` takes."""
    return Settle(
        asks=tuple(
            Ask(lease_id, action, runs)
            for lease_id, actions in asked.items()
            for action, runs in actions.items()
        )
    )


def count(lane: Lane, judged: Judged) -> None:
    """Count messages that were found acked, not all that were asked for: a replay asks again."""
    if acked := judged.done(Ack()):
        metrics.ACKS.inc()
        metrics.MESSAGES_ACKED.inc(lane.queue, acked)


# --- by receipt -----------------------------------------------------------------------------------


async def settle_receipts(
    lane: Lane, receipts: Sequence[Receipt], action: Action
) -> tuple[list[AckResult], dict[Place, Outcome], CassieqError | None]:
    """Carry out one action on the messages of some receipts, by one CAS per bucket.

    Returns:
        A verdict for each receipt, the outcome of each bucket, and the error because of which some
        verdicts are unknown: their buckets cannot be reached, and the others are settled [T5].

    Raises:
        UsageError: It is a rejection, and there is no dead-letter queue; nothing was changed.
        QueueDeleted: The lane is dead.
    """
    if isinstance(action, Reject):
        check_dead_letter_queue(lane)
    places: dict[Place, list[int]] = {}
    for at, receipt in enumerate(receipts):
        places.setdefault(receipt.place, []).append(at)
    # An extension, a release or an update needs a delivery that is held, so it does not matter to
    # them what became of others.
    tells_acked = isinstance(action, Ack | Reject)

    async def one(place: Place) -> Outcome:
        leases = by_lease((receipts[at] for at in places[place]), action)
        its_lane = lane.sibling(place.lane)
        return await settle_bucket(its_lane, place.bucket, leases, tells_acked=tells_acked)

    outcomes, failed = await per_bucket(lane, one, places)
    failure = first_of(failed) if failed else None
    if failure is not None and not isinstance(failure, StoreError):
        raise failure
    verdicts = [AckResult.UNKNOWN] * len(receipts)
    for place, outcome in outcomes.items():
        for at in places[place]:
            verdicts[at] = outcome.verdict(receipts[at], action)
    return verdicts, outcomes, failure


def check(
    lane: Lane,
    action: Action,
    receipts: Sequence[Receipt],
    verdicts: Sequence[AckResult],
    failure: CassieqError | None = None,
) -> None:
    """Raise the error that the outcome of `settle_receipts` calls for.

    Raises:
        StoreError: Some verdicts are unknown.
        ReceiptInvalid: Some messages never existed. The others are settled.
        ReceiptExpired: Some deliveries had ended; the error names their receipts.
    """
    if failure is not None:
        raise failure
    fine = {AckResult.ACKED, AckResult.INVALID}
    if isinstance(action, Ack):
        fine.add(AckResult.ALREADY_ACKED)  # it is harmless to ack again
    pairs = list(zip(receipts, verdicts, strict=True))
    late = [one for one, verdict in pairs if verdict not in fine]
    if never := [one for one, verdict in pairs if verdict is AckResult.INVALID]:
        raise foreign(lane, NEVER, refused=never, expired=late)
    if late:
        raise expired(lane, late)


async def settle_in_background(
    operation: str, lane: Lane, receipts: Collection[Receipt], action: Action
) -> list[Receipt]:
    """Carry out an action that no verb of the program waits for, in a span of its own.

    Returns:
        The receipts that were refused.

    Raises:
        StoreError: For some messages it is unknown whether it was carried out.
    """
    with tracing.settling(operation, lane.queue, len(receipts)):
        given = list(receipts)
        verdicts, _, failure = await settle_receipts(lane, given, action)
        if failure is not None:
            raise failure
        pairs = zip(given, verdicts, strict=True)
        refused = [one for one, verdict in pairs if verdict is not AckResult.ACKED]
        if refused:
            tracing.failed(ReceiptExpired)
        return refused


async def update(
    lane: Lane,
    receipt: Receipt,
    *,
    body: bytes | None,
    visibility_us: int | None,
    gives_back: bool,
) -> Lease | None:
    """Give a leased message another body or end, and a new lease id.

    The body is stored first, under a revision that no other call draws. The CAS that names the
    revision is the moment of change [P26]. Then the replaced body is dropped: a message may be
    updated for a month, and without this its bucket's partition would grow all the while [T2].

    Args:
        visibility_us: Counted from when the CAS is sent; None keeps the end.
        gives_back: Whether the message becomes visible to all consumers at once.

    Returns:
        The message's own lease from now on; None if it was given back.

    Raises:
        ReceiptExpired: The delivery has ended.
        UsageError: A Spark batch holds the message: what it reads must stay the same (I8).
    """
    revision = None
    entropy = lane.store.entropy
    lane = lane.sibling(receipt.lane)
    if body is not None:
        # Check before anything is written: this finds most stale receipts.
        row = await lane.buckets.read(receipt.bucket)
        _check_updatable(lane, row, receipt)
        revision = entropy.new_revision()
        await lane.overlays.write(receipt.bucket, receipt.first, revision, body)
    action = Update(
        # The delivery stays the same, so it keeps its begin.
        new_lease_id=entropy.new_uuid()
        if receipt.began_us is None
        else entropy.uuid_at(receipt.began_us),
        revision=revision,
        visibility_us=visibility_us,
        gives_back=gives_back,
    )
    (verdict,), outcomes, failure = await settle_receipts(lane, [receipt], action)
    if failure is not None:
        raise failure
    outcome = outcomes[receipt.place]
    if verdict is not AckResult.ACKED and not outcome.is_done(receipt, action, or_before=True):
        # The row has changed since any CAS of this call was sent, so none will name this body any
        # more.
        _drop_body(lane, receipt, revision)
        if verdict is not AckResult.INVALID:
            _check_updatable(lane, outcome.row, receipt)
        check(lane, action, [receipt], [verdict])
    if revision is not None and outcome.before is not None:
        _drop_body(lane, receipt, dict(outcome.before.revisions).get(receipt.first))
    if gives_back or outcome.row is None:
        return None
    # If an answer was lost, others may have changed the row: the lease may have run out, and the
    # message may be in a later delivery. Then the update has happened, and its receipt is stale.
    made = None if outcome.changed is None else outcome.changed.lease(action.new_lease_id)
    return outcome.row.value.lease(action.new_lease_id) or made


def _drop_body(lane: Lane, receipt: Receipt, revision: int | None) -> None:
    """Drop an unused body in the background, as the caller's lease runs.

    If that fails, the body goes with its bucket.
    """
    if revision is None:
        return

    async def drop(revision: int) -> None:
        try:
            await lane.overlays.drop_one(receipt.bucket, receipt.first, revision)
        except CassieqError as error:
            event(
                _logger,
                "bucket_unreachable",
                **lane.as_fields(receipt.bucket),
                error=str(error),
            )

    session = lane.store.session
    with session.within(DROP_BODY_S):
        session.begin(drop, revision)


def _check_updatable(lane: Lane, row: Stored[Bucket] | None, receipt: Receipt) -> None:
    held = {} if row is None else rules.held_runs(row.value)
    if row is None or not runs_of(receipt).issubset(held.get(receipt.lease_id, EMPTY)):
        raise expired(lane, [receipt])
    lease = row.value.lease(receipt.lease_id)
    if lease is not None and lease.run is not None:
        raise UsageError(
            f"message {receipt.bucket * lane.bucket_size + receipt.first} of queue {lane.queue!r} "
            f"is held by the Spark batch of {lease.owner!r}, and the messages of a batch must not "
            "change. Put the new content into another queue, or release the message"
        )


def check_dead_letter_queue(lane: Lane) -> None:
    """Refuse a rejection in a queue without a dead-letter queue.

    Raises:
        UsageError: The queue has none, so rejected messages would stay for ever [R22].
    """
    if lane.settings.dead_letter_queue is None:
        raise UsageError(
            f"queue {lane.queue!r} has no dead-letter queue to which a dead message could go. "
            f"Nothing was changed. Give it one with client.alter_queue({lane.queue!r}, "
            "dead_letter_queue=...), or ack the messages that nobody is to get again"
        )


def expired(lane: Lane, refused: Sequence[Receipt]) -> ReceiptExpired:
    """Make the error that names receipts whose delivery has ended."""
    # The error does not say what comes next. A row that shows a message as held by nobody may also
    # mean that it was acked; and a bucket that was dropped has no row at all (G5).
    return ReceiptExpired(
        f"{len(refused)} receipts of queue {lane.queue!r} have expired: nobody holds the messages "
        "by them any more. A visibility timeout was over, or a message was released, updated, "
        "rejected or acked. The other receipts of this call were handled",
        refused=tuple(receipt.encode() for receipt in refused),
    )


def runs_of(receipt: Receipt) -> Runs:
    """Return the offsets that a receipt is for."""
    return Runs.span(receipt.first, receipt.last)


def by_lease(receipts: Iterable[Receipt], action: Action) -> dict[UUID, dict[Action, Runs]]:
    """Ask for one action on the deliveries of some receipts of one bucket."""
    found: dict[UUID, list[tuple[int, int]]] = {}
    for receipt in receipts:
        found.setdefault(receipt.lease_id, []).append((receipt.first, receipt.last))
    return {lease_id: {action: Runs.of(*pairs)} for lease_id, pairs in found.items()}


def of_leases(lease_ids: Iterable[UUID], action: Action) -> dict[UUID, dict[Action, Runs | None]]:
    """Ask for one action on all messages that these leases hold."""
    return {lease_id: {action: None} for lease_id in lease_ids}


# --- cancel ---------------------------------------------------------------------------------------


async def cancel(lane: Lane, message_id: UUID) -> bool:
    """Take back a message that no consumer was given yet [U14].

    Return whether it is cancelled, by this call or an earlier one.

    Args:
        lane: Any lane of the queue.

    Raises:
        QueueDeleted: The queue is gone.
        CasAmbiguous, CasContention, StoreTimeout, StoreUnavailable: It is safe to cancel again.
    """
    place = lane.fixed.of_message(message_id)
    if place is None:
        return False
    lane_id, number = place
    its_lane = lane.sibling(lane_id)
    at, offset = divmod(number, lane.bucket_size)
    bucket, one = BucketNo(at), Runs.span(offset, offset)
    row = await its_lane.buckets.read(bucket)
    if row is None or row.value.status is Status.SEALING:
        row = await _sealed(its_lane, bucket, one, row)
    # Read L after the row: one below L is a ghost, and its message was settled long ago (G5). Of a
    # finished due lane, every message was settled.
    if await _is_settled(its_lane, bucket) or row is None:
        return False
    answer = await its_lane.apply(bucket, Cancel(runs=one), known=row)
    if answer.changed is not answer.before:
        metrics.MESSAGES_CANCELLED.inc(lane.queue)
    if answer.result is not True:
        return False
    # A CAS from that row is real, whatever became of the bucket since: who sleeps here was first.
    return answer.before == row.value or not await _is_settled(its_lane, bucket)


async def _is_settled(lane: Lane, bucket: BucketNo) -> bool:
    """Whether a bucket was dropped, with all that was in it.

    Raises:
        QueueDeleted: The queue is gone.
    """
    if not await lane.is_dropped(bucket):
        return False
    await lane.first.read_pointers()
    return True


async def _sealed(
    lane: Lane, bucket: BucketNo, one: Runs, row: Stored[Bucket] | None
) -> Stored[Bucket] | None:
    """Return the row of a bucket whose content is fixed; None if the message was never in it."""
    # An open bucket is not sealed for a message that it does not hold.
    if row is None and not await lane.messages.has(bucket, one.first):
        return None
    closed = await seal.finish(lane, bucket, row)
    return None if closed is None else closed.row
