"""`work` has a function called for each message of a queue, in a pool of processes.

The loop is `Crew`'s. A seat is one process, which is replaced when it dies; the places at it are
the hands, one for each message that the process works on at once.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from cassieq_spark.aio.client import for_tasks
from cassieq_spark.aio.crew import Crew, CrewSettings
from cassieq_spark.client import Client
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import system
from cassieq_spark.errors import FunctionInvalid
from cassieq_spark.exporter.listen import listening
from cassieq_spark.log import event, get_logger
from cassieq_spark.queue.handling import Failure
from cassieq_spark.queue.message import Delivery
from cassieq_spark.worker.health import probes
from cassieq_spark.worker.process import Process

RESTART_S: Final = 1.0
"""The pause after a process that could not be used; it doubles with each further one."""

LONGEST_RESTART_S: Final = 30.0

_logger = get_logger("worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """Settings of a worker.

    Attributes:
        function: As ``module:function``.
        processes: The number of processes.
        side_by_side: How many messages a process works on at once, as coroutines; 1: one after the
            other.
        max_messages: Replace a process that was given so many messages.
        max_memory_bytes: Replace a process that has more memory after a message.
        timeout_s: How long the function may run for one message; then it is stopped, and has
            failed.
        logs: The level and the form of the processes' logs.
        health: The host and port at which probes are answered; None: nowhere.
    """

    function: str
    processes: int
    side_by_side: int = 1
    max_messages: float = inf
    max_memory_bytes: float = inf
    timeout_s: float = inf
    logs: tuple[str, str] = ("WARNING", "text")
    health: tuple[str, int] | None = None
    crew: CrewSettings


class _Pool:
    """The processes of a worker.

    Attributes:
        is_ready: Whether a process has found the function.
        releases: How often the function was to be imported anew.
    """

    def __init__(self, queue: str, settings: WorkSettings) -> None:
        self.queue = queue
        self.settings = settings
        self.clock = SystemClock()
        self.is_ready = False
        self.releases = 0
        self._seats = [_Seat(self) for _ in range(settings.processes)]
        self._beside: set[asyncio.Task[None]] = set()
        self.hands = [_Place(seat) for seat in self._seats for _ in range(settings.side_by_side)]

    def refuse(self, why: str) -> None:
        """Note that a process could not be used.

        Raises:
            FunctionInvalid: There is no process yet that can.
        """
        refused = FunctionInvalid(why)
        if not self.is_ready:
            raise refused
        self.tell_of_process(str(refused))

    def tell_of_process(self, error: str) -> None:
        """Tell why another process is needed."""
        event(_logger, "worker_process_failed", queue=self.queue, error=error)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let a process end, or another one begin, beside all else."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    def reload(self) -> None:
        """Replace all processes, so that the function's module is imported anew."""
        self.releases += 1
        event(_logger, "worker_reloads", queue=self.queue, function=self.settings.function)

    async def close(self, *, at_once: bool) -> None:
        """Return when all processes are gone."""
        for seat in self._seats:
            seat.stop()
            if (process := seat.process) is not None:
                self.begin(process.kill() if at_once else process.end())
        while self._beside:
            await asyncio.wait(self._beside)


