"""Work for many keys at once, so that one without an answer delays no other (ADR 21)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cassieq_spark.clock import Cancellable, Clock
from cassieq_spark.errors import CassieqError
from cassieq_spark.model.shares import Lines
from cassieq_spark.store.call import acting, present

WIDTH: Final = 16
"""The most items under way at once, without those that wait for a silent key."""

SLOW_S: Final = 0.5
"""The time after which an item counts as waiting for a silent key. It goes on, and the next item
begins in its place."""

T = TypeVar("T")
R = TypeVar("R")


class Places:
    """A number of places; one that is held for longer than `SLOW_S` becomes free again.

    Accounts take turns (`Lines`), first come, first served in each. A call that begins many items,
    one after the other, waits for each as long as any other call does.
    """

    def __init__(self, width: int, clock: Clock) -> None:
        self._width = width
        self._clock = clock
        self._lines: Lines[asyncio.Future[_Place]] = Lines()
        self._taken: deque[_Place] = deque()
        self._timer: Cancellable | None = None

    async def take(self, account: str | None) -> _Place:
        """Wait for a place; return the argument of `leave`."""
        self._serve()
        if self._is_free(account) and not self._lines.waits(account):
            return self._place()
        turn: asyncio.Future[_Place] = asyncio.get_running_loop().create_future()
        self._lines.add(account, turn)
        self._serve()
        return await turn

    def leave(self, mine: _Place) -> None:
        """Give the place back."""
        # The place may have become free already.
        with suppress(ValueError):
            self._taken.remove(mine)
        self._serve()

    def _serve(self) -> None:
        """Give places to the next waiters, now and when the next place becomes free."""
        while found := self._lines.next(self._is_free):
            if not found[1].done():
                found[1].set_result(self._place())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines:
            self._timer = self._clock.call_later(max(self._left_s(), 1e-3), self._serve)

    def _place(self) -> _Place:
        found = _Place(self._clock.monotonic())
        self._taken.append(found)
        return found

    def _is_free(self, _: str | None) -> bool:
        return self._left_s() == 0

    def _left_s(self) -> float:
        """Return the time until a place becomes free by itself; 0 if one is free."""
        now = self._clock.monotonic()
        while self._taken and now - self._taken[0].since_s >= SLOW_S:
            self._taken.popleft()
        return 0 if len(self._taken) < self._width else SLOW_S - (now - self._taken[0].since_s)


@dataclass(eq=False, slots=True)
class _Place:
    """The place of an item under way."""

    since_s: float


class SideBySide:
    """The work of one session for many keys at once, as tasks of its event loop."""

    def __init__(self, clock: Clock) -> None:
        self._places = Places(WIDTH, clock)
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Callable[[T], Awaitable[R]], item: T) -> asyncio.Task[R]:
        """Begin one item under the caller's limits; it waits for a place, `SLOW_S` at most."""
        return self._task(self._placed(work, item))

    async def map(self, work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """Run all items; see `store.session.CqlSession.map`."""
        todo = list(items)
        if len(todo) <= 1:
            return [await work(item) for item in todo]
        has_failed = False

        async def noting(item: T, place: _Place) -> R:
            nonlocal has_failed
            try:
                return await work(item)
            except BaseException:
                has_failed = True
                raise
            finally:
                self._places.leave(place)

        tasks: list[asyncio.Task[R]] = []
        with present().waiting():
            for item in todo:
                place = await self._places.take(acting.get())
                if has_failed:
                    self._places.leave(place)
                    break
                tasks.append(self._task(noting(item, place)))
            if tasks:
                await asyncio.wait(tasks)
        failed = [error for one in tasks if (error := one.exception()) is not None]
        if failed:
            raise failed[0]
        return [one.result() for one in tasks]

    async def each(
        self, work: Callable[[T], Awaitable[R]], items: Iterable[T]
    ) -> list[R | CassieqError]:
        """Run all items; see `store.session.CqlSession.each`."""

        async def kept(item: T) -> R | CassieqError:
            try:
                return await work(item)
            except CassieqError as error:
                return error

        return await self.map(kept, items)

    async def close(self) -> None:
        """Return when all items begun have ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _placed(self, work: Callable[[T], Awaitable[R]], item: T) -> R:
        with present().waiting():
            place = await self._places.take(acting.get())
        try:
            return await work(item)
        finally:
            self._places.leave(place)

    def _task(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # a loop keeps only weak references
        task.add_done_callback(self._tasks.discard)
        return task


def begin_for_all(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Begin work that several callers wait for, under the limits of none of them (ADR 39).

    Args:
        tasks: Holds the task until it has ended: a loop keeps only weak references.
    """
    task = asyncio.get_running_loop().create_task(work, context=Context())
    tasks.add(task)
    task.add_done_callback(tasks.discard)
