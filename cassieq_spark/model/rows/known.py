"""Keep what a client knows of one row and of its callers, and each one's answer. Pure.

A CAS's outcome is learnt from its tag (`events.fate_of`). Marks count only where the tags no longer
tell [R8].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.ids import union
from cassieq_spark.model.rows.events import Answer, End, Fate, Pause, fate_of
from cassieq_spark.model.rows.intents import Ask, Claimed, Settle
from cassieq_spark.model.rows.waiting import Entry, Waiting
from cassieq_spark.model.settlement import Ack, Judged, Release

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket, Lease
    from cassieq_spark.model.rows.events import Output, Seen, SeenVersion
    from cassieq_spark.model.rows.fold import Folded
    from cassieq_spark.model.rows.intents import Effect, Moment, Result

GIVE_BACK_S: Final = 1.0
"""The time for which the writer tries to release an unused claim; then the lease runs out."""

MAX_REFUSALS: Final = 64
"""The most refused CASes in a row of one settlement, before its caller gets an error."""

SHARED_FOR_US: Final = 10_000_000
ALONE: Final = 4
"""The limits of a remembered row. If others change the row too, it is not used for this time, or
until this many CASes of the client followed each other: a refused CAS costs more than a read
(ADR 34)."""


def leases_of(effect: Effect) -> tuple[Lease, ...]:
    """Return the leases that a claim got."""
    return effect.result.leases if isinstance(effect.result, Claimed) else ()


def still_held(row: Bucket | None, leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """Return what the row still holds of these leases: others may have settled or claimed some.

    Each lease counts with its own messages only: others may hold some of the same lease, with other
    ends.
    """
    found: list[Lease] = []
    entries = () if row is None else row.leases
    for lease in leases:
        same = [one for one in entries if one.lease_id == lease.lease_id]
        there = [one for one in same if one.runs & lease.runs]
        if there:
            runs = union(one.runs & lease.runs for one in there)
            found.append(replace(lease, runs=runs, until_us=min(one.until_us for one in there)))
    return tuple(found)


def is_told(entry: Entry, result: Result) -> bool:
    """Whether a settlement may get this result, though a CAS of it is in doubt.

    "Stale" or "acked" may mean that the CAS took effect, and that others got the message since. An
    ack that took effect can be seen for ever (I4), so it gets its result.
    """
    if not entry.doubts or not isinstance(result, Judged) or not isinstance(entry.intent, Settle):
        return True
    ended = result.stale.keys() | result.never.keys()
    return not any(
        (ask.lease_id in ended or result.acked) and not isinstance(ask.action, Ack)
        for ask in entry.intent.asks
    )


def given_back(leases: Iterable[Lease]) -> Settle:
    """Release messages that nobody was handed: uncounted, and by their runs (I2) [P18]."""
    release = Release(is_counted=False)
    return Settle(asks=tuple(Ask(lease.lease_id, release, lease.runs) for lease in leases))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A CAS under way, or one whose outcome is unknown."""

    before: SeenVersion
    mark: UUID
    entries: tuple[Entry, ...]
    folded: Folded
    as_of: int
    sent_us: int


