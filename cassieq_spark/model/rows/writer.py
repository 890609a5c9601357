"""`RowWriter` is the one writer of a bucket row in a client: a state machine without I/O.

    writer.step(event, moment) -> outputs        one call for each event, in its order

Its owner (`store.rows.Row`) carries out the outputs: it reads the row, writes hints, sends a CAS,
pauses, answers callers. It comes back with the answers, and calls `step` again at `wake_at_s`. At
most one read, CAS, pause or turn is under way; hints may go beside it.

The steps of a fold, in this order; each is a rule with a name of its own (ADR 39):

1. `time_of_fold`: time is read once, when the fold is made, and visibility counts from there.
2. `must_read`, `unread`: the newest row; a verdict needs one that was read after the question.
3. `intents.in_order`, `intents.may_merge`, `Claim.sharing`: settlements, then claims.
4. `short_of_hints`: hints are answered before the CAS that needs them, for a second at most.
5. `limit_of`, `_leave`: the CAS, until its callers' latest deadline. A caller that leaves takes
back what is not sent; messages claimed for it are released, by their runs and uncounted.
6. `events.fate_of`, `still_held`, `is_told`: the outcome, by its tag, then by marks in the row. A
missing mark proves nothing, and no claim is folded twice.
7. `waiting.came_late`, `Effect.reads_low`: late hints are written again, and callers read L.

Holds I1 to I4, I10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final
from uuid import UUID

from cassieq_spark.model.bucket import Bucket, Lease
from cassieq_spark.model.ids import union
from cassieq_spark.model.outcome import Version
from cassieq_spark.model.pointer import MINUTE_US, minute_of
from cassieq_spark.model.rows import events, intents, waiting
from cassieq_spark.model.rows.events import Answer, End, Fate, Output, Seen, fate_of
from cassieq_spark.model.rows.intents import (
    Ask,
    Claim,
    Claimed,
    Effect,
    Folded,
    Moment,
    Settle,
    Turn,
)
from cassieq_spark.model.rows.waiting import Entry, Hints, Waiting
from cassieq_spark.model.settlement import Ack, Judged, Release

DOUBT_S: Final = 1.0
"""The time for which the row is read after an unknown CAS: most of its callers' time is over by
then."""

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


def is_told(entry: Entry, result: object) -> bool:
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
    release = Release(count_delivery=False)
    return Settle(asks=tuple(Ask(lease.lease_id, release, lease.runs) for lease in leases))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A CAS under way, or one whose outcome is unknown."""

    before: Version
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


