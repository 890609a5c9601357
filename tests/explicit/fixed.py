"""One name and a queue of two fixed lanes whose creator loses the name, step by step (ADR 24).

Somebody else's queue has the name at first. Our creator's INSERT is refused, or lands late, when
that queue is gone: then others use the queue while its creator gives it up. The order of the steps
is that of `queue/admin.py` and `queue/reserve.py`; what one lane alone does is in `lives`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cassieq_spark.store.tables.lanes import CLOSED
from tests.explicit.lwt import Cas, Client, Lwt, Row, State, Step, at, with_client

QUEUE, FIRST, SECOND = 0, 1, 2
OTHERS, OURS, DELETING = "other's", "ours", "deleting"
SETUP = 99
IN_USE = "I1: a queue in use is ended, and nobody has asked for it"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the protocol rests on; a negative control takes one away.

    Attributes:
        touches_first: Who takes ids of another lane sees to it that the first lane's row has
            changed.
        reads_again: And reads that row again after its own change, whatever became of that.
        reads_low: And then the first lane's L: the row may be one that was born again.
        closes_first: A creator that gives up closes the first lane before any other.
        asks_first: And closes the others only if that was applied.
        closes_before_raising: It closes a lane's row before it raises the lane's L.
    """

    touches_first: bool = True
    reads_again: bool = True
    reads_low: bool = True
    closes_first: bool = True
    asks_first: bool = True
    closes_before_raising: bool = True


class Rest(NamedTuple):
    """By lane: whether L says that it is dead, and whether it has an acknowledged message.

    ``is_given_up``: its creator has ended the queue, and nobody had deleted it.
    """

    is_dead: tuple[bool, bool] = (False, False)
    is_used: tuple[bool, bool] = (False, False)
    is_given_up: bool = False


