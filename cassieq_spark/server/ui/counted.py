"""`Counts` counts each queue once in ten seconds for all visitors, however often they look."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from cassieq_spark.errors import CassieqError, QueueNotFound
from cassieq_spark.model.rights import Right
from cassieq_spark.server.rest.problems import problem_of
from cassieq_spark.server.turns import Busy, Turns
from cassieq_spark.store.call import acting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.model.rights import Principal
    from cassieq_spark.queue.inspect.stats import QueueStats
    from cassieq_spark.server.backend import Backend

T = TypeVar("T")

REMEMBERED_S: Final = 10.0
"""How old figures may be. To count a queue costs a read for each of its buckets."""

AT_ONCE: Final = 4
"""How many queues are counted at once, in turn for each account: the other places are for those
who send and receive."""


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


@dataclass(eq=False, slots=True)
class _Known:
    """An answer, or the work for it.

    Attributes:
        ended_s: When the answer came, by the event loop's clock; None: not yet.
    """

    task: asyncio.Future[Any]
    ended_s: float | None = None

    def is_good(self, now_s: float) -> bool:
        return self.ended_s is None or now_s - self.ended_s <= REMEMBERED_S


class Counts:
    """The figures that visitors have asked for lately. For one event loop.

    Visitors who ask for the same at the same time wait for one answer.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._turns = Turns(AT_ONCE)
        self._known: dict[str, _Known] = {}

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

    async def of(self, queue: str) -> Counted | None:
        """The figures of a queue; None: it was deleted."""
        return await self._once(f"queue {queue}", partial(self._count, queue))

    def forget(self) -> None:
        """Forget everything, as a visitor has changed something and will look at it."""
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

    async def _once(self, name: str, ask: Callable[[], Awaitable[T]]) -> T:
        now = asyncio.get_running_loop().time()
        self._known = {other: one for other, one in self._known.items() if one.is_good(now)}
        if name not in self._known:
            task = asyncio.ensure_future(ask())
            known = self._known[name] = _Known(task)
            task.add_done_callback(partial(self._ended, name, known))
        # A visitor who goes away does not take the answer from the others.
        return cast("T", await asyncio.shield(self._known[name].task))

    def _ended(self, name: str, known: _Known, task: asyncio.Future[Any]) -> None:
        """Keep an answer for a while; after a failure the next visitor asks again."""
        known.ended_s = asyncio.get_running_loop().time()
        failed = task.cancelled() or task.exception() is not None
        if failed and self._known.get(name) is known:
            del self._known[name]
