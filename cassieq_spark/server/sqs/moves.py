"""Message move tasks: a redrive that runs in this gateway, and is noted with its queue.

The note of the last task is a label of the source queue, so every gateway can list it. If a gateway
dies in the middle, repair carries over what the redrive had taken; the note then stays as it was.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.aio.pool import Busy
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.find import sources_of
from cassieq_spark.server.sqs.actions import RIGHTS
from cassieq_spark.server.sqs.errors import SqsError, invalid

if TYPE_CHECKING:
    from cassieq_spark.model.rights import Principal
    from cassieq_spark.queue.handle import Queue
    from cassieq_spark.server.backend import Backend
    from cassieq_spark.server.sqs.call import Call

LABEL: Final = "sqs.move"

NOTED: Final[dict[str, type]] = {
    "TaskHandle": str,
    "Status": str,
    "SourceArn": str,
    "DestinationArn": str,
    "ApproximateNumberOfMessagesMoved": int,
    "ApproximateNumberOfMessagesToMove": int,
    "StartedTimestamp": int,
    "FailureReason": str,
}
"""What a note has, and of which type."""

_logger = get_logger("server")


class Moves:
    """The move tasks that this process runs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._running: dict[str, asyncio.Task[None]] = {}

    def is_running(self, source: str) -> bool:
        """Whether a task of this process moves messages of a queue."""
        return source in self._running

    def start(
        self, source: str, target: str | None, note: dict[str, Any], principal: Principal
    ) -> None:
        """Redrive all messages of a queue in the background, by the rights of who asked for it."""
        task = asyncio.get_running_loop().create_task(self._run(source, target, note, principal))
        self._running[source] = task
        task.add_done_callback(lambda _: self._running.pop(source, None))

    async def _run(
        self, source: str, target: str | None, note: dict[str, Any], principal: Principal
    ) -> None:
        def work() -> None:
            client = self._backend.client
            try:
                done = client.redrive(source, to=target, may=principal.may_put)
            except CassieqError as error:
                ended: dict[str, Any] = {"Status": "FAILED", "FailureReason": str(error)[:1_000]}
            else:
                ended = {
                    "Status": "FAILED" if done.problems else "COMPLETED",
                    "ApproximateNumberOfMessagesMoved": done.moved + done.waiting,
                }
                if done.problems:
                    ended["FailureReason"] = done.problems[0][:1_000]
            client.label_queue(source, {LABEL: json.dumps({**note, **ended})})

        try:
            await self._backend.run(work)
        except (CassieqError, Busy) as error:
            event(_logger, "repair_failed", queue=source, error=str(error))


async def start(call: Call) -> dict[str, Any]:
    """StartMessageMoveTask."""
    source = call.queue_of_arn("SourceArn")
    target = None
    if call.get("DestinationArn") is not None:
        target = call.queue_of_arn("DestinationArn", Right.PUT)
    if call.moves.is_running(source):
        raise SqsError(
            "UnsupportedOperation", "There is already a task running. Wait until it has ended."
        )
    handle = str(new_uuid())

    def work(queue: Queue) -> dict[str, Any]:
        client = call.backend.client
        if not sources_of(client.store, queue.name):
            raise invalid("Source queue must be configured as a Dead Letter Queue.")
        note = {
            "TaskHandle": handle,
            "Status": "RUNNING",
            "SourceArn": call.parameters["SourceArn"],
            "ApproximateNumberOfMessagesMoved": 0,
            "ApproximateNumberOfMessagesToMove": queue.stats().visible,
            "StartedTimestamp": client.now_us() // 1_000,
        }
        if target is not None:
            client.queue(target)
            note["DestinationArn"] = call.parameters["DestinationArn"]
        client.label_queue(queue.name, {LABEL: json.dumps(note)})
        return note

    note = await call.backend.on_queue(source, work)
    call.moves.start(source, target, note, call.principal)
    return {"TaskHandle": handle}


async def list_tasks(call: Call) -> dict[str, Any]:
    """ListMessageMoveTasks: the last task of the queue, if there was one."""
    source = call.queue_of_arn("SourceArn")

    def work(queue: Queue) -> str | None:
        return call.backend.client.queue(queue.name).labels.get(LABEL)

    task = noted_in(await call.backend.on_queue(source, work))
    if task is None:
        return {"Results": []}
    if task["Status"] != "RUNNING":
        task.pop("TaskHandle", None)  # as AWS has it: only a running task can be cancelled
    return {"Results": [task]}


def noted_in(label: str | None) -> dict[str, Any] | None:
    """The task of a note; None if there is none. Anybody who may set labels may have written it."""
    try:
        found = json.loads(label or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("Status"), str):
        return None
    return {name: found[name] for name, kind in NOTED.items() if type(found.get(name)) is kind}


async def cancel(call: Call) -> dict[str, Any]:
    """CancelMessageMoveTask: a redrive takes all of its messages at once, so it is too late."""
    call.principal.require_somewhere(RIGHTS[call.action])
    raise SqsError(
        "UnsupportedOperation",
        "A task cannot be cancelled: it takes its messages at once, and each is moved exactly "
        "once.",
    )
