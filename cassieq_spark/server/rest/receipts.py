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
from cassieq_spark.queue.message import Message, show_time
from cassieq_spark.queue.settle.settle import Verdict
from cassieq_spark.server.rest.call import Answer
from cassieq_spark.server.rest.problems import problem_of
from cassieq_spark.server.settling import Failure, acks, each, failures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.server.rest.call import Call

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def ack(call: Call) -> Answer:
    """They are done."""
    receipts: list[str] = call.body.receipts

    verdicts = await call.backend.on_queue(call.queue, partial(acks, receipts))
    results = [
        _refused(receipt, verdict)
        if isinstance(verdict, Exception)
        else {"receipt": receipt, "verdict": str(verdict)}
        for receipt, verdict in zip(receipts, verdicts, strict=True)
    ]
    return Answer(body={"results": results})


async def ack_one(call: Call) -> Answer:
    """As an ack of several, but the verdict is the status."""
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


async def extend(call: Call) -> Answer:
    """The receipts stay valid."""
    seconds: float = call.body.visibility_timeout
    until: list[datetime] = []

    async def settle(queue: AsyncQueue, receipts: list[str]) -> None:
        until.append(await queue.extend(receipts, seconds))

    results = await _settled(call, "extended", settle)
    for one in results:
        if one["verdict"] == "extended" and seconds and until:
            one["visible_until"] = show_time(until[0])
    return Answer(body={"results": results})


async def release(call: Call) -> Answer:
    """Anybody may get them, at once or after the delay."""
    given = call.body

    async def settle(queue: AsyncQueue, receipts: list[str]) -> None:
        await queue.release(receipts, delay=given.delay, is_counted=given.is_counted)

    return Answer(body={"results": await _settled(call, "released", settle)})


async def reject(call: Call) -> Answer:
    """Repair moves them to the dead-letter queue, with the reason."""
    reason: str = call.body.reason

    async def settle(queue: AsyncQueue, receipts: list[str]) -> None:
        await queue.reject(receipts, reason=reason)

    return Answer(body={"results": await _settled(call, "rejected", settle)})


async def update(call: Call) -> Answer:
    """Each has its own verdict."""

    async def one(queue: AsyncQueue, given: Any) -> dict[str, Any]:
        try:
            after = await _updated(queue, given.receipt, given.body, given.visibility_timeout)
        except (ReceiptExpired, ReceiptInvalid, StoreError, UsageError) as error:
            return _refused(given.receipt, error)
        return {"receipt": given.receipt, "verdict": "updated", **after}

    async def work(queue: AsyncQueue) -> list[dict[str, Any]]:
        return [await one(queue, given) for given in call.body.updates]

    return Answer(body={"results": await call.backend.on_queue(call.queue, work)})


async def update_one(call: Call) -> Answer:
    """The body of the request is the new body of the message."""
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
