"""`Calls` makes the blocking calls of one asyncio client, and knows whether a cancelled one ran."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from weakref import WeakSet

from cassieq_spark.aio.pool import Pool
from cassieq_spark.errors import UsageError
from cassieq_spark.store.process import Home

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.aio.consumer import AsyncConsumer

T = TypeVar("T")

BEGUN: Final = (
    "[cassieq] {what} had begun when it was cancelled, and goes on in its thread: what it was to "
    "do may be done"
)


class Calls:
    """The threads of one client."""

    def __init__(self, threads: int) -> None:
        self.pool = Pool(threads, "cassieq-async")
        self.is_closing = False
        self.home = Home()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.consumers: WeakSet[AsyncConsumer] = WeakSet()

    def check(self) -> None:
        """Check that the client is open, and `check_place`.

        Raises:
            UsageError: It is closed.
        """
        self.check_place()
        if self.is_closing:
            raise UsageError("the client is closed. Make calls inside its async with block")

    def check_place(self) -> None:
        """Check that a client is used where it was opened.

        Raises:
            UsageError: This is another process, or another event loop.
        """
        self.home.check()
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise UsageError(
                "a client for asyncio, with its queues and consumers, works in the event loop that "
                "opened it, and was used in another one. Open a client in each event loop, or use "
                "asyncio.run_coroutine_threadsafe()"
            )

    async def run(
        self, what: str, work: Callable[[], T], *, undo: Callable[[T], None] | None = None
    ) -> T:
        """Run a blocking call.

        Args:
            what: Its name, for a note on the `asyncio.CancelledError` of a call that had begun. A
                call that is cancelled before that does nothing.
            undo: Called with the result, in a thread, if nobody is left to take it.

        Raises:
            UsageError: The client is closed.
        """
        self.check()
        call = _Call(work, undo)
        try:
            return await self.pool.run(call.run)
        except asyncio.CancelledError as error:
            if call.cancel():
                error.add_note(BEGUN.format(what=what))
            raise


class _Call(Generic[T]):
    """One call, which a thread begins or the event loop cancels, whatever comes first."""

    def __init__(self, work: Callable[[], T], undo: Callable[[T], None] | None) -> None:
        self._work = work
        self._undo = undo
        self._lock = threading.Lock()
        self._has_begun = self._is_cancelled = False
        self._found: list[T] = []

    def run(self) -> T:
        """Work, in a thread."""
        with self._lock:
            is_cancelled = self._is_cancelled
            self._has_begun = not is_cancelled
        if is_cancelled:
            raise asyncio.CancelledError
        found = self._work()
        with self._lock:
            self._found.append(found)
            is_cancelled = self._is_cancelled
        if is_cancelled:
            self._take_back()
        return found

    def cancel(self) -> bool:
        """Whether it had begun."""
        with self._lock:
            self._is_cancelled = True
            is_over, has_begun = bool(self._found), self._has_begun
        if is_over and self._undo is not None:
            threading.Thread(target=self._take_back, name="cassieq-undo", daemon=True).start()
        return has_begun

    def _take_back(self) -> None:
        if self._undo is not None:
            self._undo(self._found[0])
