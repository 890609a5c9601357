"""Send, receive, delete messages, and change how long they stay hidden."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import CassieqError, ReceiptExpired, ReceiptInvalid, StoreTimeout
from cassieq_spark.model.group import is_group
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.queue.settle.settle import Verdict
from cassieq_spark.server.outgoing import Outgoing, put
from cassieq_spark.server.settling import acks
from cassieq_spark.server.sqs import attributes as settings
from cassieq_spark.server.sqs import bodies, received
from cassieq_spark.server.sqs.actions import FAILURE
from cassieq_spark.server.sqs.errors import (
    SqsError,
    empty_batch,
    expired,
    invalid,
    out_of_range,
    translated,
)
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.queue.message import Message
    from cassieq_spark.server.sqs.actions import Typed
    from cassieq_spark.server.sqs.call import Call

MOST_IN_BATCH: Final = 10
MOST_BATCH_BYTES: Final = 1_048_576
MOST_VISIBILITY_S: Final = 43_200
LEAST_VISIBILITY_S: Final = 0.1
"""The shortest lease that a queue grants. For SQS's 0 it is ended as soon as it is granted."""

_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")

Entry = Mapping[str, Any]
Entries = list[dict[str, Any]]


async def send(call: Call) -> dict[str, Any]:
    """SendMessage."""
    queue = call.queue()
    kept = settings.of_queue(await call.backend.opened(queue))
    outgoing, answer = _outgoing(call.parameters, kept)
    (found,) = await put(call.backend, queue, [outgoing])
    if isinstance(found, Exception):
        raise found
    return {"MessageId": found.message_id, **answer}


async def send_batch(call: Call) -> dict[str, Any]:
    """SendMessageBatch: each entry succeeds or fails for itself."""
    queue = call.queue()
    kept = settings.of_queue(await call.backend.opened(queue))
    return await _each(call, partial(_send_all, call, queue, kept))


async def _send_all(
    call: Call, queue: str, kept: settings.Kept, entries: Entries
) -> list[dict[str, Any] | SqsError]:
    ready: dict[int, tuple[Outgoing, dict[str, Any]]] = {}
    answers: dict[int, dict[str, Any] | SqsError] = {}
    total = 0
    for at, entry in enumerate(entries):
        total += bodies.bytes_in(entry["MessageBody"])
        total += bodies.size_of(b"", entry.get("MessageAttributes", {}))
        try:
            ready[at] = _outgoing(entry, kept)
        except SqsError as error:
            answers[at] = error
    if total > MOST_BATCH_BYTES:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MOST_BATCH_BYTES} bytes. You have sent "
            f"{total} bytes.",
        )
    results = await put(call.backend, queue, [one for one, _ in ready.values()])
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
    queue = call.queue()
    at_most = _within(call, "MaxNumberOfMessages", 1, MOST_IN_BATCH)
    visibility_s = _within(call, "VisibilityTimeout", 0, MOST_VISIBILITY_S)
    wait_s = _within(call, "WaitTimeSeconds", 0, settings.MOST_WAIT_S)
    wanted = received.wanted_of(call)
    handle = await call.backend.opened(queue)
    kept = settings.of_queue(handle)
    # Before anything is leased: it may ask the cluster, and fail.
    began_us, began_s = await call.backend.now_us(), asyncio.get_running_loop().time()
    messages = await call.backend.receive(
        queue,
        1 if at_most is None else at_most,
        wait=kept.wait_s if wait_s is None else wait_s,
        visibility_timeout=None if visibility_s is None else max(visibility_s, LEAST_VISIBILITY_S),
    )
    call.leased.append((queue, messages))
    if messages:
        await call.confirm(queue)
        await _end_if_zero(call, handle, messages, visibility_s)
    waited_s = asyncio.get_running_loop().time() - began_s
    now_ms = (began_us + round(waited_s * 1e6)) // 1_000

    def show() -> dict[str, Any]:
        shown = [received.shown(call, one, wanted, now_ms) for one in messages]
        return {"Messages": shown} if shown else {}

    return show


async def delete(call: Call) -> dict[str, Any]:
    """DeleteMessage."""
    (verdict,) = await _acked(call, call.queue(), [call.parameters["ReceiptHandle"]])
    if isinstance(verdict, ReceiptInvalid):
        raise verdict
    failure = _not_acked(verdict)
    if failure is not None:
        raise failure
    return {}


async def delete_batch(call: Call) -> dict[str, Any]:
    """DeleteMessageBatch: all that can be deleted are, by one LWT for each bucket."""
    queue = call.queue()

    async def delete_all(entries: Entries) -> list[dict[str, Any] | SqsError]:
        verdicts = await _acked(call, queue, [one["ReceiptHandle"] for one in entries])
        failures = [
            _as_sqs(one) if isinstance(one, Exception) else _not_acked(one) for one in verdicts
        ]
        return [one or {} for one in failures]

    return await _each(call, delete_all)


async def change_visibility(call: Call) -> dict[str, Any]:
    """ChangeMessageVisibility."""
    await _extend(call, call.queue(), call.parameters)
    return {}


async def change_visibility_batch(call: Call) -> dict[str, Any]:
    """ChangeMessageVisibilityBatch."""
    queue = call.queue()

    async def one(entry: Entry) -> dict[str, Any]:
        await _extend(call, queue, {"VisibilityTimeout": 30, **entry})
        return {}

    async def change_all(entries: Entries) -> list[dict[str, Any] | SqsError]:
        return [await _caught(one, entry) for entry in entries]

    return await _each(call, change_all)


