"""One due lane from its birth to its end: producers, a reader, repair and a deleter.

See docs/design/due-lanes.md.

The order of the steps is that of `queue/schedule.py`, `queue/reserve.py`, `queue/put/producer.py`
and `repair/cleanup.py`. How a bucket is sealed is one step here; `world` takes that apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Step = tuple[str, "State"]

OVER = 9
"""L = 2^62."""

CLOSER, LATE = 90, 80
"""The writers of rows that no producer has made."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the protocol rests on; a negative control takes one away.

    Attributes:
        reads_register: A birth reads after its schedule row whether the period is closed.
        register_first: Repair closes the period before it reads the schedule.
        closes_row: It closes the monoton row before it judges whether the lane is drained.
        stays_ambiguous: Who has written and then finds L above its bucket never puts again.
        undoes_own: A birth is undone only if nobody has used what it has made.
        raises_low: It is undone as every lane is ended: L goes up before the row goes.
        deletes_after: A deletion reads the schedule after it has raised L of the first lane.
    """

    reads_register: bool = True
    register_first: bool = True
    closes_row: bool = True
    stays_ambiguous: bool = True
    undoes_own: bool = True
    raises_low: bool = True
    deletes_after: bool = True


class Row(NamedTuple):
    """The monoton row: who wrote it last, the next bucket, and whether it is closed."""

    writer: int
    next: int = 0
    is_closed: bool = False


class Put(NamedTuple):
    """A producer: its next step, what it has made or read, its bucket, and what it was told."""

    step: str = "insert"
    seen: object = None
    bucket: int = -1
    outcome: str = ""


class State(NamedTuple):
    """All of the cluster, and where each client is."""

    puts: tuple[Put, ...]
    buckets: tuple[str, ...]
    written: tuple[int, ...]
    late: int
    row: Row | None = None
    is_named: bool = False
    low: int = 0
    closed: bool = False
    finished: bool = False
    is_deleted: bool = False
    repair: str = "begin"
    seen: object = None
    deleter: str = "none"
    delivered: int = 0


@dataclass(kw_only=True)
class DueWorld:
    """The model that is explored.

    Attributes:
        producers: How many put one message each.
        buckets: How many buckets the lane may have.
        late: Copies of an INSERT that land when they like.
        deletes: Whether the queue is deleted meanwhile.
    """

    producers: int = 2
    buckets: int = 1
    late: int = 1
    deletes: bool = False
    rules: Rules = field(default_factory=Rules)

    def start(self) -> State:
        return State(
            puts=(Put(),) * self.producers,
            buckets=("open",) * self.buckets,
            written=(0,) * self.buckets,
            late=self.late,
            deleter="begin" if self.deletes else "none",
        )

    def describe(self, state: State) -> str:
        return str(state)

    def broken(self, state: State) -> str | None:
        for put in state.puts:
            is_delivered = put.bucket >= 0 and bool(state.delivered >> put.bucket & 1)
            if put.outcome == "elsewhere" and is_delivered:
                return "I4: delivered from the due lane, and put again into another"
            if put.outcome != "acknowledged" or is_delivered or state.is_deleted:
                continue
            if state.low > put.bucket:
                return "I1: acknowledged, and L is above it"
            if state.finished or not state.is_named:
                return "I1: acknowledged, and no reader looks there"
        # What repair has begun to finish meanwhile is left to a full pass (`sweep_schedules`).
        is_over = state.deleter == "ended" and self._is_quiet(state) and not state.closed
        if is_over and state.is_named:
            return "I9: a deleted queue has a lane in its schedule, and nobody removes it"
        return None

    @staticmethod
    def _is_quiet(state: State) -> bool:
        return all(put.outcome for put in state.puts)

    def steps(self, state: State) -> Iterator[Step]:
        for number, put in enumerate(state.puts):
            if not put.outcome:
                for name, after in getattr(self, f"_at_{put.step}")(state, number, put):
                    yield f"put{number} {name}", after
        yield from self._reader(state)
        yield from getattr(self, f"_repair_{state.repair}")(state)
        yield from self._deleter(state)
        if state.late and state.row is None and any(put.step != "insert" for put in state.puts):
            yield "a late INSERT lands", state._replace(row=Row(LATE), late=state.late - 1)

    # --- birth (queue/schedule.py) ----------------------------------------------------------------
    def _at_insert(self, state: State, number: int, _: Put) -> Iterator[Step]:
        if state.row is None:
            made = state._replace(row=Row(number))
            yield "makes the row", _put(made, number, step="name", seen=True)
        else:
            yield "finds a row", _put(state, number, step="name", seen=False)

    def _at_name(self, state: State, number: int, _: Put) -> Iterator[Step]:
        yield "names the lane", _put(state._replace(is_named=True), number, step="register")

    def _at_register(self, state: State, number: int, _: Put) -> Iterator[Step]:
        if state.is_deleted:
            yield "reads L of the queue: deleted", _put(state, number, step="undo", bucket=-2)
        elif state.closed and self.rules.reads_register:
            yield "reads that the period is closed", _put(state, number, step="undo")
        else:
            yield "reads the registers", _put(state, number, step="own")

    def _at_own(self, state: State, number: int, _: Put) -> Iterator[Step]:
        after = "undo" if state.low == OVER else "reserve"
        yield f"reads L of the lane: {state.low}", _put(state, number, step=after)

    def _at_undo(self, state: State, number: int, put: Put) -> Iterator[Step]:
        if not put.seen:
            yield "has made nothing", _put(state, number, step="check")
        elif state.row == Row(number) or not self.rules.undoes_own:
            closed = state._replace(row=Row(number + 20, 0, True))
            after = "end" if self.rules.raises_low else "remove"
            yield "closes its row", _put(closed, number, step=after)
        else:
            yield "finds its row in use", _put(state, number, step="check")

    def _at_end(self, state: State, number: int, _: Put) -> Iterator[Step]:
        yield "raises L of the lane", _put(state._replace(low=OVER), number, step="remove")

    def _at_remove(self, state: State, number: int, _: Put) -> Iterator[Step]:
        if state.row == Row(number + 20, 0, True):
            state = state._replace(row=None)
        yield "removes its row", _put(state, number, step="check")

    def _at_check(self, state: State, number: int, _: Put) -> Iterator[Step]:
        is_over = state.low == OVER or (not self.rules.raises_low and state.row is None)
        after = "unnamed" if is_over else "told"
        yield "reads whether the lane is over", _put(state, number, step=after)

    def _at_unnamed(self, state: State, number: int, put: Put) -> Iterator[Step]:
        yield "undoes the name", self._told(state._replace(is_named=False), number, put)

    def _at_told(self, state: State, number: int, put: Put) -> Iterator[Step]:
        yield "leaves it", self._told(state, number, put)

    @staticmethod
    def _told(state: State, number: int, put: Put) -> State:
        return _put(
            state, number, outcome="deleted" if put.bucket == -2 else "elsewhere", bucket=-1
        )

    # --- put (queue/reserve.py, queue/put/producer.py) --------------------------------------------
    def _at_reserve(self, state: State, number: int, put: Put) -> Iterator[Step]:
        row = state.row
        if row is None or row.is_closed:
            yield "finds the lane closed", self._told(state, number, put)
        elif row.next < self.buckets:
            reserved = state._replace(row=Row(number + 10, row.next + 1))
            yield "reserves", _put(reserved, number, step="write", bucket=row.next)

    def _at_write(self, state: State, number: int, put: Put) -> Iterator[Step]:
        written = _with(state.written, put.bucket, 1)
        yield "writes", _put(state._replace(written=written), number, step="look")

    def _at_look(self, state: State, number: int, put: Put) -> Iterator[Step]:
        seen = state.buckets[put.bucket]
        yield f"reads its bucket: {seen}", _put(state, number, step="prove", seen=seen)

    def _at_prove(self, state: State, number: int, put: Put) -> Iterator[Step]:
        if state.low > put.bucket and (self.rules.stays_ambiguous or state.low < OVER):
            outcome = "ambiguous"
        elif state.low > put.bucket or put.seen == "without":
            outcome = "elsewhere"
        else:
            outcome = "acknowledged"
        yield f"reads L: {outcome}", _put(state, number, outcome=outcome)

    # --- get, and what repair does for every lane -------------------------------------------------
    def _reader(self, state: State) -> Iterator[Step]:
        end = 0 if state.row is None else state.row.next
        is_seen = state.is_named and not state.finished
        for bucket in range(min(end, self.buckets)):
            if bucket < state.low or not is_seen:
                continue
            status = state.buckets[bucket]
            if status == "open":
                now = "with" if state.written[bucket] else "without"
                sealed = state._replace(buckets=_with(state.buckets, bucket, now))
                yield f"bucket {bucket} is sealed {now} a message", sealed
            elif status == "with":
                acked = state._replace(
                    buckets=_with(state.buckets, bucket, "acked"),
                    delivered=state.delivered | 1 << bucket,
                )
                yield f"bucket {bucket} is delivered and acked", acked
            elif bucket == state.low:
                dropped = state._replace(buckets=_with(state.buckets, bucket, "open"))
                yield f"bucket {bucket} is dropped", dropped._replace(low=bucket + 1)

    # --- the end (repair/cleanup.py) -------------------------------------------------------------
    def _repair_begin(self, state: State) -> Iterator[Step]:
        if self.rules.register_first:
            yield "repair closes the period", state._replace(closed=True, repair="read")
        else:
            yield "repair reads the schedule", state._replace(repair="late", seen=state.is_named)

    def _repair_late(self, state: State) -> Iterator[Step]:
        after = "close" if state.seen else "register"
        yield "repair closes the period", state._replace(closed=True, repair=after, seen=None)

    def _repair_read(self, state: State) -> Iterator[Step]:
        after = "close" if state.is_named else "register"
        yield "repair reads the schedule", state._replace(repair=after)

    def _repair_close(self, state: State) -> Iterator[Step]:
        row = state.row
        if state.low == OVER:
            yield "repair finds L = 2^62", state._replace(repair="remove")
        elif row is None:
            yield "repair makes a closed row", state._replace(row=Row(CLOSER, 0, True))
        elif row.is_closed or not self.rules.closes_row:
            if state.low >= row.next:
                yield "repair finds it drained", state._replace(repair="raise")
        else:
            yield "repair closes the row", state._replace(row=Row(CLOSER, row.next, True))
        yield "repair dies", state._replace(repair="begin")

    def _repair_raise(self, state: State) -> Iterator[Step]:
        yield "repair raises L", state._replace(low=OVER, repair="remove")
        yield "repair dies", state._replace(repair="begin")

    def _repair_remove(self, state: State) -> Iterator[Step]:
        yield "repair removes the row", state._replace(row=None, repair="unname")
        yield "repair dies", state._replace(repair="begin")

    def _repair_unname(self, state: State) -> Iterator[Step]:
        yield "repair removes the name", state._replace(is_named=False, repair="register")
        yield "repair dies", state._replace(repair="begin")

    def _repair_register(self, state: State) -> Iterator[Step]:
        yield "repair raises the register", state._replace(finished=True, repair="ended")

    def _repair_ended(self, _: State) -> Iterator[Step]:
        return iter(())

    # --- deletion (queue/admin.py) ----------------------------------------------------------------
    def _deleter(self, state: State) -> Iterator[Step]:
        if state.deleter == "begin" and self.rules.deletes_after:
            yield "the deleter raises L", state._replace(is_deleted=True, deleter="read")
        elif state.deleter == "begin":
            after = "late" if state.is_named else "late without"
            yield "the deleter reads the schedule", state._replace(deleter=after)
        elif state.deleter.startswith("late"):
            after = "low" if state.deleter == "late" else "ended"
            yield "the deleter raises L", state._replace(is_deleted=True, deleter=after)
        elif state.deleter == "read":
            after = "low" if state.is_named else "ended"
            yield "the deleter reads the schedule", state._replace(deleter=after)
        elif state.deleter == "low":
            yield "the deleter raises the lane's L", state._replace(low=OVER, deleter="row")
        elif state.deleter == "row":
            yield "the deleter removes the row", state._replace(row=None, deleter="name")
        elif state.deleter == "name":
            yield "the deleter removes the name", state._replace(is_named=False, deleter="ended")


def _put(state: State, number: int, **changes: object) -> State:
    changed = state.puts[number]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(puts=(*state.puts[:number], changed, *state.puts[number + 1 :]))


def _with(values: tuple[object, ...], at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])
