"""Define how a bucket row is read and written, and who joins its CAS; see `store.row`."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cassieq_spark.errors import CasAmbiguous, CassieqError, StoreTimeout
from cassieq_spark.model.rows import events
from cassieq_spark.model.rows.events import End

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from cassieq_spark.entropy import Entropy
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.rows.events import Answer, Output
    from cassieq_spark.model.rows.intents import Intent
    from cassieq_spark.store.cas import Outcome, Stored, Version

RACE_PAUSE_S: Final = 0.002
RACE_DOUBLINGS: Final = 5
"""The pause after a lost race: about the time of a CAS, then doubled up to 64 ms."""


def race_pause_s(entropy: Entropy, attempt: int) -> float:
    """Return the seconds to pause after a lost race; longer each time [P28]."""
    return entropy.jitter(RACE_PAUSE_S, min(attempt, RACE_DOUBLINGS))


class Port(Protocol):
    """The interface by which a bucket row is read and written."""

    async def read(self) -> Stored[Bucket] | None:
        """Read the row by quorum."""

    async def send(self, before: Version, row: Bucket, mark: UUID) -> tuple[Outcome[Bucket], int]:
        """Send one CAS; return its outcome, and the bytes of claims that it wrote."""

    async def hint(self, times_us: Iterable[int], now_us: int) -> None:
        """Write a hint for each of these times, unless this client has written it before."""

    def passed(self) -> int:
        """The minute of the time pointer, as this client last read it."""


class Company(NamedTuple):
    """An intent that joins the next CAS of a row, whoever sends it.

    Attributes:
        intent: Acks, which are not as urgent as a claim.
        tell: Called once, with its answer, or with None: the outcome is unknown, so ask again.
    """

    intent: Intent
    tell: Callable[[Answer | None], None]


def is_late_hint(output: Output) -> bool:
    """Whether the output is a hint of a CAS that has taken effect: no caller waits for it [T4]."""
    return isinstance(output, events.WriteHints) and not output.tickets


def error_of(answer: Answer, doubt: CassieqError | None) -> CassieqError:
    """Return the error of an answer without a result: the store's, or a timeout."""
    if answer.end is End.AMBIGUOUS:
        why = answer.error if isinstance(answer.error, CassieqError) else doubt
        return CasAmbiguous(
            "a change of a row was not answered. It may have been applied, or may still be"
            if why is None
            else why.message
        )
    if isinstance(answer.error, CassieqError):
        return copy(answer.error)  # others get it too, and each raises its own copy
    return StoreTimeout(
        "other calls of this client work on the row, and were not answered in time. Nothing was "
        "sent. Try again"
    )