class Callers:
    """The callers of one row."""

    def __init__(self) -> None:
        self._waiting = Waiting()
        self._sent: Sent | None = None
        self._gone: frozenset[int] = frozenset()  # callers of ``_sent`` that no longer wait
        self._untaken: dict[int, tuple[Lease, ...]] = {}
        self._own = 0
        self._out: list[Output] = []

    def _leave(self, ticket: int, moment: Moment) -> None:
        self._waiting.remove({ticket})
        if self._sent is not None:
            self._gone |= {ticket}
        self._give_back(self._untaken.pop(ticket, ()), moment)

    def _end_overdue(self, moment: Moment) -> None:
        self._fail_all(self._waiting.overdue(moment.at_s))
        if self._sent is None:
            return
        for one in self._sent.entries:
            if one.deadline_s <= moment.at_s and one.ticket not in self._gone:
                self._end(one, End.AMBIGUOUS)
                self._gone |= {one.ticket}

    def _give_back(self, leases: Sequence[Lease], moment: Moment) -> None:
        if leases:
            self._own -= 1
            until_s = moment.at_s + GIVE_BACK_S
            intent = given_back(leases)
            self._waiting.add(Entry(ticket=self._own, intent=intent, deadline_s=until_s))

    def _fail_all(self, entries: Iterable[Entry], error: Exception | None = None) -> None:
        """End callers whose intents were never sent, except for earlier CASes in doubt."""
        for one in entries:
            if one.ticket not in self._gone:
                self._end(one, End.AMBIGUOUS if one.doubts else End.NOT_SENT, error)

    def _end(self, entry: Entry, end: End, error: Exception | None = None) -> None:
        if not entry.is_own:
            self._out.append(Answer(ticket=entry.ticket, end=end, error=error))

    def _done(self, entry: Entry, effect: Effect, now: Seen | None, moment: Moment) -> None:
        """Answer a caller whose effect is in the row, or has none; ``now`` is the row by then."""
        result = effect.result
        if isinstance(result, Claimed):
            # A claim's result follows the row as it is now: others may have changed it since. A
            # settlement's verdict follows its own CAS, even if others got the message since.
            there = None if now is None else now.value
            result = replace(result, leases=still_held(there, result.leases))
            if entry.ticket in self._gone:
                self._give_back(result.leases, moment)
            elif result.leases:
                self._untaken[entry.ticket] = result.leases
        if entry.is_own or entry.ticket in self._gone:
            return
        if not is_told(entry, result):
            self._end(entry, End.AMBIGUOUS)
            return
        self._out.append(
            Answer(
                ticket=entry.ticket,
                end=End.DONE,
                result=result,
                before=effect.before,
                changed=effect.row,
                row=now,
                reads_low=effect.reads_low,
            )
        )


