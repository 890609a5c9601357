"""Answer the callers of one row: who waits, who has left, and each one's answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.rows import outcomes
from cassieq_spark.model.rows.events import Answer, End
from cassieq_spark.model.rows.intents import Claimed
from cassieq_spark.model.rows.waiting import Entry, Waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from cassieq_spark.model.bucket import Lease
    from cassieq_spark.model.rows.events import Output, Seen, SeenVersion
    from cassieq_spark.model.rows.fold import Folded
    from cassieq_spark.model.rows.intents import Effect, Moment

GIVE_BACK_S: Final = 1.0
"""The time for which the writer tries to release an unused claim; then the lease runs out."""


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
            intent = outcomes.given_back(leases)
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
            result = replace(result, leases=outcomes.still_held(there, result.leases))
            if entry.ticket in self._gone:
                self._give_back(result.leases, moment)
            elif result.leases:
                self._untaken[entry.ticket] = result.leases
        if entry.is_own or entry.ticket in self._gone:
            return
        if not outcomes.is_told(entry, result):
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
