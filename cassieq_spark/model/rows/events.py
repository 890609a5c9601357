"""Define the events that a `RowWriter` gets and the outputs that it returns. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from uuid import UUID

from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.outcome import Stored, Version
from cassieq_spark.model.rows.intents import Intent, Result

Seen = Stored[Bucket]
"""A row as read."""


class Fate(StrEnum):
    """The outcome of a CAS.

    Attributes:
        APPLIED: It happened.
        REFUSED: It did not happen and cannot any more. If there is no row, it may have happened
            before the row was dropped: only L shows that (ADR 11).
        EVICTED: The row has changed since, and its tags no longer show the outcome [R8].
        OPEN: The row is as it was: the CAS may still land [P7].
    """

    APPLIED = "applied"
    REFUSED = "refused"
    EVICTED = "evicted"
    OPEN = "open"


def fate_of(before: Version, mark: UUID, now: Seen | None) -> Fate:
    """Return the outcome of a CAS that was conditional on ``before``, by a row that was read later.

    Ask before this client's next CAS takes effect, which replaces the tag (G3).
    """
    if now is None:
        return Fate.REFUSED
    if now.version.tags.has(mark):
        return Fate.APPLIED
    if now.version.writer == before.writer:
        return Fate.OPEN
    return Fate.EVICTED if now.version.tags.evicted > before.row_version else Fate.REFUSED


# --- in -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A caller queues an intent.

    Attributes:
        ticket: 1 or more; each is larger than those before.
        deadline_s: The monotonic time until which it is answered.
        company_until_s: The time until which it may wait for others to share its CAS; acks only.
        known: The row as this caller has just read it, or as this client's last CAS left it.
        more_come: Other events come in the same turn; nothing is folded before the last of them.
    """

    ticket: int
    intent: Intent
    deadline_s: float = inf
    company_until_s: float = -inf
    known: Seen | None = None
    more_come: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A caller has left, whether answered or not: nobody will use its result."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A claim's caller has received its answer: from now on it cares for its leases itself."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRead:
    """The answer to `ReadRow`: the row, None if there is no row, or the error if unanswered."""

    row: Seen | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hinted:
    """The answer to `WriteHints`: they are written at quorum, or stayed unanswered."""

    minutes: tuple[int, ...]
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CasEnded:
    """The answer to `SendCas`.

    Attributes:
        fate: The outcome by `store.cas`; `Fate.OPEN`: it stayed unanswered.
        now: The row as read since, or as this CAS wrote it; None: there is none any more.
        error: With `Fate.REFUSED`: the reason why nothing was sent.
    """

    fate: Fate
    now: Seen | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class PauseOver:
    """The answer to `Pause`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOver:
    """A caller with a `Turn` is done, successfully or not.

    Attributes:
        row: The row as the caller's own statement left it; None: unknown.
    """

    row: Seen | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """The time `RowWriter.wake_at_s` has come."""


Event = (
    Queued | Left | Taken | RowRead | Hinted | CasEnded | PauseOver | TurnOver | Tick
)  # fmt: skip


# --- out ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRow:
    """Read the row by quorum, and give up at ``until_s``."""

    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteHints:
    """Write an expiry hint for each of these times; answer with ``minutes``.

    Attributes:
        tickets: The callers whose CAS waits for the hints; empty: a CAS that has taken effect needs
            them again.
    """

    minutes: tuple[int, ...]
    times_us: tuple[int, ...]
    tickets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCas:
    """Write ``row`` with ``mark`` as its writer if the row's writer is that of ``before``.

    It is sent in a context of its own, again and again until it is answered or ``until_s`` is over.

    Attributes:
        tickets: The intents that it carries out, in the order of the fold; a negative one is the
            writer's own.
    """

    before: Version
    row: Bucket
    mark: UUID
    tickets: tuple[int, ...]
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Wait a random part of a time that doubles with each ``attempt``, from 0 on [P28]."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The caller's `Turn` has come; nothing else is sent before `TurnOver`."""

    ticket: int


class End(StrEnum):
    """The end of an intent.

    Attributes:
        DONE: The result says it: carried out, or judged to have no effect.
        LOST: A claim that lost against another client. Nothing was leased.
        NOT_SENT: Nothing was sent, or the CAS that was sent did not happen.
        AMBIGUOUS: It may have happened, or may happen yet.
        CONTENDED: Other clients won too many times in a row.
    """

    DONE = "done"
    LOST = "lost"
    NOT_SENT = "not sent"
    AMBIGUOUS = "ambiguous"
    CONTENDED = "contended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one caller.

    Attributes:
        result: Set if ``end`` is `End.DONE`; the caller raises an `IllegalMove`.
        before, changed: The row before and after this intent alone.
        row: The row afterwards, as far as this client knows; None: there is none.
        reads_low: The result holds if L, read from now on, is not above the bucket (G5).
        error: The store's error, if there is one.
    """

    ticket: int
    end: End
    result: Result = None
    before: Bucket | None = None
    changed: Bucket | None = None
    row: Seen | None = None
    reads_low: bool = False
    error: Exception | None = None


Output = ReadRow | WriteHints | SendCas | Pause | Granted | Answer
