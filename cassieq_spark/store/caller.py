"""Track the caller of an engine call: it runs user functions for the engine, and may leave.

A caller may leave before its call has ended: by a Ctrl-C, or because its task was cancelled. The
work goes on to its end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from copy import copy
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from cassieq_spark.model.sizes import OFFLOAD_BYTES, OFFLOAD_ENTRIES

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class CallerLeft(BaseException):
    """Ends long work whose caller has left, as by a Ctrl-C."""


class Caller:
    """The caller of an engine call, and what becomes of it.

    Attributes:
        task: The call's task in the event loop; None: it has not begun.
        has_failed: Whether the call has raised an error.
        hand_back: See `if_left`.
        notices: See `when_left`.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.task: asyncio.Task[Any] | None = None
        self.has_failed = False
        self._found: Any = None
        self.hand_back: Callable[[Any], Coroutine[Any, Any, object]] | None = None
        self.notices: list[Callable[[], object]] = []

    def end(self, task: asyncio.Task[Any]) -> None:
        """Note how the call has ended, in the event loop, and wake the caller up."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.has_failed = error is not None
        self._found = error if self.has_failed else task.result()
        self.wake()

    def result(self) -> Any:
        """Return the call's result, or raise its error; once."""
        # A timer of the call, though cancelled, keeps its context and this caller for as long as it
        # was set for.
        self.task = self.hand_back = None
        found, self._found = self._found, None
        if not self.has_failed:
            return found
        try:
            raise found
        finally:
            del found  # else its traceback keeps it, in a cycle

    def wake(self) -> None:
        """End the caller's wait."""
        raise NotImplementedError

    def put(self, work: Callable[[], object]) -> bool:  # noqa: ARG002 - see `Inbox`
        """Ask the caller to run ``work``; False: it cannot run anything."""
        return False


class Inbox(Caller):
    """A caller that runs the engine's requests in its own thread, while it waits: see `outside`.

    A Ctrl-C may come at any time, so nothing here holds a lock: `SimpleQueue` is safe for that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def wake(self) -> None:
        """End the caller's wait."""
        self._asked.put(None)

    def put(self, work: Callable[[], object]) -> bool:
        """Ask the caller to run ``work``; False: it has left."""
        if self.is_open:
            self._asked.put(work)
        return self.is_open

    def serve(self) -> None:
        """Run what the engine asks for, until the call has ended."""
        while (work := self._asked.get()) is not None:
            work()


class Waiter(Caller):
    """A caller that is a task of another event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """End the caller's wait, if its loop still runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)


present: Final[ContextVar[Caller | None]] = ContextVar("cassieq_caller", default=None)


def is_there() -> Callable[[], bool]:
    """Return a function that tells, from anywhere, whether the present caller is still there."""
    known = present.get()
    return lambda: known is None or known.is_open


def check() -> None:
    """Raise CallerLeft if the caller has left; long work calls this now and then."""
    if not is_there()():
        raise CallerLeft


async def outside(work: Callable[[], T]) -> T:
    """Run a user's function in the thread that waits for this call, or in a thread of its own.

    It never runs in the event loop: it may take long, and may call this client.

    Raises:
        CallerLeft: Nobody waits for the call any more.
    """
    check()
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    known = present.get()
    if known is None or not known.put(_telling(loop, answer, work)):
        check()
        return await in_a_thread(work)

    def leave() -> None:
        if not answer.done():
            answer.set_exception(CallerLeft())  # it may have left before it ran this

    with when_left(leave):
        return _given(await answer)


async def in_a_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread, in the caller's context; its error is raised here.

    The thread is a daemon of its own: a pool takes no more work when the main thread has ended, and
    other threads of the program may still be at work then.
    """
    loop = asyncio.get_running_loop()
    return _given(await loop.run_in_executor(_THREADS, copy_context().run, _outcome, work))


class _Threads(Executor):
    """Runs each work in a thread of its own."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`."""
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()  # whoever waits may leave; the work goes on
        threading.Thread(
            target=lambda: done.set_result(fn(*args, **kwargs)), name="cassieq-work", daemon=True
        ).start()
        return done


_THREADS: Final = _Threads()


async def off_loop(work: Callable[[], T], *, entries: int, size_bytes: int = 0) -> T:
    """Run work of this size; in a thread if it takes longer than the switch to one."""
    if entries < OFFLOAD_ENTRIES and size_bytes < OFFLOAD_BYTES:
        return work()
    return await in_a_thread(work)


def _telling(
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[tuple[T | None, BaseException | None]],
    work: Callable[[], T],
) -> Callable[[], object]:
    def tell(found: tuple[T | None, BaseException | None]) -> None:
        if not answer.done():
            answer.set_result(found)

    return lambda: loop.call_soon_threadsafe(tell, _outcome(work))


def _outcome(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001 - it is raised in `_given`
        return None, error


def _given(outcome: tuple[T | None, BaseException | None]) -> T:
    found, error = outcome
    if error is not None:
        raise error
    return found  # type: ignore[return-value]  # the function's return value


def if_left(hand_back: Callable[[Any], Coroutine[Any, Any, object]]) -> None:
    """Set how the engine hands back the present call's result if its caller leaves.

    Args:
        hand_back: Called in the event loop with the result of the whole call, as nobody takes it.
    """
    if (known := present.get()) is not None:
        known.hand_back = hand_back


@contextmanager
def when_left(notice: Callable[[], object]) -> Iterator[None]:
    """Call ``notice`` in the event loop as soon as the caller leaves, while this block waits.

    Raises:
        CallerLeft: It has left already.
    """
    check()
    notices = [] if (known := present.get()) is None else known.notices
    notices.append(notice)
    try:
        yield
    finally:
        notices.remove(notice)


def copied(error: E) -> E:
    """Copy an error to raise it once more, as other callers raise the original at the same time.

    An error that cannot be copied is raised itself: its class may want other arguments.
    """
    try:
        found = copy(error).with_traceback(error.__traceback__)
    except Exception:  # noqa: BLE001 - whatever its class does
        return error
    found.__cause__ = error.__cause__
    return found
