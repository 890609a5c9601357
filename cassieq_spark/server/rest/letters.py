"""Show dead letters, and redrive messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.model.ids import QueueName
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.inspect.letters import conditions, letter_as_object
from cassieq_spark.queue.inspect.visible import browse
from cassieq_spark.server.rest.call import Answer
from cassieq_spark.server.rest.messages import listed

if TYPE_CHECKING:
    from cassieq_spark.queue.message import Message
    from cassieq_spark.server.rest.call import Call

SOURCE: Final = "source-queue="


async def show(call: Call) -> Answer:
    """They stay in the queue; this reads its messages until enough match."""
    query = call.query
    is_wanted = conditions(_where(call, query.where), query.before, query.after, mark="")

    async def chosen() -> list[Message]:
        found: list[Message] = []
        lane = await open_lane(call.backend.store, QueueName(call.queue))
        async for one in browse(lane):
            if is_wanted(one):
                found.append(one)
            if len(found) == query.max:
                break
        return found

    found = await call.backend.reading(lambda: call.backend.asked(chosen))
    return await listed(call, found, partial(_shown, call))


async def redrive(call: Call) -> Answer:
    """Each is sent exactly once, whatever dies; leased ones stay."""
    given = call.body
    is_wanted = None
    if given.where or given.before is not None or given.after is not None:
        is_wanted = conditions(_where(call, given.where), given.before, given.after, mark="")
    to = None if given.to is None else call.target(given.to)

    async def work() -> dict[str, Any]:
        done = await call.backend.client.redrive(
            call.queue,
            where=is_wanted,
            to=to,
            at_most=given.max,
            may=call.principal.may_put,
            dry_run=given.dry_run,
        )
        return done.to_dict()

    found = await call.backend.run(work)
    found["queue"] = call.principal.own_name(found["queue"])
    found["by_target"] = {
        call.principal.own_name(one): count for one, count in found["by_target"].items()
    }
    return Answer(body=found)


def _shown(call: Call, message: Message) -> dict[str, Any]:
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
