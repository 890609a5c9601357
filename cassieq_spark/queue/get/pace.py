"""Decide when a waiting consumer looks again."""

from __future__ import annotations

from math import inf
from typing import Final

from cassieq_spark.entropy import jitter

READS_PER_S: Final = 64
LONGEST_PAUSE_S: Final = 2.0
"""An idle consumer of a queue with many lanes looks less often, so that it sends at most this
number of reads per second, but at least once in this time."""

PAUSES_S: Final = (0.03, 0.12, 0.5, 1.6)
"""A long poll pauses for a quarter to all of each of these in turn, at random; the last repeats. A
look at a quiet queue takes two reads. So an idle consumer stays below five a second, also in polls
of one second."""

READS_A_LOOK: Final = 2
"""The number of reads of a look at a quiet lane."""

QUICK_PAUSE_S: Final = 0.008
QUICK_FOR_S: Final = 0.5
"""For half a second after a message was found, pauses on a queue of one lane are a quarter to all
of 8 ms. If messages come one after the other, a reader then looks when the next one comes. This
costs about 190 reads after a message if no other comes; an idle consumer pays nothing (ADR 29)."""


class Pace:
    """The pauses between the looks of one consumer: short while messages come, then longer.

    ``lanes`` is the number of lanes that a look goes through.
    """

    def __init__(self) -> None:
        self._empty_looks = 0
        self._found_at = -inf

    def look_soon(self) -> None:
        """Start again with the shortest pauses."""
        self._empty_looks = 0

    def note(self, now: float, *, has_found: bool, lanes: int) -> None:
        """Note the end of a look, by a monotonic clock."""
        if has_found:
            self._empty_looks, self._found_at = 0, now
        else:
            self._empty_looks = 1 if self._is_quick(now, lanes) else self._empty_looks + 1

    def pause_s(self, now: float, *, lanes: int) -> float:
        """Return the seconds from the last look to the next; 0 after one that found something."""
        if not self._empty_looks:
            return 0.0
        if self._is_quick(now, lanes):
            return jitter(QUICK_PAUSE_S, 0)
        pause_s = jitter(PAUSES_S[min(self._empty_looks, len(PAUSES_S)) - 1], 0)
        if lanes == 1 or self._empty_looks < len(PAUSES_S):
            return pause_s
        return min(LONGEST_PAUSE_S, max(pause_s, READS_A_LOOK * lanes / READS_PER_S))

    def _is_quick(self, now: float, lanes: int) -> bool:
        return lanes == 1 and now - self._found_at < QUICK_FOR_S
