"""Keep the intents for a row until they are sent, and the hints that they need. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final
from uuid import UUID

from cassieq_spark.model.ids import EMPTY, Runs
from cassieq_spark.model.pointer import LATE_AFTER_US, hint_minutes, is_passable, minute_of
from cassieq_spark.model.rows.intents import Claim, Folded, Intent, Moment, Turn

FOLD_AT_MOST: Final = 1_000
"""The most intents of one fold, which takes some milliseconds. A full fold waits for no company."""

PATIENCE_S: Final = 1.0
"""The time that all intents of a row wait for a hint. Then those that need none go out alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The intent of one caller.

    Attributes:
        ticket: Negative for the writer's own, which nobody waits for.
        has_looked: Set on a claim whose caller has read the row itself: that row may answer
            "nothing".
        refusals: How many CASes of it were refused in a row.
        doubts: The marks of its CASes whose outcome is unknown.
    """

    ticket: int
    intent: Intent
    deadline_s: float
    company_until_s: float = -inf
    has_looked: bool = False
    refusals: int = 0
    doubts: frozenset[UUID] = frozenset()

    @property
    def is_own(self) -> bool:
        """Whether it is the writer's own intent."""
        return self.ticket < 0

    @property
    def is_content(self) -> bool:
        """Whether a row that was not read for it is good enough to try."""
        return self.has_looked or self.company_until_s == inf

    @property
    def is_claim(self) -> bool:
        """Whether the intent takes messages."""
        return isinstance(self.intent, Claim)


class Waiting:
    """The intents that are not sent yet, in the order in which they came.

    Attributes:
        entries: All of them.
        parked: Tickets that wait for a hint, and those that must not overtake them.
        due_s: When the first of the others must no longer wait for company.
        earliest_s: The first deadline.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.parked: set[int] = set()
        self.due_s = inf
        self.earliest_s = inf

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        self.entries.append(entry)
        self.due_s = min(self.due_s, entry.company_until_s)
        self.earliest_s = min(self.earliest_s, entry.deadline_s)

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Put back entries whose CAS failed, each in its place."""
        self.entries = sorted([*entries, *self.entries], key=lambda one: one.ticket)
        self._count()

    def replace(self, changed: Entry) -> None:
        """Replace the entry with the same ticket."""
        self.entries = [changed if one.ticket == changed.ticket else one for one in self.entries]
        self._count()

    def remove(self, tickets: Collection[int]) -> list[Entry]:
        """Take these out; return those that were here."""
        gone = [one for one in self.entries if one.ticket in tickets]
        if gone:
            self.entries = [one for one in self.entries if one.ticket not in tickets]
            self.parked.difference_update(tickets)
            self._count()
        return gone

    def overdue(self, at_s: float) -> list[Entry]:
        """Take out and return the entries whose deadline has passed."""
        if at_s < self.earliest_s:
            return []
        return self.remove({one.ticket for one in self.entries if one.deadline_s <= at_s})

    def is_due(self, at_s: float) -> bool:
        """Whether some entry must no longer wait."""
        return self.due_s <= at_s or len(self.entries) - len(self.parked) >= FOLD_AT_MOST

    def batch(self, *, up_to: float = inf) -> list[Entry]:
        """Return the next entries to fold together: up to the first `Turn`, or that one alone.

        An entry that would overtake a parked action on the same message is parked, too.

        Args:
            up_to: The last ticket to take.
        """
        found: list[Entry] = []
        touched: Runs | None = EMPTY
        for one in self.entries:
            if isinstance(one.intent, Turn):
                return found or [one]
            if one.ticket in self.parked or overlap(one.intent.touches, touched):
                self.parked.add(one.ticket)
                touched = both(touched, one.intent.touches)
            elif one.ticket <= up_to:
                found.append(one)
            if len(found) >= FOLD_AT_MOST:
                break
        self._count()
        return found

    def park(self, short: Collection[int]) -> None:
        """Let these wait for a hint."""
        self.parked.update(short)
        self._count()

    def wake(self) -> None:
        """Park no entry any more: a hint was answered."""
        self.parked.clear()
        self._count()

    def _count(self) -> None:
        unparked = (one.company_until_s for one in self.entries if one.ticket not in self.parked)
        self.due_s = min(unparked, default=inf)
        self.earliest_s = min((one.deadline_s for one in self.entries), default=inf)


def overlap(some: Runs | None, others: Runs | None) -> bool:
    """Whether two intents may name one message; None means any message."""
    if some is None or others is None:
        return bool(some is None or some) and bool(others is None or others)
    return bool(some & others)


def both(some: Runs | None, others: Runs | None) -> Runs | None:
    """Return the messages that either of two intents names."""
    return None if some is None or others is None else some | others


class Hints:
    """The minutes of one row's hints: written, under way, or failed.

    See docs/design/returns-and-hints.md.

    Attributes:
        written: Minutes not to write again: nobody removes a hint, and these are not over.
        asked: Minutes under way, each with the time until which all intents wait for it.
        failed: Minutes with their errors; an intent that needs one gets the error.
    """

    def __init__(self) -> None:
        self.written: frozenset[int] = frozenset()
        self.asked: dict[int, float] = {}
        self.failed: dict[int, Exception] = {}

    def needed(self, folded: Folded, moment: Moment) -> dict[int, set[int]]:
        """Return by ticket the minutes that its effect needs and that are not written [R12, T7]."""
        now, passed = minute_of(moment.now_us), moment.passed
        self.written = frozenset(minute for minute in self.written if minute >= now)
        needed: dict[int, set[int]] = {}
        for ticket, effect in folded.effects.items():
            minutes = {
                minute
                for time_us in effect.times_us
                for minute in hint_minutes(minute_of(time_us), now=now, passed=passed)
            }
            if missing := minutes - self.written:
                needed[ticket] = missing
        return needed

    def to_ask(self, minutes: Iterable[int], at_s: float) -> list[int]:
        """Return those of these minutes that are not asked for yet; they count as asked now."""
        new = sorted(set(minutes) - self.asked.keys() - self.failed.keys())
        self.asked |= dict.fromkeys(new, at_s + PATIENCE_S)
        return new

    def patience_s(self, needed: Iterable[set[int]]) -> float:
        """Return until when all intents wait for these minutes; -inf if for none of them."""
        return max((self.asked.get(one, -inf) for some in needed for one in some), default=-inf)

    def answered(self, minutes: Sequence[int], error: Exception | None = None) -> None:
        """Note an answer."""
        for minute in minutes:
            self.asked.pop(minute, None)
            if error is not None:
                self.failed[minute] = error
        if error is None:
            self.written |= frozenset(minutes)


def came_late(folded: Folded, *, sent_us: int, now_us: int) -> bool:
    """Whether the time pointer may have passed a hint's minute before its CAS was answered [T4]."""
    return any(
        is_passable(minute_of(max(time_us, sent_us)), now_us=now_us + LATE_AFTER_US)
        for effect in folded.effects.values()
        for time_us in effect.times_us
    )
