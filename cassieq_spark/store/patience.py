"""Limit how long a caller waits for one answer before it goes on with something else (ADR 21)."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST_S: Final = 0.05
"""The least time that a statement is given to be answered."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of a block.

    Attributes:
        until: Nothing is sent again after this, by the session's monotonic clock.
        each_s: A statement is not sent again after it went unanswered for this long.
    """

    until: float = inf
    each_s: float = inf

    def left_s(self, now: float) -> float:
        """How long a statement that begins now may take; infinite if nobody set a limit."""
        return max(LEAST_S, min(self.until - now, self.each_s))


_ALL_THE_TIME: Final = Patience()
_present: ContextVar[Patience] = ContextVar("cassieq_patience", default=_ALL_THE_TIME)


def present() -> Patience:
    """The limits in force here: of this thread, or of whoever began this item of work."""
    return _present.get()


@contextmanager
def limited(until: float, each_s: float) -> Iterator[None]:
    """Work under these limits, too: an inner block never waits for longer than the outer one."""
    outer = _present.get()
    token = _present.set(Patience(min(outer.until, until), min(outer.each_s, each_s)))
    try:
        yield
    finally:
        _present.reset(token)
