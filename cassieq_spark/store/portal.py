"""`run` carries out the engine's coroutines for blocking code: one event loop, in one thread.

A process has one portal, which its first client starts. It ends with the process: work under way
then is left as by a kill. A forked child starts its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar

from cassieq_spark import log
from cassieq_spark.errors import UsageError
from cassieq_spark.store.caller import Caller, Inbox, Waiter, present

T = TypeVar("T")

_PATCHED: Final = (
    ("gevent.monkey", "is_module_patched", "threading"),
    ("eventlet.patcher", "is_monkey_patched", "thread"),
)
"""The packages that replace threads, each with the function that tells whether it has."""


LEFT_S: Final = 2.0
"""The time that a program's end waits for what is under way: a closing client, until the results of
departed callers are handed back, and a pass over schedules."""


BEGUN: Final = (
    "[cassieq] {what} had begun when it was cancelled, and goes on to its end: what it was to do "
    "may be done"
)


class Portal:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        for name, ask, what in _PATCHED:
            if name in sys.modules and getattr(sys.modules[name], ask)(what):
                raise UsageError(
                    f"{name} has replaced this process's threads, and a client needs real ones. "
                    "Use it in a process that is not patched, or patch without threads"
                )
        self.loop = asyncio.new_event_loop()
        self._serves = True
        self._thread = threading.Thread(target=self._serve, name="cassieq-engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still serves its loop.

        The thread itself is not asked: a Ctrl-C in `Thread.is_alive` marks it as ended.
        """
        return self._serves and not sys.is_finalizing()

    @property
    def is_here(self) -> bool:
        """Whether the present thread is the portal's."""
        return threading.get_ident() == self._thread.ident

    def inbox(self) -> Inbox:
        """Return a caller that waits in the present thread."""
        return Inbox()

    def apart(self, work: Callable[[], object]) -> None:
        """See `apart`."""
        threading.Thread(
            target=Context().run, args=(work,), name="cassieq-work", daemon=True
        ).start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        log.deferred.begin()
        try:
            while True:
                # A task that ends with one of these raises it here, too, as if this were the main
                # thread. The task's caller gets it, and the other tasks go on.
                with suppress(KeyboardInterrupt, SystemExit):
                    self.loop.run_forever()
                    return
        finally:
            self._serves = False


_portal: Portal | None = None
_lock = threading.Lock()
_of_parents: Final[list[Portal]] = []
"""The portals of parent processes. They must not even be closed: a child shares its parent's
selector."""


def portal() -> Portal:
    """Return the portal of this process.

    Raises:
        UsageError: Its thread has ended, as at the end of the interpreter.
    """
    global _portal  # noqa: PLW0603 - one a process
    here = _portal
    if here is None:
        with _lock:
            here = _portal = _portal or Portal()
    if not here.is_alive:
        raise UsageError(
            "the thread that carries out the calls of this process's clients has ended, so nothing "
            "can be sent any more. Start the program again"
        )
    return here


def is_here() -> bool:
    """Whether this is the engine's own thread, in which nothing may wait for the engine."""
    return _portal is not None and _portal.is_here


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the engine, in the caller's context; return its result.

    It goes on to its end if the caller leaves, as by a Ctrl-C; see `if_left`.

    Raises:
        UsageError: This is the engine's own thread, which would wait for itself, or it has ended.
        BaseException: What the coroutine raises.
    """
    try:
        caller = _elsewhere().inbox()
    except BaseException:
        work.close()
        raise
    try:
        _submit(work, caller)
        caller.serve()
        log.deferred.write()
        return caller.result()  # type: ignore[no-any-return]  # of the coroutine
    except BaseException:
        _leave(work, caller)
        raise


async def asked(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine of the engine from a task of any event loop, which goes on.

    Raises:
        UsageError, BaseException: As `run`.
        CancelledError: The task was cancelled. The work goes on to its end; see `if_left`.
    """
    caller = Waiter()
    try:
        _submit(work, caller)
        await caller.answered
        log.deferred.write()
        return caller.result()  # type: ignore[no-any-return]  # of the coroutine
    except BaseException as error:
        _leave(work, caller)
        if isinstance(error, asyncio.CancelledError) and caller.hand_back is None:
            error.add_note(BEGUN.format(what=getattr(work, "__name__", "what it began")))
        raise


