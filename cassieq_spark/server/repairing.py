"""Run repair passes in the background, in one gateway at a time (leader lease)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cassieq_spark.entropy import jitter
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.server.backend import Busy

if TYPE_CHECKING:
    from cassieq_spark.server.backend import Backend

_logger = get_logger("server")


async def repair_every(backend: Backend, pause_s: float) -> None:
    """Repair all queues again and again, until this is cancelled. A failure ends one pass only."""
    while True:
        # Gateways that were started together shall not all ask for the lead at once.
        await asyncio.sleep(jitter(pause_s, 0))
        try:
            report = await backend.run(backend.client.repair_as_leader)
        except (CassieqError, Busy) as error:
            event(_logger, "repair_failed", error=str(error))
            continue
        for queue in () if report is None else report.queues:
            for problem in queue.problems:
                event(_logger, "repair_failed", queue=queue.queue, error=problem)
