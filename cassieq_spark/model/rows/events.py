"""Name what a `RowWriter` is told and what it asks for: events in, outputs out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.rows.intents import Intent, Result


class SeenTags(Protocol):
    """The marks that a row remembers, as `store.cas.Tags` has them (G2)."""

    @property
    def evicted(self) -> int:
        """The largest row version whose mark was pushed out; 0: none was."""

    def has(self, writer: UUID, /) -> bool:
        """Whether the CAS with this mark took effect."""


class SeenVersion(Protocol):
    """What a CAS is conditional on, as `store.cas.Version` has it."""

    @property
    def writer(self) -> UUID:
        """The mark of the CAS that wrote the row."""

    @property
    def row_version(self) -> int:
        """It grows with each CAS in one life of a row."""

    @property
    def tags(self) -> SeenTags:
        """The marks that the row remembers."""


class Seen(Protocol):
    """A row as read, as `store.cas.Stored` has it."""

    @property
    def value(self) -> Bucket:
        """The row."""

    @property
    def version(self) -> SeenVersion:
        """Which row it is."""


class Fate(StrEnum):
    """What became of a CAS.

    Attributes:
        APPLIED: It happened.
        REFUSED: It did not happen and cannot any more. If there is no row, it may have happened
            before the row was dropped: only L tells (ADR 11).
        EVICTED: The row has changed since, and its tags cannot tell [R8].
        OPEN: The row is as it was: the CAS may still land [P7].
    """

    APPLIED = "applied"
    REFUSED = "refused"
    EVICTED = "evicted"
    OPEN = "open"


def fate_of(before: SeenVersion, mark: UUID, now: Seen | None) -> Fate:
    """What became of a CAS that was conditional on ``before``, by a row that was read after it.

    It must be asked before this client's next CAS takes effect, which replaces the tag (G3).
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
    """A caller wants something.

    Attributes:
        ticket: 1 or more; each is larger than those before.
        deadline_s: Until then it is answered, by the monotonic clock.
        company_until_s: So long it may wait for others to share its CAS; acks only.
        known: The row as this caller has just read it, or as this client's last CAS left it.
    """

    ticket: int
    intent: Intent
    deadline_s: float = inf
    company_until_s: float = -inf
    known: Seen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A caller is gone, whether answered or not: nobody will use what it is given."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A claim's caller has its answer in hand: from now on, its leases are its own business."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRead:
    """Answers `ReadRow`. With an error it stayed unanswered; None: there is no row."""

    row: Seen | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hinted:
    """Answers `WriteHints`: they are written, at quorum, or stayed unanswered."""

    minutes: tuple[int, ...]
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CasEnded:
    """Answers `SendCas`.

    Attributes:
        fate: As `store.cas` has settled it; `Fate.OPEN`: it stayed unanswered.
        now: The row as read since, or as this CAS wrote it; None: there is none any more.
        error: With `Fate.REFUSED`: nothing was sent, for this reason.
    """

    fate: Fate
    now: Seen | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class PauseOver:
    """Answers `Pause`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOver:
    """A caller with a `Turn` is done, well or not.

    Attributes:
        row: As the caller's own statement has left it; None: it may be anyhow.
    """

    row: Seen | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """It is `RowWriter.wake_at_s`."""


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
        tickets: Whose CAS waits for it; none: it is written again for one that has taken effect.
    """

    minutes: tuple[int, ...]
    times_us: tuple[int, ...]
    tickets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCas:
    """Write ``row`` with ``mark`` as its writer if the row's writer is that of ``before``.

    It is sent in a context of its own, again and again until it is answered or ``until_s`` is over.

    Attributes:
        tickets: Whose intents it carries out, in the order of the fold; a negative one is the
            writer's own.
    """

    before: SeenVersion
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
    """This caller's `Turn` has come; nothing else is sent before `TurnOver`."""

    ticket: int


class End(StrEnum):
    """How an intent ended.

    Attributes:
        DONE: By its result: carried out, or judged to have no effect.
        LOST: A claim; others were faster. Nothing was leased.
        NOT_SENT: Nothing was sent, or what was sent did not happen.
        AMBIGUOUS: It may have happened, or may yet.
        CONTENDED: Others were faster too many times in a row.
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
        result: If ``end`` is `End.DONE`; an `IllegalMove` is to be raised.
        before, changed: The row before and after this intent alone.
        row: The row as it is then, as far as this client knows; None: there is none.
        reads_low: The result holds if L, read from now on, is not above the bucket (G5).
        error: Why not, if the store has said so.
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