class _Seat:
    """One process, which is replaced when it dies or is worn.

    In the place of a worn one, another process begins beside it, and takes over when it can be
    used. The worn one ends when its functions have returned. If the other cannot be used, as after
    a broken release, the worn one goes on, and it is tried again later.
    """

    def __init__(self, pool: _Pool) -> None:
        self.pool = pool
        self.process: Process | None = None
        self._lock = asyncio.Lock()
        self._attempt = 0
        self._again_at = -inf
        self._release = 0
        self._renewal: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Begin no other process any more."""
        if self._renewal is not None:
            self._renewal.cancel()

    async def ready(self) -> bool:
        """Return whether there is a process that can be used; begin one if there is none."""
        if self.process is not None and not self.process.is_alive:
            self.pool.tell_of_process("it ended while it was idle")
            self.process = None
        if self.process is None:
            async with self._lock:
                if self.process is None:
                    await self._renew()
        elif self._is_worn(self.process) and (self._renewal is None or self._renewal.done()):
            self._renewal = self.pool.begin(self._renew_beside())
        return self.process is not None

    def leave(self, process: Process) -> None:
        """Note that a call of a process is over: it ends if another one has its place."""
        if process is not self.process and process.is_alive and process.is_idle:
            self.pool.begin(process.end())

    def _is_worn(self, process: Process) -> bool:
        settings = self.pool.settings
        return (
            self._release < self.pool.releases
            or process.calls >= settings.max_messages
            or process.memory_bytes > settings.max_memory_bytes
        )

    async def _renew_beside(self) -> None:
        async with self._lock:
            if self.process is not None and self._is_worn(self.process):
                await self._renew()

    async def _renew(self) -> None:
        pool, name = self.pool, self.pool.settings.function
        left_s = self._again_at - pool.clock.monotonic()
        if left_s > 0:
            await pool.clock.sleep(left_s)
        fresh, release = None, pool.releases
        try:
            fresh = await Process.start(name, pool.settings.side_by_side, *pool.settings.logs)
            found = (await asyncio.wait({fresh.found}))[0].pop().result()
        except OSError as error:
            why: str | None = f"no process could be started for {name!r}: {error}"
        except BaseException:  # the worker stops
            if fresh is not None:
                await fresh.kill()
            raise
        else:
            died = f"the process that imports {name!r} ended with exit code {found.exit_code}"
            why = died if found.exit_code is not None else found.refused
        if fresh is None or why is not None:
            if fresh is not None:
                await fresh.kill()
            pause_s = min(LONGEST_RESTART_S, system.jitter(RESTART_S, self._attempt))
            self._attempt += 1
            self._again_at = pool.clock.monotonic() + pause_s
            pool.refuse(str(why))
        else:
            worn, self.process, self._release = self.process, fresh, release
            self._attempt = 0
            pool.is_ready = True
            if worn is not None:
                self.leave(worn)


class _Place:
    """A hand: one of the messages that a process works on at once."""

    def __init__(self, seat: _Seat) -> None:
        self._seat = seat

    async def ready(self) -> bool:
        """Return whether there is a process that can be used; begin one if there is none."""
        return await self._seat.ready()

    @property
    def can_work(self) -> bool:
        """Whether the process is alive."""
        return self._seat.process is not None and self._seat.process.is_alive

    async def work(self, message: Delivery) -> Failure | None:
        """Let the process work on a message."""
        process, settings = self._seat.process, self._seat.pool.settings
        if process is None:  # another message has just killed it, and no function has seen this one
            return Failure(error="its process has ended", after_s=0.0, is_counted=False)
        began = self._seat.pool.clock.monotonic()
        number, answer = await process.call(message)
        try:
            limit_s = None if settings.timeout_s == inf else settings.timeout_s
            if not (await asyncio.wait({answer}, timeout=limit_s))[0]:
                took_s = self._seat.pool.clock.monotonic() - began
                late = Failure(error=f"stopped after {took_s:.1f} s: --timeout is over")
                if settings.side_by_side > 1:
                    # The other messages of the process go on, unless it blocks its loop.
                    await process.cancel(number)
                    await asyncio.wait({answer}, timeout=settings.crew.grace_s)
                if not answer.done():
                    self._forget(process)
                    await process.kill()
                return late
        except asyncio.CancelledError:  # the grace time is over
            self._forget(process)
            await process.kill()
            raise
        finally:
            self._seat.leave(process)
        found = answer.result()
        if found.exit_code is not None:
            self._forget(process)
            return Failure(error=f"the process ended with exit code {found.exit_code}")
        return found.failure

    def _forget(self, process: Process) -> None:
        if self._seat.process is process:
            self._seat.process = None


def work(
    client: Client,
    queue: str,
    settings: WorkSettings,
    *,
    on_start: Callable[[], None],
    on_health: Callable[[str], None],
) -> None:
    """Work on the messages of a queue until SIGTERM or Ctrl-C, or until none came for ``idle_s``.

    Each message is acked when the function has returned, and given back with a delay when it has
    failed. At least once: a message whose worker dies is delivered again.

    Args:
        on_start: Called once, when the first process has found the function.
        on_health: Called with the address at which probes are answered.

    Raises:
        FunctionInvalid: The function cannot be used; nothing was claimed.
        OptionInvalid: Nobody can listen at the address of ``health``.
        QueueNotFound, QueueDeleted: The queue is not there, or no longer.
        StoreError: At the end: acks could not be stored, so their messages come again.
        KeyboardInterrupt: A second signal came; it has the signal's number.
    """
    insisted = asyncio.run(_worked(client, queue, settings, on_start, on_health))
    if insisted is not None:
        raise KeyboardInterrupt(insisted)


async def _worked(
    client: Client,
    queue: str,
    settings: WorkSettings,
    on_start: Callable[[], None],
    on_health: Callable[[str], None],
) -> int | None:
    """Work, and return the number of the second signal, if one came."""
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(for_tasks(client))
        pool = _Pool(queue, settings)
        crew = Crew(await own.queue(queue), pool.hands, settings.crew, on_start=on_start)
        if settings.health is not None:
            session = client.store.session
            make = probes(asyncio.get_running_loop(), lambda: crew.problem, lambda: session.refusal)
            on_health(stack.enter_context(listening(make, *settings.health, (), what="readyz")))
        task = asyncio.create_task(crew.run())
        with _signals(task, crew, pool) as signals:
            try:
                await asyncio.wait({task})
            finally:
                await pool.close(at_once=len(signals) > 1)
        if not task.cancelled():
            task.result()
        return signals[1] if len(signals) > 1 else None


@contextmanager
def _signals(task: asyncio.Task[None], crew: Crew, pool: _Pool) -> Iterator[list[int]]:
    """Cancel the work by SIGINT and SIGTERM; a second one does it again. Yield those that came.

    SIGHUP reloads, but not on a terminal: there it says that the terminal has gone.
    """
    loop, came, numbers = asyncio.get_running_loop(), list[int](), (signal.SIGINT, signal.SIGTERM)

    def note(number: int) -> None:
        came.append(number)
        task.cancel()
        if len(came) > 1:
            crew.hurry()  # both cancels may be one, if the signals came together
            remove()  # a third one is the system's

    def remove() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, note, number)
    if sys.stdin is None or not sys.stdin.isatty():
        loop.add_signal_handler(signal.SIGHUP, pool.reload)
    try:
        yield came
    finally:
        remove()
        loop.remove_signal_handler(signal.SIGHUP)
