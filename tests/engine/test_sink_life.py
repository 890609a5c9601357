"""Sink rows that go, or come back, under their writers: no batch is lost or doubled (ADR 18)."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from cassieq_spark.errors import CasAmbiguous, QueueDeleted, RowCorrupt, SinkFenced
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.dead import movable
from cassieq_spark.model.ids import BucketNo, LaneId, Place
from cassieq_spark.model.outcome import Applied, Refused
from cassieq_spark.model.sink_txn import (
    Begun,
    BucketList,
    Identity,
    SinkRow,
    TaskResult,
    move_id,
)
from cassieq_spark.queue.sink import transaction
from cassieq_spark.repair.dead import move
from cassieq_spark.repair.transactions import LONGEST_PATIENCE_S, REST_S
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Crash, cost, crash
from tests.fixtures.transports import run_cql

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.model.outcome import Stored
    from cassieq_spark.repair.report import QueueRepair
    from tests.fixtures.queues import Door, OpenDoor

FIVE = [b"%d" % number for number in range(5)]
A_DAY_S = 86_400.0
TWO_DAYS_S = 2 * A_DAY_S
SOON_S = 30.0
"""Ends a test that hangs; none expects it."""


@pytest.fixture(scope="module")
def keyspace() -> str:
    """Passes over all queues, days later: not over those of all other tests."""
    return "cassieq_sink_life"


def died(open_door: OpenDoor, movers: int, **settings: float) -> tuple[list[Door], Door]:
    """(clients of a queue with five messages in one dead set, its dead-letter queue)."""
    graves = open_door(".dead", **settings)
    doors = [
        open_door(max_deliveries=1, dead_letter_queue=graves.queue.name) for _ in range(movers)
    ]
    first = doors[0].queue
    first.put_many(FIVE)
    first.reject(first.get(100), reason="timeout")
    assert 5 == first.stats().dead
    return doors, graves


def sink_of_the_move(door: Door) -> str:
    (part,) = door.value(0).dead
    return move_id(part.set_id)


def repair(door: Door) -> QueueRepair:
    (done,) = door.client.repair(door.queue.name).queues
    return done


def moved_in_two_days(door: Door) -> None:
    """By a pass to which the other mover looks dead: it was asleep for longer than rows rest."""
    door.clock.advance(TWO_DAYS_S)
    assert (5, []) == (repair(door).moved_dead, door.client.repair(door.queue.name).problems)


# --- moves ----------------------------------------------------------------------------------------


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("step", ["read_sink", "update_sink"])
def test_t3_a_dead_set_is_moved_once_though_its_row_is_born_again(
    open_door: OpenDoor, step: str
) -> None:
    """A is about to commit and C about to insert; B moves the set and ends the row; C makes it."""
    (a, b, c), graves = died(open_door, 3)
    c_waits, c_goes, c_has_born, a_is_done = (threading.Event() for _ in range(4))
    seen: list[QueueRepair] = []

    def before_the_insert() -> None:
        c.faults.before("read_bucket", before_the_look)
        c_waits.set()
        assert c_goes.wait(SOON_S)

    def before_the_look() -> None:
        c_has_born.set()
        assert a_is_done.wait(SOON_S)

    def before_the_commit() -> None:
        moved_in_two_days(b)
        c_goes.set()
        assert c_has_born.wait(SOON_S)

    c.faults.before("insert_sink", before_the_insert)
    third = threading.Thread(target=lambda: seen.append(repair(c)))
    third.start()
    assert c_waits.wait(SOON_S)
    a.faults.before(step, before_the_commit)
    seen.append(repair(a))
    a_is_done.set()
    third.join()

    assert FIVE == graves.drain()
    assert [(0, []), (0, [])] == [(one.moved_dead, one.problems) for one in seen]
    assert 0 == b.queue.stats().dead


@pytest.mark.invariant("I7")
def test_t3_a_late_copy_of_a_movers_own_insert_lets_it_commit_nothing(open_door: OpenDoor) -> None:
    """It brings back the very version that A has written first: its commit asks for a later one."""
    (a, b), graves = died(open_door, 2)
    a.faults.plan("insert_sink", Fault.LATE)

    def before_the_commit() -> None:
        moved_in_two_days(b)
        assert 1 == a.faults.land()

    a.faults.before("fill_bucket", lambda: a.faults.before("update_sink", before_the_commit))
    done = repair(a)

    assert FIVE == graves.drain()
    assert (0, []) == (done.moved_dead, done.problems)
    # What the late copy has left is litter: the set is nowhere, so the row goes when it has rested.
    b.clock.advance(REST_S)
    b.client.repair()
    assert not [one for one in portal.run(b.store.sinks.once()) if one.lane == graves.lane.lane_id]


@pytest.mark.invariant("I7")
def test_t3_a_late_copy_of_anothers_insert_lets_nobody_commit_twice(open_door: OpenDoor) -> None:
    (a, b), graves = died(open_door, 2)
    b.faults.plan("insert_sink", Fault.LATE)

    def before_the_commit() -> None:
        moved_in_two_days(b)
        assert 1 == b.faults.land()

    a.faults.before("update_sink", before_the_commit)
    repair(a)
    assert FIVE == graves.drain()
    assert 0 == b.queue.stats().dead


STEPS = (
    "insert_sink",
    "reserve",
    "insert_bucket",
    "write_message",
    "fill_bucket",
    "update_sink",
    "update_bucket",
    "delete_sink",
)


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("step", STEPS)
def test_a_mover_asleep_for_two_days_before_any_step_moves_nothing_twice(
    open_door: OpenDoor, step: str
) -> None:
    (a, b, c), graves = died(open_door, 3)

    def for_two_days() -> None:
        b.clock.advance(TWO_DAYS_S)
        b.client.repair(b.queue.name)
        c.clock.advance(2 * TWO_DAYS_S)
        c.client.repair()

    a.faults.before(step, for_two_days)
    assert [] == repair(a).problems
    assert FIVE == graves.drain()
    assert 0 == a.queue.stats().dead
    assert [] == a.client.verify(a.queue.name).findings


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("step", STEPS)
def test_a_mover_that_dies_is_taken_over_and_one_that_takes_over_too(
    open_door: OpenDoor, step: str
) -> None:
    (a, b, c), graves = died(open_door, 3)
    a.faults.before("fill_bucket", crash)
    with pytest.raises(Crash):
        repair(a)
    b.clock.advance(60)
    b.faults.before(step, crash)
    with pytest.raises(Crash):
        repair(b)
    c.clock.advance(3_600)
    repair(c)
    assert FIVE == graves.drain()
    assert 0 == c.queue.stats().dead
    c.client.repair(graves.queue.name)
    assert {"void", "drained", "open"} >= graves.queue.stats().buckets.keys()


@pytest.mark.invariant("I1")
def test_a_set_stays_where_it_is_if_its_copy_went_with_a_queue(open_door: OpenDoor) -> None:
    """A's commit comes after the deletion, and A dies; to B the set looks as if it was moved."""
    (a, b), graves = died(open_door, 2)
    target = graves.lane

    def before_the_commit() -> None:
        b.client.delete_queue(graves.queue.name, force=True)
        a.faults.before("read_pointers", crash)

    a.faults.before("update_sink", before_the_commit)
    with pytest.raises(Crash):
        repair(a)
    (dead,) = movable(b.value(0).dead)
    with pytest.raises(QueueDeleted):
        portal.run(move(b.lane, target, BucketNo(0), dead))
    assert 5 == b.queue.stats().dead


