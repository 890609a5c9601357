"""One name and its queues, one after the other, step by step: created, deleted, born again.

Who deletes takes the steps of `cassieq_spark.model.ending`; what a transaction's row becomes is
computed by `cassieq_spark.model.sink_txn`. The order of the steps is that of `queue/admin.py`,
`queue/put/producer.py`, `spark/sink.py` and `repair/dead.py`. Lane n is the one that creator n
brings along. Buckets hold one message or one batch. A step that never comes is a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from cassieq_spark.errors import SinkFenced
from cassieq_spark.model import ending, sink_txn
from cassieq_spark.model.ending import Close, Drop, Over, Raise
from cassieq_spark.model.ids import BucketNo, LaneId, Place
from cassieq_spark.model.pointer import DELETED, Pointers
from cassieq_spark.model.sink_txn import AlreadyCommitted, Commit, Identity, TaskResult
from cassieq_spark.store.tables.lanes import CLOSED
from tests.explicit.lwt import Cas, Client, Lwt, Row, State, Step, at, with_client, with_row

QUEUE, SINK, MONOTON = 0, 1, 2
SETUP = 99
WRITTEN, ACKED, PREPARED, VISIBLE, GONE = "written", "acked", "prepared", "visible", "gone"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the protocol rests on; a negative control takes one away.

    Attributes:
        judges_by_low: An active row over a dead lane counts as deleting [T14].
        gives_up: Who lost the name to another closes its own lane [T14].
        closes_unused: But only one of which nobody was given an id.
        notes_end: Where the ids end is noted before the monoton row goes [T15].
        removes_as_read: That row goes only as it was read [T15].
        reads_row_first: It is read before the pointers.
        put_reads_low: A put reads L after its write [P13] [R25].
        refuses_other_lane: A commit is refused in another lane than its tasks wrote to [T6].
        commit_reads_low: The committer reads L after its CAS [T6].
        move_reads_low: A mover reads L of its target before it takes the set out.
    """

    judges_by_low: bool = True
    gives_up: bool = True
    closes_unused: bool = True
    notes_end: bool = True
    removes_as_read: bool = True
    reads_row_first: bool = True
    put_reads_low: bool = True
    refuses_other_lane: bool = True
    commit_reads_low: bool = True
    move_reads_low: bool = True


class Queue(NamedTuple):
    """A queue row."""

    lane: int
    is_active: bool = True


class Lane(NamedTuple):
    """What is not LWT of a lane. ``reserved``: by its true monoton row, none born again."""

    pointers: Pointers = Pointers()
    buckets: tuple[str | None, ...] = ()
    reserved: int = 0
    is_closed: bool = False

    def with_bucket(self, number: int, what: str) -> Lane:
        """What was dropped stays so: a drop is written a day ahead [P14]."""
        some = self.buckets + (None,) * (number + 1 - len(self.buckets))
        if some[number] == GONE:
            return self
        return self._replace(buckets=(*some[:number], what, *some[number + 1 :]))


class Rest(NamedTuple):
    """The lanes, and those whose creators were given another's queue; a dead set's whereabouts."""

    lanes: tuple[Lane, ...]
    refused: frozenset[int] = frozenset()
    has_set: bool = True
    was_visible: bool = False


