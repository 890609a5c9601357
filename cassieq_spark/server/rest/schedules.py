"""Administer schedules: each is at the address of the queue that it puts messages into.

So rights on a queue are rights on its schedules, whatever others do with a name meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cassieq_spark.aio.schedules import AsyncSchedules
from cassieq_spark.model.moments import show_time
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.inspect.letters import body_as_object
from cassieq_spark.schedules import ScheduleInfo, Schedules
from cassieq_spark.server import door
from cassieq_spark.server.door import in_turn
from cassieq_spark.server.rest.call import Answer, Call


@in_turn
async def list_schedules(call: Call) -> dict[str, Any]:
    """List the schedules of a queue by name, without what they put."""
    own = (
        (call.principal.own_name(one.name), one) for one in await of_queue(call).list(call.queue)
    )
    left = sorted((name, one) for name, one in own if name is not None and name > call.query.after)
    page = left[: call.query.max_schedules]
    return {
        "schedules": [_shown(call, one, whole=False) for _, one in page],
        "next": page[-1][0] if len(left) > len(page) else None,
    }


@in_turn
async def create(call: Call) -> Answer:
    """Create a schedule, and put its first messages.

    An existing schedule of this queue is returned if it has the same definition.
    """
    found, is_new = await of_queue(call).find_or_create(
        name_of(call), queue=call.queue, **call.body.given()
    )
    return Answer(_shown(call, found), 201 if is_new else 200)


@in_turn
async def show(call: Call) -> dict[str, Any]:
    """Show a schedule."""
    return _shown(call, await of_queue(call).get(name_of(call)))


@in_turn
async def alter(call: Call) -> dict[str, Any]:
    """Change a schedule from now on; what was put ahead is taken back."""
    return _shown(call, await of_queue(call).alter(name_of(call), **call.body.given()))


@in_turn
async def pause(call: Call) -> dict[str, Any]:
    """Pause a schedule; what was put ahead is taken back, and times until it resumes are left out.

    It may be paused already.
    """
    return _shown(call, await of_queue(call).pause(name_of(call)))


@in_turn
async def resume(call: Call) -> dict[str, Any]:
    """Go on with a paused schedule, from now on."""
    return _shown(call, await of_queue(call).resume(name_of(call)))


@in_turn
async def delete(call: Call) -> None:
    """Delete a schedule; what was put ahead is taken back."""
    await of_queue(call).delete(name_of(call))


@in_turn
async def run(call: Call) -> dict[str, Any]:
    """Put a message at once, beside those of its times; the same request again puts a further one.

    The schedule may be paused. If the answer is lost, look for the message before you ask again.
    """
    return {"slot": show_time(await of_queue(call).run_now(name_of(call)))}


@in_turn
async def backfill(call: Call) -> dict[str, Any]:
    """Put the messages of up to 500 past times once more; so does the same request again."""
    given = call.body
    return {"put": await of_queue(call).backfill(name_of(call), given.begin, given.end)}


@in_turn
async def next_times(call: Call) -> dict[str, Any]:
    """Show the next times of a schedule, in its time zone; none if it is paused."""
    found = await of_queue(call).next_times(name_of(call), call.query.count)
    return {"times": [one.isoformat() for one in found]}


def of_queue(call: door.Call) -> AsyncSchedules:
    """The schedules of the queue that the caller has the right on."""
    return AsyncSchedules(Schedules(call.backend.store, queue=call.queue))


def name_of(call: door.Call) -> str:
    """The schedule of the path, as the client knows it."""
    return call.principal.full_name(str(call.request.path_params["schedule"]))


def _shown(call: Call, info: ScheduleInfo, *, whole: bool = True) -> dict[str, Any]:
    """A schedule in JSON; what it puts is only for those who may read the queue."""
    found: dict[str, Any] = {
        "name": call.principal.own_name(info.name),
        "queue": call.principal.own_name(info.queue),
        **_plain(info, ("status", "cron", "timezone", "every", "at", "start", "end", "count")),
        **_plain(info, ("jitter", "horizon", "misfire", "catch_up", "priority", "ttl", "owner")),
        **_plain(info, ("occurrences", "next_at", "last_at", "missed_at")),
        **dict.fromkeys(("body", "encoding", "tag", "headers", "group", "key")),
    }
    if whole and call.principal.may(Right.READ, call.queue):
        found |= {"encoding": "text", **body_as_object(info.body), "headers": dict(info.headers)}
        found |= _plain(info, ("tag", "group", "key"))
    return found


def _plain(info: ScheduleInfo, names: Iterable[str]) -> dict[str, Any]:
    """Some of its attributes in JSON: times as text, lengths of time as seconds."""
    found = {}
    for name in names:
        value = getattr(info, name)
        if hasattr(value, "total_seconds"):
            value = value.total_seconds()
        found[name] = show_time(value) if hasattr(value, "isoformat") else value
    return found
