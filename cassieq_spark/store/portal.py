"""`run` carries out the engine's coroutines for ordinary code: one event loop, in one thread.

A process has one, begun by its first client. It ends with the process: what is under way then is
what a kill would leave. A forked child begins its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cassieq_spark import deferred
from cassieq_spark.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from contextlib import AbstractAsyncContextManager

T = TypeVar("T")

_PATCHED: Final = (
    ("gevent.monkey", "is_module_patched", "threading"),
    ("eventlet.patcher", "is_monkey_patched", "thread"),
)
"""Who replaces threads, and how to ask whether that was done."""


LEFT_S: Final = 2.0
"""How long a client that is closed waits until what a Ctrl-C has left is handed back."""


class CallerLeft(BaseException):
    """Ends work whose caller has left, as by a Ctrl-C, where it would go on for long."""


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
        self._thread = threading.Thread(target=self._serve, name="cassieq-engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it still works."""
        return self._thread.is_alive() and not sys.is_finalizing()

    @property
    def is_here(self) -> bool:
        """Whether this is its own thread."""
        return threading.get_ident() == self._thread.ident

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        deferred.defer_here()
        while True:
            # A task that ends with one of these raises it here, too, as if it were the main
            # thread's. Whoever waits for the task gets it, and the others go on.
            with suppress(KeyboardInterrupt, SystemExit):
                self.loop.run_forever()
                return


_portal: Portal | None = None
_lock = threading.Lock()
_of_parents: Final[list[Portal]] = []
"""Those of processes that this one was forked from. They must not even be closed: a child shares
its parent's selector."""


def portal() -> Portal:
    """The portal of this process.

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
    """Whether this is the engine's own thread, where nothing may wait for the engine."""
    return _portal is not None and _portal.is_here


def run(
    work: Coroutine[Any, Any, T], *, left: Callable[[T], Coroutine[Any, Any, object]] | None = None
) -> T:
    """Carry out a coroutine of the engine, in the caller's context; return what it returns.

    Args:
        left: Called with its result if the caller has left meanwhile, as by a Ctrl-C: the work goes
            on to its end.

    Raises:
        UsageError: This is the engine's own thread, which would wait for itself, or it has ended.
        BaseException: What the coroutine raises.
    """
    inbox, future = _Inbox(), Future[T]()
    try:
        here = _elsewhere()
    except BaseException:
        work.close()
        raise
    context = copy_context()
    context.run(_caller.set, inbox)
    try:
        here.loop.call_soon_threadsafe(_begin, work, future, inbox, context=context)
        inbox.serve()
        return future.result()
    except BaseException:
        inbox.close()
        if not future.done() or future.exception() is None:
            here.loop.call_soon_threadsafe(_leave, work, future, inbox, left)
        raise
    finally:
        deferred.write_deferred()


_under_way: Final[set[object]] = set()
"""Tasks: a loop has only weak references to them."""

_finishing: Final[set[Future[None]]] = set()


def _begin(work: Coroutine[Any, Any, T], future: Future[T], inbox: _Inbox) -> None:
    def end(task: asyncio.Task[T]) -> None:
        _under_way.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            future.set_result(task.result())
        else:
            future.set_exception(error)
        inbox.put(None)

    inbox.has_begun = True
    task = asyncio.get_running_loop().create_task(work)
    _under_way.add(task)
    task.add_done_callback(end)


def _leave(
    work: Coroutine[Any, Any, T],
    future: Future[T],
    inbox: _Inbox,
    left: Callable[[T], Coroutine[Any, Any, object]] | None,
) -> None:
    """Hand back what nobody takes any more; in the event loop, after `_begin`, if that came."""
    if not inbox.has_begun:
        work.close()
    elif left is not None:
        last: Future[None] = Future()
        _finishing.add(last)
        last.add_done_callback(_finishing.discard)
        _begin(_handed_back(future, left), last, _Inbox())


async def _handed_back(future: Future[T], left: Callable[[T], Coroutine[Any, Any, object]]) -> None:
    await left(await asyncio.wrap_future(future))


def _elsewhere() -> Portal:
    here = portal()
    if here.is_here:
        raise UsageError(
            "a blocking call was made by the thread that carries out such calls, and would wait "
            "for itself. Make it in another thread"
        )
    return here


