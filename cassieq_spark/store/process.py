"""Bind a client to the process that opened it: a fork has its sockets, but not its threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn, SupportsIndex

from cassieq_spark.clock import Cancellable, Clock
from cassieq_spark.errors import UsageError


class Home:
    """The machine's clock in the process that opened a client; a `Clock`.

    All that a client does asks it for the time. So each use in another process fails at once.
    """

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that opened the client."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise UsageError if this is another process."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"a client was opened in process {self._pid} and used in process {os.getpid()}, "
                "which was forked from it. It has no threads there, and its connections are the "
                "parent's. Open a client in each process, after the fork"
            )

    def now_us(self) -> int:
        """See `Clock`."""
        self.check()
        return self._base.now_us()

    def monotonic(self) -> float:
        """See `Clock`; every statement asks many times, so it is one call less."""
        if os.getpid() != self._pid:
            self.check()
        return self._base.monotonic()

    def wait(self, seconds: float) -> None:
        """See `Clock`."""
        self.check()
        self._base.wait(seconds)

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await self._base.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Cancellable:
        """See `Clock`."""
        return self._base.call_later(seconds, call)


class OfOneProcess:
    """An object that has connections and threads, so that it cannot be pickled."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be pickled, or copied."""
        raise UsageError(
            f"{type(self).__name__} does not pickle: it has connections and threads of this "
            "process. Pass the contact points and the name of the queue, and connect in the "
            "process that uses them"
        )
