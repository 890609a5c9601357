"""Send, receive, delete messages, and change how long they stay hidden."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.errors import CassieqError, ReceiptExpired, ReceiptInvalid, StoreTimeout
from cassieq_spark.model.group import is_group
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.queue.message import Delivery
from cassieq_spark.queue.settle.settle import AckResult
from cassieq_spark.server.batches import Common, Outgoing, acks, put
from cassieq_spark.server.sqs import attributes as settings
from cassieq_spark.server.sqs import bodies
from cassieq_spark.server.sqs.call import Call, SqsError, empty_batch, translated, within, wrong
from cassieq_spark.server.sqs.protocol import FAILURE, MOST_IN_BATCH, Kind, Typed
from cassieq_spark.store import portal

Entry = Mapping[str, Any]
Entries = list[dict[str, Any]]
Answers = list[dict[str, Any] | SqsError]
Work = Callable[[Call, Entries], Awaitable[Answers]]
"""Does the entries of a batch, and returns the answer for each."""

MOST_BATCH_BYTES: Final = 1_048_576
MOST_VISIBILITY_S: Final = 43_200
LEAST_VISIBILITY_S: Final = 0.1
"""The shortest lease that a queue grants. For SQS's 0 it is ended as soon as it is granted."""

SEND: Final[dict[str, Kind]] = {
    "DelaySeconds": Kind.WHOLE,
    "MessageAttributes": Kind.TYPED,
    "MessageSystemAttributes": Kind.TYPED,
    "MessageDeduplicationId": Kind.TEXT,
    "MessageGroupId": Kind.TEXT,
}
_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")


async def send_batch(call: Call, entries: Entries) -> Answers:
    """SendMessageBatch: each entry succeeds or fails for itself."""
    total = sum(
        bodies.bytes_in(one["MessageBody"]) + bodies.size_of(b"", one.get("MessageAttributes", {}))
        for one in entries
    )
    if total > MOST_BATCH_BYTES:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MOST_BATCH_BYTES} bytes. You have sent "
            f"{total} bytes.",
        )
    return await send(call, entries)


async def send(call: Call, entries: Entries) -> Answers:
    """SendMessage."""
    queue = await call.backend.opened(call.queue)
    ready: dict[int, tuple[Outgoing, dict[str, Any]]] = {}
    answers: dict[int, dict[str, Any] | SqsError] = {}
    for at, entry in enumerate(entries):
        try:
            ready[at] = _outgoing(entry, queue)
        except SqsError as error:
            answers[at] = error
    results = await put(call.backend, call.queue, [one for one, _ in ready.values()])
    for at, found in zip(ready, results, strict=True):
        answers[at] = (
            _as_sqs(found)
            if isinstance(found, Exception)
            else {"MessageId": found.message_id, **ready[at][1]}
        )
    return [answers[at] for at in range(len(entries))]


async def receive(call: Call) -> Callable[[], dict[str, Any]]:
    """ReceiveMessage: what is leased is noted in the call, for the case that nobody gets it.

    Returns:
        What shows the messages, which may be large.
    """
    at_most = call.whole("MaxNumberOfMessages", 1, MOST_IN_BATCH)
    visibility_s = call.whole("VisibilityTimeout", 0, MOST_VISIBILITY_S)
    wait_s = call.whole("WaitTimeSeconds", 0, settings.MOST_WAIT_S)
    wanted = bodies.wanted_of(call)
    handle = await call.backend.opened(call.queue)
    # Before anything is leased: it may ask the cluster, and fail.
    began_us, began_s = await call.backend.now_us(), asyncio.get_running_loop().time()
    messages = await call.receive(
        1 if at_most is None else at_most,
        wait=settings.number(handle, settings.WAIT) if wait_s is None else wait_s,
        visibility_timeout=None if visibility_s is None else max(visibility_s, LEAST_VISIBILITY_S),
    )
    if messages:
        await _end_if_zero(call, handle, messages, visibility_s)
    waited_s = asyncio.get_running_loop().time() - began_s
    now_ms = (began_us + round(waited_s * 1e6)) // 1_000

    def show() -> dict[str, Any]:
        shown = [bodies.shown(call, one, wanted, now_ms) for one in messages]
        return {"Messages": shown} if shown else {}

    return show


async def delete(call: Call, entries: Entries) -> Answers:
    """DeleteMessage: all that can be deleted are, by one LWT for each bucket."""
    receipts = [one["ReceiptHandle"] for one in entries]
    verdicts = await call.backend.on_queue(call.queue, partial(acks, receipts))
    return [_deleted(one) for one in verdicts]


def _deleted(verdict: AckResult | ReceiptInvalid) -> dict[str, Any] | SqsError:
    if isinstance(verdict, ReceiptInvalid):
        return _as_sqs(verdict)
    if verdict is AckResult.STALE:
        return _as_sqs(ReceiptExpired("the delivery has ended"))
    if verdict is AckResult.UNKNOWN:
        return _as_sqs(StoreTimeout("Cassandra did not say whether it is deleted. Try again"))
    return {}


async def change_visibility(call: Call, entries: Entries) -> Answers:
    """ChangeMessageVisibility, one message after the other."""
    answers: Answers = []
    for entry in entries:
        try:
            await _extend(call, entry["ReceiptHandle"], entry.get("VisibilityTimeout", 30))
            answers.append({})
        except (SqsError, CassieqError) as error:
            answers.append(_as_sqs(error))
    return answers


