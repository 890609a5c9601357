"""Ack, extend, release, reject and update deliveries by their receipts, with a verdict for each."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cassieq_spark import errors
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.queue.message import Message, show_time
from cassieq_spark.queue.settle.settle import Verdict
from cassieq_spark.server.batches import acks, each, failures
from cassieq_spark.server.door import on_queue
from cassieq_spark.server.rest.problems import problem_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.server.rest.call import Call

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@on_queue
async def ack(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Ack messages: one LWT for each bucket, however many there are."""
    receipts: list[str] = call.body.receipts
    results = [
        _refused(receipt, verdict)
        if isinstance(verdict, Exception)
        else {"receipt": receipt, "verdict": str(verdict)}
        for receipt, verdict in zip(receipts, await acks(receipts, queue), strict=True)
    ]
    return {"results": results}


@on_queue
async def ack_one(call: Call, queue: AsyncQueue) -> None:
    """Ack one message: it is never delivered again.

    409 if its delivery has ended.
    """
    receipt: str = call.request.path_params["receipt"]
    (verdict,) = await acks([receipt], queue)
    if isinstance(verdict, errors.ReceiptInvalid):
        raise verdict
    if verdict is Verdict.STALE:
        raise errors.ReceiptExpired(
            "this delivery has ended: the message came back, or somebody else has it. It is not "
            "acked. Make the work idempotent, or use a longer visibility timeout",
            refused=(receipt,),
        )
    if verdict is Verdict.UNKNOWN:
        raise errors.StoreTimeout(
            "Cassandra did not say whether the message is acked. Ack it again"
        )


@on_queue
async def extend(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Make leases end later, or sooner."""
    seconds: float = call.body.visibility_timeout
    until: list[datetime] = []

    async def settle(receipts: list[str]) -> None:
        until.append(await queue.extend(receipts, seconds))

    found = await _settled(call, "extended", settle)
    for one in found["results"]:
        if one["verdict"] == "extended" and seconds and until:
            one["visible_until"] = show_time(until[0])
    return found


@on_queue
async def release(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Give messages back, at once or after a delay."""
    given = call.body
    settle = partial(queue.release, delay=given.delay, is_counted=given.is_counted)
    return await _settled(call, "released", settle)


@on_queue
async def reject(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Declare messages dead.

    Repair moves them to the dead-letter queue.
    """
    return await _settled(call, "rejected", partial(queue.reject, reason=call.body.reason))


@on_queue
async def update(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Give leased messages other bodies or timeouts.

    Their receipts become stale, and the answer has the new ones.
    """
    results = []
    for one in call.body.updates:
        try:
            after = await _updated(queue, one.receipt, one.body, one.visibility_timeout)
            results.append({"receipt": one.receipt, "verdict": "updated", **after})
        except (
            errors.ReceiptExpired,
            errors.ReceiptInvalid,
            errors.StoreError,
            errors.UsageError,
        ) as error:
            results.append(_refused(one.receipt, error))
    return {"results": results}


@on_queue
async def update_one(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Give a leased message another body.

    Its receipt becomes stale, and the answer has the new one.
    """
    receipt: str = call.request.path_params["receipt"]
    found = await _updated(queue, receipt, call.body, call.query.visibility_timeout)
    return {"receipt": found["new_receipt"], "visible_until": found["visible_until"]}


async def _updated(
    queue: AsyncQueue, receipt: str, body: bytes | None, seconds: float | None
) -> dict[str, str | None]:
    if body is None and seconds is None:
        raise errors.OptionInvalid(
            "an update has neither body nor visibility_timeout. Give one of them"
        )
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
    call: Call, done: str, settle: Callable[[list[str]], Awaitable[None]]
) -> dict[str, Any]:
    receipts: list[str] = call.body.receipts
    results = [
        {"receipt": receipt, "verdict": done} if failure is None else _refused(receipt, failure)
        for receipt, failure in zip(
            receipts, await each(receipts, lambda good: failures(good, settle)), strict=True
        )
    ]
    return {"results": results}


def _refused(receipt: str, error: errors.CassieqError) -> dict[str, Any]:
    """The verdict on a receipt by which nothing was done, or for which that is unknown."""
    if isinstance(error, errors.ReceiptExpired):
        return {"receipt": receipt, "verdict": "stale"}
    verdict = "unknown" if isinstance(error, errors.StoreError) else "invalid"
    return {"receipt": receipt, "verdict": verdict, "problem": problem_of(error)}
