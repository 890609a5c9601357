"""A clock that a test turns, and a wait for what becomes true some time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from cassieq_spark.clock import Cancellable, Clock, SystemClock

T = TypeVar("T")

START_US: Final = 1_700_000_000_000_000
"""14 November 2023: any moment will do, as long as it is the same in each run."""


class ManualClock:
    """Time that passes when a test says so; a `Clock`. Thread-safe.

    Without a base it stands still, and `wait` moves it on instead of waiting. With a base it is
    ahead of that by what was advanced, and `wait` waits: so leases of a real node run out without
    anybody sleeping (`store.clock = ManualClock(store.clock)`), while a retry still gives the node
    time.
    """

    def __init__(self, base: Clock | None = None, *, start_us: int = START_US) -> None:
        """Stand still at ``start_us``, or go with ``base``."""
        self._base = base
        self._start_us = start_us
        self._lock = threading.Lock()
        self._ahead_us = 0

    def advance(self, seconds: float) -> None:
        """Let time pass: wall and monotonic time alike, to the microsecond.

        Raises:
            ValueError: Time does not go back.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        with self._lock:
            self._ahead_us += round(seconds * 1e6)

    def now_us(self) -> int:
        """See `cassieq_spark.clock.Clock`."""
        base_us = self._start_us if self._base is None else self._base.now_us()
        return base_us + self._ahead_us

    def monotonic(self) -> float:
        """See `cassieq_spark.clock.Clock`."""
        base_s = 0.0 if self._base is None else self._base.monotonic()
        return base_s + self._ahead_us / 1e6

    def wait(self, seconds: float) -> None:
        """Move on by ``seconds`` if it stands still, else wait."""
        if self._base is None:
            self.advance(max(0.0, seconds))
        else:
            self._base.wait(seconds)

    async def sleep(self, seconds: float) -> None:
        """Wait as `wait` does, in an event loop."""
        if self._base is None:
            self.advance(max(0.0, seconds))
        else:
            await self._base.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Cancellable:
        """Call a function after this many seconds of real time, by the event loop."""
        return (self._base or SystemClock()).call_later(seconds, call)


_POLL_S = 0.02


class ConditionNotMet(AssertionError):
    """A condition did not come true in time; says what was waited for, how long, and the state."""


def wait_until(
    condition: Callable[[], T],
    *,
    deadline_s: float = 30.0,
    describe: str | Callable[[], str] = "the condition to hold",
) -> T:
    """Return the condition's first true value, in real time even if a test's Clock stands still.

    Args:
        deadline_s: Ends a hung test; no test should expect it.
        describe: What is waited for; called at the end, it can show the state that was reached.

    Raises:
        ConditionNotMet: It never came true.
    """
    started = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - started
        if waited_s > deadline_s:
            what = describe if isinstance(describe, str) else describe()
            raise ConditionNotMet(f"waited {waited_s:.1f} s for {what}; last value: {value!r}")
        time.sleep(_POLL_S)  # noqa: TID251 - the one place where tests wait
    return value