async def _end_if_zero(
    call: Call, queue: AsyncQueue, messages: Iterable[Delivery], visibility_s: int | None
) -> None:
    """Let anybody get the messages from now on if the visibility timeout is 0.

    Until somebody does, their receipts delete them, as with SQS.
    """
    if int(queue.settings.visibility_timeout_s if visibility_s is None else visibility_s):
        return

    async def lapse(handle: AsyncQueue) -> None:
        # No program that holds a handle needs this.
        await portal.asked(handle._sync._lapse(messages))  # noqa: SLF001

    await call.backend.on_queue(queue.name, lapse)


async def _extend(call: Call, receipt: str, seconds: int) -> None:
    within("VisibilityTimeout", seconds, 0, MOST_VISIBILITY_S)
    began_us = Receipt.decode(receipt).began_us
    if seconds and began_us is not None:
        held_s = (await call.backend.now_us() - began_us) / 1e6
        if held_s + seconds > MOST_VISIBILITY_S:
            why = "Total VisibilityTimeout for the message is beyond the limit"
            raise wrong("VisibilityTimeout", f"{why} [{MOST_VISIBILITY_S} seconds]", seconds)

    try:
        await call.backend.on_queue(call.queue, lambda queue: queue.extend(receipt, seconds))
    except ReceiptExpired as error:
        raise SqsError(
            "MessageNotInflight", "The specified message is not in flight: its delivery has ended."
        ) from error


def _outgoing(given: Entry, queue: AsyncQueue) -> tuple[Outgoing, dict[str, Any]]:
    """A message to put, and the answer for it without its id."""
    if "MessageDeduplicationId" in given:
        raise wrong(
            "MessageDeduplicationId",
            "The request includes a parameter that is not valid for this queue type.",
            repr(given["MessageDeduplicationId"][:200]),
        )
    group: str | None = given.get("MessageGroupId")
    if group is not None and not is_group(group):
        why = "can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise wrong("MessageGroupId", f"MessageGroupId {why}", repr(group[:200]))
    attributes: dict[str, Typed] = given.get("MessageAttributes", {})
    system: dict[str, Typed] = given.get("MessageSystemAttributes", {})
    body = bodies.body_of(given["MessageBody"])
    headers = bodies.headers_of(attributes, system)
    size = bodies.size_of(body, attributes)
    most = settings.number(queue, settings.SIZE)
    if size > most:
        why = f"Message must be shorter than {most} bytes."
        raise SqsError(
            "InvalidParameterValue", f"One or more parameters are invalid. Reason: {why}"
        )
    delay_s = given.get("DelaySeconds", settings.number(queue, settings.DELAY))
    if not 0 <= delay_s <= settings.MOST_DELAY_S:
        why = f"DelaySeconds must be >= 0 and <= {settings.MOST_DELAY_S}."
        raise wrong("DelaySeconds", why, delay_s)
    answer = {"MD5OfMessageBody": bodies.md5_of(given["MessageBody"])}
    if attributes:
        answer["MD5OfMessageAttributes"] = bodies.md5_of_attributes(attributes)
    if system:
        answer["MD5OfMessageSystemAttributes"] = bodies.md5_of_attributes(system)
    common = Common(delay=float(delay_s))
    return Outgoing(body=body, headers=headers, common=common, group=group), answer


def one(work: Work) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    """Do what a batch of one entry does; its error is the error of the call."""

    async def run(call: Call) -> dict[str, Any]:
        (answer,) = await work(call, [call.parameters])
        if isinstance(answer, SqsError):
            raise answer
        return answer

    return run


def each(work: Work) -> Callable[[Call], Awaitable[dict[str, Any]]]:
    """Do a batch. An entry whose parameters are wrong has failed before, and alone."""

    async def run(call: Call) -> dict[str, Any]:
        await call.backend.opened(call.queue)  # it says so before it looks at entries
        entries = _entries(call)
        right = [one for one in entries if FAILURE not in one]
        answers = iter(await work(call, right) if right else ())
        done: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for entry in entries:
            answer = entry[FAILURE] if FAILURE in entry else next(answers)
            if isinstance(answer, SqsError):
                call.failed.append((answer.name, answer.status))
                failed.append(
                    {
                        "Id": entry["Id"],
                        "SenderFault": answer.is_senders,
                        "Code": answer.query_code,
                        "Message": answer.message,
                    }
                )
            else:
                done.append({"Id": entry["Id"], **answer})
        return {"Successful": done, **({"Failed": failed} if failed else {})}

    return run


def _entries(call: Call) -> list[dict[str, Any]]:
    """The entries of a batch, checked together."""
    entries: list[dict[str, Any]] = call.parameters["Entries"]
    if not entries:
        raise empty_batch(call.operation.name)
    ids = [entry["Id"] for entry in entries]
    if not all(map(_ENTRY_ID.fullmatch, ids)):
        raise SqsError(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
            "It can be at most 80 letters long.",
        )
    if twice := [one for at, one in enumerate(ids) if one in ids[:at]]:
        raise SqsError("BatchEntryIdsNotDistinct", f"Id {twice[0]} repeated.")
    return entries


def _as_sqs(error: Exception) -> SqsError:
    known = translated(error)
    if known is None:
        raise error
    return known