def test_a_mover_leaves_a_set_to_one_that_is_at_work(open_door: OpenDoor) -> None:
    (a, b), graves = died(open_door, 2)
    found: list[QueueRepair] = []
    a.faults.before("update_sink", lambda: found.append(repair(b)))
    assert 5 == repair(a).moved_dead
    assert [(0, [])] == [(one.moved_dead, one.problems) for one in found]
    assert FIVE == graves.drain()


@pytest.mark.invariant("I10")
def test_t18_a_move_that_takes_longer_than_the_timeout_is_neither_aborted_nor_taken_over(
    open_door: OpenDoor,
) -> None:
    (a, b), graves = died(open_door, 2, repair_timeout=6)
    sink_id = sink_of_the_move(a)
    others: list[QueueRepair] = []

    def a_long_copy() -> None:
        for one in (a, b):
            one.clock.advance(60)
        wait_until(
            lambda: portal.run(a.store.heartbeats.is_alive(sink_id, timeout_s=6)),
            deadline_s=SOON_S,
            describe=lambda: "the mover beats",
        )
        others.append(repair(b))
        others.extend(b.client.repair(graves.queue.name).queues)

    a.faults.before("fill_bucket", a_long_copy)
    done = repair(a)
    assert (5, []) == (done.moved_dead, done.problems)
    assert [0, 0] == [one.aborted + one.moved_dead for one in others]
    assert FIVE == graves.drain()


