"""Run repair passes in the background, in one gateway at a time (leader lease)."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import system
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.repair import outcome
from cassieq_spark.server.turns import Busy

if TYPE_CHECKING:
    from cassieq_spark.repair.report import RepairReport
    from cassieq_spark.server.backend import Backend

KEPT: Final = 20
"""How many passes a gateway remembers, for its page."""

_logger = get_logger("server")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPass:
    """What became of one turn.

    Attributes:
        report: None if another process leads, or the pass failed.
        problem: The code of the error that ended it; empty if there was none.
    """

    ended_us: int
    report: RepairReport | None = None
    problem: str = ""


class RepairLog(deque[RepairPass]):
    """The last turns of this process, newest first. Nothing depends on it."""

    def __init__(self, pause_s: float | None) -> None:
        """Prepare.

        Args:
            pause_s: How often this process repairs; None: never.
        """
        super().__init__(maxlen=KEPT)
        self.pause_s = pause_s


async def repair_every(backend: Backend, pause_s: float, log: RepairLog) -> None:
    """Repair all queues again and again, until this is cancelled. A failure ends one pass only."""
    outcome.expect(outcome.REPAIR)
    while True:
        # Gateways that were started together shall not all ask for the lead at once.
        await asyncio.sleep(system.jitter(pause_s, 0))
        try:
            report = await backend.run(backend.client.repair_as_leader)
        except (CassieqError, Busy) as error:
            event(_logger, "repair_failed", error=str(error))
            problem = error.code if isinstance(error, CassieqError) else "busy"
            log.appendleft(RepairPass(ended_us=await _now_us(backend), problem=problem))
            continue
        log.appendleft(RepairPass(ended_us=await _now_us(backend), report=report))
        if report is not None:
            outcome.note(report, SystemClock().now_us())
        for queue in () if report is None else report.queues:
            for problem in queue.problems:
                event(_logger, "repair_failed", queue=queue.queue, error=problem)


async def _now_us(backend: Backend) -> int:
    """The time of the cluster; 0 if no node answers."""
    try:
        return await backend.now_us()
    except (CassieqError, Busy):
        return 0
