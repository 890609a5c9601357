"""Work for many keys at once, so that one without an answer delays no other (ADR 21)."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cassieq_spark.clock import within
from cassieq_spark.errors import CassieqError, StoreTimeout
from cassieq_spark.model.lines import Lines
from cassieq_spark.store.call import Call, acting
from cassieq_spark.store.timer import LONGEST_WAIT_S

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
    )
    from contextlib import AbstractContextManager

    from cassieq_spark.clock import Clock

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
        self._timer: asyncio.TimerHandle | None = None

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
    """One session's work for many keys at once, as tasks of its event loop."""

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


LEAST_S: Final = 0.05
"""The least time that a statement gets for its answer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of a block.

    Attributes:
        until: Nothing is retried after this time of the session's monotonic clock.
        each_s: A statement that was unanswered for this long is not retried.
        call: The call that the block is a part of.
    """

    until: float = inf
    each_s: float = inf
    call: Call | None = None

    def left_s(self, now: float) -> float:
        """Return how long a statement that begins now may take; infinite without a limit."""
        return min(self.of_block_s(now), self.of_call_s)

    def of_block_s(self, began_s: float) -> float:
        """Return how long a statement may take by the block's limits, from its first sending."""
        return max(LEAST_S, min(self.until - began_s, self.each_s))

    @property
    def of_call_s(self) -> float:
        """The time that its call may still wait."""
        return inf if self.call is None else max(LEAST_S, self.call.left_s)

    def waiting(self) -> AbstractContextManager[None]:
        """Count the time of a block as a wait of the call."""
        return nullcontext() if self.call is None else self.call.waiting()

    def heard(self) -> None:
        """Note that the store has answered the call."""
        if self.call is not None:
            self.call.heard()


_ALL_THE_TIME: Final = Patience()
_present: ContextVar[Patience] = ContextVar("cassieq_patience", default=_ALL_THE_TIME)


def present() -> Patience:
    """Return the limits in force here: of this call, or of the item of work it belongs to."""
    return _present.get()


@contextmanager
def limited(until: float, each_s: float) -> Iterator[None]:
    """Work under these limits, too: an inner block never waits longer than the outer one."""
    outer = _present.get()
    token = _present.set(Patience(min(outer.until, until), min(outer.each_s, each_s), outer.call))
    try:
        yield
    finally:
        _present.reset(token)


@contextmanager
def one_call(most_s: float, clock: Clock, *, waited_s: float = 0.0) -> Iterator[Call]:
    """Work as one `Call`, or as a part of the present one."""
    outer = _present.get()
    if outer.call is not None:
        yield outer.call
        return
    call = Call(most_s, clock, waited_s=waited_s)
    token = _present.set(Patience(outer.until, outer.each_s, call))
    try:
        yield call
    finally:
        _present.reset(token)


@asynccontextmanager
async def in_turn(
    lock: asyncio.Lock, what: str, at_most_s: float, clock: Clock
) -> AsyncIterator[None]:
    """Hold a lock that other calls hold while they wait for Cassandra.

    Args:
        what: The subject of the others' work, for the error.

    Raises:
        StoreTimeout: It was not free in time. Each waiter would wait for all before it.
    """
    try:
        with present().waiting():
            async with within(min(at_most_s, LONGEST_WAIT_S), clock):
                await lock.acquire()
    except TimeoutError:
        raise StoreTimeout(
            f"another call of this client works on {what}, and was not answered for "
            f"{at_most_s:.1f} s. Nothing was sent. Try again"
        ) from None
    try:
        yield
    finally:
        lock.release()
