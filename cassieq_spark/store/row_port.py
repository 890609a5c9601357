"""Say what a bucket row's callers and tables are to each other; see `store.row`."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cassieq_spark.entropy import jitter
from cassieq_spark.errors import CasAmbiguous, CassieqError, StoreTimeout
from cassieq_spark.model.rows import events
from cassieq_spark.model.rows.events import End, Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.rows.events import Answer, Event, Output
    from cassieq_spark.model.rows.intents import Intent
    from cassieq_spark.store.cas import Outcome, Stored, Version

RACE_PAUSE_S: Final = 0.002
RACE_DOUBLINGS: Final = 5
"""The pause after a lost race is about the time of a CAS, then doubles up to 64 ms."""


def race_pause_s(attempt: int) -> float:
    """How long to pause after a lost race, in seconds; longer each time [P28]."""
    return jitter(RACE_PAUSE_S, min(attempt, RACE_DOUBLINGS))


class Port(Protocol):
    """One bucket row, as its table reads and writes it."""

    async def read(self) -> Stored[Bucket] | None:
        """Read it by quorum."""

    async def send(self, before: Version, row: Bucket, mark: UUID) -> tuple[Outcome[Bucket], int]:
        """Send one CAS; return its outcome, and the bytes of claims that it has written."""

    async def hint(self, times_us: Iterable[int], now_us: int) -> None:
        """Write a hint for each of these times, unless this client has written it before."""

    def passed(self) -> int:
        """The minute of the time pointer, as this client last read it."""


class Company(NamedTuple):
    """What goes with the next CAS of a row, whoever sends it.

    Attributes:
        intent: Acks, which have no claim's hurry.
        tell: Called once, with its answer, or with None: nobody knows, so ask again.
    """

    intent: Intent
    tell: Callable[[Answer | None], None]


def is_late_hint(output: Output) -> bool:
    """Whether it is a hint of a CAS that has taken effect: nobody waits for it [T4]."""
    return isinstance(output, events.WriteHints) and not output.tickets


def broken_off(output: Output) -> Event:
    """What becomes of something that was begun and not ended, as by a Ctrl-C."""
    ended = StoreTimeout("the thread that was at it was ended. Try again")
    match output:
        case events.ReadRow():
            return events.RowRead(error=ended)
        case events.WriteHints(minutes=minutes):
            return events.Hinted(minutes=minutes, error=ended)
        case events.SendCas():
            return events.CasEnded(fate=Fate.OPEN)
    return events.PauseOver()


def error_of(answer: Answer, doubt: CassieqError | None) -> CassieqError:
    """The error of an answer that is none: what the store said, or what it did not say."""
    if answer.end is End.AMBIGUOUS:
        why = answer.error if isinstance(answer.error, CassieqError) else doubt
        return CasAmbiguous(
            "a change of a row was not answered. It may have been applied, or may still be"
            if why is None
            else why.message
        )
    if isinstance(answer.error, CassieqError):
        return copy(answer.error)  # others get it too, and each raises one of its own
    return StoreTimeout(
        "other calls of this client work on the row, and were not answered in time. Nothing was "
        "sent. Try again"
    )
