"""`memory_client` opens a client on queues in this process's memory, for a program's unit tests."""

from __future__ import annotations

import asyncio
import random
import sys
import warnings
from collections.abc import Callable
from contextvars import Context
from typing import Final
from uuid import UUID

from cassieq_spark.aio.client import AsyncClient, for_tasks
from cassieq_spark.client import Client
from cassieq_spark.clock import Cancellable, SystemClock
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.store.session import CqlSession
from cassieq_spark.testing.manual import ManualClock
from cassieq_spark.testing.simulated.ring import Node, Ring
from cassieq_spark.testing.simulated.transport import SimulatedTransport

_RUNNERS: Final = ("pytest", "unittest")
_DATACENTER: Final = "memory"


class _Timer:
    """A call that comes when the clock says so; it may be put forward.

    Args:
        timers: Those of the clock that have not ended.
    """

    def __init__(
        self,
        timers: dict[_Timer, None],
        monotonic: Callable[[], float],
        due_s: float,
        call: Callable[[], object],
    ) -> None:
        self._timers = timers
        self._monotonic = monotonic
        self._due_s = due_s
        self._call = call
        self._loop = asyncio.get_running_loop()
        timers[self] = None
        self._set()

    def put_forward(self) -> None:
        """Set it again, from any thread."""
        self._loop.call_soon_threadsafe(self._again)

    def cancel(self) -> None:
        """See `cassieq_spark.clock.Cancellable`."""
        self._timers.pop(self, None)
        self._handle.cancel()

    def _set(self) -> None:
        left_s = max(0.0, self._due_s - self._monotonic())
        self._handle = self._loop.call_later(left_s, self._end, context=Context())

    def _again(self) -> None:
        if self in self._timers:
            self._handle.cancel()
            self._set()

    def _end(self) -> None:
        self._timers.pop(self, None)
        self._call()


class MemoryClock(ManualClock):
    """Goes with this machine's clock, and ahead of it by what a test lets pass; a `Clock`."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self._timers: dict[_Timer, None] = {}

    def advance(self, seconds: float) -> None:
        """Let time pass: leases run out, delays end, and what waits for that time goes on.

        Raises:
            ValueError: Time does not go back.
        """
        super().advance(seconds)
        for timer in list(self._timers):
            timer.put_forward()

    async def sleep(self, seconds: float) -> None:
        """See `cassieq_spark.clock.Clock`."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            timer.cancel()

    def call_later(self, seconds: float, call: Callable[[], object]) -> Cancellable:
        """See `cassieq_spark.clock.Clock`."""
        return _Timer(self._timers, self.monotonic, self.monotonic() + seconds, call)


class MemoryClient(Client):
    """A `Client` whose queues are in the memory of this process, and end with it.

    It is the engine that works with Cassandra, on a simulated Cassandra of one node. Everything
    works as it does there, but for worker processes and Spark, which need a real one.

    Attributes:
        clock: `MemoryClock.advance` lets time pass.
    """

    def __init__(self, *, beside: MemoryClient | None = None) -> None:
        """Open it without tables; see `memory_client`."""
        self.clock: MemoryClock = MemoryClock() if beside is None else beside.clock
        self._ring: Ring = _ring(self.clock) if beside is None else beside._ring  # noqa: SLF001 - of the same class
        options = _options()
        transport = SimulatedTransport(self._ring)
        super().__init__(
            options, session=CqlSession(options, transport=transport, clock=self.clock)
        )

    def for_tasks(self) -> AsyncClient:
        """Return a client for asyncio on the same queues: it needs no block, and ends with this."""
        return for_tasks(self)


def memory_client(*, beside: MemoryClient | None = None) -> MemoryClient:
    """Open a client on queues in memory, for unit tests. Close it, or use it in a ``with`` block.

    Args:
        beside: Another one, whose queues and clock the new one shares, as a second program does.

    Warns:
        UserWarning: No test is running: what is put here is lost when the process ends.
    """
    if not any(name in sys.modules for name in _RUNNERS):
        warnings.warn(
            "memory_client() keeps all messages in the memory of this process, for tests; they "
            "are lost when it ends. Use cassieq_spark.connect() in a program",
            stacklevel=2,
        )
    client = MemoryClient(beside=beside)
    if beside is None:
        client.bootstrap()
    return client


def _ring(clock: MemoryClock) -> Ring:
    node = Node("127.0.0.1", _DATACENTER, UUID(int=1), 1, clock.now_us)
    return Ring([node], rng=random.Random(0))  # noqa: S311 - guards no secret


def _options() -> ConnectionOptions:
    """Return options that no variable of the environment changes."""
    return ConnectionOptions(
        contact_points=(("memory", 9042),),
        keyspace="cassieq",
        datacenter=_DATACENTER,
        connect_timeout_s=10.0,
    )
