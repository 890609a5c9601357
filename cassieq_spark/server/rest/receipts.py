"""Ack, extend, release, reject and update deliveries by their receipts, with a verdict for each."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cassieq_spark.errors import (
    CassieqError,
    OptionInvalid,
    ReceiptExpired,
    ReceiptInvalid,
    StoreError,
    StoreTimeout,
    UsageError,
)
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.message import Message, show_time
from cassieq_spark.queue.settle.settle import Verdict
from cassieq_spark.server.batches import Failure, acks, each, failures
from cassieq_spark.server.rest import answers, models
from cassieq_spark.server.rest.operation import DELETE, POST, PUT, QUEUE, RECEIPT, Answer, Raw
from cassieq_spark.server.rest.problems import problem_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.server.rest.operation import Call

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@POST("ackMessages", f"{QUEUE}/ack", Right.ACK, {200: answers.Verdicts}, body=models.Ack)
async def ack(call: Call) -> Answer:
    """Ack messages: one LWT for each bucket, however many there are."""
    receipts: list[str] = call.body.receipts

    verdicts = await call.backend.on_queue(call.queue, partial(acks, receipts))
    results = [
        _refused(receipt, verdict)
        if isinstance(verdict, Exception)
        else {"receipt": receipt, "verdict": str(verdict)}
        for receipt, verdict in zip(receipts, verdicts, strict=True)
    ]
    return Answer(body={"results": results})


@DELETE("ackMessage", RECEIPT, Right.ACK, {204: None}, errors=(404, 409))
async def ack_one(call: Call) -> Answer:
    """Ack one message: it is never delivered again.

    409 if its delivery has ended.
    """
    receipt: str = call.request.path_params["receipt"]
    (verdict,) = await call.backend.on_queue(call.queue, partial(acks, [receipt]))
    if isinstance(verdict, ReceiptInvalid):
        raise verdict
    if verdict is Verdict.STALE:
        raise ReceiptExpired(
            "this delivery has ended: the message came back, or somebody else has it. It is not "
            "acked. Make the work idempotent, or use a longer visibility timeout",
            refused=(receipt,),
        )
    if verdict is Verdict.UNKNOWN:
        raise StoreTimeout("Cassandra did not say whether the message is acked. Ack it again")
    return Answer(body=None, status=204)


@POST("extendMessages", f"{QUEUE}/extend", Right.ACK, {200: answers.Verdicts}, body=models.Extend)
async def extend(call: Call) -> Answer:
    """Make leases end later, or sooner."""
    seconds: float = call.body.visibility_timeout
    until: list[datetime] = []

    async def settle(queue: AsyncQueue, receipts: list[str]) -> None:
        until.append(await queue.extend(receipts, seconds))

    results = await _settled(call, "extended", settle)
    for one in results:
        if one["verdict"] == "extended" and seconds and until:
            one["visible_until"] = show_time(until[0])
    return Answer(body={"results": results})


@POST(
    "releaseMessages", f"{QUEUE}/release", Right.ACK, {200: answers.Verdicts}, body=models.Release
)
async def release(call: Call) -> Answer:
    """Give messages back, at once or after a delay."""
    given = call.body
    results = await _settled(
        call,
        "released",
        lambda queue, receipts: queue.release(
            receipts, delay=given.delay, is_counted=given.is_counted
        ),
    )
    return Answer(body={"results": results})


@POST("rejectMessages", f"{QUEUE}/reject", Right.ACK, {200: answers.Verdicts}, body=models.Reject)
async def reject(call: Call) -> Answer:
    """Declare messages dead.

    Repair moves them to the dead-letter queue.
    """
    reason: str = call.body.reason
    results = await _settled(
        call, "rejected", lambda queue, receipts: queue.reject(receipts, reason=reason)
    )
    return Answer(body={"results": results})


@POST(
    "updateMessages",
    f"{QUEUE}/update",
    Right.UPDATE,
    {200: answers.Verdicts},
    body=models.UpdateMany,
)
async def update(call: Call) -> Answer:
    """Give leased messages other bodies or timeouts.

    Their receipts become stale, and the answer has the new ones.
    """

    async def one(queue: AsyncQueue, given: Any) -> dict[str, Any]:
        try:
            after = await _updated(queue, given.receipt, given.body, given.visibility_timeout)
        except (ReceiptExpired, ReceiptInvalid, StoreError, UsageError) as error:
            return _refused(given.receipt, error)
        return {"receipt": given.receipt, "verdict": "updated", **after}

    async def work(queue: AsyncQueue) -> list[dict[str, Any]]:
        return [await one(queue, given) for given in call.body.updates]

    return Answer(body={"results": await call.backend.on_queue(call.queue, work)})


@PUT(
    "updateMessage",
    RECEIPT,
    Right.UPDATE,
    {200: answers.NewReceipt},
    query=models.Update,
    body=Raw(doc="The bytes of the message."),
    errors=(404, 409),
)
async def update_one(call: Call) -> Answer:
    """Give a leased message another body.

    Its receipt becomes stale, and the answer has the new one.
    """
    receipt: str = call.request.path_params["receipt"]
    seconds: float | None = call.query.visibility_timeout

    found = await call.backend.on_queue(
        call.queue, lambda queue: _updated(queue, receipt, call.body, seconds)
    )
    return Answer(body={"receipt": found["new_receipt"], "visible_until": found["visible_until"]})


async def _updated(
    queue: AsyncQueue, receipt: str, body: bytes | None, seconds: float | None
) -> dict[str, str | None]:
    if body is None and seconds is None:
        raise OptionInvalid("an update has neither body nor visibility_timeout. Give one of them")
    found = await queue.update(_message(receipt), body=body, visibility_timeout=seconds)
    return {"new_receipt": found.receipt, "visible_until": show_time(found.visible_until)}


def _message(receipt: str) -> Message:
    """A message of which only the receipt is known: an update needs nothing else of it."""
    proof = Receipt.decode(receipt)
    return Message(
        message_id=str(UUID(int=0)),
        id=0,
        body=b"",
        tag=None,
        proof=proof,
        delivery_count=0,
        enqueued_at=_EPOCH,
        visible_until=None,
        lane=proof.lane,
    )


async def _settled(
    call: Call, done: str, settle: Callable[[AsyncQueue, list[str]], Awaitable[None]]
) -> list[dict[str, Any]]:
    receipts: list[str] = call.body.receipts

    async def work(queue: AsyncQueue) -> list[Failure]:
        return await each(receipts, lambda good: failures(good, partial(settle, queue)))

    found = await call.backend.on_queue(call.queue, work)
    return [
        {"receipt": receipt, "verdict": done} if failure is None else _refused(receipt, failure)
        for receipt, failure in zip(receipts, found, strict=True)
    ]


def _refused(receipt: str, error: CassieqError) -> dict[str, Any]:
    """The verdict on a receipt by which nothing was done, or for which that is unknown."""
    if isinstance(error, ReceiptExpired):
        return {"receipt": receipt, "verdict": "stale"}
    verdict = "unknown" if isinstance(error, StoreError) else "invalid"
    return {"receipt": receipt, "verdict": verdict, "problem": problem_of(error)}