def test_t18_a_move_that_was_aborted_is_reported_and_done_by_the_next_pass(
    open_door: OpenDoor,
) -> None:
    (a, b), graves = died(open_door, 2)

    def aborted() -> None:
        b.clock.advance(60)
        (done,) = b.client.repair(graves.queue.name).queues
        assert 1 == done.aborted

    a.faults.before("update_sink", aborted)
    (problem,) = repair(a).problems
    assert "5 messages of bucket 0" in problem
    assert "was ended while it went on" in problem
    assert 5 == a.queue.stats().dead
    b.clock.advance(60)
    assert 5 == repair(b).moved_dead
    assert FIVE == graves.drain()


def test_t18_a_redrive_that_was_aborted_says_so_and_the_messages_wait(open_door: OpenDoor) -> None:
    target, source, other = open_door(".to"), open_door(), open_door()
    source.queue.put_many(FIVE)

    def aborted() -> None:
        other.clock.advance(60)
        other.client.repair(target.queue.name)

    source.faults.before("update_sink", aborted)
    done = source.client.redrive(source.queue.name, to=target.queue.name)
    (problem,) = done.problems
    assert "was ended while it went on" in problem
    assert (0, 5) == (done.moved, done.waiting)
    other.clock.advance(60)
    repair(other)
    assert FIVE == target.drain()


# --- df.write without an id -----------------------------------------------------------------------


