"""Purge or delete a queue: each asks first, says how much is lost, and wants the queue's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import QueueInUse
from cassieq_spark.server.ui.page import HOME, Form, GoTo, Shown

if TYPE_CHECKING:
    from cassieq_spark.errors import QueueInUse
from cassieq_spark.server.ui.page import Visit

OTHER: Final = "This is not the name of the queue. Nothing was done."

NEEDED: Final = (
    "Other queues send their dead messages to this queue: without it, repair cannot move them. "
    "Nothing was done."
)


class Sure(Form):
    """The name of the queue, as its visitor has written it."""

    name: str = ""
    force: str = ""


async def ask_purge(visit: Visit) -> Shown:
    """How many messages would be lost."""
    return await _ask(visit, "purge")


async def purge(visit: Visit) -> Shown | GoTo:
    """Drop all messages."""
    if visit.given.name != visit.queue_name:
        return await _ask(visit, "purge", problem=OTHER)
    purged = await visit.backend.on_queue(visit.queue, lambda queue: queue.purge())
    return GoTo(path=f"{visit.path_of()}?purged={purged}")


async def ask_delete(visit: Visit) -> Shown:
    """How many messages would be lost, with the queue."""
    return await _ask(visit, "delete")


async def delete(visit: Visit) -> Shown | GoTo:
    """Delete the queue."""
    if visit.given.name != visit.queue_name:
        return await _ask(visit, "delete", problem=OTHER)
    force = visit.given.force == "yes"
    client = visit.backend.client
    try:
        await visit.backend.run(lambda: client.delete_queue(visit.queue, force=force))
    except QueueInUse:
        return await _ask(visit, "delete", problem=NEEDED)
    visit.backend.forget(visit.queue)
    return GoTo(path=HOME)


async def _ask(visit: Visit, what: str, *, problem: str = "") -> Shown:
    stats = await visit.backend.on_queue(visit.queue, lambda queue: queue.stats())
    return Shown(
        template="destroy.html",
        values={
            "queue": visit.queue_name,
            "path": visit.path_of(),
            "what": what,
            "problem": problem,
            "stats": stats,
            "is_needed": problem == NEEDED,
        },
        status=400 if problem else 200,
    )
