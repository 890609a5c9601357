"""Show queues, and what repair has done; purge or delete a queue.

Both ask first, say how much is lost, and want the queue's name.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.errors import QueueInUse
from cassieq_spark.model.rights import Right
from cassieq_spark.queue.inspect.facts import BucketFacts, LeaseFacts
from cassieq_spark.queue.inspect.stats import LaneLook, QueueLook, look
from cassieq_spark.server.beside import RepairPass
from cassieq_spark.server.rest.admin import TARGET, settings_of
from cassieq_spark.server.rest.call import Strict
from cassieq_spark.server.ui.page import HOME, Form, GoTo, Shown, Visit
from cassieq_spark.server.ui.session import itself
from cassieq_spark.store import portal

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


class State(NamedTuple):
    """A state of a bucket, as its picture shows it.

    Attributes:
        sign: What is written in the square, so that nobody needs to see its colour.
        kind: The class of its square.
    """

    sign: str
    kind: str
    name: str
    meaning: str


OPEN: Final = State("o", "open", "open", "takes messages")
SEALED: Final = State("s", "sealed", "sealed", "has messages to give")
LEASED: Final = State("l", "leased", "leased", "consumers hold some of it")
DEAD: Final = State("x", "broken", "dead", "some of it waits for repair")
DRAINED: Final = State("d", "drained", "drained", "all of it is done")
PREPARED: Final = State("p", "prepared", "prepared", "a transaction of Spark writes it")
AWAY: Final = State("?", "broken", "unknown", "its row did not answer, or cannot be read")
STATES: Final = (OPEN, SEALED, LEASED, DEAD, DRAINED, PREPARED, AWAY)

_BY_STATUS: Final = {
    "open": OPEN,
    "sealing": OPEN,
    "writing": PREPARED,
    "prepared": PREPARED,
    "void": DRAINED,
    "drained": DRAINED,
}


class Listing(Strict):
    """The queues to show."""

    prefix: str = ""
    after: str = ""


class Look(Strict):
    """The result of the action before, which the page shows."""

    purged: Annotated[int | None, Field(ge=0)] = None


class Sure(Form):
    """The name of the queue, as its visitor has written it."""

    name: str = ""
    force: str = ""


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
    return visit.shown(
        "overview.html",
        queues=counted,
        age=max((now_s - one.at_s for _, one in counted), default=0.0),
        total=len(names),
        prefix=given.prefix,
        after=given.after,
        next=page[-1] if len(left) > len(page) else None,
    )


@dataclass(slots=True, kw_only=True)
class Holder:
    """A holder of leases.

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


async def show(visit: Visit) -> Shown:
    """Show a queue's settings, and what is in it."""

    async def looking() -> QueueLook:
        return await look(await visit.lane(), most_lanes=LANES, most_buckets=BUCKETS)

    async def work(queue: AsyncQueue) -> tuple[AsyncQueue, QueueLook]:
        return queue, await portal.asked(looking())

    queue, looked = await visit.backend.on_queue(visit.queue, work)
    settings = settings_of(queue, visit.principal)
    leases = [(lane, lease) for lane in looked.lanes for lease in lane.leases]
    return visit.shown(
        "queue.html",
        created_at=queue.created_at,
        stats=looked.stats,
        settings=settings,
        labels=dict(queue.labels),
        target=settings[TARGET],
        letters=await _letters(visit, queue.settings.dead_letter_queue),
        lanes=[(lane, cells_of(lane)) for lane in looked.lanes],
        lanes_left_out=looked.left_out,
        states=STATES,
        holders=holders_of([lease for _, lease in leases]),
        leases=[lease for _, lease in leases[:LEASES]],
        leases_left_out=max(0, len(leases) - LEASES),
        now_us=looked.now_us,
        may_read=visit.principal.may(Right.READ, visit.queue),
        rates=visit.rates.of(visit.queue),
        purged=visit.given.purged,
        may_pause=itself(visit.principal).may(Right.CREATE, visit.queue),
        may_purge=visit.principal.may(Right.PURGE, visit.queue),
        may_delete=visit.principal.may(Right.DELETE, visit.queue),
    )