@pytest.mark.invariant("I7")
def test_t3_a_write_that_was_ended_is_not_committed_on_its_row_as_it_is_born_again(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(), open_door()
    sink_id = f"once:{door.queue.name}"
    door.faults.plan("insert_sink", Fault.LATE)
    once = portal.run(transaction.begin_once(door.lane, sink_id))
    result = door.task_once(once, b"a", b"b")

    for _ in range(3):
        other.clock.advance(TWO_DAYS_S)
        repair(other)
    assert portal.run(other.store.sinks.read(sink_id)) is None
    assert 1 == door.faults.land()
    assert portal.run(door.store.sinks.read(sink_id)) is not None

    with pytest.raises(SinkFenced):
        portal.run(transaction.commit_once(door.lane, once, [result]))
    assert [] == other.drain()


@pytest.mark.invariant("I7")
def test_t3_an_aborted_write_goes_on_under_no_later_epoch(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    once = portal.run(transaction.begin_once(door.lane, f"once:{door.queue.name}"))
    result = door.task_once(once, b"a")
    other.clock.advance(LONGEST_PATIENCE_S)
    repair(other)
    with pytest.raises(SinkFenced):
        door.task_once(once, b"b")
    with pytest.raises(SinkFenced):
        portal.run(transaction.commit_once(door.lane, once, [result]))
    assert [] == other.drain()


@pytest.mark.invariant("I7")
def test_t8_a_write_whose_first_task_starts_late_is_left_alone(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    once = portal.run(transaction.begin_once(door.lane, f"once:{door.queue.name}"))
    other.clock.advance(LONGEST_PATIENCE_S - 60)
    repair(other)
    first = door.task_once(once, b"a")
    # Between two waves of its tasks, too, nobody beats.
    repair(other)
    second = door.task_once(once, b"b")
    assert 2 == portal.run(transaction.commit_once(door.lane, once, [first, second]))
    assert [b"a", b"b"] == other.drain()


def unheard(door: Door, meanwhile: Callable[[], object]) -> int:
    """A write whose commit is answered to nobody, and sent again when its row has rested."""
    once = portal.run(transaction.begin_once(door.lane, f"once:{door.queue.name}"))
    result = door.task_once(once, b"a", b"b")
    door.faults.plan("update_sink", Fault.TIMEOUT_AFTER)
    door.faults.before("update_sink", meanwhile, after=1)
    return portal.run(transaction.commit_once(door.lane, once, [result]))


@pytest.mark.invariant("I7")
def test_t9_a_commit_that_was_not_heard_finds_its_row_resting(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()

    def repaired() -> None:
        other.clock.advance(A_DAY_S - 60)
        assert 0 == repair(other).sinks_ended

    assert 2 == unheard(door, repaired)
    assert [b"a", b"b"] == other.drain()


@pytest.mark.invariant("I7")
def test_t9_a_commit_that_was_not_heard_is_known_by_its_buckets(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()

    def ended() -> None:
        other.clock.advance(TWO_DAYS_S)
        assert 1 == repair(other).sinks_ended

    assert 2 == unheard(door, ended)
    assert [b"a", b"b"] == other.drain()


@pytest.mark.invariant("I7")
def test_t9_a_commit_that_nobody_can_tell_of_is_ambiguous_and_not_called_void(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(), open_door()
    drained: list[bytes] = []

    def ended_and_consumed() -> None:
        drained.extend(other.drain())
        other.clock.advance(TWO_DAYS_S)
        done = repair(other)
        assert (1, 1) == (done.sinks_ended, min(done.dropped, 1))

    with pytest.raises(CasAmbiguous, match="Look for its messages"):
        unheard(door, ended_and_consumed)
    assert [b"a", b"b"] == drained


@pytest.mark.invariant("I7")
def test_t9_a_commit_that_never_came_is_no_commit_though_it_was_not_answered(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(), open_door()
    door.put(b"keeps what is above it from being dropped")
    once = portal.run(transaction.begin_once(door.lane, f"once:{door.queue.name}"))
    result = door.task_once(once, b"a")

    def ended() -> None:
        for _ in range(2):
            other.clock.advance(TWO_DAYS_S)
            repair(other)

    door.faults.plan("update_sink", Fault.TIMEOUT_BEFORE)
    door.faults.before("update_sink", ended, after=1)
    with pytest.raises(SinkFenced):
        portal.run(transaction.commit_once(door.lane, once, [result]))
    assert 1 == len(other.drain())


# --- queues that go -------------------------------------------------------------------------------


def commit(door: Door, under: Begun | Identity, result: TaskResult) -> int:
    if isinstance(under, Begun):
        return portal.run(transaction.commit_once(door.lane, under, [result]))
    return portal.run(transaction.commit(door.lane, under, 0, [result]))


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("is_once", [True, False])
def test_t6_a_batch_of_a_queue_that_was_created_again_is_refused(
    open_door: OpenDoor, *, is_once: bool
) -> None:
    door = open_door()
    who = door.identity()
    once = portal.run(transaction.begin_once(door.lane, f"once:{door.queue.name}"))
    result = door.task_once(once, b"a") if is_once else door.task(who, 0, b"a")
    door.client.delete_queue(door.queue.name)
    anew = open_door()
    with pytest.raises(QueueDeleted, match="created again"):
        commit(anew, once if is_once else who, result)
    with pytest.raises(QueueDeleted, match="created again"):
        portal.run(transaction.admit_once(anew.lane, once))
    assert [] == anew.drain()


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("is_once", [True, False])
@pytest.mark.parametrize("when", ["read_sink", "update_sink"])
def test_t6_a_batch_whose_queue_is_deleted_around_its_commit_is_no_success(
    open_door: OpenDoor, when: str, *, is_once: bool
) -> None:
    door, other = open_door(), open_door()
    who = door.identity()
    once = portal.run(transaction.begin_once(door.lane, f"once:{door.queue.name}"))
    result = door.task_once(once, b"a") if is_once else door.task(who, 0, b"a")
    door.faults.before(when, lambda: other.client.delete_queue(other.queue.name))
    with pytest.raises(QueueDeleted):
        commit(door, once if is_once else who, result)


def test_t6_a_commit_is_a_success_though_nobody_answers_after_it(door: Door) -> None:
    """Told of a failure, its writer would write it again."""
    once = portal.run(transaction.begin_once(door.lane, f"once:{door.queue.name}"))
    result = door.task_once(once, b"a")
    door.faults.before("read_pointers", lambda: None)
    door.faults.plan("read_pointers", Fault.REFUSE)
    assert 1 == portal.run(transaction.commit_once(door.lane, once, [result]))
    assert [b"a"] == door.drain()


def test_t15_rows_of_single_transactions_of_deleted_queues_are_swept(open_door: OpenDoor) -> None:
    (door, *_), graves = died(open_door, 1)
    names = (door.queue.name, graves.queue.name)
    portal.run(transaction.begin_once(door.lane, f"once:{names[0]}"))
    door.faults.before("delete_sink", crash)
    with pytest.raises(Crash):
        repair(door)
    lanes = {door.lane.lane_id, graves.lane.lane_id}
    for name in names:
        door.client.delete_queue(name)
    other = open_door(".other")
    other.clock.advance(REST_S - 60)
    other.client.repair()
    assert 2 == len([one for one in portal.run(other.store.sinks.once()) if one.lane in lanes])
    other.clock.advance(120)
    # Rows of former tests' queues are swept with them.
    assert other.client.repair().sinks_swept >= 2
    assert not [one for one in portal.run(other.store.sinks.once()) if one.lane in lanes]


def test_the_row_of_a_move_stays_while_its_set_waits_for_a_queue(open_door: OpenDoor) -> None:
    (door, *_), graves = died(open_door, 1)
    sink_id = sink_of_the_move(door)
    door.faults.before("update_sink", crash)
    with pytest.raises(Crash):
        repair(door)
    graves.client.delete_queue(graves.queue.name, force=True)
    door.clock.advance(TWO_DAYS_S)
    door.client.repair()
    assert portal.run(door.store.sinks.read(sink_id)) is not None
    anew = open_door(".dead")
    assert 5 == repair(door).moved_dead
    assert FIVE == anew.drain()


# --- the scan of all rows -------------------------------------------------------------------------


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_t10_a_pass_looks_through_a_part_of_the_sink_rows_and_a_full_one_through_all(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [f"once:{door.queue.name}:{number}" for number in range(12)]
    for sink_id in mine:
        portal.run(transaction.begin_once(door.lane, sink_id))
    sinks = door.store.sinks
    everything = {one.sink_id for one in portal.run(sinks.once())}
    assert everything >= set(mine)
    assert everything == {one.sink_id for one in portal.run(sinks.once(start=0, at_most=10_000))}
    assert 5 >= len(portal.run(sinks.once(start=0, at_most=5)))

    door.clock.advance(LONGEST_PATIENCE_S)
    repair(door)  # aborts them
    door.clock.advance(REST_S)
    monkeypatch.setattr("cassieq_spark.repair.heal.SINKS_TOGETHER", 5)
    before = door.counts
    ended = repair(door).sinks_ended
    assert ended <= 5
    assert (door.counts - before)["list_sinks"] <= 2
    (done,) = door.client.repair(door.queue.name, full=True).queues
    assert 12 == ended + done.sinks_ended
    assert not {one.sink_id for one in portal.run(sinks.once())} & set(mine)


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_t10_a_row_that_rests_costs_a_pass_no_read_of_its_own(door: Door) -> None:
    once = portal.run(transaction.begin_once(door.lane, f"once:{door.queue.name}"))
    portal.run(transaction.commit_once(door.lane, once, [door.task_once(once, b"a")]))
    door.drain()
    repair(door)
    assert not {"read_sink_serial", "read_sink"} & cost(door, lambda: repair(door)).keys()


def test_a_voided_write_leaves_no_bucket_undecided(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    once = portal.run(transaction.begin_once(door.lane, f"once:{door.queue.name}"))
    ((bucket, _),) = door.task_once(once, b"a").buckets
    other.clock.advance(LONGEST_PATIENCE_S)
    repair(other)
    assert Status.VOID is door.value(bucket).status


# --- long lists -----------------------------------------------------------------------------------


LONG = BucketList.of(
    (Place(LaneId(UUID(int=7)), BucketNo(2**32 + at)), 1 + at % 2) for at in range(10_000)
)
"""Buckets of two counts in turn do not join into runs: these are more than 64 KB."""


def with_long_list(door: Door) -> Stored[SinkRow]:
    """The row of a sink whose last batch was long; its list is in rows of its own."""
    door.task(door.identity(), 0)
    stored = portal.run(door.store.sinks.read(door.queue.name))
    assert stored is not None
    row = replace(stored.value, listed=LONG)
    assert isinstance(portal.run(door.store.sinks.update(door.queue.name, stored, row)), Applied)
    written = portal.run(door.store.sinks.read(door.queue.name))
    assert written is not None
    return written


def lists(door: Door) -> int:
    return len(portal.run(door.store.sinks.lists())[door.queue.name])


def test_t19_a_list_goes_when_its_row_names_another(door: Door) -> None:
    stored = with_long_list(door)
    assert 1 == lists(door)
    portal.run(
        door.store.sinks.update(door.queue.name, stored, replace(stored.value, changed_us=1))
    )
    assert 1 == lists(door)
    now = portal.run(door.store.sinks.read(door.queue.name))
    assert now is not None
    assert LONG == now.value.listed
    portal.run(
        door.store.sinks.update(door.queue.name, now, replace(now.value, listed=BucketList()))
    )
    assert 0 == lists(door)


def test_t19_a_list_goes_when_its_commit_was_refused_or_its_row_is_gone(door: Door) -> None:
    stored = with_long_list(door)
    short = replace(stored.value, listed=BucketList())
    assert isinstance(portal.run(door.store.sinks.update(door.queue.name, stored, short)), Applied)
    assert 0 == lists(door)
    assert isinstance(
        portal.run(door.store.sinks.update(door.queue.name, stored, stored.value)), Refused
    )
    assert 0 == lists(door)

    now = portal.run(door.store.sinks.read(door.queue.name))
    assert now is not None
    portal.run(door.store.sinks.update(door.queue.name, now, replace(now.value, listed=LONG)))
    long = portal.run(door.store.sinks.read(door.queue.name))
    assert long is not None
    portal.run(door.store.sinks.delete(door.queue.name, long))
    assert 0 == lists(door)


@pytest.mark.invariant("I7")
def test_t19_a_slow_reader_takes_a_list_that_is_gone_for_no_list(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    stored = with_long_list(door)

    def moved_on() -> None:
        row = replace(stored.value, changed_us=1)
        assert isinstance(
            portal.run(other.store.sinks.update(door.queue.name, stored, row)), Applied
        )
        again = portal.run(other.store.sinks.read(door.queue.name))
        assert again is not None
        door.faults.before("read_sink_list", lambda: twice(again))

    def twice(again: Stored[SinkRow]) -> None:
        row = replace(again.value, changed_us=2)
        assert isinstance(
            portal.run(other.store.sinks.update(door.queue.name, again, row)), Applied
        )

    door.faults.before("read_sink_list", moved_on)
    found = portal.run(door.store.sinks.read(door.queue.name))
    assert found is not None
    assert (LONG, 2) == (found.value.listed, found.value.changed_us)

    def removed() -> None:
        portal.run(other.store.sinks.delete(door.queue.name, found))

    door.faults.before("read_sink_list", removed)
    assert portal.run(door.store.sinks.read(door.queue.name)) is None


@pytest.mark.invariant("I7")
def test_t19_the_list_of_a_row_that_is_there_is_never_taken_for_an_empty_one(door: Door) -> None:
    with_long_list(door)
    run_cql(door.session, "DELETE FROM {ks}.sink_list WHERE sink_id = ?", door.queue.name)
    with pytest.raises(RowCorrupt, match="bucket list"):
        portal.run(door.store.sinks.read(door.queue.name))


@pytest.mark.invariant("I7")
def test_t19_a_full_pass_sweeps_a_list_whose_writer_died_and_never_one_that_may_be_named_yet(
    open_door: OpenDoor,
) -> None:
    door, dead, other = open_door(), open_door(), open_door()
    stored = with_long_list(door)
    row = replace(stored.value, changed_us=1)
    dead.faults.before("update_sink", crash)
    with pytest.raises(Crash):
        portal.run(dead.store.sinks.update(door.queue.name, stored, row))
    assert 2 == lists(door)

    def swept() -> None:
        other.client.repair(full=True)
        assert 1 == lists(door)

    # A slow one is about to name a list that is stored already, by a CAS on the row as it was.
    door.faults.before("update_sink", swept)
    assert isinstance(portal.run(door.store.sinks.update(door.queue.name, stored, row)), Refused)
    now = portal.run(door.store.sinks.read(door.queue.name))
    assert now is not None
    assert (LONG, 1) == (now.value.listed, lists(door))


def test_t19_a_full_pass_sweeps_the_lists_of_a_row_that_is_gone(door: Door) -> None:
    stored = with_long_list(door)
    door.faults.plan("drop_sink_list", Fault.TIMEOUT_BEFORE)
    portal.run(door.store.sinks.delete(door.queue.name, stored))
    assert 1 == lists(door)
    door.client.repair(full=True)
    assert 0 == lists(door)
