"""List, create, show, alter, purge and delete queues."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.message import show_time
from cassieq_spark.server.door import in_turn, on_queue
from cassieq_spark.server.rest.call import Answer

if TYPE_CHECKING:
    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.model.rights import Principal
    from cassieq_spark.server.rest.call import Call

TARGET: Final = "dead_letter_queue"


def settings_of(queue: AsyncQueue, principal: Principal) -> dict[str, Any]:
    """A queue's settings, with the dead-letter queue as its owner names it."""
    settings = queue.settings.by_option()
    if settings[TARGET] is not None:
        settings[TARGET] = principal.own_name(settings[TARGET])
    return settings


async def list_queues(call: Call) -> dict[str, Any]:
    """List queues by name."""
    query, principal = call.query, call.principal
    found = await call.backend.run(call.backend.client.queues)
    own = (principal.own_name(one.name) for one in found if principal.may(Right.INFO, one.name))
    left = sorted(
        name for name in own if name and name.startswith(query.prefix) and name > query.after
    )
    page = left[: query.max]
    return {"queues": page, "next": page[-1] if len(left) > len(page) else None}


@in_turn
async def create(call: Call) -> Answer:
    """Create a queue.

    An existing queue is returned if it has the settings that are named; it keeps its labels and all
    other settings.
    """
    made, is_new = await call.backend.client.find_or_create_queue(
        call.queue, labels=call.body.labels, **_settings(call)
    )
    return Answer(_shown(call, made), 201 if is_new else 200)


@in_turn
async def show(call: Call) -> dict[str, Any]:
    """Show the settings and labels of a queue."""
    return _shown(call, await call.backend.client.queue(call.queue))


@in_turn
async def alter(call: Call) -> dict[str, Any]:
    """Change settings and labels of a queue.

    Other gateways see them within ten seconds.
    """
    client, settings, labels = call.backend.client, _settings(call), call.body.labels
    if not settings and not labels:
        raise OptionInvalid("the body has neither settings nor labels. Give what is to change")
    if settings:
        call.backend.keep(await client.alter_queue(call.queue, **settings))
    if labels:
        call.backend.keep(await client.label_queue(call.queue, labels))
    return _shown(call, await call.backend.handle(call.queue))


@in_turn
async def delete(call: Call) -> None:
    """Delete a queue with everything in it.

    409 if a queue names it as its dead-letter queue, or a condition does not hold.
    """
    await call.backend.client.delete_queue(call.queue, **call.query.model_dump())
    call.backend.forget(call.queue)


@on_queue
async def purge(_: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Drop all messages of a queue: visible, leased, delayed and dead."""
    return {"purged": await queue.purge()}


@on_queue
async def statistics(_: Call, queue: AsyncQueue) -> dict[str, Any]:
    """Count the messages of a queue."""
    found = asdict(await queue.stats())
    found["oldest_age_s"] = found.pop("oldest_age")
    found["by_priority"] = {str(one): count for one, count in found["by_priority"].items()}
    return found


def _settings(call: Call) -> dict[str, Any]:
    """The settings of a body, with the dead-letter queue as the client knows it."""
    found: dict[str, Any] = dict(call.body.settings)
    if isinstance(found.get(TARGET), str):
        found[TARGET] = call.target(found[TARGET])
    return found


def _shown(call: Call, found: AsyncQueue) -> dict[str, Any]:
    queue = call.backend.keep(found)
    return {
        "name": call.principal.own_name(queue.name),
        "created_at": show_time(queue.created_at),
        "settings": settings_of(queue, call.principal),
        "labels": dict(queue.labels),
    }
