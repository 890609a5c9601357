"""An event loop in virtual time, and the engine's portal on it.

The loop's clock jumps to the next timer, so hours pass in no time, and nothing depends on how fast
a machine is. Everything runs in one thread, in the order of virtual time and of what was begun
first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any

from cassieq_spark.store import portal
from cassieq_spark.store.caller import Inbox

SHORTEST_S = 1e-9


class Idle(RuntimeError):
    """Nothing is ready and no timer is set: what the program waits for can never come."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is virtual, in seconds from 0.

    Timers of one moment ring in the order in which they were set.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self.failures: list[str] = []
        self.set_exception_handler(self._note_failure)
        self.outside: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()

    def _note_failure(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failures.append(f"{context.get('message')}: {error!r}")

    def time(self) -> float:
        """Return the virtual time."""
        return self._now_s

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """See `call_at`."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Set a timer: each wait lets some time pass, however short it is."""
        if when > self._now_s:
            when = max(when, self._now_s + SHORTEST_S)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _run_once(self) -> None:
        """Run what is ready; where the loop would wait, time jumps to the next timer."""
        ready, timers = self._ready, self._timers
        while timers and (timers[0][-1].cancelled() or timers[0][0] <= self._now_s):
            self._make_ready()
        if not ready and not self._stopping:
            if not timers:
                raise Idle("nothing is ready and no timer is set")
            self._now_s = timers[0][0]
            self._make_ready()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _make_ready(self) -> None:
        handle = heappop(self._timers)[-1]
        if not handle.cancelled():
            self._ready.append(handle)

    def end_tasks(self) -> None:
        """End the tasks that are left, as those of a dead client."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):
                task.get_coro().close()

    def drop(self) -> None:
        """End all that is left, and close."""
        self.end_tasks()
        for handle in (*self._ready, *(one[-1] for one in self._timers)):
            for work in filter(asyncio.iscoroutine, handle._args or ()):
                work.close()  # it was to begin
        self._ready.clear()
        self._timers.clear()
        self.outside.clear()
        self.close()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no files."""

    def _write_to_self(self) -> None:
        """Nobody else needs to wake the loop up."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run blocking work outside of the loop, which stands still meanwhile; see `turn`."""
        del executor
        done: asyncio.Future[Any] = self.create_future()
        self.outside.append((lambda: func(*args), done))
        self.stop()
        return done

    def finish(self, *tasks: asyncio.Future[Any]) -> None:
        """Run until these have ended."""
        for task in tasks:
            task.add_done_callback(lambda _: self.stop())
        self.turn(lambda: all(task.done() for task in tasks))

    def turn(self, is_over: Callable[[], bool]) -> None:
        """Run until this is so; do the blocking work that came up.

        Whoever changes what it depends on stops the loop.
        """
        while not is_over():
            if self.outside:
                work, done = self.outside.popleft()
                _do(work, done)
                continue
            self.run_forever()


def _do(work: Callable[[], Any], done: asyncio.Future[Any]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - for whoever waits
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(result)


class _Inbox(Inbox):
    """A caller whose loop stops when there is something for the caller to do."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._work: deque[Callable[[], object] | None] = deque()

    def wake(self) -> None:
        """See `Inbox`."""
        self._work.append(None)
        self._loop.stop()

    def put(self, work: Callable[[], object]) -> bool:
        """See `Inbox`."""
        if self.is_open:
            self._work.append(work)
            self._loop.stop()
        return self.is_open

    def serve(self) -> None:
        """See `Inbox`; the loop runs in this thread."""
        while True:
            self._loop.turn(lambda: bool(self._work))
            work = self._work.popleft()
            if work is None:
                return
            work()


class VirtualPortal(portal.Portal):
    """The engine's portal on a virtual loop: a blocking call runs the loop until it has ended."""

    loop: VirtualLoop

    def __init__(self) -> None:
        self.loop = VirtualLoop()

    @property
    def is_alive(self) -> bool:
        """Always: it has no thread."""
        return True

    @property
    def is_here(self) -> bool:
        """Whether the loop runs, so that nothing may block."""
        return self.loop.is_running()

    def inbox(self) -> Inbox:
        """See `Portal`."""
        return _Inbox(self.loop)

    def apart(self, work: Callable[[], object]) -> None:
        """See `Portal`."""
        self.loop.run_in_executor(None, Context().run, work)