_under_way: Final[set[asyncio.Task[Any]]] = set()
"""The tasks under way: a loop has only weak references to tasks."""

_finishing: Final[set[asyncio.Task[Any]]] = set()
"""The tasks among them that hand a result back."""


def _submit(work: Coroutine[Any, Any, Any], caller: Caller) -> None:
    """Begin the work in the event loop, in the caller's context."""
    try:
        here = portal()
    except BaseException:
        work.close()
        caller.has_failed = True
        raise
    context = copy_context()
    context.run(present.set, caller)
    here.loop.call_soon_threadsafe(_begin, work, caller, context=context)


def _begin(work: Coroutine[Any, Any, Any], caller: Caller) -> None:
    caller.task = _task(work)
    caller.task.add_done_callback(caller.end)


def _task(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.get_running_loop().create_task(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    return task


def _leave(work: Coroutine[Any, Any, Any], caller: Caller) -> None:
    """Report that the caller has left, unless its work has failed."""
    caller.is_open = False
    if not caller.has_failed:
        with suppress(RuntimeError, UsageError):  # the interpreter ends
            portal().loop.call_soon_threadsafe(_end, work, caller)


def _end(work: Coroutine[Any, Any, Any], caller: Caller) -> None:
    """Hand back a result that nobody takes; in the event loop, after `_begin` if that came."""
    if caller.task is None:
        work.close()
        return
    for notice in list(caller.notices):
        notice()
    _finish(_handed_back(caller.task, caller))


def _finish(work: Coroutine[Any, Any, Any]) -> None:
    """Begin work that a client's close waits for."""
    last = _task(work)
    _finishing.add(last)
    last.add_done_callback(_finishing.discard)


async def _handed_back(task: asyncio.Task[Any], caller: Caller) -> None:
    await asyncio.wait([task])
    has_failed = task.cancelled() or task.exception() is not None
    if not has_failed and caller.hand_back is not None:
        await caller.hand_back(task.result())


def _elsewhere() -> Portal:
    here = portal()
    if here.is_here:
        raise UsageError(
            "a blocking call was made by the thread that carries out such calls, and would wait "
            "for itself. Make it in another thread"
        )
    return here


async def handed_back() -> None:
    """Wait until the results of departed callers are handed back, `LEFT_S` at most."""
    if _finishing:
        await asyncio.wait(_finishing, timeout=LEFT_S)


def start(work: Coroutine[Any, Any, Any], *, is_last: bool = False) -> None:
    """Begin a coroutine of the engine, in the caller's context, without waiting for it.

    Args:
        is_last: Whether a client that closes waits for it, as for what departed callers have left.
    """
    try:
        here = portal()
    except BaseException:
        work.close()
        raise
    here.loop.call_soon_threadsafe(_finish if is_last else _task, work)


@contextmanager
def entered(block: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter an asynchronous context manager of the engine. Each step has a context of its own."""
    inner = run(block.__aenter__())
    try:
        yield inner
    except BaseException as error:
        if not run(block.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        run(block.__aexit__(None, None, None))


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over an asynchronous generator of the engine. Each step has a context of its own."""
    with _closing(items), suppress(StopAsyncIteration):
        while True:
            yield run(_next(items))


async def iterate_asked(items: AsyncIterator[T]) -> AsyncIterator[T]:
    """Iterate as `iterate` does, for a task of any event loop."""
    with _closing(items), suppress(StopAsyncIteration):
        while True:
            yield await asked(_next(items))


@contextmanager
def _closing(items: AsyncIterator[object]) -> Iterator[None]:
    try:
        yield
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            with suppress(UsageError):
                start(close())  # the engine's own thread may be the one that collects the iterator


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()


def apart(work: Callable[[], object]) -> None:
    """Run work that waits for the engine in a thread of its own, for the engine's own thread.

    Garbage is collected by any thread, the engine's too.
    """
    portal().apart(work)


def _forget_after_fork() -> None:
    global _portal, _lock  # noqa: PLW0603 - the parent may have held the lock when it forked
    _lock = threading.Lock()
    if _portal is not None:
        _of_parents.append(_portal)
    _portal = None
    _finishing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
