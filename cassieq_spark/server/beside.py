"""Work beside the requests: repair passes, and the count of what was done in each minute.

Repair runs in one gateway at a time (leader lease). `Rates` remembers for an hour how much this
process has put, got and acked. It is for the page: Prometheus has the same counters of all
processes, and keeps them.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cassieq_spark import metrics
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import system
from cassieq_spark.errors import CassieqError, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.metrics import LabelledCounter
from cassieq_spark.repair import outcome
from cassieq_spark.repair.report import RepairReport
from cassieq_spark.server.backend import Backend, Busy

KEPT: Final = 20
"""The number of passes that a gateway remembers, for its page."""

_logger = get_logger("server")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPass:
    """The outcome of one turn.

    Attributes:
        ended_us: By the time of the cluster; 0 if no node answered.
        report: None if another process leads, or the pass failed.
        problem: The code of the error that ended it; empty if there was none.
    """

    ended_us: int
    report: RepairReport | None
    problem: str


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
        report, problem, ended_us = None, "", 0
        try:
            report = await backend.run(backend.client.repair_as_leader)
        except (CassieqError, Busy) as error:
            event(_logger, "repair_failed", error=str(error))
            problem = error.code if isinstance(error, CassieqError) else "busy"
        with suppress(CassieqError, Busy):
            ended_us = await backend.now_us()
        log.appendleft(RepairPass(ended_us=ended_us, report=report, problem=problem))
        if report is not None:
            outcome.note(report, SystemClock().now_us())
        for queue in () if report is None else report.queues:
            for text in queue.problems:
                event(_logger, "repair_failed", queue=queue.queue, error=text)


async def dispatch_every(backend: Backend, pause_s: float) -> None:
    """Put the messages of schedules ahead, in one process at a time, until this is cancelled.

    A gateway whose role may not do that leaves it to others, and says so once.
    """
    while True:
        await asyncio.sleep(system.jitter(pause_s, 0))
        try:
            await backend.run(backend.client.schedules.dispatch_as_leader)
        except (CassieqError, Busy) as error:
            event(_logger, "schedules_failed", error=str(error))
            if isinstance(error, UsageError):
                return


# --- the last hour --------------------------------------------------------------------------------

MINUTE_S: Final = 60.0
MINUTES: Final = 60

COUNTERS: Final[dict[str, LabelledCounter]] = {
    "put": metrics.MESSAGES_PUT,
    "got": metrics.MESSAGES_CLAIMED,
    "acked": metrics.MESSAGES_ACKED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The rate of one kind of work on one queue.

    Attributes:
        minutes: Messages in each whole minute, oldest first: 60 of them, or as many as there were.
    """

    kind: str
    minutes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Messages in all of them."""
        return sum(self.minutes)

    @property
    def most(self) -> int:
        """Messages in the busiest one."""
        return max(self.minutes, default=0)


class Rates:
    """The last hour. For one event loop; a queue without any work takes no space."""

    def __init__(self) -> None:
        self._ended = 0
        self._before = {kind: counter.values for kind, counter in COUNTERS.items()}
        self._rings: dict[str, dict[str, array[int]]] = {kind: {} for kind in COUNTERS}

    async def run(self) -> None:
        """End a minute every minute, until this is cancelled."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            next_s += MINUTE_S
            await asyncio.sleep(next_s - loop.time())
            self.end_minute()

    def end_minute(self) -> None:
        """Note what was done since the last call."""
        self._ended += 1
        for kind, counter in COUNTERS.items():
            rings, before, now = self._rings[kind], self._before[kind], counter.values
            for queue in [queue for queue, ring in rings.items() if not any(ring)]:
                del rings[queue]
            for ring in rings.values():
                ring.pop(0)
                ring.append(0)
            for queue, count in now.items():
                earlier = before.get(queue, 0)
                # One that is below began anew: a queue of this name was deleted meanwhile.
                done = count - earlier if count >= earlier else count
                if done:
                    rings.setdefault(queue, array("Q", [0] * MINUTES))[-1] = done
            self._before[kind] = now

    def of(self, queue: str) -> list[Rate]:
        """Return the rates of the work on a queue; without minutes if none is over."""
        unknown, nothing = max(0, MINUTES - self._ended), array("Q", [0] * MINUTES)
        return [
            Rate(kind=kind, minutes=tuple(rings.get(queue, nothing)[unknown:]))
            for kind, rings in self._rings.items()
        ]
