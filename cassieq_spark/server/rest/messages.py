"""Put, lease and look at messages; settle deliveries by their receipts; dead letters and redrive.

What settles many gives a verdict for each receipt.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote
from uuid import UUID

from starlette.requests import Request

from cassieq_spark import errors
from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.model.moments import show_time, time_of
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.options import arguments
from cassieq_spark.queue.inspect.facts import browse
from cassieq_spark.queue.inspect.letters import as_object, conditions, letter_as_object
from cassieq_spark.queue.message import Delivery, Message
from cassieq_spark.queue.put.results import PutResult
from cassieq_spark.queue.settle.settle import AckResult
from cassieq_spark.server import batches
from cassieq_spark.server.door import as_json, in_turn, on_queue
from cassieq_spark.server.guards import Refusal
from cassieq_spark.server.rest import models
from cassieq_spark.server.rest.call import JSON, RAW, Answer, Call, FieldInvalid, problem_of

SOURCE: Final = "source-queue="

BODY: Final = (
    "The bytes of the message. A header `Cassieq-Header-NAME: value` of the request is the "
    "header `name` of the message."
)

HEADER: Final = "cassieq-header-"
"""A header of HTTP that begins with this is a header of the message."""

MOST_HEADER_BYTES: Final = 16_384
"""The most bytes of a message's tag and headers in headers of HTTP: programs accept no more."""

_PREFERRED_WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?=$|[,;])")
_PRINTABLE: Final = "".join(chr(one) for one in range(0x21, 0x7F) if chr(one) != "%")
_IN_NAMES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789!#$&'*+-.^_`|~")


async def put(call: Call) -> Answer:
    """Put one message.

    It will be delivered until somebody acks it.
    """
    query: models.PutOne = call.query
    headers = models.sent_headers(_headers(call.request))
    arguments.check_extras(query.tag, headers)
    message = _outgoing(query, arguments.body(call.body), headers)
    (found,) = await batches.put(call.backend, call.queue, [message])
    if isinstance(found, Exception):
        raise found
    return Answer(_result(found), 200 if found.duplicate else 201)


async def put_many(call: Call) -> dict[str, Any]:
    """Put many messages.

    Each message has its own result: some may be stored, and others not.
    """
    given: list[models.PutMessage] = call.body.messages
    messages = [_outgoing(one, one.body, one.headers) for one in given]
    found = await batches.put(call.backend, call.queue, messages)
    batches.check_any(found)
    results = [
        {"problem": problem_of(one)} if isinstance(one, Exception) else _result(one)
        for one in found
    ]
    return {"results": results}


async def next_messages(call: Call) -> Answer:
    """Lease messages: nobody else gets them before the visibility timeout is over.

    With `Accept: application/octet-stream` the answer is the body of one message, and all else is
    in its headers; 204 if there is none.
    """
    query = call.query
    if call.is_raw and query.max_messages > 1:
        raise Refusal(406, f"{RAW} is the body of one message. Say max_messages=1, or accept JSON")
    wait_s, applied = query.wait, {}
    preferred = _preferred_wait(call.request)
    if wait_s is None and preferred is not None:
        wait_s = min(float(preferred), models.MOST_WAIT_S)
        applied = {"Preference-Applied": f"wait={wait_s:.0f}"}
    found = await call.receive(
        query.max_messages,
        wait=wait_s or 0.0,
        visibility_timeout=query.visibility_timeout,
        min_priority=query.min_priority,
    )
    if call.is_raw:
        return _raw(found[0] if found else None, applied)
    return await listed(call, found, shown, applied)


async def peek(call: Call) -> Answer:
    """Look at visible messages.

    They stay visible.
    """
    backend, most = call.backend, call.query.max_messages
    found = await backend.reading(
        lambda: backend.on_queue(call.queue, lambda queue: queue.peek(most))
    )
    return await listed(call, found, shown)


