"""List, create, show, alter, purge and delete queues."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.message import show_time
from cassieq_spark.server.rest import answers, models
from cassieq_spark.server.rest.operation import DELETE, GET, PATCH, POST, PUT, QUEUE, Answer

if TYPE_CHECKING:
    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.model.rights import Principal
    from cassieq_spark.server.rest.operation import Call

TARGET: Final = "dead_letter_queue"


def settings_of(queue: AsyncQueue, principal: Principal) -> dict[str, Any]:
    """A queue's settings, with the dead-letter queue as its owner names it."""
    settings = queue.settings.by_option()
    if settings[TARGET] is not None:
        settings[TARGET] = principal.own_name(settings[TARGET])
    return settings


@GET("listQueues", "/queues", Right.INFO, {200: answers.QueueNames}, query=models.Page, errors=())
async def list_queues(call: Call) -> Answer:
    """List queues by name."""
    query, principal = call.query, call.principal
    found = await call.backend.run(call.backend.client.queues)
    own = (principal.own_name(one.name) for one in found if principal.may(Right.INFO, one.name))
    left = sorted(
        name for name in own if name and name.startswith(query.prefix) and name > query.after
    )
    page = left[: query.max]
    return Answer(body={"queues": page, "next": page[-1] if len(left) > len(page) else None})


@PUT(
    "createQueue",
    QUEUE,
    Right.CREATE,
    {201: answers.Queue, 200: answers.Queue},
    body=models.NewQueue,
    errors=(404, 409),
)
async def create(call: Call) -> Answer:
    """Create a queue.

    An existing queue is returned if it has the settings that are named; it keeps its labels and all
    other settings.
    """
    settings = _settings(call)
    labels: dict[str, str] = call.body.labels

    async def work() -> tuple[AsyncQueue, bool]:
        made, is_new = await call.backend.client.find_or_create_queue(
            call.queue, labels=labels, **settings
        )
        return call.backend.keep(made), is_new

    queue, is_new = await call.backend.run(work)
    return Answer(body=_shown(call, queue), status=201 if is_new else 200)


@GET("getQueue", QUEUE, Right.INFO, {200: answers.Queue})
async def show(call: Call) -> Answer:
    """Show the settings and labels of a queue."""

    async def work() -> AsyncQueue:
        return call.backend.keep(await call.backend.client.queue(call.queue))

    return Answer(body=_shown(call, await call.backend.run(work)))


@PATCH(
    "alterQueue",
    QUEUE,
    Right.CREATE,
    {200: answers.Queue},
    body=models.QueueChange,
    errors=(404, 409),
)
async def alter(call: Call) -> Answer:
    """Change settings and labels of a queue.

    Other gateways see them within ten seconds.
    """
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


@DELETE("deleteQueue", QUEUE, Right.DELETE, {204: None}, query=models.Deletion, errors=(404, 409))
async def delete(call: Call) -> Answer:
    """Delete a queue with everything in it.

    409 if a queue names it as its dead-letter queue, or a condition does not hold.
    """
    conditions = call.query.model_dump()
    await call.backend.run(lambda: call.backend.client.delete_queue(call.queue, **conditions))
    call.backend.forget(call.queue)
    return Answer(body=None, status=204)


@POST("purgeQueue", f"{QUEUE}/purge", Right.PURGE, {200: answers.Purged})
async def purge(call: Call) -> Answer:
    """Drop all messages of a queue: visible, leased, delayed and dead."""
    purged = await call.backend.on_queue(call.queue, lambda queue: queue.purge())
    return Answer(body={"purged": purged})


@GET("getStatistics", f"{QUEUE}/statistics", Right.INFO, {200: answers.Statistics})
async def statistics(call: Call) -> Answer:
    """Count the messages of a queue."""
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
