"""Do something at a time, in the event loop: once, when it may be moved, or again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Final

from cassieq_spark.clock import Clock

LONGEST_WAIT_S: Final = 3_600.0
"""The longest wait that is asked of the loop; longer waits are begun again."""


class Timer:
    """Calls a function once its time has come; for the event loop's thread.

    Attributes:
        at: The monotonic time of the call; infinite: never.
    """

    def __init__(self, clock: Clock, call: Callable[[], object]) -> None:
        self._clock = clock
        self._call = call
        self._handle: asyncio.TimerHandle | None = None
        self.at = inf

    def set(self, at: float) -> None:
        """Set the time of the call, in place of the former one."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.at = at
        if at < inf:
            left_s = min(max(0.0, at - self._clock.monotonic()), LONGEST_WAIT_S)
            self._handle = self._clock.call_later(left_s, self._over)

    def _over(self) -> None:
        if self.at > self._clock.monotonic():
            self.set(self.at)
        else:
            self._handle, self.at = None, inf
            self._call()


@asynccontextmanager
async def repeating(work: Callable[[], Awaitable[object]], period_s: float) -> AsyncIterator[None]:
    """Do some work after each period while the block runs, as a task of its own.

    The block ends when work that is running has ended.
    """
    ended = asyncio.Event()

    async def run() -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), period_s)
            if ended.is_set():
                return
            await work()

    task = asyncio.get_running_loop().create_task(run())
    try:
        yield
    finally:
        ended.set()
        await task
