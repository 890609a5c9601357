"""Show what repair has done of late, as far as this gateway knows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cassieq_spark.model.rights import Right
from cassieq_spark.server.ui.page import Shown

if TYPE_CHECKING:
    from cassieq_spark.server.repairing import RepairPass
    from cassieq_spark.server.ui.page import Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """A queue in a pass.

    Attributes:
        done: What was done, by its name in the report; nothing that is 0.
    """

    name: str
    done: dict[str, int]
    problems: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn of this gateway.

    Attributes:
        queues: Those that the visitor may see, and in which something was done.
        looked_at: How many the visitor may see.
    """

    ended_us: int | None
    outcome: str
    looked_at: int
    queues: list[Repaired]


async def show(visit: Visit) -> Shown:
    """The last turns of this gateway."""
    return Shown(
        template="repair.html",
        values={
            "turns": [_turn(visit, one) for one in visit.repairs.turns],
            "pause_s": visit.repairs.pause_s,
        },
    )


def _turn(visit: Visit, one: RepairPass) -> Turn:
    found = []
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
            found.append(Repaired(name=name, done=done, problems=problems))
    outcome = "done"
    if one.problem:
        outcome = f"failed: {one.problem}"
    elif one.report is None:
        outcome = "another process repairs"
    return Turn(ended_us=one.ended_us or None, outcome=outcome, looked_at=looked_at, queues=found)
