"""Share out a limited resource so that no party can take all of it.

**The rule.** A party gets something if it fits what is free, and if the party then holds no more
than what stayed free without it: ``held + amount <= free``. So one greedy party alone holds at most
a half, two a third each, and `n` of them together leave 1 / (n + 1) to the next party, without a
limit that somebody has to choose. (Switches divide their buffers like this: Choudhury and Hahne,
"Dynamic queue length thresholds", 1998.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

W = TypeVar("W")


class Shares:
    """A number of equal things, such as connections or bytes, and how many each party holds.

    Attributes:
        most: The number of things.
        used: The number of things held. It may exceed `most`: some are only known once they are
            held.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self._held: dict[str, int] = {}

    def admits(self, who: str | None, amount: int = 1) -> bool:
        """Whether a party may have ``amount`` more.

        Args:
            who: None speaks for many, so only the free amount counts.
        """
        free = self.most - self.used
        return self.held_by(who) + amount <= free

    def change(self, who: str | None, by: int) -> None:
        """Note that a party holds more, or fewer."""
        self.used += by
        if who is None:
            return
        held = self.held_by(who) + by
        if held:
            self._held[who] = held
        else:
            self._held.pop(who, None)

    def held_by(self, who: str | None) -> int:
        """Return how many a party holds; 0 for None, which speaks for many."""
        return 0 if who is None else self._held.get(who, 0)

    @property
    def holders(self) -> int:
        """The number of parties that hold something; the others are not remembered."""
        return len(self._held)


class Holding:
    """The amount that one user of a party holds, from its beginning to its end.

    Attributes:
        on_end: Called once, at the end.
    """

    __slots__ = ("_shares", "_who", "is_over", "on_end", "size")

    def __init__(self, shares: Shares, who: str | None) -> None:
        self._shares = shares
        self._who = who
        self.is_over = False
        self.on_end: Callable[[], None] | None = None
        self.size = 0

    def set(self, size: int) -> None:
        """Hold this amount, whether it fits or not; after the end, hold nothing."""
        if size != self.size and not self.is_over:
            self._shares.change(self._who, size - self.size)
            self.size = size

    def fits(self, more: int = 0) -> bool:
        """Whether the amount held and ``more`` are within the share."""
        return self._shares.admits(self._who, more)

    def end(self) -> None:
        """Give everything back."""
        self.set(0)
        self.is_over = True
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()


class Lines(Generic[W]):
    """The waiters for a share, by party; None is a party, too.

    Each party has a line of its own, and the lines take turns. So a waiter waits for those of its
    party before it, and for one of each other party for each of these and for itself.
    """

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
