"""Choose a time among those of several nodes, of which some may be wrong [T7]. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

APART_US: Final = 1_000_000
"""Clocks of nodes that differ by more are no majority, and the log says which are wrong."""


def agreeing_of(offsets: Iterable[float]) -> int:
    """How many agree with the one in the middle."""
    ordered = sorted(offsets)
    return sum(abs(one - ordered[(len(ordered) - 1) // 2]) <= APART_US for one in ordered)


def middle_of(offsets: Iterable[float], own: float | None) -> float:
    """The median. Of two in the middle, the one closer to our clock; without one, the earlier.

    A clock that is behind endangers what this client holds: others find its leases run out. A clock
    that is ahead finds everybody's run out, delivers what is not due, and moves the time pointer,
    for good [T7].
    """
    ordered = sorted(offsets)
    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return lower if own is None or abs(lower - own) <= abs(upper - own) else upper
