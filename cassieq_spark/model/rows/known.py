"""Keep a client's knowledge of one row, and learn the outcome of a CAS from it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.rows import outcomes
from cassieq_spark.model.rows.callers import Callers, Sent
from cassieq_spark.model.rows.events import Answer, End, Fate, Pause, fate_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.rows.events import Seen
    from cassieq_spark.model.rows.intents import Effect, Moment
    from cassieq_spark.model.rows.waiting import Entry

MAX_REFUSALS: Final = 64
"""The most refused CASes in a row of one settlement, before its caller gets an error."""

SHARED_FOR_US: Final = 10_000_000
ALONE: Final = 4
"""The limits of a remembered row. If others change the row too, it is not used for this time, or
until this many CASes of the client followed each other: a refused CAS costs more than a read
(ADR 34)."""


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
                self._give_back(outcomes.still_held(there, outcomes.leases_of(effect)), moment)
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
        leases = outcomes.leases_of(effect)
        there = None if now is None else now.value
        if fate is Fate.EVICTED and outcomes.still_held(there, leases):
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