async def _acked(call: Call, queue: str, receipts: list[str]) -> list[Verdict | ReceiptInvalid]:
    return await call.backend.on_queue(queue, partial(acks, receipts))


async def _end_if_zero(
    call: Call, queue: AsyncQueue, messages: Iterable[Message], visibility_s: int | None
) -> None:
    """With a visibility timeout of 0, let anybody get the messages from now on.

    Until somebody does, their receipts delete them, as with SQS.
    """
    if int(queue.settings.visibility_timeout_s if visibility_s is None else visibility_s):
        return

    async def lapse(handle: AsyncQueue) -> None:
        # No program that holds a handle needs this.
        await portal.asked(handle._sync._lapse(messages))  # noqa: SLF001

    await call.backend.on_queue(queue.name, lapse)


async def _extend(call: Call, queue: str, given: Entry) -> None:
    seconds = given["VisibilityTimeout"]
    _check_range("VisibilityTimeout", seconds, 0, MOST_VISIBILITY_S)
    began_us = Receipt.decode(given["ReceiptHandle"]).began_us
    if seconds and began_us is not None:
        held_s = (await call.backend.now_us() - began_us) / 1e6
        if held_s + seconds > MOST_VISIBILITY_S:
            raise invalid(  # in AWS's words
                f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: Total "
                "VisibilityTimeout for the message is beyond the limit "
                f"[{MOST_VISIBILITY_S} seconds]"
            )

    try:
        await call.backend.on_queue(
            queue, lambda handle: handle.extend(given["ReceiptHandle"], seconds)
        )
    except ReceiptExpired as error:
        raise SqsError(
            "MessageNotInflight", "The specified message is not in flight: its delivery has ended."
        ) from error


def _outgoing(given: Entry, kept: settings.Kept) -> tuple[Outgoing, dict[str, Any]]:
    """A message to put, and the answer for it without its id."""
    if "MessageDeduplicationId" in given:
        raise invalid(
            f"Value {given['MessageDeduplicationId'][:200]!r} for parameter MessageDeduplicationId "
            "is invalid. Reason: The request includes a parameter that is not valid for this queue "
            "type."
        )
    group: str | None = given.get("MessageGroupId")
    if group is not None and not is_group(group):
        raise invalid(
            f"Value {group[:200]!r} for parameter MessageGroupId is invalid. Reason: "
            "MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in "
            "length."
        )
    attributes: dict[str, Typed] = given.get("MessageAttributes", {})
    system: dict[str, Typed] = given.get("MessageSystemAttributes", {})
    body = bodies.body_of(given["MessageBody"])
    headers = bodies.headers_of(attributes, system)
    size = bodies.size_of(body, attributes)
    if size > kept.max_bytes:
        raise invalid(
            "One or more parameters are invalid. Reason: Message must be shorter than "
            f"{kept.max_bytes} bytes."
        )
    delay_s = given.get("DelaySeconds", kept.delay_s)
    if not 0 <= delay_s <= settings.MOST_DELAY_S:
        raise invalid(
            f"Value {delay_s} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be "
            f">= 0 and <= {settings.MOST_DELAY_S}."
        )
    answer = {"MD5OfMessageBody": bodies.md5_of(given["MessageBody"])}
    if attributes:
        answer["MD5OfMessageAttributes"] = bodies.md5_of_attributes(attributes)
    if system:
        answer["MD5OfMessageSystemAttributes"] = bodies.md5_of_attributes(system)
    return Outgoing(body=body, headers=headers, delay_s=float(delay_s), group=group), answer


def _within(call: Call, name: str, low: int, high: int) -> int | None:
    value: int | None = call.get(name)
    if value is not None:
        _check_range(name, value, low, high)
    return value


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise out_of_range(name, value, low, high)


async def _each(call: Call, work: _Work) -> dict[str, Any]:
    """Do a batch. An entry whose parameters are wrong has failed before, and alone."""
    entries = _entries(call)
    right = [one for one in entries if FAILURE not in one]
    answers = iter(await work(right) if right else ())
    found = [one[FAILURE] if FAILURE in one else next(answers) for one in entries]
    return _batch_answer(call, entries, found)


def _entries(call: Call) -> list[dict[str, Any]]:
    """The entries of a batch, checked together."""
    entries: list[dict[str, Any]] = call.parameters["Entries"]
    if not entries:
        raise empty_batch(call.action)
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


def _batch_answer(
    call: Call, entries: list[dict[str, Any]], answers: list[dict[str, Any] | SqsError]
) -> dict[str, Any]:
    done: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for entry, answer in zip(entries, answers, strict=True):
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


def _not_acked(verdict: Verdict) -> SqsError | None:
    if verdict is Verdict.STALE:
        return expired()
    if verdict is Verdict.UNKNOWN:
        return _as_sqs(StoreTimeout("Cassandra did not say whether it is deleted. Try again"))
    return None


async def _caught(
    work: Callable[[Entry], Awaitable[dict[str, Any]]], entry: Entry
) -> dict[str, Any] | SqsError:
    try:
        return await work(entry)
    except SqsError as error:
        return error
    except CassieqError as error:
        return _as_sqs(error)


def _as_sqs(error: Exception) -> SqsError:
    known = translated(error)
    if known is None:
        raise error
    return known


if TYPE_CHECKING:
    _Work = Callable[[Entries], Awaitable[list[dict[str, Any] | SqsError]]]