@dataclass(kw_only=True)
class FixedLanes(Lwt):
    """The model that is explored: a creator, a deleter, and clients that put.

    Attributes:
        puts: The lanes that are put into, a client each.
        deletes: How many queues of the name the deleter deletes.
    """

    puts: tuple[int, ...] = (SECOND,)
    deletes: int = 1
    lost: int = 1
    tries: int = 2
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        putters = (f"put{number}" for number, _ in enumerate(self.puts))
        self.names = ("creator", "deleter", *putters)

    def start(self) -> State:
        rows: tuple[Row | None, ...] = (self.row(OTHERS, SETUP), None, None)
        putters = (Client("open", tries=self.tries) for _ in self.puts)
        clients = (Client("make", seen=()), Client("delete", tries=self.deletes), *putters)
        return State(rows, frozenset(), clients, self.lost, Rest())

    def broken(self, state: State) -> str | None:
        if state.fault:
            return state.fault
        row = state.rows[QUEUE]
        is_queue = row is not None and row.value == OURS and self._is_open(state, FIRST)
        if is_queue and not self._is_open(state, SECOND):
            return "I10: a lane of a queue that is there takes no put"
        return None

    def describe(self, state: State) -> str:
        rows = [None if row is None else row.value for row in state.rows]
        return f"queue {rows[0]}, monotons {rows[1:]}, {state.rest}"

    @staticmethod
    def _is_open(state: State, lane: int) -> bool:
        row = state.rows[lane]
        return row is not None and row.value != CLOSED and not state.rest.is_dead[lane - 1]

    # --- create and give up (queue/admin.py, queue/reserve.py) ------------------------------------
    def _at_make(self, state: State, number: int, client: Client) -> Iterator[Step]:
        """It has read that the name is free; what it remembers are its monoton rows as made."""
        made = len(client.seen)
        if made < SECOND:
            after = self.sending(state, number, "monoton insert", FIRST + made, None, 0)
            yield f"makes the row of lane {FIRST + made}", after
        else:
            yield "sends its INSERT", self.sending(state, number, "insert", QUEUE, None, OURS)

    def _at_give_up(self, state: State, number: int, client: Client) -> Iterator[Step]:
        """Closes the next lane, as its row was made; ``seen``: the lanes left, and those rows."""
        todo, unused = client.seen
        if not todo:
            yield "has given up", at(state, number, "ended")
            return
        lane = todo[0]
        if self.rules.closes_before_raising:
            row = unused[lane - FIRST]
            yield f"gives up lane {lane}", self.sending(state, number, "closing", lane, row, CLOSED)
        elif state.rows[lane] is unused[lane - FIRST]:
            yield f"finds lane {lane} unused", at(state, number, "raise", seen=(*client.seen, None))
        else:
            yield f"finds lane {lane} used", at(state, number, "ended")

    def _at_raise(self, state: State, number: int, client: Client) -> Iterator[Step]:
        todo, unused, closed = client.seen
        lane = todo[0]
        if not any(state.rest.is_dead):
            # The first lane stands for the queue: its end is the end of all lanes.
            state = state._replace(rest=state.rest._replace(is_given_up=True))
            if any(state.rest.is_used):
                state = state._replace(fault=IN_USE)
        state = _with_dead(state, lane)
        row = closed or unused[lane - FIRST]
        after = self.sending(state, number, "monoton removal", lane, row, None)
        yield f"raises L of lane {lane}", _remembering(after, number, (todo[1:], unused))

    # --- delete -----------------------------------------------------------------------------------
    def _at_delete(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row = state.rows[QUEUE]
        if row is None or client.tries == 0:
            return
        tried = at(state, number, "delete", tries=client.tries - 1)
        if row.value == OTHERS:
            after = self.sending(tried, number, "removal of the other", QUEUE, row, None)
            yield "deletes the other's queue", after
        else:
            yield "deletes the queue", self.sending(tried, number, "marking", QUEUE, row, DELETING)

    def _at_end(self, state: State, number: int, client: Client) -> Iterator[Step]:
        """Raises L of all lanes, the first one first, then removes their rows, then the queue's."""
        row, step = client.seen
        if step < SECOND:
            after = at(_with_dead(state, FIRST + step), number, "end", seen=(row, step + 1))
            yield f"raises L of lane {FIRST + step}", after
        elif step < 2 * SECOND:
            lane = FIRST + step - SECOND
            monoton = state.rows[lane]
            if monoton is None:
                after = at(state, number, "end", seen=(row, step + 1))
                yield f"finds no row of lane {lane}", after
            else:
                after = self.sending(state, number, "removal of a monoton", lane, monoton, None)
                yield f"removes the row of lane {lane}", after
        else:
            yield "removes the queue", self.sending(state, number, "removal", QUEUE, row, None)

    # --- put (queue/find.py, queue/reserve.py, queue/put/producer.py) -----------------------------
    def _at_open(self, state: State, number: int, _: Client) -> Iterator[Step]:
        row = state.rows[QUEUE]
        if row is None or row.value != OURS:
            return  # it looks again later
        if state.rest.is_dead[0]:
            yield "reads L: no queue", at(state, number, "ended")
        else:
            is_first = self.puts[number - SECOND] == FIRST
            goes_on = is_first or not self.rules.touches_first
            yield "opens the queue", at(state, number, "reserve" if goes_on else "begin")

    def _at_begin(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row = state.rows[FIRST]
        if row is None or row.value == CLOSED:
            yield "finds the first lane closed: deleted", at(state, number, "ended")
        elif len(row.tags) > 1:
            where = "low" if self.rules.reads_low else "reserve"
            yield "finds the first lane's row changed", at(state, number, where)
        elif client.tries:
            tried = at(state, number, "begin", tries=client.tries - 1)
            after = self.sending(tried, number, "touch", FIRST, row, row.value)
            yield "finds the first lane's row as it was made", after
        else:
            yield "gives way", at(state, number, "ended")

    def _at_low(self, state: State, number: int, _: Client) -> Iterator[Step]:
        if state.rest.is_dead[0]:
            yield "reads L of the first lane: deleted", at(state, number, "ended")
        else:
            yield "reads L of the first lane", at(state, number, "reserve")

    def _at_reserve(self, state: State, number: int, _: Client) -> Iterator[Step]:
        lane = self.puts[number - SECOND]
        row = state.rows[lane]
        if row is None or row.value == CLOSED:
            yield "finds no monoton row: deleted", at(state, number, "ended")
        else:
            after = self.sending(state, number, "reservation", lane, row, row.value + 1)
            yield f"begins to reserve in lane {lane}", after

    def _at_prove(self, state: State, number: int, _: Client) -> Iterator[Step]:
        lane = self.puts[number - SECOND]
        if state.rest.is_dead[lane - 1]:
            yield "reads L after its write: deleted", at(state, number, "ended")
        else:
            used = _replaced(state.rest.is_used, lane)
            fault = IN_USE if state.rest.is_given_up else None
            state = state._replace(rest=state.rest._replace(is_used=used), fault=fault)
            yield "is acknowledged", at(state, number, "ended")

    # --- answers ----------------------------------------------------------------------------------
    def _answered(  # noqa: C901, PLR0911 - one per statement
        self,
        state: State,
        number: int,
        cas: Cas,
        *,
        is_applied: bool,
        is_once: bool,  # noqa: ARG002 - of the signature
    ) -> State:
        client = state.clients[number]
        match cas.kind:
            case "monoton insert":
                return at(state, number, "make", seen=(*client.seen, cas.row))
            case "insert":
                if is_applied:
                    return at(state, number, "ended")
                lanes = (FIRST, SECOND) if self.rules.closes_first else (SECOND, FIRST)
                return at(state, number, "give_up", seen=(lanes, client.seen))
            case "closing":
                todo, unused = client.seen
                if is_applied:
                    return at(state, number, "raise", seen=(todo, unused, cas.row))
                if self.rules.asks_first:
                    return at(state, number, "ended")
                return at(state, number, "give_up", seen=(todo[1:], unused))
            case "monoton removal":
                return at(state, number, "give_up")
            case "marking":
                where = "end" if is_applied else "delete"
                return at(state, number, where, seen=(cas.row, 0) if is_applied else None)
            case "removal of a monoton":
                row, step = client.seen
                is_gone = state.rows[cas.key] is None
                return at(state, number, "end", seen=(row, step + is_gone))
            case "removal" | "removal of the other":
                return at(state, number, "delete", seen=None)
            case "touch":
                return at(state, number, "begin" if self.rules.reads_again else "low")
        assert cas.kind == "reservation"
        return at(state, number, "prove" if is_applied else "ended")


def _replaced(values: tuple[bool, bool], lane: int) -> tuple[bool, bool]:
    return (True, values[1]) if lane == FIRST else (values[0], True)


def _with_dead(state: State, lane: int) -> State:
    """L is a max register: it stays up (G4)."""
    is_dead = _replaced(state.rest.is_dead, lane)
    return state._replace(rest=state.rest._replace(is_dead=is_dead))


def _remembering(state: State, number: int, seen: Any) -> State:
    return with_client(state, number, state.clients[number]._replace(seen=seen))
