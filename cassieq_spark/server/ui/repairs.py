"""Show what repair has done of late, as far as this gateway knows."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cassieq_spark.model.rights import Right
from cassieq_spark.server.ui.page import Page, Shown

if TYPE_CHECKING:
    from cassieq_spark.server.repairing import RepairPass
    from cassieq_spark.server.ui.page import Visit


@Page("repair", "GET", "/repair", Right.INFO)
async def show(visit: Visit) -> Shown:
    """The last turns of this gateway."""
    return Shown(
        template="repair.html",
        values={
            "turns": [_turn(visit, one) for one in visit.repairs.turns],
            "pause_s": visit.repairs.pause_s,
        },
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