def cells_of(lane: LaneLook) -> list[tuple[int, State, BucketFacts | None]]:
    """The buckets of a lane, ascending: each with its state, and its facts if its row answered."""
    found: dict[int, BucketFacts] = {one.bucket: one for one in lane.buckets}
    return [(at, state_of(found.get(at)), found.get(at)) for at in sorted({*found, *lane.away})]


def state_of(facts: BucketFacts | None) -> State:
    """Return the state that a bucket is shown in; the first that fits."""
    if facts is None:
        return AWAY
    if facts.status != "sealed":
        return _BY_STATUS.get(facts.status, AWAY)
    if facts.leased:
        return LEASED
    if facts.dead:
        return DEAD
    return DRAINED if facts.acked == facts.messages else SEALED


async def _letters(visit: Visit, target: str | None) -> int | None:
    """Count the messages of a dead-letter queue: a dead message is no longer in its own queue.

    None: there is no such queue, it was not counted, or the visitor may not see it.
    """
    if target is None or not visit.principal.may(Right.INFO, target):
        return None
    found = await visit.counts.of(target)
    return found.stats.total if found is not None and found.stats is not None else None


def holders_of(leases: list[LeaseFacts]) -> list[Holder]:
    """Return the holders of leases, by name."""
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


async def purge(visit: Visit) -> Shown | GoTo:
    """Drop all messages."""
    if visit.given.name != visit.queue_name:
        return await ask(visit, "purge", problem=OTHER)
    purged = await visit.backend.on_queue(visit.queue, lambda queue: queue.purge())
    return GoTo(path=f"{visit.path_of()}?purged={purged}")


async def change_pause(visit: Visit, *, pauses: bool) -> GoTo:
    """Pause the queue, or resume it, if the key that has logged in may.

    Raises:
        AccessDenied: It may not.
    """
    itself(visit.principal).require(Right.CREATE, visit.queue)
    await visit.backend.on_queue(
        visit.queue, lambda queue: queue.pause() if pauses else queue.resume()
    )
    return GoTo(path=visit.path_of())


async def delete(visit: Visit) -> Shown | GoTo:
    """Delete the queue."""
    if visit.given.name != visit.queue_name:
        return await ask(visit, "delete", problem=OTHER)
    force = visit.given.force == "yes"
    client = visit.backend.client
    try:
        await visit.backend.run(lambda: client.delete_queue(visit.queue, force=force))
    except QueueInUse:
        return await ask(visit, "delete", problem=NEEDED)
    visit.backend.forget(visit.queue)
    return GoTo(path=HOME)


async def ask(visit: Visit, what: str, *, problem: str = "") -> Shown:
    """Ask for consent, and show how many messages would be lost."""
    stats = await visit.backend.on_queue(visit.queue, lambda queue: queue.stats())
    return visit.shown(
        "destroy.html",
        what=what,
        problem=problem,
        stats=stats,
        is_needed=problem == NEEDED,
        status=400 if problem else 200,
    )


# --- repair ---------------------------------------------------------------------------------------


async def repairs(visit: Visit) -> Shown:
    """The last turns of this gateway."""
    return visit.shown(
        "repair.html",
        turns=[_turn(visit, one) for one in visit.repairs],
        pause_s=visit.repairs.pause_s,
    )


def _turn(visit: Visit, one: RepairPass) -> dict[str, Any]:
    """A pass, with the queues that the visitor may see and in which something was done."""
    queues: list[dict[str, Any]] = []
    looked_at = 0
    for queue in [] if one.report is None else one.report.queues:
        if not visit.principal.may(Right.INFO, queue.queue):
            continue
        looked_at += 1
        counts = asdict(queue)
        problems: list[str] = counts.pop("problems")
        name = visit.principal.own_name(counts.pop("queue")) or ""
        done = {key.replace("_", " "): count for key, count in counts.items() if count}
        if done or problems:
            queues.append({"name": name, "done": done, "problems": problems})
    outcome = "done"
    if one.problem:
        outcome = f"failed: {one.problem}"
    elif one.report is None:
        outcome = "another process repairs"
    return {
        "ended_us": one.ended_us or None,
        "outcome": outcome,
        "looked_at": looked_at,
        "queues": queues,
    }
