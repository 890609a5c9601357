"""Choose a time among those of several nodes, of which some may be wrong [T7]. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

APART_US: Final = 1_000_000
"""The distance above which nodes' clocks disagree; the log names the wrong ones."""


def agreeing_of(offsets: Iterable[float]) -> int:
    """Return how many clocks agree with the one in the middle."""
    ordered = sorted(offsets)
    return sum(abs(one - ordered[(len(ordered) - 1) // 2]) <= APART_US for one in ordered)


def middle_of(offsets: Iterable[float], own: float | None) -> float:
    """Return the median. Of two in the middle, take the closer to our clock, else the earlier.

    A clock that is behind endangers this client's leases: others find that they ran out. A clock
    that is ahead finds that all leases ran out, delivers messages that are not due, and moves the
    time pointer for good [T7].
    """
    ordered = sorted(offsets)
    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return lower if own is None or abs(lower - own) <= abs(upper - own) else upper
