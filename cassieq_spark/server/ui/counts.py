"""`Counts` counts each queue once in ten seconds for all visitors, however often they look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Final, TypeVar, cast

from cassieq_spark.errors import CassieqError, QueueNotFound
from cassieq_spark.model.rights import Principal, Right
from cassieq_spark.queue.inspect.stats import QueueStats
from cassieq_spark.schedules import ScheduleInfo
from cassieq_spark.server.backend import Backend, Busy, Shared, Turns
from cassieq_spark.server.rest.call import problem_of
from cassieq_spark.store.call import acting

T = TypeVar("T")

REMEMBERED_S: Final = 10.0
"""The greatest age of a figure. To count a queue costs a read for each of its buckets."""

AT_ONCE: Final = 4
"""The number of queues that are counted at once, in turn for each account: the other places are for
those who send and receive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A queue with its counts, or why there are none.

    Attributes:
        name: The queue as the client knows it.
        at_s: When counting began, by the event loop's clock.
    """

    name: str
    at_s: float
    stats: QueueStats | None
    problem: str = ""


class Counts:
    """The figures that visitors have asked for lately. For one event loop.

    Visitors who ask for the same at the same time wait for one answer.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._turns = Turns(AT_ONCE)
        self._shared = Shared()
        self._changes = 0
        self._known: dict[str, tuple[float, Any]] = {}

    async def names(self, principal: Principal, prefix: str) -> list[str]:
        """The queues that a principal may see, by the names that it uses, in order.

        Raises:
            StoreError, Busy: They could not be read.
        """

        async def read() -> list[tuple[str, str]]:
            found = await self._backend.client.queues()
            own = ((principal.own_name(one.name), one.name) for one in found)
            return sorted((name, full) for name, full in own if name is not None)

        # Keys of an account differ in what they may see, so that is decided for each visitor.
        of_account = await self._once(f"names {principal.account}", lambda: self._backend.run(read))
        return [
            name
            for name, full in of_account
            if name.startswith(prefix) and principal.may(Right.INFO, full)
        ]

    async def schedules(self, principal: Principal) -> list[tuple[str, ScheduleInfo]]:
        """The schedules of a principal's account, by the names that it uses, in order.

        Raises:
            StoreError, Busy: They could not be read.
        """

        async def read() -> list[tuple[str, ScheduleInfo]]:
            own = [
                (principal.own_name(one.name), replace(one, body=b"", headers={}))
                for one in await self._backend.client.schedules.list()
            ]
            return [(name, one) for name, one in own if name is not None]

        name = f"schedules {principal.account}"
        return await self._once(name, lambda: self._backend.run(read))

    async def of(self, queue: str) -> Counted | None:
        """The figures of a queue; None: it was deleted."""
        return await self._once(f"queue {queue}", partial(self._count, queue))

    def forget(self) -> None:
        """Forget everything, as a visitor has changed something and will look at it."""
        self._changes += 1
        self._known.clear()

    async def _count(self, queue: str) -> Counted | None:
        account = acting.get()
        at_s = asyncio.get_running_loop().time()
        try:
            await self._turns.take(account, inf)
            try:
                at_s = asyncio.get_running_loop().time()
                stats = await self._backend.on_queue(queue, lambda one: one.stats())
            finally:
                self._turns.leave(account)
        except QueueNotFound:
            return None
        except (CassieqError, Busy) as error:
            return Counted(name=queue, at_s=at_s, stats=None, problem=problem_of(error)["code"])
        return Counted(name=queue, at_s=at_s, stats=stats)

    async def _once(self, name: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = asyncio.get_running_loop()
        now_s, changes = loop.time(), self._changes
        self._known = {
            other: one for other, one in self._known.items() if now_s - one[0] <= REMEMBERED_S
        }
        if name in self._known:
            return cast("T", self._known[name][1])
        # What began before a change is no answer for those who ask after it.
        found = await self._shared.once(f"{name} {changes}", ask)
        if changes == self._changes:
            self._known[name] = loop.time(), found
        return found
