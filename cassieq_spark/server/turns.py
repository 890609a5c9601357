"""`Turns` gives threads to accounts in turn, so that none costs another more than its share.

Calls of one account stand in a line of their own. A thread that becomes free goes to the account
whose turn is longest ago, if that account may have another one. So a call waits for the calls of
its own account before it, and for each of these and for itself for one call of each other account.

Nobody may hold more threads than stay free (`Shares`): an account that holds none gets the next
one. Calls that belong to no account are the gateway's own, or of a gateway without accounts: they
may hold all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import Final

from cassieq_spark.aio.pool import Busy
from cassieq_spark.model.shares import Shares

acting: Final[ContextVar[str | None]] = ContextVar("cassieq_acting", default=None)
"""The account that a request comes from, as its proof says; None: none was checked."""


class Turns:
    """The threads of one event loop's calls.

    Args:
        most_waiting: The most calls of one account that wait.
    """

    def __init__(self, threads: int, *, most_waiting: int) -> None:
        self._shares = Shares(threads)
        self._most_waiting = most_waiting
        self._lines: dict[str | None, deque[asyncio.Future[None]]] = {}  # whose turn is next, first

    @property
    def waiting(self) -> int:
        """How many calls wait; any thread may ask."""
        return sum(map(len, list(self._lines.values())))

    async def take(self, account: str | None, until_s: float) -> None:
        """Wait for a thread; `leave` gives it back.

        Args:
            until_s: How long at most, by the event loop's clock.

        Raises:
            Busy: Too many calls of the account wait already.
            TimeoutError: None was free for it in time.
        """
        line = self._lines.get(account)
        if line is None and self._shares.admits(account):
            self._shares.change(account, 1)
            return
        if line is None:
            line = self._lines[account] = deque()
        if len(line) >= self._most_waiting:
            raise Busy
        mine = asyncio.get_running_loop().create_future()
        line.append(mine)
        try:
            async with asyncio.timeout_at(until_s):
                await mine
        except BaseException:
            if mine.cancelled():
                self._forget(account, mine)
            else:  # it had its turn at the same moment
                self.leave(account)
            raise

    def leave(self, account: str | None) -> None:
        """Give a thread back: others have their turn."""
        self._shares.change(account, -1)
        while self._serve_one():
            pass

    def close(self) -> None:
        """Cancel all who wait."""
        for line in list(self._lines.values()):
            for one in list(line):
                one.cancel()

    def _serve_one(self) -> bool:
        """Give the next account that may have a thread its turn; return whether there was one."""
        for account in self._lines:
            if self._shares.admits(account):
                break
        else:
            return False
        line = self._lines.pop(account)
        one = line.popleft()
        if line:
            self._lines[account] = line
        if not one.done():  # else it has given up just now
            self._shares.change(account, 1)
            one.set_result(None)
        return True

    def _forget(self, account: str | None, mine: asyncio.Future[None]) -> None:
        line = self._lines.get(account)
        if line is not None and mine in line:
            line.remove(mine)
            if not line:
                del self._lines[account]