class KnownRow(Callers):
    """The row as this client knows it."""

    def __init__(self) -> None:
        super().__init__()
        self._known: Seen | None = None
        self._is_known = False
        self._as_of = 0  # the last ticket before the row was known in this state
        self._is_read = False  # it was read for the present waiters, and nothing was sent since
        self._must_read = False
        self._reading: int | None = None
        self._open: tuple[Sent, ...] = ()
        self._losses = 0
        self._is_pausing = False
        self._own_writer: UUID | None = None
        self._shared_until_us = 0
        self._alone = 0

    def _is_newer(self, look: Seen) -> bool:
        """Whether a caller's read is to be believed: an old one only loses its CAS (G2)."""
        if self._is_known and self._known is not None:
            return look.version.row_version > self._known.version.row_version
        self._as_of = 0
        return True

    def _row_read(self, row: Seen | None, moment: Moment) -> None:
        as_of, self._reading, self._must_read = self._reading or 0, None, False
        if self._sent is None:
            self._adopt(row, as_of, moment)
        else:
            fate = fate_of(self._sent.before, self._sent.mark, row)
            self._resolve(replace(self._landed(), as_of=as_of), fate, row, moment)
        self._is_read = True

    def _read_failed(self, error: Exception) -> None:
        as_of, self._reading = self._reading or 0, None
        if self._sent is not None:
            sent = self._landed()
            self._open = (*self._open, sent)
            doubted = [replace(one, doubts=one.doubts | {sent.mark}) for one in sent.entries]
            self._fail_all(doubted, error)
            self._gone = frozenset()
            return
        batch = self._waiting.batch(up_to=as_of)
        tickets = {one.ticket for one in batch if not one.is_own}
        self._fail_all(self._waiting.remove(tickets), error)

    def _adopt(self, row: Seen | None, as_of: int, moment: Moment) -> None:
        """Take a row as the newest one: it was read after all that is known."""
        self._known, self._is_known, self._as_of = row, True, as_of
        for sent in self._open:
            self._look_for(sent, row, moment)

    def _look_for(self, sent: Sent, row: Seen | None, moment: Moment) -> None:
        """Learn from a row the outcome of a CAS that was in doubt."""
        fate = fate_of(sent.before, sent.mark, row)
        if fate is Fate.OPEN:
            return
        self._open = tuple(one for one in self._open if one is not sent)
        if fate is Fate.APPLIED:
            self._came_true(sent, moment)
        for entry in sent.entries:
            effect = sent.folded.effects[entry.ticket]
            if entry.is_claim:  # its caller has got `End.AMBIGUOUS`
                there = None if row is None else row.value
                self._give_back(still_held(there, leases_of(effect)), moment)
            elif fate is Fate.APPLIED:
                for one in self._waiting.remove({entry.ticket}):
                    self._done(one, effect, row, moment)
            elif fate is Fate.REFUSED:
                for one in self._waiting.entries:
                    if one.ticket == entry.ticket:
                        self._waiting.replace(replace(one, doubts=one.doubts - {sent.mark}))

    def _came_true(self, sent: Sent, moment: Moment) -> None:
        """Note that a CAS has taken effect."""
        raise NotImplementedError

    def _landed(self) -> Sent:
        if self._sent is None:
            raise ValueError("an answer to a CAS that was not sent")
        sent, self._sent = self._sent, None
        return sent

    def _resolve(self, sent: Sent, fate: Fate, now: Seen | None, moment: Moment) -> None:
        """Answer each caller by the outcome of its CAS, or queue its intent again."""
        again: list[Entry] = []
        there = None if now is None else now.value
        for entry in sent.entries:
            effect = sent.folded.effects[entry.ticket]
            if fate is Fate.APPLIED:
                self._done(entry, effect, now, moment)
            elif entry.is_claim:
                self._claim_ended(entry, effect, fate, now, moment)
            elif entry.ticket not in self._gone:
                again.append(self._in_doubt(entry, sent, fate))
        if fate is Fate.APPLIED:
            self._came_true(sent, moment)
        if fate is Fate.OPEN:
            self._open = (*self._open, sent)
        self._gone = frozenset()
        self._is_read = False
        self._note_who(sent, fate, now, moment)
        self._waiting.put_back(self._without_contended(again))
        self._adopt(now, sent.as_of, moment)
        self._losses = 0 if fate is Fate.APPLIED else self._losses + 1
        if again and there is not None:
            # The first pause is short, so the row of the refusal is good enough after it. In a
            # longer pause others change the row: a row from before it wins nothing (ADR 34).
            self._is_pausing, self._must_read = True, self._losses > 1
            self._out.append(Pause(attempt=self._losses - 1))

    def _claim_ended(
        self, entry: Entry, effect: Effect, fate: Fate, now: Seen | None, moment: Moment
    ) -> None:
        """End a claim whose CAS is not known to have happened; it is never folded again.

        Another fold would lease twice, and use up a delivery. A mark proves success, and a missing
        mark proves nothing [P7].
        """
        leases = leases_of(effect)
        there = None if now is None else now.value
        if fate is Fate.EVICTED and still_held(there, leases):
            self._done(entry, effect, now, moment)
        elif entry.ticket in self._gone:
            return
        elif fate is Fate.REFUSED or not leases:
            self._lost(entry.ticket, effect.before, now)
        else:
            self._end(entry, End.AMBIGUOUS)

    def _lost(self, ticket: int, before: Bucket | None, now: Seen | None) -> None:
        self._out.append(Answer(ticket=ticket, end=End.LOST, before=before, row=now))

    @staticmethod
    def _in_doubt(entry: Entry, sent: Sent, fate: Fate) -> Entry:
        doubts = entry.doubts if fate is Fate.REFUSED else entry.doubts | {sent.mark}
        return replace(entry, refusals=entry.refusals + 1, doubts=doubts)

    def _without_contended(self, entries: Sequence[Entry]) -> list[Entry]:
        for one in entries:
            if one.refusals >= MAX_REFUSALS:
                self._end(one, End.AMBIGUOUS if one.doubts else End.CONTENDED)
        return [one for one in entries if one.refusals < MAX_REFUSALS]

    def _note_who(self, sent: Sent, fate: Fate, now: Seen | None, moment: Moment) -> None:
        """Learn whether other clients change this row, too."""
        if fate is Fate.APPLIED and now is not None and now.version.writer == sent.mark:
            self._alone = self._alone + 1 if sent.before.writer == self._own_writer else 0
            self._own_writer = sent.mark
        elif fate is not Fate.OPEN:
            self._shared_until_us, self._alone = moment.now_us + SHARED_FOR_US, 0
