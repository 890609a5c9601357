"""`Timer` calls a function in the event loop, at a time that may be moved."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from cassieq_spark.clock import Clock

LONGEST_WAIT_S: Final = 3_600.0
"""The longest wait that is asked of the loop; longer waits are begun again."""


class Timer:
    """Calls a function once its time has come; for the event loop's thread.

    Attributes:
        at: The monotonic time of the call; infinite: never.
    """

    def __init__(self, clock: Clock, call: Callable[[], object]) -> None:
        self._clock = clock
        self._call = call
        self._handle: asyncio.TimerHandle | None = None
        self.at = inf

    def set(self, at: float) -> None:
        """Set the time of the call, in place of the former one."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.at = at
        if at < inf:
            left_s = min(max(0.0, at - self._clock.monotonic()), LONGEST_WAIT_S)
            self._handle = self._clock.call_later(left_s, self._over)

    def _over(self) -> None:
        if self.at > self._clock.monotonic():
            self.set(self.at)
        else:
            self._handle, self.at = None, inf
            self._call()
