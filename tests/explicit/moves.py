"""Movers of one dead set, step by step: the row of their transaction is removed and born again.

What is written into that row is computed by `cassieq_spark.model.sink_txn`, and so is what becomes
of a copy. Movers have all seen the set in its bucket row; each may copy it once. Repair removes the
row as soon as the set is out of its bucket row: that rows rest a day before is not modelled, so
nothing here rests on time. A step that never comes is a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from cassieq_spark.errors import SinkFenced
from cassieq_spark.model import sink_txn
from cassieq_spark.model.ids import BucketNo, LaneId, Place
from cassieq_spark.model.sink_txn import (
    AlreadyCommitted,
    Commit,
    Fate,
    Identity,
    SinkRow,
    TaskResult,
)
from tests.explicit.lwt import Cas, Client, Lwt, Row, State, Step, at

SINK = 0
WHO = Identity(sink_id="dead:1", lane=LaneId(UUID(int=1)))
PREPARED, VISIBLE, VOID = "prepared", "visible", "void"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the protocol rests on; a negative control takes one away.

    Attributes:
        takes_the_row: A mover commits on a version of the row that it has written itself [T3].
        writes_it_once: By a CAS that was answered at its first sending: no copy is on its way.
        commits_on_that: Its commit is never tried on another version.
        looks_after: The look at the bucket row comes after that version was written.
        removes_when_gone: The row is removed only when the set is out of its bucket row.
        rolls_before_taking_out: The set is taken out when its copy is visible.
        rolls_before_removal: And the row is removed when all it lists is; the second line.
        rests: And only when nothing that was sent is on its way any more and no mover is at work:
            what a day of rest is to give. The other rules are to do without it.
    """

    takes_the_row: bool = True
    writes_it_once: bool = True
    commits_on_that: bool = True
    looks_after: bool = True
    removes_when_gone: bool = True
    rolls_before_taking_out: bool = True
    rolls_before_removal: bool = True
    rests: bool = False


class Rest(NamedTuple):
    """The set in its bucket row, each mover's copy, what a reader is about to do with one."""

    has_set: bool
    copies: tuple[tuple[str, int] | None, ...]
    settling: tuple[int, Fate] | None = None
    removals: int = 1