@dataclass(kw_only=True)
class Lives(Lwt):
    """The model that is explored.

    Attributes:
        roles: Of the clients: ``create``, ``delete``, ``open`` (a put), ``task`` (a batch),
            ``move``. Creators come first: creator n brings lane n.
        begins: With a queue that creator 0 has made.
        is_raced: With a queue of creator 1, who was faster: creator 0 has found none, and sends.
    """

    roles: tuple[str, ...]
    begins: bool = False
    is_raced: bool = False
    lost: int = 1
    tries: int = 1
    rules: Rules = field(default_factory=Rules)
    is_alone: bool = False

    def __post_init__(self) -> None:
        self.names = tuple(f"{role}{number}" for number, role in enumerate(self.roles))
        self._alone: dict[object, bool] = {}

    def start(self) -> State:
        lanes = (Lane(),) * (self.roles.count("create") + 1)
        rows: tuple[Row | None, ...] = (None,) * (MONOTON + len(lanes))
        clients = tuple(Client(role, tries=self.tries) for role in self.roles)
        state = State(rows, frozenset(), clients, self.lost, Rest(lanes))
        if self.begins:
            state = with_row(state, QUEUE, self.row(Queue(0), SETUP))
            state = with_row(state, MONOTON, self.row(0, SETUP))
            state = at(state, 0, "ended")
        if self.is_raced:
            state = with_row(state, QUEUE, self.row(Queue(1), SETUP))
            for lane in (0, 1):
                state = with_row(state, MONOTON + lane, self.row(0, SETUP))
            state = at(state, 1, "ended")
            state = self.sending(state, 0, "insert", QUEUE, None, Queue(0))
            state = _remembering(state, 0, state.rows[MONOTON])
        if "task" in self.roles:
            value = sink_txn.new_row(_who(0), now_us=0, is_once=True)
            state = with_row(state, SINK, self.row(value, SETUP))
        return state

    def broken(self, state: State) -> str | None:
        if state.fault or self.is_alone:
            return state.fault
        alive = [lane for lane in state.rest.lanes if not lane.pointers.is_deleted]
        if "move" in self.roles and sum(lane.buckets.count(VISIBLE) for lane in alive) > 1:
            return "I7: a dead set is visible twice"
        row = state.rows[QUEUE]
        is_refused = row is not None and row.value.lane in state.rest.refused
        if is_refused and self._is_usable(state, row.value):
            return "G3: a create that was refused has made a queue"
        if not self._can_be_used(state):
            return "I10: a client that runs alone cannot create the queue and put into it"
        return None

    def describe(self, state: State) -> str:
        row, rest = state.rows[QUEUE], state.rest
        lanes = [f"L={one.pointers.repair} {one.buckets}" for one in rest.lanes]
        monotons = [None if one is None else one.value for one in state.rows[MONOTON:]]
        return f"{None if row is None else row.value}, monotons {monotons}, lanes {lanes}"

    # --- create (queue/admin.py) ------------------------------------------------------------------
    def _at_create(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row = state.rows[QUEUE]
        if client.tries == 0:
            yield "gives up", at(state, number, "ended")
        elif row is None:
            tried = at(state, number, "create", tries=client.tries - 1)
            key = MONOTON + number
            yield "finds no queue", self.sending(tried, number, "monoton insert", key, None, 0)
        elif self._is_usable(state, row.value):
            yield "finds the queue", at(state, number, "created" if self.is_alone else "ended")
        else:
            yield "finds a queue half deleted", at(state, number, "end", seen=(row, "create"))

    def _is_usable(self, state: State, queue: Queue) -> bool:
        if not queue.is_active or not self.rules.judges_by_low:
            return queue.is_active
        monoton = state.rows[MONOTON + queue.lane]
        is_open = monoton is not None and monoton.value != CLOSED
        return is_open and not state.rest.lanes[queue.lane].pointers.is_deleted

    def _at_give_up(self, state: State, number: int, client: Client) -> Iterator[Step]:
        key = MONOTON + number
        monoton = client.seen if self.rules.closes_unused else state.rows[key]
        after = self.sending(state, number, "closing", key, monoton, CLOSED)
        yield "has lost the name", after

    def _at_raise(self, state: State, number: int, client: Client) -> Iterator[Step]:
        if ACKED in state.rest.lanes[number].buckets:
            state = state._replace(fault="I1: a queue in use is ended, and nobody has asked for it")
        state = _pointing(state, number, repair=DELETED)
        after = self.sending(state, number, "monoton removal", MONOTON + number, client.seen, None)
        yield "raises L of its lane", after

    # --- delete (queue/admin.py, model/ending.py) -------------------------------------------------
    def _at_delete(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row = state.rows[QUEUE]
        if row is None or client.tries == 0:
            return
        tried = at(state, number, "delete", tries=client.tries - 1)
        if row.value.is_active:
            value = row.value._replace(is_active=False)
            yield "begins to delete", self.sending(tried, number, "marking", QUEUE, row, value)
        else:
            yield "finds the queue half deleted", at(tried, number, "end", seen=(row, "delete"))

    def _at_end(self, state: State, number: int, client: Client) -> Iterator[Step]:
        """Reads the one row, then goes on to read the other; and acts on both."""
        row, back = client.seen
        lane = row.value.lane
        if self.rules.reads_row_first:
            read: object = state.rows[MONOTON + lane]
            yield "reads the monoton row", at(state, number, "step", seen=(row, back, read))
        else:
            read = state.rest.lanes[lane].pointers
            yield "reads the pointers", at(state, number, "step", seen=(row, back, read))

    def _at_step(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row, back, read = client.seen
        lane = row.value.lane
        monoton, pointers = read, state.rest.lanes[lane].pointers
        if not self.rules.reads_row_first:
            monoton, pointers = state.rows[MONOTON + lane], read
        ids_end = None if monoton is None else BucketNo(max(0, monoton.value))
        state = at(state, number, "end", seen=(row, back))
        match ending.next_step(ids_end, pointers, at_most=1):
            case Raise(dropped=dropped):
                yield "raises L", _pointing(state, lane, dropped=dropped, repair=DELETED)
            case Close(end=end):
                if self.rules.notes_end:
                    state = _pointing(state, lane, end=end)
                after = at(state, number, "close", seen=(row, back, monoton))
                yield f"notes that the ids end at {end}", after
            case Drop(first=first, end=end):
                one = state.rest.lanes[lane].with_bucket(first, GONE)
                dropped_now = _pointing(with_lane(state, lane, one), lane, dropped=end)
                yield f"drops bucket {first}", dropped_now
            case Over():
                after = self.sending(state, number, "removal", QUEUE, row, None)
                yield "finds nothing left", after

    def _at_close(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row, _, monoton = client.seen
        key = MONOTON + row.value.lane
        if not self.rules.removes_as_read:
            monoton = state.rows[key]
        if monoton is None:
            yield "finds the monoton row gone", at(state, number, "end", seen=client.seen[:2])
        else:
            after = self.sending(state, number, "monoton removal", key, monoton, None)
            yield "begins to remove the monoton row", after

    # --- put (queue/put/producer.py) --------------------------------------------------------------
    def _at_open(self, state: State, number: int, _: Client) -> Iterator[Step]:
        yield from self._opened(state, number, "judge")

    def _opened(self, state: State, number: int, then: str) -> Iterator[Step]:
        row = state.rows[QUEUE]
        if row is None or not row.value.is_active:
            yield "finds no queue", at(state, number, "ended")
        else:
            yield f"finds lane {row.value.lane}", at(state, number, then, seen=row.value.lane)

    def _at_judge(self, state: State, number: int, client: Client) -> Iterator[Step]:
        if self.rules.judges_by_low and state.rest.lanes[client.seen].pointers.is_deleted:
            yield "reads L: no queue", at(state, number, "ended")
        else:
            for name, after in self._reserve(state, number, client):
                yield f"reads L, {name}", after

    def _reserve(self, state: State, number: int, client: Client) -> Iterator[Step]:
        key = MONOTON + client.seen
        row = state.rows[key]
        if row is None or row.value == CLOSED:
            yield "finds no monoton row: deleted", at(state, number, "ended")
        else:
            after = self.sending(state, number, "reservation", key, row, row.value + 1)
            yield "begins to reserve", after

    def _at_write(self, state: State, number: int, client: Client) -> Iterator[Step]:
        lane, bucket = client.seen
        one = state.rest.lanes[lane].with_bucket(bucket, WRITTEN)
        yield "writes its message", at(with_lane(state, lane, one), number, "prove")

    def _at_prove(self, state: State, number: int, client: Client) -> Iterator[Step]:
        lane, bucket = client.seen
        one = state.rest.lanes[lane]
        if one.pointers.is_deleted and self.rules.put_reads_low:
            yield "reads L: deleted", at(state, number, "ended")
            return
        if one.pointers.is_deleted:
            state = state._replace(fault="I1: a put is acknowledged that a deletion has dropped")
        state = with_lane(state, lane, one.with_bucket(bucket, ACKED))
        yield "is acknowledged", at(state, number, "acknowledged" if self.is_alone else "ended")

    # --- a batch of a sink (spark/sink.py, queue/sink/transaction.py) -----------------------------
    def _at_task(self, state: State, number: int, _: Client) -> Iterator[Step]:
        """Tasks have opened lane 0; they prepare what the driver then commits."""
        state = at(state, number, "task", seen=0)
        yield from self._reserve(state, number, state.clients[number])

    def _at_prepare(self, state: State, number: int, client: Client) -> Iterator[Step]:
        lane, bucket = client.seen
        one = state.rest.lanes[lane].with_bucket(bucket, PREPARED)
        yield "prepares its batch", at(with_lane(state, lane, one), number, "open_again")

    def _at_open_again(self, state: State, number: int, client: Client) -> Iterator[Step]:
        lane, bucket = client.seen
        for name, after in self._opened(state, number, "commit"):
            found = after.clients[number]
            is_refused = found.at == "commit" and found.seen != lane
            if is_refused and self.rules.refuses_other_lane:
                yield f"{name}: another queue", at(after, number, "ended")
            elif found.at == "commit":
                yield name, at(after, number, "commit", seen=(lane, bucket, found.seen))
            else:
                yield name, after

    def _at_commit(self, state: State, number: int, client: Client) -> Iterator[Step]:
        lane, bucket, _ = client.seen
        row = state.rows[SINK]
        assert row is not None
        result = TaskResult(who=_who(lane), epoch=1, buckets=((_place(lane, bucket), 1),))
        decision = sink_txn.decide(row.value, _who(lane), 0, [result], now_us=0)
        assert isinstance(decision, Commit)
        after = self.sending(state, number, "commit", SINK, row, decision.row)
        yield "begins to commit", after

    def _at_committed(self, state: State, number: int, client: Client) -> Iterator[Step]:
        lane, _, opened = client.seen
        is_seen = state.rest.lanes[opened].pointers.is_deleted
        if is_seen and self.rules.commit_reads_low:
            yield "reads L: deleted", at(state, number, "ended")
            return
        if state.rest.lanes[lane].pointers.is_deleted:
            state = state._replace(fault="I7: a write succeeds, and its batch is nowhere")
        yield "has succeeded", at(state, number, "ended")

    # --- a mover into this queue (repair/dead.py) -------------------------------------------------
    def _at_move(self, state: State, number: int, _: Client) -> Iterator[Step]:
        yield from self._opened(state, number, "begin")

    def _at_begin(self, state: State, number: int, client: Client) -> Iterator[Step]:
        row, lane = state.rows[SINK], client.seen
        who = _who(lane)
        if state.rest.lanes[lane].pointers.is_deleted and self.rules.judges_by_low:
            yield "reads L: no queue", at(state, number, "ended")
        elif row is None:
            value = sink_txn.new_row(who, now_us=0, is_once=True)
            yield "finds no row", self.sending(state, number, "sink insert", SINK, None, value)
        elif row.value.lane != who.lane:
            # Of a queue that was deleted: nobody knows whether the set was visible there.
            value = sink_txn.forget(row.value, lane=who.lane, now_us=0)
            after = self.sending(state, number, "take-over", SINK, row, value)
            yield "finds the row of another queue", after
        elif isinstance(sink_txn.admit(row.value, who, 0), AlreadyCommitted):
            yield "finds the set committed", at(state, number, "roll", seen=(lane, row))
        else:
            value = sink_txn.abort(row.value, now_us=0)
            after = self.sending(state, number, "take-over", SINK, row, value)
            yield "finds the row of another mover", after

    def _at_look(self, state: State, number: int, client: Client) -> Iterator[Step]:
        if state.rest.has_set:
            lane, row = client.seen
            state = at(state, number, "look", seen=lane)
            for name, after in self._reserve(state, number, state.clients[number]):
                is_sent = after.clients[number].at == "sent"
                sent = _remembering(after, number, (lane, row)) if is_sent else after
                yield f"sees the set there and {name}", sent
        else:
            yield "sees the set gone", at(state, number, "ended")

    def _at_copy(self, state: State, number: int, client: Client) -> Iterator[Step]:
        lane, row, bucket = client.seen
        one = state.rest.lanes[lane].with_bucket(bucket, PREPARED)
        state = with_lane(state, lane, one)
        result = TaskResult(
            who=_who(lane), epoch=row.value.epoch, buckets=((_place(lane, bucket), 1),)
        )
        try:
            decision = sink_txn.decide(row.value, _who(lane), 0, [result], now_us=0)
        except SinkFenced:
            yield "finds its epoch ended", at(state, number, "ended")
            return
        assert isinstance(decision, Commit)
        after = self.sending(state, number, "commit", SINK, row, decision.row)
        yield "writes its copy and begins to commit", after

    def _at_roll(self, state: State, number: int, client: Client) -> Iterator[Step]:
        lane, row = client.seen
        one = state.rest.lanes[lane]
        for (_, bucket), _ in row.value.listed:
            one = one.with_bucket(bucket, VISIBLE)
        state = with_lane(state, lane, one)
        if not one.pointers.is_deleted:
            state = state._replace(rest=state.rest._replace(was_visible=True))
        yield "rolls forward", at(state, number, "take", seen=lane)

    def _at_take(self, state: State, number: int, client: Client) -> Iterator[Step]:
        is_deleted = state.rest.lanes[client.seen].pointers.is_deleted
        if is_deleted and self.rules.move_reads_low:
            yield "reads L: deleted, the set stays", at(state, number, "ended")
        else:
            yield "reads L", at(state, number, "take_out")

    def _at_take_out(self, state: State, number: int, _: Client) -> Iterator[Step]:
        if not state.rest.was_visible:
            state = state._replace(fault="I1: a dead set is taken out and was never visible")
        state = state._replace(rest=state.rest._replace(has_set=False))
        yield "takes the set out", at(state, number, "ended")

    # --- answers ----------------------------------------------------------------------------------
    def _answered(  # noqa: C901, PLR0911, PLR0912 - one per statement
        self, state: State, number: int, cas: Cas, *, is_applied: bool, is_once: bool
    ) -> State:
        client = state.clients[number]
        row = cas.row
        match cas.kind:
            case "monoton insert":
                after = self.sending(state, number, "insert", QUEUE, None, Queue(number))
                return _remembering(after, number, row)
            case "insert":
                if is_applied:
                    return at(state, number, "created" if self.is_alone else "ended", seen=None)
                if self.rules.gives_up:
                    return at(state, number, "give_up")
                return at(_refused(state, number), number, "ended")
            case "closing":
                if is_applied:
                    return at(_refused(state, number), number, "raise", seen=row)
                return at(state, number, "ended")
            case "marking":
                if is_applied:
                    return at(state, number, "end", seen=(row, "delete"))
                return at(state, number, "delete")
            case "monoton removal":
                if client.seen is None or not isinstance(client.seen, tuple):
                    return at(state, number, "ended")  # of its own lane, given up
                lane = client.seen[0].value.lane
                if state.rows[MONOTON + lane] is None:
                    one = state.rest.lanes[lane]._replace(is_closed=True)
                    state = with_lane(state, lane, one)
                return at(state, number, "end", seen=client.seen[:2])
            case "removal":
                return self._removed(state, number, *client.seen)
            case "reservation":
                return self._reserved(state, number, cas, is_applied=is_applied)
            case "commit":
                if not is_applied:
                    return at(state, number, "ended")
                if self.roles[number] == "move":
                    return at(state, number, "roll", seen=(client.seen[0], row))
                return at(state, number, "committed")
        assert cas.kind in ("sink insert", "take-over")
        if not is_applied or state.rows[SINK] is not row:
            return at(state, number, "move" if client.tries else "ended", tries=0)
        if not is_once:
            assert row is not None
            value = sink_txn.abort(row.value, now_us=0)
            return self.sending(state, number, "take-over", SINK, row, value)
        return at(state, number, "look", seen=(client.seen, row))

    def _removed(self, state: State, number: int, row: Row, back: str) -> State:
        """The queue row is gone, by this deleter or another."""
        lane = state.rest.lanes[row.value.lane]
        is_left = any(
            number >= len(lane.buckets) or lane.buckets[number] != GONE
            for number in range(lane.reserved)
        )
        if is_left and state.rows[QUEUE] is None:
            state = state._replace(fault="I9: a deletion leaves behind what was reserved")
        return at(state, number, back, seen=None)

    def _reserved(self, state: State, number: int, cas: Cas, *, is_applied: bool) -> State:
        client = state.clients[number]
        if not is_applied or cas.row is None:
            return at(state, number, "ended")
        bucket = cas.row.value - 1
        number_of_lane = cas.key - MONOTON
        lane = state.rest.lanes[number_of_lane]
        if not lane.is_closed:
            lane = lane._replace(reserved=max(lane.reserved, bucket + 1))
            state = with_lane(state, number_of_lane, lane)
        match self.roles[number]:
            case "task":
                return at(state, number, "prepare", seen=(number_of_lane, bucket))
            case "move":
                return at(state, number, "copy", seen=(*client.seen, bucket))
        return at(state, number, "write", seen=(number_of_lane, bucket))

    # --- I10: nobody is stuck ---------------------------------------------------------------------
    def _can_be_used(self, state: State) -> bool:
        """Whether a fresh client that runs alone creates the queue, if need be, and puts."""
        key = (state.rows, state.rest.lanes)
        if key not in self._alone:
            last = len(state.rest.lanes) - 1
            roles = ("create",) * (last + 1)
            world = Lives(roles=roles, lost=0, rules=self.rules, is_alone=True)
            self._alone[key] = world._use(state, last)
        return self._alone[key]

    def _use(self, state: State, last: int) -> bool:
        alone = (*(Client("ended"),) * last, Client("create", tries=9, made=500))
        state = State(state.rows, frozenset(), alone, 0, state.rest)
        for _ in range(100):
            where = state.clients[last].at
            if where in ("acknowledged", "ended"):
                return where == "acknowledged"
            if where == "created":
                state = at(state, last, "open")
            options = list(self.steps(state))
            if not options:
                return False
            state = options[0][1]
        return False


def _place(lane: int, bucket: int) -> Place:
    return Place(_who(lane).lane, BucketNo(bucket))


def _who(lane: int) -> Identity:
    return Identity(sink_id="once:1", lane=LaneId(UUID(int=lane + 1)))


def _remembering(state: State, number: int, seen: object) -> State:
    return with_client(state, number, state.clients[number]._replace(seen=seen))


def _refused(state: State, number: int) -> State:
    refused = state.rest.refused | {number}
    return state._replace(rest=state.rest._replace(refused=refused))


def with_lane(state: State, number: int, lane: Lane) -> State:
    lanes = state.rest.lanes
    lanes = (*lanes[:number], lane, *lanes[number + 1 :])
    return state._replace(rest=state.rest._replace(lanes=lanes))


def _pointing(state: State, number: int, **to: int) -> State:
    """Max registers (G4)."""
    lane = state.rest.lanes[number]
    up = {name: BucketNo(max(value, getattr(lane.pointers, name))) for name, value in to.items()}
    return with_lane(state, number, lane._replace(pointers=replace(lane.pointers, **up)))