async def show_letters(call: Call) -> Answer:
    """Show the messages of a dead-letter queue.

    They stay in it.
    """
    query = call.query
    is_wanted = conditions(_where(call, query.where), query.before, query.after, mark="")

    async def chosen() -> list[Message]:
        found: list[Message] = []
        async for one in browse(await call.lane()):
            if is_wanted(one):
                found.append(one)
            if len(found) == query.max_messages:
                break
        return found

    found = await call.backend.reading(lambda: call.backend.asked(chosen))
    return await listed(call, found, partial(_letter, call))


@in_turn
async def redrive(call: Call) -> dict[str, Any]:
    """Send messages back to the queue they came from, or to another one, each exactly once."""
    given, own_name = call.body, call.principal.own_name
    is_wanted = None
    if given.where or given.before is not None or given.after is not None:
        is_wanted = conditions(_where(call, given.where), given.before, given.after, mark="")
    done = await call.backend.client.redrive(
        call.queue,
        where=is_wanted,
        to=None if given.to is None else call.target(given.to),
        max_messages=given.max_messages,
        may=call.principal.may_put,
        dry_run=given.dry_run,
    )
    found = done.to_dict()
    found["queue"] = own_name(found["queue"])
    found["by_target"] = {own_name(one): count for one, count in found["by_target"].items()}
    return found


async def listed(
    call: Call,
    messages: Sequence[Message],
    show: Callable[[Message], dict[str, Any]],
    headers: dict[str, str] | None = None,
) -> Answer:
    """An answer with messages, as ``show`` shows each."""
    body = await call.made(lambda: as_json({"messages": list(map(show, messages))}), messages)
    return Answer(body, headers=headers or {}, media_type=JSON)


def shown(message: Message) -> dict[str, Any]:
    """A message in JSON: the body is text, or base64 if it is not UTF-8."""
    return {"encoding": "text", **as_object(message)}


def _result(put: PutResult) -> dict[str, Any]:
    """Return the result of a put, with ``duplicate`` only if it is true."""
    found: dict[str, Any] = {"message_id": put.message_id}
    return {**found, "duplicate": True} if put.duplicate else found


def _outgoing(given: models.PutOne, body: bytes, headers: dict[str, str]) -> batches.Outgoing:
    return batches.Outgoing(
        body=body,
        headers=headers,
        common=batches.Common(**given.model_dump(include=set(batches.Common._fields))),
        message_id=given.message_id,
        dedup_key=given.dedup_key,
        group=given.group,
    )


def _headers(request: Request) -> dict[str, str]:
    """The headers of a message: names and values in UTF-8, with % as in URLs."""
    found: dict[str, str] = {}
    for raw_name, raw_value in request.headers.raw:
        name = raw_name.decode("latin-1").lower()
        if not name.startswith(HEADER):
            continue
        try:
            key = unquote(name.removeprefix(HEADER), errors="strict")
            value = unquote(raw_value.decode(), errors="strict")
        except UnicodeDecodeError as error:
            raise FieldInvalid(
                f"header {name!r} is not UTF-8, as it is or with %. Write other bytes into the "
                "body",
                field=name,
            ) from error
        if key in found:
            raise FieldInvalid(f"header {name!r} is there twice. Give it once", field=name)
        found[key] = value
    return found


def _raw(message: Delivery | None, headers: dict[str, str]) -> Answer:
    """The body of one message as it is; all else is in headers."""
    if message is None:
        return Answer(None, 204, headers)
    found = {
        **headers,
        "Cassieq-Message-Id": message.message_id,
        "Cassieq-Receipt": message.receipt,
        "Cassieq-Delivery-Count": str(message.delivery_count),
        "Cassieq-Priority": str(message.priority),
        "Cassieq-Enqueued-At": show_time(message.enqueued_at) or "",
        "Cassieq-Visible-Until": show_time(message.visible_until) or "",
    }
    own = {HEADER.title() + _name(name): _text(text) for name, text in message.headers.items()}
    if message.tag is not None:
        own["Cassieq-Tag"] = _text(message.tag)
    if message.group is not None:
        own["Cassieq-Group"] = _text(message.group)
    size = sum(len(name) + len(text) for name, text in own.items())
    # Many programs refuse a response with longer headers, and would never get past this message.
    found |= {"Cassieq-Left-Out": str(size)} if size > MOST_HEADER_BYTES else own
    return Answer(message.body, headers=found)


