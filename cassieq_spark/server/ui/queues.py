"""Show queues."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import CassieqError, QueueNotFound
from cassieq_spark.model.rights import Right
from cassieq_spark.server.backend import Busy
from cassieq_spark.server.rest.fields import Strict
from cassieq_spark.server.rest.problems import problem_of
from cassieq_spark.server.ui.page import Shown

if TYPE_CHECKING:
    from cassieq_spark.queue.inspect.stats import QueueStats
    from cassieq_spark.server.ui.page import Visit

TOGETHER: Final = 25
"""The queues of one page: each is counted, which costs a read for each of its buckets."""


class Listing(Strict):
    """Which queues are shown."""

    prefix: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A queue with its counts, or why there are none."""

    name: str
    stats: QueueStats | None
    problem: str = ""


async def overview(visit: Visit) -> Shown:
    """A page of queues."""
    given: Listing = visit.given

    def work() -> list[str]:
        return [
            one.name
            for one in visit.backend.client.queues()
            if visit.principal.may(Right.INFO, one.name)
            and (visit.principal.own_name(one.name) or "").startswith(given.prefix)
        ]

    names = sorted(await visit.backend.run(work))
    after = visit.principal.full_name(given.after) if given.after else ""
    left = [name for name in names if name > after]
    page = left[:TOGETHER]
    counted = await asyncio.gather(*(_count(visit, name) for name in page))
    return Shown(
        template="overview.html",
        values={
            "queues": [one for one in counted if one is not None],
            "total": len(names),
            "prefix": given.prefix,
            "after": given.after,
            "next": visit.principal.own_name(page[-1]) if len(left) > len(page) else None,
        },
    )


async def _count(visit: Visit, queue: str) -> Counted | None:
    """None: it was deleted since it was listed."""
    name = visit.principal.own_name(queue) or queue
    try:
        stats = await visit.backend.on_queue(queue, lambda one: one.stats())
    except QueueNotFound:
        return None
    except (CassieqError, Busy) as error:
        return Counted(name=name, stats=None, problem=problem_of(error)["code"])
    return Counted(name=name, stats=stats)
