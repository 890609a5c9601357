"""Message move tasks: redrives that run in a gateway, and are noted with the queue they empty.

The notes are labels of that queue, so every gateway lists and cancels every task. A task goes on
in steps, looks at its note before each, and renews it after. If its gateway dies in the middle,
repair carries over what the last step had taken, and the task is listed as failed when its note is
no longer good.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, wraps
from typing import Any, Final

from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError, QueueNotFound
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.find import sources_of
from cassieq_spark.repair.report import Redriven
from cassieq_spark.server.backend import Backend, Busy
from cassieq_spark.server.door import on_queue
from cassieq_spark.server.sqs.call import Call, SqsError, invalid, no_queue, no_resource, not_found
from cassieq_spark.server.sqs.protocol import from_json
from cassieq_spark.store import portal

Redrive = Callable[..., Awaitable[Redriven]]

LABEL: Final = "sqs.move"
"""The newest task; older releases know only this one."""
EARLIER: Final = "sqs.moves"
"""The tasks before it, newest first."""
CANCELLED: Final = "sqs.move.cancelled"
"""The handle of a task that shall end. Nobody but its end writes over it, so it is not missed."""

MOST_LISTED: Final = 10
MOST_A_SECOND: Final = 500
"""The limits that AWS documents."""

STEP: Final = 10_000
"""The most messages of one step: so often a task without a rate looks whether it is cancelled."""

SILENT_MS: Final = 60_000
"""The time after a step for which the note of a task is good: it says until when. Then the task has
failed for everybody, and another one may be started. If its gateway is only slow, it sees that
itself after the step, and ends. No message is moved twice, whatever the two do."""

UNTIL: Final = "GoodUntilTimestamp"

REASON_LENGTH: Final = 300
ENDED: Final = "The gateway that ran the task has ended."
LATE: Final = "A step of the task took longer than a minute."

_SHOWN: Final[dict[str, type]] = {
    "Status": str,
    "SourceArn": str,
    "DestinationArn": str,
    "MaxNumberOfMessagesPerSecond": int,
    "ApproximateNumberOfMessagesMoved": int,
    "ApproximateNumberOfMessagesToMove": int,
    "FailureReason": str,
    "StartedTimestamp": int,
}
"""The fields of a note that are shown, and their types."""

_logger = get_logger("server")

Note = dict[str, Any]


async def run(backend: Backend, source: str, redrive: Redrive, note: Note) -> None:
    """Redrive the messages that a queue has now."""
    loop = asyncio.get_running_loop()
    try:
        while note["Status"] == "RUNNING":
            next_s = loop.time() + 1
            await backend.run(partial(step, backend, source, redrive, note))
            if "MaxNumberOfMessagesPerSecond" in note and note["Status"] == "RUNNING":
                await asyncio.sleep(next_s - loop.time())
    except (CassieqError, Busy) as error:
        event(_logger, "repair_failed", queue=source, error=str(error))


async def step(backend: Backend, source: str, redrive: Redrive, note: Note) -> None:
    """Move some messages, and note it, unless the task has been cancelled."""
    client = backend.client
    labels = (await client.queue(source)).labels
    if not _is_newest(note, labels):
        note["Status"] = "FAILED"
        return
    if labels.get(CANCELLED) == note["TaskHandle"]:
        note["Status"] = "CANCELLED"
    else:
        await _move(redrive, note)
    now_ms = await client.now_us() // 1_000
    if now_ms > note[UNTIL]:
        note["Status"], note["FailureReason"] = "FAILED", LATE
        if not _is_newest(note, (await client.queue(source)).labels):
            return  # another task has begun
    _renew(note, now_ms)
    ended = {} if note["Status"] == "RUNNING" else {CANCELLED: None}
    await client.label_queue(source, {LABEL: json.dumps(note), **ended})


def _is_newest(note: Note, labels: Mapping[str, str]) -> bool:
    """Whether no other task has begun since."""
    return [one["TaskHandle"] for one in _notes(labels)][:1] == [note["TaskHandle"]]


def _renew(note: Note, now_ms: int) -> None:
    note["HeardTimestamp"] = now_ms
    note[UNTIL] = now_ms + SILENT_MS


async def _move(redrive: Redrive, note: Note) -> None:
    left = note["ApproximateNumberOfMessagesToMove"] - note["ApproximateNumberOfMessagesMoved"]
    at_most = min(left, note.get("MaxNumberOfMessagesPerSecond", STEP))
    if not at_most:
        note["Status"] = "COMPLETED"
        return
    try:
        done = await redrive(max_messages=at_most)
    except CassieqError as error:
        note["Status"], reason = "FAILED", str(error)[:REASON_LENGTH]
        is_gone = isinstance(error, QueueNotFound)
        note["FailureReason"] = no_queue().query_code if is_gone else reason
        return
    moved = done.moved + done.waiting
    note["ApproximateNumberOfMessagesMoved"] += moved
    if moved < at_most or moved == left:
        note["Status"] = "FAILED" if done.problems else "COMPLETED"
    if done.problems and note["Status"] == "FAILED":
        note["FailureReason"] = done.problems[0][:REASON_LENGTH]


def _on_source(
    work: Callable[[Call, AsyncQueue], Awaitable[Note]],
) -> Callable[[Call], Awaitable[Note]]:
    """Do something with the queue that a task empties, as `on_queue` does."""
    run = on_queue(work)

    @wraps(work)
    async def named(call: Call) -> Note:
        handle = call.get("TaskHandle")
        call.principal.require_somewhere(call.operation.right)
        arn = call.parameters["SourceArn"] if handle is None else _source_in(handle)
        call.queue = call.queue_of_arn("SourceArn", arn=arn)
        try:
            return await run(call)
        except QueueNotFound as error:
            raise no_resource("SourceArn") from error

    return named


@_on_source
async def start(call: Call, queue: AsyncQueue) -> Note:
    """StartMessageMoveTask."""
    target = None
    if call.get("DestinationArn") is not None:
        target = call.queue_of_arn("DestinationArn", Right.PUT)
    rate = call.whole("MaxNumberOfMessagesPerSecond", 1, MOST_A_SECOND)
    client = call.backend.client
    if not await portal.asked(sources_of(call.backend.store, queue.name)):
        raise invalid("Source queue must be configured as a Dead Letter Queue.")
    now_ms = await client.now_us() // 1_000
    notes = _notes((await client.queue(queue.name)).labels)
    if notes and _status(notes[0], now_ms) == "RUNNING":
        raise invalid(
            "There is already a task running. Only one active task is allowed for a source queue "
            "arn at a given time."
        )
    note = {
        "TaskHandle": _handle(call.parameters["SourceArn"]),
        "Status": "RUNNING",
        "SourceArn": call.parameters["SourceArn"],
        "ApproximateNumberOfMessagesMoved": 0,
        "ApproximateNumberOfMessagesToMove": (await queue.stats()).visible,
        "StartedTimestamp": now_ms,
    }
    _renew(note, now_ms)
    if rate is not None:
        note["MaxNumberOfMessagesPerSecond"] = rate
    if target is not None:
        try:
            await client.queue(target)
        except QueueNotFound as error:
            raise no_resource("DestinationArn") from error
        note["DestinationArn"] = call.parameters["DestinationArn"]
    earlier = [{**one, "Status": _status(one, now_ms)} for one in notes[: MOST_LISTED - 1]]
    await client.label_queue(
        queue.name, {LABEL: json.dumps(note), EARLIER: json.dumps(earlier), CANCELLED: None}
    )
    redrive = partial(client.redrive, queue.name, to=target, may=call.principal.may_put)
    call.beside(run(call.backend, queue.name, redrive, note))
    return {"TaskHandle": note["TaskHandle"]}


@_on_source
async def list_tasks(call: Call, queue: AsyncQueue) -> Note:
    """ListMessageMoveTasks: the newest tasks of the queue, newest first."""
    most = call.whole("MaxResults", 1, MOST_LISTED) or 1
    client = call.backend.client
    labels, now_ms = (await client.queue(queue.name)).labels, await client.now_us() // 1_000
    return {"Results": [_shown(one, labels, now_ms) for one in _notes(labels)[:most]]}


@_on_source
async def cancel(call: Call, queue: AsyncQueue) -> Note:
    """CancelMessageMoveTask: the task ends before its next step. What it has moved stays moved."""
    handle, client = call.parameters["TaskHandle"], call.backend.client
    notes = _notes((await client.queue(queue.name)).labels)
    found = next((one for one in notes if one.get("TaskHandle") == handle), None)
    if found is None:
        raise not_found("Task does not exist.")
    if _status(found, await client.now_us() // 1_000) != "RUNNING":
        raise SqsError("UnsupportedOperation", "Only a task that runs can be cancelled.")
    await client.label_queue(queue.name, {CANCELLED: handle})
    moved = "ApproximateNumberOfMessagesMoved"
    return {moved: _shown(found, {}, 0).get(moved, 0)}


def _handle(arn: str) -> str:
    """The handle of a new task: as with AWS, it says which queue the task is noted with."""
    told = json.dumps({"taskId": str(new_uuid()), "sourceArn": arn})
    return base64.b64encode(told.encode()).decode("ascii")


def _source_in(handle: str) -> str:
    try:
        found = from_json(base64.b64decode(handle, validate=True))["sourceArn"]
    except (ValueError, TypeError, KeyError) as error:
        raise invalid("Value for parameter TaskHandle is invalid.") from error
    return str(found)


def _notes(labels: Mapping[str, str]) -> list[Note]:
    """The tasks of a queue, newest first. Whoever may set labels may have written anything."""
    found: list[object] = []
    for name in (LABEL, EARLIER):
        try:
            read = json.loads(labels.get(name, "[]"))
        except (ValueError, RecursionError):
            continue
        found += read if isinstance(read, list) else [read]
    return [
        one
        for one in found
        if isinstance(one, dict)
        and isinstance(one.get("Status"), str)
        and isinstance(one.get("TaskHandle"), str)
    ]


def _status(note: Note, now_ms: int) -> str:
    """The status of a task. One that an older release runs notes its start and its end only."""
    heard_ms = note.get("HeardTimestamp", note.get("StartedTimestamp"))
    until_ms = note.get(UNTIL, heard_ms + SILENT_MS if type(heard_ms) is int else None)
    status: str = note["Status"]
    # Nobody's note is good for long: a program may have written it as a label.
    is_good = type(until_ms) is int and now_ms <= until_ms <= now_ms + 2 * SILENT_MS
    return "FAILED" if status == "RUNNING" and not is_good else status


def _shown(note: Note, labels: Mapping[str, str], now_ms: int) -> Note:
    found: Note = {key: note[key] for key, kind in _SHOWN.items() if type(note.get(key)) is kind}
    found["Status"] = _status(note, now_ms)
    if found["Status"] == "RUNNING":  # as AWS has it: only a running task has a handle
        found["TaskHandle"] = note["TaskHandle"]
        if labels.get(CANCELLED) == note["TaskHandle"]:
            found["Status"] = "CANCELLING"
    elif note["Status"] == "RUNNING":
        found["FailureReason"] = ENDED
    return found
