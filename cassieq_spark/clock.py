"""Time as an argument: cluster time in microseconds, monotonic seconds, and waiting (G6)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cassieq_spark.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

MEASURE_EVERY_S: Final = 60.0
"""Clocks drift apart by some milliseconds in that time; a re-claim leaves 250 of them (G6)."""

RETRY_AFTER_S: Final = 1.0
"""After a measurement that nobody answered."""

JUMP_US: Final = 100_000
"""So far apart, wall and monotonic time did not drift: one was set, or the machine has slept."""

_SAMPLES: Final = 5


class Clock(Protocol):
    """What all code of this package asks for time."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""

    def wait(self, seconds: float) -> None:
        """Return after so many seconds; at once for none or less."""


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
        time.sleep(max(0.0, seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor:
    """One moment by three clocks, and by the monotonic one when to look again."""

    cluster_us: int
    wall_us: int
    monotonic_s: float
    due_s: float


class ClusterClock:
    """The coordinators' clock: measured now and then, carried on by this machine's monotonic one.

    Two clients whose own clocks are hours apart agree to within half a round trip. Setting this
    machine's clock moves nothing: a client that thought itself an hour ahead for a minute would
    re-claim leases that live (I2). Not monotonic: a measurement may correct it by milliseconds.
    Thread-safe; only the first measurement is waited for by all.
    """

    def __init__(self, base: Clock, measure: Callable[[], int]) -> None:
        """Nothing is measured before the first `now_us`.

        Args:
            measure: Asks a coordinator for its time, in µs since the epoch.
        """
        self._base = base
        self._measure = measure
        self._measuring = threading.Lock()
        self._anchor: _Anchor | None = None

    def now_us(self) -> int:
        """Cluster time; first a measurement (five round trips) if the last one is a minute old.

        Raises:
            StoreUnavailable: Nobody answers, and nobody ever did.
        """
        anchor = self._anchor
        if anchor is None or self._is_stale(anchor):
            anchor = self._renewed(anchor)
        return anchor.cluster_us + round((self._base.monotonic() - anchor.monotonic_s) * 1e6)

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._base.monotonic()

    def wait(self, seconds: float) -> None:
        """See `Clock`."""
        self._base.wait(seconds)

    def _is_stale(self, anchor: _Anchor) -> bool:
        now_s = self._base.monotonic()
        passed_us = (now_s - anchor.monotonic_s) * 1e6
        # Linux' monotonic clock stands still while a machine sleeps.
        jumped_us = abs(self._base.now_us() - anchor.wall_us - passed_us)
        return now_s >= anchor.due_s or jumped_us > JUMP_US

    def _renewed(self, old: _Anchor | None) -> _Anchor:
        if old is None:
            self._measuring.acquire()
        elif not self._measuring.acquire(blocking=False):
            return old  # another thread is at it; a minute's drift is no reason to wait
        try:
            if self._anchor is None or self._anchor is old:
                self._anchor = self._measured(old)
            return self._anchor
        finally:
            self._measuring.release()

    def _measured(self, old: _Anchor | None) -> _Anchor:
        try:
            samples = [self._sample() for _ in range(_SAMPLES)]
        except StoreError:
            if old is None:
                raise
            return self._anchor_at(old.monotonic_s, old.cluster_us, RETRY_AFTER_S)
        # The middle of the fastest round trip: its halves can differ by the least.
        _, middle_s, there_us = min(samples)
        return self._anchor_at(middle_s, there_us, MEASURE_EVERY_S)

    def _sample(self) -> tuple[float, float, int]:
        sent_s = self._base.monotonic()
        there_us = self._measure()
        back_s = self._base.monotonic()
        return back_s - sent_s, (sent_s + back_s) / 2, there_us

    def _anchor_at(self, monotonic_s: float, cluster_us: int, again_in_s: float) -> _Anchor:
        now_s = self._base.monotonic()
        return _Anchor(
            cluster_us=cluster_us,
            wall_us=self._base.now_us() - round((now_s - monotonic_s) * 1e6),
            monotonic_s=monotonic_s,
            due_s=now_s + again_in_s,
        )
