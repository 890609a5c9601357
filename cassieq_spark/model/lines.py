"""Line up the waiters for a share: each party has a line of its own, and the lines take turns.

So a waiter waits for those of its party before it, and for one of each other party for each of
these and for itself. `shares` decides how much a party may have.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

W = TypeVar("W")


class Lines(Generic[W]):
    """The waiters, by party; None is a party, too."""

    def __init__(self) -> None:
        self._lines: dict[str | None, deque[W]] = {}  # the line of the next turn is first

    def __len__(self) -> int:
        """Return how many wait; any thread may ask."""
        return sum(map(len, list(self._lines.values())))

    def __iter__(self) -> Iterator[W]:
        """Yield all who wait now."""
        return iter([one for line in self._lines.values() for one in line])

    def waits(self, who: str | None) -> int:
        """Return how many of a party wait."""
        return len(self._lines.get(who, ()))

    def add(self, who: str | None, one: W) -> None:
        """Add a waiter to its party's line."""
        self._lines.setdefault(who, deque()).append(one)

    def next(self, admits: Callable[[str | None], bool]) -> tuple[str | None, W] | None:
        """Take out the waiter with the next turn; None: nobody who waits is admitted.

        Args:
            admits: Whether a party may have something now.
        """
        for who in self._lines:
            if admits(who):
                break
        else:
            return None
        line = self._lines.pop(who)
        one = line.popleft()
        if line:
            self._lines[who] = line  # behind the others
        return who, one

    def forget(self, who: str | None, one: W) -> None:
        """Take out a waiter that gives up, if it still waits."""
        line = self._lines.get(who)
        if line is not None and one in line:
            line.remove(one)
            if not line:
                del self._lines[who]
