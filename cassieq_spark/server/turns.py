"""`Turns` gives threads to accounts in turn, so that none costs another more than its share.

Calls of one account stand in a line of their own (`Lines`). A thread that becomes free goes to the
account whose turn is longest ago, if that account may have another one.

Nobody may hold more threads than stay free (`Shares`): an account that holds none gets the next
one. Calls that belong to no account are the gateway's own, or of a gateway without accounts: they
may hold all.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cassieq_spark.aio.pool import CALLS_WAITING, Busy, Pool
from cassieq_spark.clock import SystemClock
from cassieq_spark.model.lines import Lines
from cassieq_spark.model.shares import Shares
from cassieq_spark.store import call

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

T = TypeVar("T")


class Turns:
    """The threads of one event loop's calls.

    Args:
        most_waiting: The most calls of one account that wait.
    """

    def __init__(self, threads: int, *, most_waiting: int) -> None:
        self._shares = Shares(threads)
        self._most_waiting = most_waiting
        self._lines: Lines[asyncio.Future[None]] = Lines()

    @property
    def waiting(self) -> int:
        """How many calls wait; any thread may ask."""
        return len(self._lines)

    async def take(self, account: str | None, until_s: float) -> None:
        """Wait for a thread; `leave` gives it back.

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
        """Give a thread back: others have their turn."""
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


class FairPool(Pool):
    """Threads for blocking calls, which accounts get in turn."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)
        self.turns = Turns(threads, most_waiting=threads * CALLS_WAITING)

    async def run(
        self,
        work: Callable[[], T],
        context: Context | None = None,
        *,
        account: str | None = None,
    ) -> T:
        """Run a blocking call in a thread, when it is its account's turn.

        Args:
            context: What it sees of its caller; default: as it is now.
            account: Whose call it is; default: of whoever sent the request of the context.

        Raises:
            Busy: Too many calls of the account wait already.
            StoreTimeout: No thread was free for it in time. Nothing was done.
        """
        context = call.asked_now() if context is None else context
        account = context.get(call.acting) if account is None else account
        context.run(call.acting.set, account)
        try:
            await self.turns.take(account, _until_s(context))
        except TimeoutError:
            raise self.late() from None
        return await self._run(work, context, partial(self.turns.leave, account))

    @property
    def calls(self) -> int:
        """How many calls run or wait for a thread; any thread may ask."""
        return super().calls + self.turns.waiting

    def close(self) -> None:
        """End the threads; calls under way end by themselves."""
        self.turns.close()
        super().close()


def _until_s(context: Context) -> float:
    """How long a call waits for a thread, by the event loop's clock."""
    now_s = SystemClock().monotonic()
    asked_s = context.get(call.asked_s) or now_s
    return asyncio.get_running_loop().time() + asked_s + call.LONGEST_S - now_s