class RowWriter(Callers):
    """The writer of one row; see the module. Its owner makes one step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._hints = Hints()
        self._last = 0
        self._turn: int | None = None
        self._rests_until_s = -inf  # all intents wait for a hint
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

    # --- its owner --------------------------------------------------------------------------------

    def left(self, now_us: int) -> Seen | None:
        """Return the row as this client's last CAS left it, to save a read before the next one.

        None if that is unknown, or if others have changed the row lately: a CAS would probably
        fail.
        """
        known = self._known if self._is_known and not (self._is_busy or self._must_read) else None
        if known is None or known.version.writer != self._own_writer:
            return None
        return None if self._is_shared(now_us) else known

    def forget(self) -> None:
        """Forget the row: the next intent begins with a read, or with its caller's."""
        self._known, self._is_known = None, False

    @property
    def wake_at_s(self) -> float:
        """The time at which to call `step` with a `Tick`, if no event comes before; inf: never."""
        times = [self._waiting.earliest_s]
        if self._sent is not None:
            sent = self._sent.entries
            times += [one.deadline_s for one in sent if one.ticket not in self._gone]
        if not self._is_busy:
            times.append(max(self._waiting.due_s, self._rests_until_s))
        return min(times)

    def step(self, event: events.Event, moment: Moment) -> tuple[Output, ...]:
        """Take one event; return the outputs to carry out, in this order."""
        self._out = []
        self._heed(event, moment)
        self._end_overdue(moment)
        more_come = isinstance(event, events.Queued) and event.more_come
        while not more_come and self._may_fold(moment) and self._round(moment):
            pass
        if not self._is_busy:
            self._hints.failed.clear()  # no intent needs them
        out, self._out = self._out, []
        return tuple(out)

    @property
    def _is_busy(self) -> bool:
        return (
            self._sent is not None
            or self._reading is not None
            or self._turn is not None
            or self._is_pausing
        )

    def _may_fold(self, moment: Moment) -> bool:
        is_at_rest = moment.at_s < self._rests_until_s
        return not self._is_busy and not is_at_rest and self._waiting.is_due(moment.at_s)

    def _heed(self, event: events.Event, moment: Moment) -> None:  # noqa: C901, PLR0912 - one per event
        match event:
            case events.Queued():
                self._queue(event)
            case events.RowRead(row=row, error=None):
                self._row_read(row, moment)
            case events.RowRead(error=Exception() as error):
                self._read_failed(error)
            case events.Hinted(minutes=minutes, error=error):
                self._hints.answered(minutes, error)
                self._waiting.wake()
                self._rests_until_s = -inf
            case events.CasEnded(fate=Fate.OPEN):
                self._read(moment.at_s + DOUBT_S)
            case events.CasEnded(error=Exception() as error):
                self._is_known = False  # others may have changed the row
                self._fail_all(self._landed().entries, error)
                self._gone = frozenset()
            case events.CasEnded(fate=fate, now=now):
                self._resolve(self._landed(), fate, now, moment)
            case events.PauseOver():
                self._is_pausing = False
            case events.TurnOver(row=row):
                self._turn_over(row, moment)
            case events.Left(ticket=ticket):
                if ticket == self._turn:
                    self._turn_over(None, moment)  # it was granted, and its caller never knew
                self._leave(ticket, moment)
            case events.Taken(ticket=ticket):
                self._untaken.pop(ticket, None)
            case events.Tick():
                pass

    def _queue(self, event: events.Queued) -> None:
        self._last = event.ticket
        is_claim = isinstance(event.intent, Claim)
        look = event.known
        if look is not None and self._is_newer(look):
            self._known, self._is_known, self._is_read = look, True, False
        if self._is_pausing and is_claim and self._known is not None:
            # Other clients win here, and the caller's get tries another bucket.
            self._lost(event.ticket, self._known.value, self._known)
            return
        entry = Entry(
            ticket=event.ticket,
            intent=event.intent,
            deadline_s=event.deadline_s,
            company_until_s=event.company_until_s,
            has_looked=is_claim and look is not None,
        )
        self._waiting.add(entry)

    # --- one fold ---------------------------------------------------------------------------------

    def _round(self, moment: Moment) -> bool:
        """Begin the next action; return whether there may be more to do now."""
        batch = self._waiting.batch(up_to=self._as_of if self._is_read else inf)
        if not batch:
            was_read, self._is_read = self._is_read, False
            return was_read
        if isinstance(batch[0].intent, Turn):
            if self._open and batch[0].ticket > self._as_of:
                # Its statement replaces our tag, which shows whether they happened (G3).
                self._read(batch[0].deadline_s)
            else:
                self._grant(batch[0].ticket)
            return False
        folded = None if self.must_read(batch, moment) else self._folded(batch, moment)
        if folded is None or self.unread(batch, folded):
            self._read(self.limit_of(batch))
            return False
        while needed := self.short_of_hints(folded, moment):
            if self._ask_hints(needed, moment):
                return False
            self._waiting.park(needed.keys())
            batch = self._without_failed(batch, needed)
            if not batch:
                return True
            folded = self._folded(batch, moment)
        self._waiting.remove({one.ticket for one in batch})
        self._carry_out(batch, folded, moment)
        return True

    def _came_true(self, sent: Sent, moment: Moment) -> None:
        if waiting.came_late(sent.folded, sent_us=sent.sent_us, now_us=moment.now_us):
            self._write_hints({minute_of(moment.now_us)} - self._hints.written, moment)

    def _turn_over(self, row: Seen | None, moment: Moment) -> None:
        turn, self._turn = self._turn, None
        self.forget()
        self._is_read = False
        if turn is not None and row is not None:
            self._own_writer = row.version.writer
            self._adopt(row, turn, moment)

    def _grant(self, ticket: int) -> None:
        self._turn = ticket
        self._waiting.remove({ticket})
        self._out.append(events.Granted(ticket=ticket))

    def _folded(self, batch: Sequence[Entry], moment: Moment) -> Folded:
        value = None if self._known is None else self._known.value
        wanted = [(one.ticket, one.intent) for one in batch]
        return intents.fold(value, wanted, self.time_of_fold(batch, moment))  # type: ignore[arg-type]  # no Turn is in it

    def time_of_fold(self, batch: Sequence[Entry], moment: Moment) -> Moment:  # noqa: ARG002 - a rule
        """Return the time a fold counts from: its own, however long its intents waited [R21]."""
        return moment

    def must_read(self, batch: Sequence[Entry], moment: Moment) -> bool:
        """Whether the known row is of no use: it is not known, or probably changed since."""
        if not self._is_known or self._must_read:
            return True
        is_new = any(one.ticket > self._as_of and not one.is_content for one in batch)
        return is_new and self._is_shared(moment.now_us)

    def _is_shared(self, now_us: int) -> bool:
        return self._alone < ALONE and now_us < self._shared_until_us

    def unread(self, batch: Sequence[Entry], folded: Folded) -> bool:
        """Whether some verdict needs a row that was read after its question came.

        Messages that a remembered row does not hold may have come since (ADR 34).
        """
        return any(
            one.ticket > self._as_of
            and not one.has_looked
            and not folded.effects[one.ticket].is_whole
            for one in batch
        )

    def limit_of(self, batch: Sequence[Entry]) -> float:
        """Return until when a CAS or a read is retried: the latest deadline of its callers."""
        return max(one.deadline_s for one in batch)

    def short_of_hints(self, folded: Folded, moment: Moment) -> dict[int, set[int]]:
        """Return by ticket the minutes whose hints must be answered before its CAS [R12, P17]."""
        return self._hints.needed(folded, moment)

    def _ask_hints(self, needed: dict[int, set[int]], moment: Moment) -> bool:
        """Ask for hints; return whether all intents wait for them, as they do for a second."""
        minutes = {minute for some in needed.values() for minute in some}
        self._write_hints(minutes, moment, tickets=tuple(needed))
        self._rests_until_s = self._hints.patience_s(needed.values())
        return self._rests_until_s > moment.at_s

    def _write_hints(
        self, minutes: set[int], moment: Moment, *, tickets: tuple[int, ...] = ()
    ) -> None:
        if new := self._hints.to_ask(minutes, moment.at_s):
            times_us = tuple(max(minute * MINUTE_US, moment.now_us) for minute in new)
            self._out.append(
                events.WriteHints(minutes=tuple(new), times_us=times_us, tickets=tickets)
            )

    def _without_failed(self, batch: list[Entry], needed: dict[int, set[int]]) -> list[Entry]:
        """Fail those whose hints failed; return the others of the batch."""
        for ticket, minutes in needed.items():
            if failed := minutes & self._hints.failed.keys():
                error = self._hints.failed[min(failed)]
                self._fail_all(self._waiting.remove({ticket}), error)
        there = {one.ticket for one in self._waiting.batch()}
        return [one for one in batch if one.ticket in there]

    def _carry_out(self, batch: list[Entry], folded: Folded, moment: Moment) -> None:
        before = self._known
        if before is None or folded.row is None or folded.row is before.value:
            for one in batch:
                self._done(one, folded.effects[one.ticket], before, moment)
            return
        mark = moment.new_id()
        self._sent = Sent(
            before=before.version,
            mark=mark,
            entries=tuple(batch),
            folded=folded,
            as_of=self._last,
            sent_us=moment.now_us,
        )
        self._is_read = False
        self._out.append(
            events.SendCas(
                before=before.version,
                row=folded.row,
                mark=mark,
                tickets=tuple(folded.effects),
                until_s=self.limit_of(batch),
            )
        )

    def _read(self, until_s: float) -> None:
        self._reading = self._last
        self._out.append(events.ReadRow(until_s=until_s))

    # --- the row as this client knows it, and the outcome of its CAS ------------------------------

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
            self._out.append(events.Pause(attempt=self._losses - 1))

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
