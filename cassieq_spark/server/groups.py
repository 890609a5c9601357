"""`Groups` makes calls together: while one of a key is under way, others gather for the next.

Clients that were answered together ask again together, of the next key as of the last one. So if
the last call of a queue served several, the first one of another key waits a moment for as many.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from cassieq_spark.aio import linger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

K = TypeVar("K", bound=tuple[str, object])
"""The queue, and what else the requests of a call have in common."""

A = TypeVar("A")

FIRST_S: Final = 0.003
"""The longest time that the first call of a key waits. It is less than a call takes, and enough for
clients that were answered together."""

QUEUES: Final = 1_000
"""The most queues of which is known how many their last call served. Beyond it, all are forgotten:
then their next first calls wait for nobody."""


class _Gathered(Generic[A]):
    """Requests that wait for the next call of a key."""

    def __init__(self) -> None:
        self.asked: list[A] = []
        self.changed = asyncio.Event()

    def add(self, asked: A) -> None:
        self.asked.append(asked)
        self.changed.set()

    def has(self, count: int) -> bool:
        return len(self.asked) >= count


class Groups(Generic[K, A]):
    """Calls by their keys. For one event loop.

    Args:
        take: Takes what goes together from the requests that wait; one of them at least.
        call: Makes a call, and answers all of its requests. It raises nothing.
    """

    def __init__(
        self, take: Callable[[list[A]], list[A]], call: Callable[[K, list[A]], Awaitable[None]]
    ) -> None:
        self._take = take
        self._call = call
        self._gathered: dict[K, _Gathered[A]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._served: dict[str, int] = {}
        self._is_closing = False

    def add(self, key: K, asked: A) -> None:
        """Let a request go with the next call of its key."""
        gathered = self._gathered.get(key)
        if gathered is not None:
            gathered.add(asked)
            return
        gathered = self._gathered[key] = _Gathered()
        gathered.add(asked)
        task = asyncio.get_running_loop().create_task(self._run(key, gathered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, within_s: float) -> None:
        """Begin no further call, and wait so long for those under way."""
        self._is_closing = True
        for gathered in self._gathered.values():
            gathered.changed.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)

    async def _run(self, key: K, gathered: _Gathered[A]) -> None:
        loop = asyncio.get_running_loop()
        queue = key[0]
        try:
            first = partial(gathered.has, self._served.get(queue, 1))
            await linger.as_many(first, gathered.changed, loop.time() + FIRST_S)
            while gathered.asked and not self._is_closing:
                together = self._take(gathered.asked)
                count, began_s = len(together), loop.time()
                await self._call(key, together)
                self._note_served(queue, count)
                if count > 1:
                    await linger.as_many(
                        partial(gathered.has, count),
                        gathered.changed,
                        linger.until_s(began_s=began_s, ended_s=loop.time()),
                    )
        finally:
            del self._gathered[key]

    def _note_served(self, queue: str, count: int) -> None:
        self._served.pop(queue, None)
        if count > 1:
            if len(self._served) >= QUEUES:
                self._served.clear()
            self._served[queue] = count