def _name(text: str) -> str:
    """Return the text as a name of an HTTP header, whose case does not count."""
    return "".join(chr(one) if one in _IN_NAMES else f"%{one:02x}" for one in text.encode())


def _text(text: str) -> str:
    return quote(text, safe=_PRINTABLE)


def _preferred_wait(request: Request) -> int | None:
    for one in request.headers.getlist("prefer"):
        if found := _PREFERRED_WAIT.search(one.lower()):
            return int(found[1])
    return None


def _letter(call: Call, message: Message) -> dict[str, Any]:
    found = {"encoding": "text", **letter_as_object(message)}
    if found["source_queue"] is not None:
        found["source_queue"] = call.principal.own_name(found["source_queue"])
    return found


def _where(call: Call, given: list[str]) -> list[str]:
    """The conditions, with source queues as the client knows them."""
    return [
        SOURCE + call.principal.full_name(one.removeprefix(SOURCE))
        if one.startswith(SOURCE) and one != SOURCE
        else one
        for one in given
    ]


# --- by receipt -----------------------------------------------------------------------------------


@on_queue
async def ack(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Ack messages: one LWT for each bucket, however many there are."""
    return _told(call, await batches.acks(call.body.receipts, queue))


@on_queue
async def ack_one(call: Call, queue: AsyncQueue) -> None:
    """Ack one message: it is never delivered again.

    409 if its delivery has ended.
    """
    receipt: str = call.request.path_params["receipt"]
    (verdict,) = await batches.acks([receipt], queue)
    if isinstance(verdict, errors.ReceiptInvalid):
        raise verdict
    if verdict is AckResult.STALE:
        raise errors.ReceiptExpired(
            "this delivery has ended: the message came back, or somebody else has it. It is not "
            "acked. Make the work idempotent, or use a longer visibility timeout",
            refused=(receipt,),
        )
    if verdict is AckResult.UNKNOWN:
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
    settle = partial(queue.release, delay=given.delay, count_delivery=given.count_delivery)
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
            errors.ClientClosed,
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
    found = await queue.update(_delivery(receipt), body=body, visibility_timeout=seconds)
    if found.receipt == receipt:  # the message was given back
        return {"new_receipt": None, "visible_until": None}
    return {"new_receipt": found.receipt, "visible_until": show_time(found.visible_until)}


def _delivery(receipt: str) -> Delivery:
    """A delivery of which only the receipt is known: an update needs nothing else of it."""
    proof = Receipt.decode(receipt)
    return Delivery(
        message_id=str(UUID(int=0)),
        id=0,
        body=b"",
        tag=None,
        delivery_count=0,
        enqueued_at=time_of(0),
        visible_until=time_of(0),
        lane=proof.lane,
        _proof=proof,
    )


async def _settled(
    call: Call, done: str, settle: Callable[[list[str]], Awaitable[None]]
) -> dict[str, Any]:
    found = await batches.each(call.body.receipts, lambda good: batches.failures(good, settle))
    return _told(call, [done if one is None else one for one in found])


def _told(call: Call, verdicts: Sequence[str | errors.CassieqError]) -> dict[str, Any]:
    """Return the result for each receipt of a call: its verdict, or why there is none."""
    results = [
        _refused(receipt, one)
        if isinstance(one, errors.CassieqError)
        else {"receipt": receipt, "verdict": str(one)}
        for receipt, one in zip(call.body.receipts, verdicts, strict=True)
    ]
    return {"results": results}


def _refused(receipt: str, error: errors.CassieqError) -> dict[str, Any]:
    """The verdict on a receipt by which nothing was done, or for which that is unknown."""
    if isinstance(error, errors.ReceiptExpired):
        return {"receipt": receipt, "verdict": "stale"}
    is_open = isinstance(error, errors.StoreError | errors.ClientClosed)
    verdict = "unknown" if is_open else "invalid"
    return {"receipt": receipt, "verdict": verdict, "problem": problem_of(error)}
