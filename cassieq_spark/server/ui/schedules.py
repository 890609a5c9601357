"""Show the schedules of all queues; pause, resume or run one."""

from __future__ import annotations

from typing import Final, Literal

from cassieq_spark.model.rights import Right
from cassieq_spark.server.guards import UI
from cassieq_spark.server.rest.call import Strict
from cassieq_spark.server.rest.schedules import name_of, of_queue
from cassieq_spark.server.ui.page import GoTo, Shown, Visit
from cassieq_spark.server.ui.session import itself

TOGETHER: Final = 100
"""The schedules of one page."""

NEEDED: Final = (Right.CREATE, Right.PUT)
"""The rights of the key, as for the same over REST. A session has neither."""

PATH: Final = f"{UI}/schedules"


class Listing(Strict):
    """The schedules to show, and the action before, which the page tells."""

    after: str = ""
    done: Literal["", "pause", "resume", "run"] = ""


async def overview(visit: Visit) -> Shown:
    """A page of schedules, read a few seconds ago at most."""
    principal, given = visit.principal, visit.given
    found = [
        (name, principal.own_name(one.queue) or one.queue, one)
        for name, one in await visit.counts.schedules(principal)
        if principal.may(Right.INFO, one.queue)
    ]
    left = [one for one in found if one[0] > given.after]
    return visit.shown(
        "schedules.html",
        schedules=left[:TOGETHER],
        total=len(found),
        late=sum(one.missed_at is not None for *_, one in found),
        may_change={
            one.name
            for *_, one in left[:TOGETHER]
            if all(itself(principal).may(right, one.queue) for right in NEEDED)
        },
        after=given.after,
        next=left[TOGETHER - 1][0] if len(left) > TOGETHER else None,
        done=given.done,
        here=PATH,
    )


async def act(visit: Visit, what: Literal["pause", "resume", "run"]) -> GoTo:
    """Pause, resume or run a schedule, if the key that has logged in may.

    Raises:
        AccessDenied: It may not.
    """
    for right in NEEDED:
        itself(visit.principal).require(right, visit.queue)
    its, name = of_queue(visit), name_of(visit)
    await visit.backend.run(
        lambda: {"pause": its.pause, "resume": its.resume, "run": its.run_now}[what](name)
    )
    return GoTo(path=f"{PATH}?done={what}")
