"""Show queues; purge or delete one.

Both ask first, say how much is lost, and want the queue's name.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from cassieq_spark.errors import QueueInUse
from cassieq_spark.model.ids import QueueName
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.inspect.stats import QueueLook, look
from cassieq_spark.server.rest.fields import Strict
from cassieq_spark.server.rest.queues import TARGET, settings_of
from cassieq_spark.server.ui.page import HOME, QUEUE, Form, GoTo, Page, Shown
from cassieq_spark.server.ui.picture import STATES, chart, picture
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.queue.inspect.facts import LeaseFacts
    from cassieq_spark.server.ui.page import Visit

TOGETHER: Final = 25
"""The queues of one page: each is counted, which costs a read for each of its buckets."""

LANES: Final = 32
"""The lanes of a queue that its page shows."""

BUCKETS: Final = 200
"""The buckets of a lane that it shows."""

LEASES: Final = 100
"""The leases that it shows one by one."""

OTHER: Final = "This is not the name of the queue. Nothing was done."

NEEDED: Final = (
    "Other queues send their dead messages to this queue: without it, repair cannot move them. "
    "Nothing was done."
)


class Listing(Strict):
    """Which queues are shown."""

    prefix: str = ""
    after: str = ""


class Look(Strict):
    """What was done before."""

    purged: Annotated[int | None, Field(ge=0)] = None


class Sure(Form):
    """The name of the queue, as its visitor has written it."""

    name: str = ""
    force: str = ""


@Page("overview", "GET", "/", Right.INFO, Listing)
async def overview(visit: Visit) -> Shown:
    """A page of queues, counted a few seconds ago at most."""
    given: Listing = visit.given
    names = await visit.counts.names(visit.principal, given.prefix)
    left = [name for name in names if name > given.after]
    page = left[:TOGETHER]
    found = await asyncio.gather(
        *(visit.counts.of(visit.principal.full_name(name)) for name in page)
    )
    counted = [(name, one) for name, one in zip(page, found, strict=True) if one is not None]
    now_s = asyncio.get_running_loop().time()
    return Shown(
        template="overview.html",
        values={
            "queues": counted,
            "age": max((now_s - one.at_s for _, one in counted), default=0.0),
            "total": len(names),
            "prefix": given.prefix,
            "after": given.after,
            "next": page[-1] if len(left) > len(page) else None,
        },
    )


@dataclass(slots=True, kw_only=True)
class Holder:
    """Whoever holds leases.

    Attributes:
        run: The run of a Spark query; None for others.
        until_us: When the first of its leases runs out.
        expired: Messages whose lease has run out, and nobody has claimed them.
    """

    consumer: str
    run: str | None
    messages: int = 0
    leases: int = 0
    expired: int = 0
    until_us: int | None = None


@Page("queue", "GET", QUEUE, Right.INFO, Look)
async def show(visit: Visit) -> Shown:
    """What a queue is, and what is in it."""

    async def looking() -> QueueLook:
        lane = await open_lane(visit.backend.store, QueueName(visit.queue))
        return await look(lane, most_lanes=LANES, most_buckets=BUCKETS)

    async def work(queue: AsyncQueue) -> tuple[AsyncQueue, QueueLook]:
        return queue, await portal.asked(looking())

    queue, looked = await visit.backend.on_queue(visit.queue, work)
    settings = settings_of(queue, visit.principal)
    leases = [(lane, lease) for lane in looked.lanes for lease in lane.leases]
    return Shown(
        template="queue.html",
        values={
            "queue": visit.queue_name,
            "path": visit.path_of(),
            "created_at": queue.created_at,
            "stats": looked.stats,
            "settings": settings,
            "labels": dict(queue.labels),
            "target": settings[TARGET],
            "letters": await _letters(visit, queue.settings.dead_letter_queue),
            "pictures": [picture(lane) for lane in looked.lanes],
            "lanes_left_out": looked.left_out,
            "states": STATES,
            "holders": holders_of([lease for _, lease in leases]),
            "leases": [lease for _, lease in leases[:LEASES]],
            "leases_left_out": max(0, len(leases) - LEASES),
            "now_us": looked.now_us,
            "may_read": visit.principal.may(Right.READ, visit.queue),
            "rates": [chart(one) for one in visit.rates.of(visit.queue)],
            "purged": visit.given.purged,
            "may_purge": visit.principal.may(Right.PURGE, visit.queue),
            "may_delete": visit.principal.may(Right.DELETE, visit.queue),
        },
    )


async def _letters(visit: Visit, target: str | None) -> int | None:
    """How many messages a dead-letter queue holds: a dead message is no longer in its own queue.

    None: there is no such queue, it was not counted, or the visitor may not see it.
    """
    if target is None or not visit.principal.may(Right.INFO, target):
        return None
    found = await visit.counts.of(target)
    return found.stats.total if found is not None and found.stats is not None else None


def holders_of(leases: list[LeaseFacts]) -> list[Holder]:
    """Who holds leases, by name."""
    found: dict[tuple[str, str | None], Holder] = {}
    for one in leases:
        holder = found.setdefault(
            (one.consumer, one.run), Holder(consumer=one.consumer, run=one.run)
        )
        if one.is_expired:
            holder.expired += one.messages
            continue
        holder.leases += 1
        holder.messages += one.messages
        holder.until_us = min(one.until_us, holder.until_us or one.until_us)
    return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1] or ""))]


@Page("askPurge", "GET", f"{QUEUE}/purge", Right.PURGE)
async def ask_purge(visit: Visit) -> Shown:
    """How many messages would be lost."""
    return await _ask(visit, "purge")


@Page("purge", "POST", f"{QUEUE}/purge", Right.PURGE, Sure)
async def purge(visit: Visit) -> Shown | GoTo:
    """Drop all messages."""
    if visit.given.name != visit.queue_name:
        return await _ask(visit, "purge", problem=OTHER)
    purged = await visit.backend.on_queue(visit.queue, lambda queue: queue.purge())
    return GoTo(path=f"{visit.path_of()}?purged={purged}")


@Page("askDelete", "GET", f"{QUEUE}/delete", Right.DELETE)
async def ask_delete(visit: Visit) -> Shown:
    """How many messages would be lost, with the queue."""
    return await _ask(visit, "delete")


@Page("delete", "POST", f"{QUEUE}/delete", Right.DELETE, Sure)
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