def wait_for_what_was_left() -> None:
    """Wait until what callers have left is handed back, `LEFT_S` at most."""
    run(_nothing())  # what callers have left before this is known then
    wait(list(_finishing), LEFT_S)


async def _nothing() -> None:
    pass


class _Inbox:
    """What a caller is to do in its own thread, while it waits for its work: see `outside`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.is_open = True
        self.has_begun = False

    def put(self, work: Callable[[], object] | None) -> bool:
        """Ask for something, or say that the caller waits no longer; False: it has left."""
        with self._lock:
            if self.is_open:
                self._asked.put(work)
            return self.is_open

    def serve(self) -> None:
        """Do what is asked for, until there is nothing more to wait for."""
        while (work := self._asked.get()) is not None:
            work()

    def close(self) -> None:
        """Leave; nobody does any more what is asked for and not done yet."""
        with self._lock:
            self.is_open = False


_caller: ContextVar[_Inbox | None] = ContextVar("cassieq_caller", default=None)


def check_caller() -> None:
    """Raise CallerLeft if whoever called has left: for work that goes on for long."""
    inbox = _caller.get()
    if inbox is not None and not inbox.is_open:
        raise CallerLeft


async def outside(work: Callable[[], T]) -> T:
    """Have a user's function called: in the thread that waits for this call, or in one of its own.

    Never in the event loop: it may take its time, and may call this client.

    Raises:
        CallerLeft: Nobody waits for the call any more.
    """
    inbox = _caller.get()
    if inbox is None:
        return await in_a_thread(work)
    check_caller()
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    if not inbox.put(_telling(loop, answer, work)):
        raise CallerLeft
    return await _told(answer)


async def in_a_thread(work: Callable[[], T]) -> T:
    """Do what blocks in a thread, in the caller's context; what it raises comes out here.

    In a daemon thread of its own: a pool takes nothing more when the main thread has ended, and
    other threads of the program may still be at work then.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    do = _telling(loop, answer, work)
    threading.Thread(
        target=copy_context().run, args=(do,), name="cassieq-work", daemon=True
    ).start()
    return await _told(answer)


def _telling(
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[tuple[T | None, BaseException | None]],
    work: Callable[[], T],
) -> Callable[[], None]:
    def tell(found: tuple[T | None, BaseException | None]) -> None:
        if not answer.done():
            answer.set_result(found)

    def do() -> None:
        found: tuple[T | None, BaseException | None]
        try:
            found = work(), None
        except BaseException as error:  # noqa: BLE001 - it comes out where it is waited for
            found = None, error
        loop.call_soon_threadsafe(tell, found)

    return do


async def _told(answer: asyncio.Future[tuple[T | None, BaseException | None]]) -> T:
    found, error = await answer
    if error is not None:
        raise error
    return found  # type: ignore[return-value]  # what the function has returned


def start(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Begin a coroutine of the engine, in the caller's context, without waiting for it."""
    try:
        here = portal()
    except BaseException:
        work.close()
        raise
    return asyncio.run_coroutine_threadsafe(work, here.loop)


@contextmanager
def entered(block: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Work in a block of the engine. Each step of it has a context of its own."""
    inner = run(block.__aenter__())
    try:
        yield inner
    except BaseException as error:
        if not run(block.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        run(block.__aexit__(None, None, None))


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over what an asynchronous generator yields. Each step has a context of its own."""
    is_over = False
    try:
        while True:
            try:
                yield run(_next(items))
            except StopAsyncIteration:
                is_over = True
                return
    finally:
        close = getattr(items, "aclose", None)
        if close is not None and not is_over:
            with suppress(UsageError):
                start(close())  # it may be the engine's own thread that finds nobody iterates


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()


def apart(work: Callable[[], object]) -> None:
    """Do something that waits for the engine in a thread, where the engine's own thread asks.

    Garbage is collected by whichever thread comes to it.
    """
    threading.Thread(target=Context().run, args=(work,), name="cassieq-work", daemon=True).start()


def _forget_after_fork() -> None:
    global _portal, _lock  # noqa: PLW0603 - the parent may have held the lock when it forked
    _lock = threading.Lock()
    if _portal is not None:
        _of_parents.append(_portal)
    _portal = None
    _finishing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
