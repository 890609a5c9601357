"""`Call`: one call of a client, which ends when it has waited too long without an answer.

It may wait for its own statement or for another call's: for a lock, a thread, or a group commit. So
a call that finds Cassandra away ends in time, however many others wait.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.clock import Clock

DEADLINE_S: Final = 20.0
"""The time for which one statement is retried."""

AFTERWARDS_S: Final = 4.0
"""The time that a call waits longer than one statement: its CAS may have to be settled."""

LONGEST_S: Final = DEADLINE_S + AFTERWARDS_S
"""The time that a call waits without an answer: callers learn within 30 s that Cassandra is
away."""

acting: ContextVar[str | None] = ContextVar("cassieq_acting", default=None)
"""The account of the present call, by its proof; None: no proof was checked. Waiting work is
served by turns of accounts."""


class Call:
    """The time that a call has waited since the last answer, in all of its tasks.

    An answer starts the count again. The call's own work does not count.
    """

    def __init__(self, most_s: float, clock: Clock, *, waited_s: float = 0.0) -> None:
        """Prepare.

        Args:
            waited_s: The time that it waited for others before it began.
        """
        self._most_s = most_s
        self._silent_s = waited_s
        self._clock = clock
        self._waits = 0
        self._since_s = 0.0

    @property
    def left_s(self) -> float:
        """The time that the call may still wait; less than 0 if it is over."""
        return self._most_s - self._silent_s - self._this_s()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of this block, once if several tasks wait at the same time."""
        if not self._waits:
            self._since_s = self._clock.monotonic()
        self._waits += 1
        try:
            yield
        finally:
            this_s = self._this_s()
            self._waits -= 1
            if not self._waits:
                self._silent_s += this_s

    def heard(self) -> None:
        """Note that the store has answered."""
        self._silent_s = 0.0
        self._since_s = self._clock.monotonic()

    def _this_s(self) -> float:
        return self._clock.monotonic() - self._since_s if self._waits else 0.0
