"""Show that a writer is alive, so that repair does not abort it [R3]. See docs/design/sink.md."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger

if TYPE_CHECKING:
    from cassieq_spark.queue.lane import Lane

BEATS_PER_TIMEOUT = 3

_logger = get_logger("queue")


class Heartbeat:
    """Beats while its block runs.

    It is a task of its own, because a Spark task may wait minutes for its next row, and a commit
    for its buckets. It is politeness, not safety: a beat that fails is logged, and the work goes
    on.
    """

    def __init__(self, lane: Lane, sink_id: str, *, is_row_fresh: bool = False) -> None:
        """Prepare; nothing is sent yet.

        Args:
            is_row_fresh: Whether the sink's row was just changed, which is a sign of life, too.
                Then work that ends within a third of the timeout sends no beat.
        """
        self._lane = lane
        self._sink_id = sink_id
        self._is_row_fresh = is_row_fresh
        self._period_s = lane.settings.repair_timeout_s / BEATS_PER_TIMEOUT
        self._ended = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Beat once, then go on in the background."""
        if not self._is_row_fresh:
            await self._beat()
        self._beating = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop, when a beat that is running has ended."""
        self._ended.set()
        if self._beating is not None:
            await self._beating

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), self._period_s)
            if self._ended.is_set():
                return
            await self._beat()

    async def _beat(self) -> None:
        try:
            # Do not wait long for the store: the work must begin, and the next beat be due [T5].
            with self._lane.store.session.within(self._period_s):
                await self._lane.store.heartbeats.beat(
                    self._sink_id, ttl_s=self._lane.settings.repair_timeout_s
                )
        except CassieqError as error:
            event(_logger, "heartbeat_failed", sink=self._sink_id, error=str(error))
