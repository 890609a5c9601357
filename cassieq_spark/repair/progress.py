"""Report the progress of a pass over queues to its caller: a repair, a verify pass, a redrive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from cassieq_spark.model.frozen import frozen
from cassieq_spark.store import caller


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a pass over queues.

    Attributes:
        queue: The queue that the pass works on. Empty in the end, for rows that belong to no queue.
        queues_done, queues: Queues that are done, and all queues of the pass.
        buckets_done, buckets: Buckets of this queue that are done, and all of them: those from the
            repair pointer to the last id, in the lanes that were begun.
        share: The share of the pass that is done, from 0 to 1. It never falls. Each queue counts
            the same, however many buckets it has: they are only counted when its turn comes.
    """

    queue: str
    queues_done: int
    queues: int
    buckets_done: int = 0
    buckets: int = 0
    share: float


OnProgress = Callable[[Progress], None]
"""A function that a pass calls after each bucket or group of buckets: in the thread that waits
for the pass, or in one of its own, but never twice at once. An error that it raises ends the
pass, which can be run again."""


class Tracker:
    """The counts of one pass. Without a function to call, it costs nothing."""

    def __init__(self, tell: OnProgress | None, queues: int) -> None:
        self._tell = tell
        self._queues = queues
        self._queue = ""
        self._begun = 0
        self._lanes = 0
        self._lanes_done = 0.0
        self._done = self._buckets = 0
        self._telling = asyncio.Lock()  # lanes go on side by side, and a caller may have threads

    @property
    def is_on(self) -> bool:
        """Whether there is a function to call."""
        return self._tell is not None

    async def begin(self, queue: str, lanes: int) -> None:
        """Begin the next queue, which has ``lanes`` lanes; the one before it is done."""
        self._begun += 1
        await self._next(queue, lanes)

    async def begin_rest(self) -> None:
        """Begin the rows that belong to no queue: all queues are done."""
        self._begun = self._queues + 1
        await self._next("", 0)

    async def lane(self, live: range) -> Callable[[int], Awaitable[None]]:
        """Begin a lane of this queue; return a function that takes the last bucket that is done."""
        if self._tell is None:
            return _nobody
        at, size = live.start, len(live)
        self._buckets += size
        self._lanes_done += size == 0
        await self._say()

        async def reach(bucket: int) -> None:
            nonlocal at
            now = min(bucket + 1, live.stop)  # buckets may be added meanwhile
            if now <= at:
                return
            self._done += now - at
            self._lanes_done += (now - at) / size
            at = now
            await self._say()

        return reach

    async def _next(self, queue: str, lanes: int) -> None:
        self._queue, self._lanes = queue, lanes
        self._lanes_done = 0.0
        self._done = self._buckets = 0
        await self._say()

    async def _say(self) -> None:
        caller.check()
        if self._tell is None:
            return
        async with self._telling:
            done = min(self._begun - 1, self._queues)
            of_this = min(self._lanes_done / self._lanes, 1.0) if self._lanes else 0.0
            progress = Progress(
                queue=self._queue,
                queues_done=done,
                queues=self._queues,
                buckets_done=self._done,
                buckets=self._buckets,
                share=min((done + of_this) / self._queues, 1.0) if self._queues else 1.0,
            )
            await caller.outside(partial(self._tell, progress))


async def _nobody(bucket: int) -> None:
    del bucket
    caller.check()


SILENT: Final = Tracker(None, 0)
"""The tracker of a pass that reports no progress."""
