"""What many share is given out so that nobody can take all of it.

**The rule.** Whoever asks gets something if it fits what is free, and if nobody may then hold more
than what stays free would be without it: ``held + amount <= free``. So one greedy party alone holds
at most a half, two a third each, and `n` of them together leave 1 / (n + 1) to whoever comes next,
without a limit that somebody has to choose. (Switches divide their buffers like this: Choudhury and
Hahne, "Dynamic queue length thresholds", 1998.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Shares:
    """A number of equal things, such as connections or bytes, and who holds how many.

    Attributes:
        most: How many there are.
        used: How many are held. It may be more than `most`: some are only known once they are held.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self._held: dict[str, int] = {}

    def admits(self, who: str | None, amount: int = 1) -> bool:
        """Whether somebody may have so many more.

        Args:
            who: None: it speaks for many, so only what is free counts.
        """
        free = self.most - self.used
        return self.held_by(who) + amount <= free

    def change(self, who: str | None, by: int) -> None:
        """Note that somebody holds more, or fewer."""
        self.used += by
        if who is None:
            return
        held = self.held_by(who) + by
        if held:
            self._held[who] = held
        else:
            self._held.pop(who, None)

    def held_by(self, who: str | None) -> int:
        """How many somebody holds; 0 if it speaks for many."""
        return 0 if who is None else self._held.get(who, 0)

    @property
    def holders(self) -> int:
        """How many parties hold something; nothing is remembered of the others."""
        return len(self._held)


class Holding:
    """What one user of a party holds, from its beginning to its end.

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
        """Hold so many, whether they fit or not; nothing after the end."""
        if size != self.size and not self.is_over:
            self._shares.change(self._who, size - self.size)
            self.size = size

    def fits(self, more: int = 0) -> bool:
        """Whether what is held, and so many more, is within the share."""
        return self._shares.admits(self._who, more)

    def end(self) -> None:
        """Give everything back."""
        self.set(0)
        self.is_over = True
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()
