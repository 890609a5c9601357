"""`Turns` gives places to accounts in turn, so that none costs another more than its share.

Calls of one account stand in a line of their own (`Lines`). A place that becomes free goes to the
account whose turn is longest ago, if that account may have another one.

Nobody may hold more places than stay free (`Shares`): an account that holds none gets the next
one. Calls that belong to no account are the gateway's own, or of a gateway without accounts: they
may hold all.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import StoreTimeout
from cassieq_spark.model.shares import Lines, Shares
from cassieq_spark.store.call import LONGEST_S, acting, one_call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")

MOST_WAITING: Final = 2_048
"""How many calls of an account may wait. Beyond that, an answer would come too late to be used, so
the caller is told to come again."""

_clock: Final = SystemClock()


class Busy(Exception):
    """Too many calls of the account wait already."""


class Turns:
    """Places for calls of one event loop.

    Args:
        most_waiting: The most calls of one account that wait.
    """

    def __init__(self, places: int, *, most_waiting: int = MOST_WAITING) -> None:
        self._shares = Shares(places)
        self._most_waiting = most_waiting
        self._lines: Lines[asyncio.Future[None]] = Lines()

    @property
    def places(self) -> int:
        """How many there are."""
        return self._shares.most

    @property
    def waiting(self) -> int:
        """How many calls wait; any thread may ask."""
        return len(self._lines)

    @property
    def calls(self) -> int:
        """How many calls have a place or wait for one; any thread may ask."""
        return self._shares.used + self.waiting

    async def run(self, work: Callable[[], Awaitable[T]], account: str | None = None) -> T:
        """Await some work when it is its account's turn.

        It has its place until it ends, also if whoever waits for it has gone. Its time without an
        answer begins now (`store.call`).

        Args:
            account: Whose call it is; default: of whoever sent the request.

        Raises:
            Busy: Too many calls of the account wait already.
            StoreTimeout: No place was free for it in time. Nothing was done.
        """
        account = acting.get() if account is None else account
        loop, asked_s = asyncio.get_running_loop(), _clock.monotonic()
        try:
            await self.take(account, loop.time() + LONGEST_S)
        except TimeoutError:
            raise StoreTimeout(
                f"{self.places} calls, as many as may be under way, took {LONGEST_S:.0f} s. "
                "Nothing was done. Try again, later or with more calls at once"
            ) from None

        async def call() -> T:
            acting.set(account)
            with one_call(LONGEST_S, _clock, waited_s=_clock.monotonic() - asked_s):
                return await work()

        task = loop.create_task(call())
        task.add_done_callback(partial(self._ended, account))
        return await asyncio.shield(task)

    async def take(self, account: str | None, until_s: float) -> None:
        """Wait for a place; `leave` gives it back.

        Args:
            until_s: How long at most, by the event loop's clock.

        Raises:
            Busy: Too many calls of the account wait already.
            TimeoutError: None was free for it in time.
        """
        waits = self._lines.waits(account)
        if not waits and self._shares.admits(account):
            self._shares.change(account, 1)
            return
        if waits >= self._most_waiting:
            raise Busy
        mine = asyncio.get_running_loop().create_future()
        self._lines.add(account, mine)
        try:
            async with asyncio.timeout_at(until_s):
                await mine
        except BaseException:
            if mine.cancelled():
                self._lines.forget(account, mine)
            else:  # it had its turn at the same moment
                self.leave(account)
            raise

    def leave(self, account: str | None) -> None:
        """Give a place back: others have their turn."""
        self._shares.change(account, -1)
        while found := self._lines.next(self._shares.admits):
            who, one = found
            if not one.done():  # else it has given up just now
                self._shares.change(who, 1)
                one.set_result(None)

    def close(self) -> None:
        """Cancel all who wait."""
        for one in self._lines:
            one.cancel()

    def _ended(self, account: str | None, task: asyncio.Task[Any]) -> None:
        self.leave(account)
        _seen(task)


class Shared:
    """Calls that are made once for all who ask for the same at the same time."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[Any]] = {}

    async def once(self, name: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the call of that name; it begins if none is under way."""
        task = self._under_way.get(name)
        if task is None:
            task = self._under_way[name] = asyncio.get_running_loop().create_task(ask())
            task.add_done_callback(lambda _: self._under_way.pop(name))
            task.add_done_callback(_seen)
        # A client that goes away does not take the answer from the others.
        return cast("T", await asyncio.shield(task))


def _seen(task: asyncio.Task[Any]) -> None:
    """Take note of an error of which nobody may be left to be told."""
    if not task.cancelled():
        task.exception()
