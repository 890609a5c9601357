"""Send, receive, delete messages, and change how long they stay hidden."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import CassieqError, ReceiptExpired, ReceiptInvalid, StoreTimeout
from cassieq_spark.model.dead import REDRIVE
from cassieq_spark.model.dead_letter import headers_of
from cassieq_spark.queue.settle.ack_group import Verdict
from cassieq_spark.server.sending import Outgoing
from cassieq_spark.server.sqs import attributes as settings
from cassieq_spark.server.sqs import bodies
from cassieq_spark.server.sqs.actions import Typed
from cassieq_spark.server.sqs.errors import SqsError, empty_batch, expired, invalid, translated

if TYPE_CHECKING:
    from cassieq_spark.queue.handle import Queue
    from cassieq_spark.queue.message import Message
    from cassieq_spark.server.sqs.call import Call

MOST_IN_BATCH: Final = 10
MOST_BATCH_BYTES: Final = 1_048_576
MOST_VISIBILITY_S: Final = 43_200
LEAST_VISIBILITY_S: Final = 0.1
"""The shortest lease that a queue grants. SQS knows 0: such a message is visible again at once."""

_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")

Entry = Mapping[str, Any]


async def send(call: Call) -> dict[str, Any]:
    """SendMessage."""
    queue = call.queue()
    kept = settings.of_queue(await call.backend.opened(queue))
    outgoing, answer = _outgoing(call.parameters, kept)
    (found,) = await call.sending.put(queue, [outgoing])
    if isinstance(found, Exception):
        raise found
    if outgoing.is_visible:
        call.waiting.put(queue)
    return {"MessageId": found.message_id, **answer}


async def send_batch(call: Call) -> dict[str, Any]:
    """SendMessageBatch: each entry succeeds or fails for itself."""
    queue = call.queue()
    entries = _entries(call)
    kept = settings.of_queue(await call.backend.opened(queue))
    ready: dict[int, tuple[Outgoing, dict[str, Any]]] = {}
    failed: dict[int, SqsError] = {}
    total = 0
    for at, entry in enumerate(entries):
        total += bodies.size_of(
            entry["MessageBody"].encode(errors="replace"), entry.get("MessageAttributes", {})
        )
        try:
            ready[at] = _outgoing(entry, kept)
        except SqsError as error:
            failed[at] = error
    if total > MOST_BATCH_BYTES:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MOST_BATCH_BYTES} bytes. You have sent "
            f"{total} bytes.",
        )
    put = await call.sending.put(queue, [one for one, _ in ready.values()])
    answers: list[dict[str, Any] | SqsError] = [
        failed.get(at, expired()) for at in range(len(entries))
    ]
    for at, found in zip(ready, put, strict=True):
        answers[at] = (
            _as_sqs(found)
            if isinstance(found, Exception)
            else {"MessageId": found.message_id, **ready[at][1]}
        )
    if any(one.is_visible for one, _ in ready.values()):
        call.waiting.put(queue)
    return _batch_answer(call, entries, answers)


async def receive(call: Call) -> dict[str, Any]:
    """ReceiveMessage: what is leased is noted in the call, for the case that nobody gets it."""
    queue = call.queue()
    at_most = _within(call, "MaxNumberOfMessages", 1, MOST_IN_BATCH)
    visibility_s = _within(call, "VisibilityTimeout", 0, MOST_VISIBILITY_S)
    wait_s = _within(call, "WaitTimeSeconds", 0, settings.MOST_WAIT_S)
    kept = settings.of_queue(await call.backend.opened(queue))
    # Before anything is leased: it may ask the cluster, and fail.
    began_us, began_s = await call.backend.now_us(), asyncio.get_running_loop().time()
    messages = await call.waiting.receive(
        queue,
        at_most=1 if at_most is None else at_most,
        visibility_s=None if visibility_s is None else max(visibility_s, LEAST_VISIBILITY_S),
        wait_s=kept.wait_s if wait_s is None else wait_s,
    )
    call.leased.append((queue, messages))
    if messages:
        await call.confirm(queue)
    waited_s = asyncio.get_running_loop().time() - began_s
    now_ms = (began_us + round(waited_s * 1e6)) // 1_000
    shown = [_received(call, one, now_ms) for one in messages]
    return {"Messages": shown} if shown else {}


async def delete(call: Call) -> dict[str, Any]:
    """DeleteMessage."""
    queue, receipt = call.queue(), call.parameters["ReceiptHandle"]

    (verdict,) = await call.deleting.ack(queue, [receipt])
    if isinstance(verdict, ReceiptInvalid):
        raise verdict
    failure = _not_acked(verdict)
    if failure is not None:
        raise failure
    return {}


async def delete_batch(call: Call) -> dict[str, Any]:
    """DeleteMessageBatch: all that can be deleted are, by one LWT for each bucket."""
    queue, entries = call.queue(), _entries(call)
    receipts = [entry["ReceiptHandle"] for entry in entries]
    answers: list[dict[str, Any] | SqsError] = []
    for verdict in await call.deleting.ack(queue, receipts):
        failure = _as_sqs(verdict) if isinstance(verdict, Exception) else _not_acked(verdict)
        answers.append(failure or {})
    return _batch_answer(call, entries, answers)


async def change_visibility(call: Call) -> dict[str, Any]:
    """ChangeMessageVisibility."""
    await _extend(call, call.queue(), call.parameters)
    return {}


async def change_visibility_batch(call: Call) -> dict[str, Any]:
    """ChangeMessageVisibilityBatch."""
    queue, entries = call.queue(), _entries(call)

    async def one(entry: Entry) -> dict[str, Any]:
        await _extend(call, queue, {"VisibilityTimeout": 30, **entry})
        return {}

    return _batch_answer(call, entries, [await _caught(one, entry) for entry in entries])


async def _extend(call: Call, queue: str, given: Entry) -> None:
    seconds = given["VisibilityTimeout"]
    _check_range("VisibilityTimeout", seconds, 0, MOST_VISIBILITY_S)

    def extend(handle: Queue) -> None:
        handle.extend(given["ReceiptHandle"], seconds)

    try:
        await call.backend.on_queue(queue, extend)
    except ReceiptExpired as error:
        raise SqsError(
            "MessageNotInflight", "The specified message is not in flight: its delivery has ended."
        ) from error
    if not seconds:
        call.waiting.put(queue)


def _outgoing(given: Entry, kept: settings.Kept) -> tuple[Outgoing, dict[str, Any]]:
    """A message to put, and the answer for it without its id."""
    for name in ("MessageDeduplicationId", "MessageGroupId"):
        if name in given:
            raise invalid(
                f"Value {given[name][:200]!r} for parameter {name} is invalid. Reason: The request "
                "includes a parameter that is not valid for this queue type."
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
    return Outgoing(body=body, headers=headers, delay_s=float(delay_s)), answer


def _received(call: Call, message: Message, now_ms: int) -> dict[str, Any]:
    text, is_base64 = bodies.text_of(message.body)
    shown: dict[str, Any] = {
        "MessageId": message.message_id,
        "ReceiptHandle": message.receipt,
        "MD5OfBody": bodies.md5_of(text),
        "Body": text,
    }
    wanted = {*(call.get("AttributeNames") or ()), *(call.get("MessageSystemAttributeNames") or ())}
    if wanted:
        known = _system_attributes(call, message, now_ms)
        asked = {key: one for key, one in known.items() if "All" in wanted or key in wanted}
        shown |= {"Attributes": asked} if asked else {}
    attributes = bodies.attributes_of(message.headers, call.get("MessageAttributeNames") or ())
    if is_base64:
        attributes[bodies.ENCODING] = Typed(data_type="String", text="base64")
    if attributes:
        shown["MD5OfMessageAttributes"] = bodies.md5_of_attributes(attributes)
        shown["MessageAttributes"] = {name: bodies.shown(one) for name, one in attributes.items()}
    return shown


def _system_attributes(call: Call, message: Message, now_ms: int) -> dict[str, str]:
    sent_ms = int(message.enqueued_at.timestamp() * 1_000)
    known = {
        "SenderId": call.number,
        "SentTimestamp": str(sent_ms),
        "ApproximateReceiveCount": str(message.delivery_count),
    }
    if message.delivery_count == 1:
        # The queue counts deliveries, and does not note when the first one was.
        known["ApproximateFirstReceiveTimestamp"] = str(max(now_ms, sent_ms))
    if (trace := message.headers.get(bodies.TRACE_HEADER)) is not None:
        known["AWSTraceHeader"] = trace
    letter = headers_of(message.headers)
    # Older releases wrote into a redriven message, too, where it came from.
    source = None if letter.reason == REDRIVE else letter.source_queue
    if source is not None and (arn := call.arn(source)) is not None:
        known["DeadLetterQueueSourceArn"] = arn
    return known


def _within(call: Call, name: str, low: int, high: int) -> int | None:
    value: int | None = call.get(name)
    if value is not None:
        _check_range(name, value, low, high)
    return value


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise invalid(
            f"Value {value} for parameter {name} is invalid. Reason: Must be between {low} and "
            f"{high}, if provided."
        )


def _entries(call: Call) -> list[dict[str, Any]]:
    """The entries of a batch, checked together."""
    entries: list[dict[str, Any]] = call.parameters["Entries"]
    if not entries:
        raise empty_batch(call.action)
    if len(entries) > MOST_IN_BATCH:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {MOST_IN_BATCH}. You have sent "
            f"{len(entries)}.",
        )
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
