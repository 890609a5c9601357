"""List, create, show, alter, purge and delete queues."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.message import show_time
from cassieq_spark.server.rest.call import Answer

if TYPE_CHECKING:
    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.model.rights import Principal
    from cassieq_spark.server.backend import Backend
    from cassieq_spark.server.rest.call import Call

TARGET: Final = "dead_letter_queue"


async def own_names(backend: Backend, principal: Principal, prefix: str) -> list[str]:
    """The queues that somebody may see, as he names them, in order."""

    async def work() -> list[str | None]:
        found = await backend.client.queues()
        return [
            principal.own_name(one.name) for one in found if principal.may(Right.INFO, one.name)
        ]

    names = await backend.run(work)
    return sorted(name for name in names if name is not None and name.startswith(prefix))


def settings_of(queue: AsyncQueue, principal: Principal) -> dict[str, Any]:
    """A queue's settings, with the dead-letter queue as its owner names it."""
    settings = queue.settings.by_option()
    if settings[TARGET] is not None:
        settings[TARGET] = principal.own_name(settings[TARGET])
    return settings


async def list_queues(call: Call) -> Answer:
    """By name, in pages."""
    query = call.query

    names = await own_names(call.backend, call.principal, query.prefix)
    found = [name for name in names if name > query.after]
    page = found[: query.max]
    return Answer(
        body={"queues": page, "next": page[-1] if len(found) > len(page) else None},
    )


async def create(call: Call) -> Answer:
    """An existing queue is an answer, too, if it has the settings that are named."""
    settings = _settings(call)
    labels: dict[str, str] = call.body.labels

    async def work() -> tuple[AsyncQueue, bool]:
        made, is_new = await call.backend.client.find_or_create_queue(
            call.queue, labels=labels, **settings
        )
        return call.backend.keep(made), is_new

    queue, is_new = await call.backend.run(work)
    return Answer(body=_shown(call, queue), status=201 if is_new else 200)


async def show(call: Call) -> Answer:
    """Its settings and labels, as they are now."""

    async def work() -> AsyncQueue:
        return call.backend.keep(await call.backend.client.queue(call.queue))

    return Answer(body=_shown(call, await call.backend.run(work)))


async def alter(call: Call) -> Answer:
    """Settings first, then labels: if one of the labels is wrong, the settings have changed."""
    settings = _settings(call)
    labels: dict[str, str | None] = call.body.labels
    if not settings and not labels:
        raise OptionInvalid("the body has neither settings nor labels. Give what is to change")

    async def work() -> AsyncQueue:
        client = call.backend.client
        if settings:
            call.backend.keep(await client.alter_queue(call.queue, **settings))
        if labels:
            call.backend.keep(await client.label_queue(call.queue, labels))
        return await call.backend.handle(call.queue)

    return Answer(body=_shown(call, await call.backend.run(work)))


async def delete(call: Call) -> Answer:
    """With everything in it."""
    conditions = call.query.model_dump()
    await call.backend.run(lambda: call.backend.client.delete_queue(call.queue, **conditions))
    call.backend.forget(call.queue)
    return Answer(body=None, status=204)


async def purge(call: Call) -> Answer:
    """Visible, leased, delayed and dead messages."""
    purged = await call.backend.on_queue(call.queue, lambda queue: queue.purge())
    return Answer(body={"purged": purged})


async def statistics(call: Call) -> Answer:
    """They are counted from the queue's rows, so they cost one read for each bucket."""
    found = asdict(await call.backend.on_queue(call.queue, lambda queue: queue.stats()))
    found["oldest_age_s"] = found.pop("oldest_age")
    found["by_priority"] = {str(one): count for one, count in found["by_priority"].items()}
    return Answer(body=found)


def _settings(call: Call) -> dict[str, Any]:
    """The settings of a body, with the dead-letter queue as the client knows it."""
    found: dict[str, Any] = dict(call.body.settings)
    if isinstance(found.get(TARGET), str):
        found[TARGET] = call.target(found[TARGET])
    return found


def _shown(call: Call, queue: AsyncQueue) -> dict[str, Any]:
    return {
        "name": call.principal.own_name(queue.name),
        "created_at": show_time(queue.created_at),
        "settings": settings_of(queue, call.principal),
        "labels": dict(queue.labels),
    }
