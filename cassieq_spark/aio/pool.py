"""`Pool` makes blocking calls in threads, so that nothing blocks the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import StoreTimeout
from cassieq_spark.store import call
from cassieq_spark.store.call import LONGEST_S
from cassieq_spark.store.side_by_side import one_call

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

T = TypeVar("T")

CALLS_WAITING: Final = 64
"""How many calls may wait for each thread. Beyond that, an answer would come too late to be used,
so the caller is told to come again."""


_CLOCK: Final = SystemClock()


class Busy(Exception):
    """Too many calls wait for a thread."""


class Pool:
    """Threads for blocking calls, and a limit for the calls that wait for one.

    Args:
        most_calls: Calls that run or wait; None: any number, as each has a task that waits for it.
    """

    def __init__(self, threads: int, name: str, *, most_calls: int | None = None) -> None:
        self.threads = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most_calls = most_calls
        self._calls = 0
        self._under_way: dict[str, asyncio.Task[Any]] = {}

    async def run(self, work: Callable[[], T], context: Context | None = None) -> T:
        """Run a blocking call in a thread.

        Args:
            context: What it sees of its caller, such as the span; default: as it is now.

        Raises:
            Busy: Too many calls wait already.
            StoreTimeout: No thread was free in time. Nothing was done.
        """
        return await self._run(work, context, None)

    async def _run(
        self,
        work: Callable[[], T],
        context: Context | None,
        when_over: Callable[[], None] | None,
    ) -> T:
        """Run it.

        Args:
            when_over: Called in the event loop when the thread has ended the call, however long
                after its caller has gone, or when it is certain that none begins it.
        """
        if self._most_calls is not None and self._calls >= self._most_calls:
            raise Busy
        loop = asyncio.get_running_loop()
        context = copy_context() if context is None else context
        asked_s = context.get(call.asked_s) or _CLOCK.monotonic()

        def run() -> T:
            # The call's time runs while it waits for a thread, and for a group to go with.
            with one_call(LONGEST_S, waited_s=_CLOCK.monotonic() - asked_s):
                return work()

        submitted = self._threads.submit(context.run, run)
        if when_over is not None:
            submitted.add_done_callback(lambda _: _in_loop(loop, when_over))
        is_late = False

        def give_up() -> None:
            nonlocal is_late
            is_late = submitted.cancel()  # nothing happens once a thread has begun

        timer = loop.call_later(asked_s + LONGEST_S - _CLOCK.monotonic(), give_up)
        self._calls += 1
        try:
            return await asyncio.wrap_future(submitted)
        except asyncio.CancelledError:
            if is_late:
                raise self.late() from None
            raise
        finally:
            timer.cancel()
            self._calls -= 1

    def late(self) -> StoreTimeout:
        """The error of a call for which no thread was free in time."""
        return StoreTimeout(
            f"all {self.threads} threads were busy for {LONGEST_S:.0f} s. Nothing was done. Try "
            "again, later or with more threads"
        )

    @property
    def calls(self) -> int:
        """How many calls run or wait for a thread."""
        return self._calls

    async def once(self, name: str, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for a call; all who ask for the same name meanwhile wait for the one call.

        Args:
            run: Begins it, by `run`.

        Raises:
            Busy: Too many calls wait already.
        """
        task = self._under_way.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(run())
            self._under_way[name] = task
            task.add_done_callback(partial(self._done, name))
        # A client that goes away does not take the answer from the others.
        return cast("T", await asyncio.shield(task))

    def close(self) -> None:
        """End the threads; calls under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def join(self) -> None:
        """Return when all calls are over, also those for which nobody waits any more."""
        await asyncio.to_thread(self._threads.shutdown)

    def _done(self, name: str, task: asyncio.Task[Any]) -> None:
        self._under_way.pop(name, None)
        if not task.cancelled():
            task.exception()  # nobody may be left who takes it


def _in_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(work)
