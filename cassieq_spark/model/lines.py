"""Who waits for a share: each party in a line of its own, and the lines have their turns.

So a party waits for those of its own before it, and for each of these and for itself for one of
each other party. How much a party may have is another rule: `shares`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

W = TypeVar("W")


class Lines(Generic[W]):
    """Those who wait, by party; None is a party, too."""

    def __init__(self) -> None:
        self._lines: dict[str | None, deque[W]] = {}  # whose turn is next, first

    def __len__(self) -> int:
        """How many wait; any thread may ask."""
        return sum(map(len, list(self._lines.values())))

    def __iter__(self) -> Iterator[W]:
        """All who wait now."""
        return iter([one for line in self._lines.values() for one in line])

    def waits(self, who: str | None) -> int:
        """How many of a party wait."""
        return len(self._lines.get(who, ()))

    def add(self, who: str | None, one: W) -> None:
        """Let one more of a party wait."""
        self._lines.setdefault(who, deque()).append(one)

    def next(self, admits: Callable[[str | None], bool]) -> tuple[str | None, W] | None:
        """Take out whoever has the next turn; None: nobody who waits is admitted.

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
        """Take out somebody who gives up, if it still waits."""
        line = self._lines.get(who)
        if line is not None and one in line:
            line.remove(one)
            if not line:
                del self._lines[who]
