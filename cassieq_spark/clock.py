"""Time as an argument: cluster time in microseconds, monotonic seconds, and waiting (G6)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

MEASURE_EVERY_S: Final = 60.0
"""A clock drifts by less than a millisecond a minute."""

_SAMPLES: Final = 5


class Clock(Protocol):
    """What all code of this package asks for time."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""

    def wait(self, seconds: float) -> None:
        """Return after so many seconds."""


class SystemClock:
    """This machine's clock."""

    def now_us(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)


class ClusterClock:
    """The coordinators' clock: this machine's, plus an offset that is measured now and then.

    Two clients whose own clocks are minutes apart agree to within half a round trip. Thread-safe.
    """

    def __init__(self, base: Clock, measure: Callable[[], int]) -> None:
        """Nothing is measured before the first `now_us`.

        Args:
            measure: Asks a coordinator for its time, in µs since the epoch.
        """
        self._base = base
        self._measure = measure
        self._lock = threading.Lock()
        self._offset_us = 0
        self._measured: float | None = None

    def now_us(self) -> int:
        """Cluster time; a measurement (five round trips) when the last one is a minute old.

        Raises:
            StoreUnavailable: Nobody can be asked, and nobody ever could.
        """
        with self._lock:
            now = self._base.monotonic()
            if self._measured is None or now - self._measured > MEASURE_EVERY_S:
                self._offset_us = self._offset()
                self._measured = now
            return self._base.now_us() + self._offset_us

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._base.monotonic()

    def wait(self, seconds: float) -> None:
        """See `Clock`."""
        self._base.wait(seconds)

    def _offset(self) -> int:
        """By the fastest of five round trips, against its middle."""
        samples = []
        for _ in range(_SAMPLES):
            sent = self._base.now_us()
            there = self._measure()
            back = self._base.now_us()
            samples.append((back - sent, there - (sent + back) // 2))
        return min(samples)[1]
