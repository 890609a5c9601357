"""`Call`: one call of a client, which is over when it has waited for too long without an answer.

What it waits for may be its own statement or another call's: a lock, a thread, a group that takes
what has gathered. So a call that finds Cassandra away ends in time, however many others wait.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Final

from cassieq_spark.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_monotonic: Final = SystemClock().monotonic

DEADLINE_S: Final = 20.0
"""How long one statement is sent again."""

AFTERWARDS_S: Final = 4.0
"""How much longer than one statement a call waits: what it has sent may have to be settled."""

LONGEST_S: Final = DEADLINE_S + AFTERWARDS_S
"""How long a call waits without an answer: callers learn within 30 s that Cassandra is away."""

asked_s: ContextVar[float | None] = ContextVar("cassieq_asked", default=None)
"""When a call was asked for that waits for others before it begins, by `SystemClock.monotonic`."""

acting: ContextVar[str | None] = ContextVar("cassieq_acting", default=None)
"""The account whose call it is, as its proof says; None: nobody has checked one. Work that waits is
served in turn by it."""


def asked_now() -> Context:
    """The caller's context, for a call that others are to make: its time runs from now on."""
    context = copy_context()
    context.run(asked_s.set, _monotonic())
    return context


class Call:
    """How long a call has waited since the last answer, in all of its threads. Thread-safe.

    An answer begins the count anew. The time that it works on something itself does not count.
    """

    def __init__(
        self,
        most_s: float,
        *,
        waited_s: float = 0.0,
        monotonic: Callable[[], float] = _monotonic,
    ) -> None:
        """Prepare.

        Args:
            waited_s: How long it waited for others before it began.
        """
        self._most_s = most_s
        self._silent_s = waited_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._waits = 0
        self._since_s = 0.0

    @property
    def left_s(self) -> float:
        """How long it may still wait; less than 0: it is over."""
        with self._lock:
            return self._most_s - self._silent_s - self._this_s()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count what this block takes, once if several threads wait at the same time."""
        with self._lock:
            if not self._waits:
                self._since_s = self._monotonic()
            self._waits += 1
        try:
            yield
        finally:
            with self._lock:
                this_s = self._this_s()
                self._waits -= 1
                if not self._waits:
                    self._silent_s += this_s

    def heard(self) -> None:
        """Note that the store has answered."""
        with self._lock:
            self._silent_s = 0.0
            self._since_s = self._monotonic()

    def _this_s(self) -> float:
        return self._monotonic() - self._since_s if self._waits else 0.0