@dataclass(kw_only=True)
class Moves(Lwt):
    """The model that is explored."""

    movers: int = 3
    lost: int = 1
    removals: int = 1
    tries: int = 2
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        self.names = (*(f"M{number}" for number in range(self.movers)), "R")

    def start(self) -> State:
        mover = Client("read", tries=self.tries)
        rest = Rest(True, (None,) * self.movers, removals=self.removals)
        clients = (mover,) * self.movers
        return State((None,), frozenset(), (*clients, Client("idle")), self.lost, rest)

    def steps(self, state: State) -> Iterator[Step]:
        yield from super().steps(state)
        yield from self._reader(state)

    def broken(self, state: State) -> str | None:
        if state.fault:
            return state.fault
        visible = sum(copy is not None and copy[0] == VISIBLE for copy in state.rest.copies)
        if visible > 1:
            return "I7: a dead set is visible twice"
        is_to_be = any(fate is Fate.SEAL for _, fate in self._decided(state))
        if not (state.rest.has_set or visible or is_to_be):
            return "I1: a dead set is taken out and nowhere else"
        return None

    def describe(self, state: State) -> str:
        row = state.rows[SINK]
        sink = "no row" if row is None else f"{row.writer}: {_text(row.value)}"
        return f"set there: {state.rest.has_set}, copies {state.rest.copies}, {sink}"

    # --- movers (repair/dead.py) ------------------------------------------------------------------
    def _at_read(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row = state.rows[SINK]
        if client.tries == 0:
            yield "gives up", at(state, number, "ended", seen=None)
        elif row is None:
            value = sink_txn.new_row(WHO, now_us=0, is_once=True)
            tried = at(state, number, "read", tries=client.tries - 1)
            yield "finds no row", self.sending(tried, number, "insert", SINK, None, value)
        elif isinstance(sink_txn.admit(row.value, WHO, 0), AlreadyCommitted):
            yield "finds the set committed", at(state, number, "roll", seen=row)
        elif self.rules.takes_the_row:
            tried = at(state, number, "read", tries=client.tries - 1)
            yield "finds the row of another", self._take(tried, number, row)
        else:
            yield "reads the row", at(state, number, "look", seen=row)

    def _take(self, state: State, number: int, row: Row) -> State:
        """What was written under the row as it was becomes void."""
        value = sink_txn.abort(row.value, now_us=0)
        return self.sending(state, number, "take-over", SINK, row, value)

    def _answered(
        self, state: State, number: int, cas: Cas, *, is_applied: bool, is_once: bool
    ) -> State:
        if cas.kind == "removal":
            return at(state, number, "idle", seen=None)
        if cas.kind == "commit":
            if is_applied:
                return at(state, number, "roll", seen=cas.row)
            again = not self.rules.commits_on_that
            return at(state, number, "commit" if again else "ended", seen=None)
        row = state.rows[SINK]
        if not is_applied or row is None or row is not cas.row:
            return at(state, number, "read", seen=None)
        if self.rules.takes_the_row and self.rules.writes_it_once and not is_once:
            return self._take(state, number, row)
        return at(state, number, "look", seen=row)

    def _at_look(self, state: State, number: int, _: Client) -> Iterator[Step]:
        if state.rest.has_set or not self.rules.looks_after:
            yield "sees the set there", at(state, number, "copy")
        else:
            yield "sees the set gone", at(state, number, "ended", seen=None)

    def _at_copy(self, state: State, number: int, client: Client) -> Iterator[Step]:
        state = with_copy(state, number, (PREPARED, client.seen.value.epoch))
        if self.rules.commits_on_that:
            for name, after in self._commit(state, number, client.seen):
                yield f"writes its copy and {name}", after
        else:
            yield "writes its copy", at(state, number, "commit", seen=None)

    def _at_commit(self, state: State, number: int, _: Client) -> Iterator[Step]:
        yield from self._commit(state, number, state.rows[SINK])

    def _commit(self, state: State, number: int, row: Row | None) -> Iterator[Step]:
        copy = state.rest.copies[number]
        if row is None or copy is None:
            yield "finds no row to commit on", at(state, number, "ended", seen=None)
            return
        result = TaskResult(who=WHO, epoch=copy[1], buckets=((_place(number), 1),))
        try:
            decision = sink_txn.decide(row.value, WHO, 0, [result], now_us=0)
        except SinkFenced:
            yield "finds its epoch ended", at(state, number, "ended", seen=None)
            return
        if isinstance(decision, Commit):
            after = self.sending(state, number, "commit", SINK, row, decision.row)
            yield "begins to commit", after
        else:
            yield "finds the set committed", at(state, number, "roll", seen=row)

    def _at_roll(self, state: State, number: int, client: Client) -> Iterator[Step]:
        if self.rules.rolls_before_taking_out:
            state = _rolled(state, client.seen)
        yield "rolls forward", at(state, number, "take", seen=None)

    def _at_take(self, state: State, number: int, _: Client) -> Iterator[Step]:
        state = state._replace(rest=state.rest._replace(has_set=False))
        yield "takes the set out", at(state, number, "ended")

    # --- repair: the row of a move that is over ---------------------------------------------------
    def _at_idle(self, state: State, number: int, _: Client) -> Iterator[Step]:
        is_over = not (state.rest.has_set and self.rules.removes_when_gone)
        if self.rules.rests:
            is_over &= all(one.at in ("read", "ended") for one in state.clients[:-1])
            state = state._replace(air=frozenset())
        if is_over and state.rest.removals and state.rows[SINK] is not None:
            rest = state.rest._replace(removals=state.rest.removals - 1)
            row = state.rows[SINK]
            state = state._replace(rest=rest)
            if self.rules.rolls_before_removal:
                state = _rolled(state, row)
            after = self.sending(state, number, "removal", SINK, row, None)
            yield "sees the set gone, rolls forward and begins to remove the row", after

    # --- anybody who reads the target (queue/roll_forward.py) -------------------------------------
    def _reader(self, state: State) -> Iterator[Step]:
        rest = state.rest
        if rest.settling is not None:
            number, fate = rest.settling
            copy = rest.copies[number]
            done = state._replace(rest=rest._replace(settling=None))
            if copy is not None and copy[0] == PREPARED:
                done = with_copy(done, number, (VISIBLE if fate is Fate.SEAL else VOID, copy[1]))
            yield f"a reader makes M{number}'s copy {fate.value}", done
            return
        for number, fate in self._decided(state):
            settling = state._replace(rest=rest._replace(settling=(number, fate)))
            yield f"a reader finds M{number}'s copy decided: {fate.value}", settling

    def _decided(self, state: State) -> Iterator[tuple[int, Fate]]:
        row = state.rows[SINK]
        sink = None if row is None else row.value
        for number, copy in enumerate(state.rest.copies):
            if copy is not None and copy[0] == PREPARED:
                fate = sink_txn.fate(sink, place=_place(number), epoch=copy[1])
                if fate is not Fate.UNDECIDED:
                    yield number, fate


def _place(number: int) -> Place:
    return Place(WHO.lane, BucketNo(number))


def _rolled(state: State, row: Row) -> State:
    for (_, bucket), _ in row.value.listed:
        copy = state.rest.copies[bucket]
        assert copy is not None
        if copy[0] == VOID:
            return state._replace(fault="I7: a copy that is listed is void")
        state = with_copy(state, bucket, (VISIBLE, copy[1]))
    return state


def with_copy(state: State, number: int, copy: tuple[str, int]) -> State:
    copies = state.rest.copies
    copies = (*copies[:number], copy, *copies[number + 1 :])
    return state._replace(rest=state.rest._replace(copies=copies))


def _text(row: SinkRow) -> str:
    return f"epoch {row.epoch}, last {row.last}, lists {list(row.listed)}"
