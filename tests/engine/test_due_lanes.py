"""Scheduled messages from their put to the end of their lane, whatever dies on the way."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.errors import PutAmbiguous, QueueDeleted
from cassieq_spark.model.lanes import DueLane
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.pointer import DELETED, Pointer
from cassieq_spark.queue import schedule
from cassieq_spark.queue.get.claim import Holder
from cassieq_spark.queue.get.reader import Reader
from cassieq_spark.store import portal
from tests.fixtures.faults import Beside, Fault, FaultyStore
from tests.fixtures.queues import Crash, crash

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    import cassieq_spark as cassieq
    from cassieq_spark.queue.lane import Lane
    from tests.fixtures.queues import Door, OpenDoor

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
QUICK: dict[str, Any] = {"linger": 0, "fairness": 0, "repair_timeout": 0.2}


def at(door: Door, seconds: float) -> datetime:
    return time_of(door.clock.now_us() + int(seconds * 1e6))


def the_due_lane(door: Door, seconds: float, priority: int = 0) -> Lane:
    period = (door.clock.now_us() + int(seconds * 1e6)) // door.lane.settings.period_us
    return door.lane.due_lane(DueLane(period, priority))


def bodies(messages: list[cassieq.Message]) -> list[bytes]:
    return [message.body for message in messages]


def finish(door: Door, passes: int = 4) -> None:
    """Long after the period: close, rest, drop, finish."""
    door.clock.advance(3 * HOUR_S)
    for _ in range(passes):
        report = door.client.repair(door.queue.name)
        assert [] == report.problems
        door.clock.advance(60)


def rows_of(lane: Lane, due: Lane) -> list[DueLane]:
    assert due.due is not None
    return portal.run(
        lane.store.schedules.of_year(lane.lanes[0], due.due.year(lane.settings.period_us))
    )


@pytest.mark.invariant("I1")
def test_a_scheduled_message_is_delivered_at_its_time_and_not_before(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    door.queue.put(b"m", due_at=at(door, 2 * DAY_S))

    assert [] == door.queue.get()
    door.clock.advance(2 * DAY_S - 60)
    assert [] == door.queue.get()
    door.clock.advance(120)
    (message,) = door.queue.get()

    assert b"m" == message.body
    assert message.lane == the_due_lane(door, -60).lane_id
    door.queue.ack(message)
    assert 0 == door.queue.stats().visible


def test_what_was_scheduled_comes_first_in_its_class_and_the_oldest_period_before_others(
    open_door: OpenDoor,
) -> None:
    door = open_door(priorities=2, **QUICK)
    for body, priority, days in ((b"low", 0, 1), (b"late", 1, 2), (b"early", 1, 1)):
        door.queue.put(body, priority=priority, due_at=at(door, days * DAY_S))
    door.clock.advance(2 * DAY_S + 120)
    door.queue.put(b"now", priority=1)

    got = [message for _ in range(4) for message in door.queue.get(1)]

    assert [b"early", b"late", b"now", b"low"] == bodies(got)
    assert [1, 1, 1, 0] == [message.priority for message in got]


def test_each_verb_works_on_what_was_scheduled(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    door.queue.put_many([b"a", b"b", b"c", b"d"], due_at=at(door, DAY_S))
    door.clock.advance(DAY_S + 120)
    a, b, c, d = door.queue.get()

    door.queue.release(a)
    b = door.queue.update(b, body=b"new")
    door.queue.extend(c, 60)
    door.queue.ack([d.receipt])

    assert [b"a"] == bodies(door.queue.peek())
    assert [b"a"] == bodies(door.queue.get())
    door.queue.release(b)
    assert [b"new"] == bodies(door.queue.get())


@pytest.mark.usefixtures("still_time")
def test_stats_count_what_is_scheduled_and_no_look_reads_it(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    door.queue.put_many([b"a", b"b"], due_at=at(door, DAY_S))
    door.queue.put(b"c", delay=60)
    before = door.counts

    counted = door.queue.stats()
    assert [] == door.queue.peek()

    assert (2, 1, 0) == (counted.scheduled, counted.delayed, counted.visible)
    assert 2 >= (door.counts - before)["scan_messages"]
    door.clock.advance(DAY_S + 120)
    counted = door.queue.stats()
    assert (0, 0, 3) == (counted.scheduled, counted.delayed, counted.visible)


def test_purge_drops_what_is_scheduled(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    door.queue.put_many([b"a", b"b"], due_at=at(door, DAY_S))
    assert 2 == door.queue.purge()
    assert 0 == door.queue.stats().scheduled
    door.clock.advance(DAY_S + 120)
    assert [] == door.queue.get()


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_an_idle_consumer_reads_the_schedule_each_half_minute_only(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    door.queue.put(b"m", due_at=at(door, 300 * DAY_S))
    door.queue.get()
    before = door.counts
    for _ in range(50):
        door.queue.get()
    assert 0 == (door.counts - before)["read_schedule"]
    door.clock.advance(31)
    door.queue.get()
    assert 1 == (door.counts - before)["read_schedule"]


@pytest.mark.invariant("I10")
def test_a_schedule_that_does_not_answer_stops_no_get(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    door.queue.put(b"scheduled", due_at=at(door, DAY_S))
    door.clock.advance(DAY_S + 120)
    assert [b"scheduled"] == bodies(door.queue.get(1))
    door.queue.put(b"m")
    door.clock.advance(31)
    door.faults.plan("read_schedule", Fault.TIMEOUT_BEFORE, times=200)
    assert {b"m", b"scheduled"} == set(bodies(door.queue.get() + door.queue.get()))


# --- its end -----------------------------------------------------------------------------------


def test_a_period_that_is_over_and_drained_is_finished_and_leaves_no_row(
    open_door: OpenDoor,
) -> None:
    door = open_door(**QUICK)
    lane = the_due_lane(door, DAY_S)
    door.queue.put(b"m", due_at=at(door, DAY_S))
    door.clock.advance(DAY_S + 120)
    door.queue.ack(door.queue.get())

    finish(door)

    assert portal.run(lane.monotons.find()) is None
    assert portal.run(lane.pointers.read()).is_deleted
    assert [] == rows_of(door.lane, lane)
    pointers = portal.run(door.lane.read_pointers())
    assert lane.due is not None
    assert lane.due.period < pointers.schedule <= pointers.schedule_closed
    assert [] == door.client.verify(door.queue.name).findings
    assert [] == door.queue.get()


def test_one_message_that_is_left_holds_back_no_other_lane(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    first, second = the_due_lane(door, DAY_S), the_due_lane(door, DAY_S + 2 * HOUR_S)
    door.queue.put(b"held", due_at=at(door, DAY_S))
    door.queue.put(b"done", due_at=at(door, DAY_S + 2 * HOUR_S))
    door.clock.advance(DAY_S + 120)
    (held,) = door.queue.get(visibility_timeout=30 * DAY_S)
    door.clock.advance(2 * HOUR_S)
    door.queue.ack(door.queue.get())

    finish(door)

    assert [first.due] == rows_of(door.lane, first)
    assert portal.run(second.pointers.read()).is_deleted
    assert first.due is not None
    assert first.due.period == portal.run(door.lane.read_pointers()).schedule
    door.queue.ack(held)
    finish(door)
    assert [] == rows_of(door.lane, first)


def test_what_nobody_got_in_its_period_is_still_delivered(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    door.queue.put(b"m", due_at=at(door, DAY_S))
    door.clock.advance(3 * DAY_S)
    finish(door)
    assert [b"m"] == bodies(door.queue.get())


def puts(door: Door, due_at: datetime, told: list[str]) -> Callable[[], None]:
    """Put a message, and note it if that was answered."""

    def put() -> None:
        with suppress(PutAmbiguous, QueueDeleted):
            told.append(door.queue.put(b"late", due_at=due_at))

    return put


END = ["advance_pointer", "reserve", "delete_monoton", "remove_from_schedule", "read_schedule"]


@pytest.mark.parametrize("statement", END)
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.invariant("I1")
def test_an_end_that_dies_at_any_statement_is_finished_by_the_next_pass(
    open_door: OpenDoor, statement: str, after: int
) -> None:
    door = open_door(**QUICK)
    lane = the_due_lane(door, DAY_S)
    door.queue.put(b"m", due_at=at(door, DAY_S))
    door.queue.put(b"left", due_at=at(door, DAY_S + 2 * HOUR_S))
    door.clock.advance(DAY_S + 120)
    door.queue.ack(door.queue.get())
    door.clock.advance(3 * HOUR_S)
    with FaultyStore().on(door.session) as faults:
        faults.before(statement, crash, after=after)
        for _ in range(5):
            with suppress(Crash):
                door.client.repair(door.queue.name)
            door.clock.advance(60)
    finish(door)

    assert portal.run(lane.monotons.find()) is None
    assert lane.due not in rows_of(door.lane, lane)
    assert [b"left"] == bodies(door.queue.get())


@pytest.mark.parametrize("hours", [0, -2], ids=["into a lane that it knows", "into a new one"])
@pytest.mark.invariant("I1")
def test_what_is_put_beside_any_statement_of_the_end_is_delivered_or_ambiguous(
    open_door: OpenDoor, hours: int
) -> None:
    """The producer is behind its time: to it the period has not begun."""
    for number in itertools.count(1):
        door, late = open_door(f".{number}", **QUICK), open_door(f".{number}", **QUICK)
        due_at = at(late, DAY_S + hours * HOUR_S)
        late.queue.put(b"m", due_at=at(late, DAY_S))
        door.clock.advance(DAY_S + 120)
        door.queue.ack(door.queue.get())
        told: list[str] = []
        put = puts(late, due_at, told)
        with Beside(number, put, since="delete_bucket").on(door.session) as faults:
            finish(door, passes=1)
        if not faults.is_done:
            break
        finish(door)
        assert [b"late"] * len(told) == bodies(door.queue.get()), str(faults)
    assert number > len(END)


@pytest.mark.invariant("I9")
def test_a_look_at_a_lane_that_has_ended_moves_nothing(open_door: OpenDoor) -> None:
    """Its L is above all buckets there are, and a consumer may know of it for half a minute."""
    door = open_door(**QUICK)
    lane = the_due_lane(door, DAY_S)
    door.queue.put(b"m", due_at=at(door, DAY_S))
    door.clock.advance(DAY_S + 120)
    reader = Reader(lane, Holder(owner="test", run=None, visibility_us=30_000_000))
    assert 1 == len(portal.run(reader.get(1)))
    before = portal.run(lane.read_pointers()).reader
    portal.run(lane.pointers.advance(Pointer.REPAIR, DELETED))
    assert [] == portal.run(reader.get(1))  # its ids are there still: repair was killed there
    row = portal.run(lane.monotons.read())
    assert row is not None
    portal.run(lane.monotons.delete(row))
    assert [] == portal.run(reader.get(1))
    assert before == portal.run(lane.read_pointers()).reader


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_lanes_that_have_not_begun_are_healed_in_turn_within_a_day(open_door: OpenDoor) -> None:
    door, lanes = open_door(**QUICK), 24
    messages = [door.queue.put(b"m", due_at=at(door, (10 + days) * DAY_S)) for days in range(lanes)]
    with FaultyStore().on(door.session) as faults:
        faults.before("fill_bucket", crash)
        with pytest.raises(Crash):
            door.queue.cancel(messages[7])

    seals, statements = 0, []
    for _ in range(6 * 24 + 2):
        door.clock.advance(600)
        before = door.counts.total()
        report = door.client.repair(door.queue.name)
        statements.append(door.counts.total() - before)
        assert [] == report.problems
        seals += sum(one.seals_finished for one in report.queues)

    assert 1 == seals
    assert max(statements) - min(statements) < 3 * lanes


@pytest.mark.usefixtures("still_time")
def test_a_lane_without_a_monoton_row_is_closed_before_it_is_finished(open_door: OpenDoor) -> None:
    """Else a late copy of an INSERT would open it after its period was judged to be empty."""
    door = open_door(**QUICK)
    lane = the_due_lane(door, DAY_S)
    assert lane.due is not None
    portal.run(
        door.store.schedules.add(door.lane.lane_id, lane.due, period_us=lane.settings.period_us)
    )
    door.clock.advance(DAY_S)
    before = door.counts

    finish(door)

    assert 1 == (door.counts - before)["insert_monoton"]
    assert portal.run(lane.pointers.read()).is_deleted


def test_a_producer_that_slept_through_the_end_puts_elsewhere(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    lane = the_due_lane(door, DAY_S)

    def sleep() -> None:
        door.clock.advance(DAY_S)
        finish(door)

    door.faults.before("read_monoton", sleep, after=2)  # the first two are of the first lane
    door.queue.put(b"m", due_at=at(door, DAY_S))

    assert portal.run(lane.pointers.read()).is_deleted
    assert [b"m"] == bodies(door.queue.get())


@pytest.mark.invariant("I1")
def test_a_producer_that_slept_between_reservation_and_write_puts_nothing_twice(
    open_door: OpenDoor,
) -> None:
    """What it has written may have been delivered: the error says so, and it never puts again."""
    door = open_door(**QUICK)

    def sleep() -> None:
        door.clock.advance(DAY_S)
        finish(door)

    door.faults.before("write_message", sleep)
    with pytest.raises(PutAmbiguous):
        door.queue.put(b"m", due_at=at(door, DAY_S))

    assert [] == door.queue.get()
    door.queue.put(b"m", due_at=at(door, DAY_S))


# --- its queue ---------------------------------------------------------------------------------


def test_a_deletion_takes_what_is_scheduled_with_it(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    lane, first = the_due_lane(door, DAY_S), door.lane
    door.queue.put(b"m", due_at=at(door, DAY_S))

    door.queue.delete()

    assert portal.run(lane.monotons.find()) is None
    assert portal.run(lane.pointers.read()).is_deleted
    assert [] == rows_of(first, lane)
    assert [] == [
        bucket for at, bucket in portal.run(door.store.everything.messages()) if at == lane.lane_id
    ]
    with pytest.raises(QueueDeleted):
        door.queue.put(b"m", due_at=at(door, 2 * DAY_S))


@pytest.mark.parametrize(
    "statement", ["advance_pointer", "read_schedule", "delete_monoton", "remove_from_schedule"]
)
def test_a_deletion_that_dies_at_any_statement_is_finished(
    open_door: OpenDoor, statement: str
) -> None:
    door = open_door(**QUICK)
    lane, first = the_due_lane(door, DAY_S), door.lane
    door.queue.put(b"m", due_at=at(door, DAY_S))
    door.faults.before(statement, crash)
    with pytest.raises(Crash):
        door.queue.delete()

    door.client.repair()

    assert portal.run(lane.monotons.find()) is None
    assert [] == rows_of(first, lane)


@pytest.mark.invariant("I9")
def test_a_birth_beside_any_statement_of_a_deletion_leaves_nothing(open_door: OpenDoor) -> None:
    for number in itertools.count(1):
        door, other = open_door(f".{number}", **QUICK), open_door(f".{number}", **QUICK)
        lane, first = the_due_lane(door, DAY_S), door.lane
        put = puts(other, at(other, DAY_S), [])
        with Beside(number, put).on(door.session) as faults:
            door.queue.delete()
        if not faults.is_done:
            break
        assert portal.run(lane.monotons.find()) is None, str(faults)
        assert [] == rows_of(first, lane), str(faults)
    assert number > len(END)


def test_a_full_pass_removes_what_a_birth_left_in_a_deleted_queue(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    lane, first = the_due_lane(door, DAY_S), door.lane
    door.queue.delete()
    assert lane.due is not None
    portal.run(door.store.schedules.add(first.lane_id, lane.due, period_us=lane.settings.period_us))

    door.client.repair(full=True)

    assert [] == rows_of(first, lane)
    assert portal.run(lane.pointers.read()).is_deleted


def test_a_full_pass_leaves_the_schedules_of_other_queues(open_door: OpenDoor) -> None:
    one, other = open_door(**QUICK), open_door(**QUICK)
    other.queue.put(b"m", due_at=at(other, DAY_S))
    lane = the_due_lane(other, DAY_S)
    one.client.repair(one.queue.name, full=True)
    assert [lane.due] == rows_of(other.lane, lane)
    assert [lane] == portal.run(schedule.begun_and_later(other.lane))[1]


# --- dead letters ------------------------------------------------------------------------------


def test_what_was_scheduled_dies_and_is_moved_like_any_other(
    client: cassieq.Client, open_door: OpenDoor, queue_name: str
) -> None:
    client.create_queue(queue_name + ".dead", priorities=2)
    door = open_door(priorities=2, dead_letter_queue=queue_name + ".dead", **QUICK)
    door.queue.put(b"m", priority=1, due_at=at(door, DAY_S))
    door.clock.advance(DAY_S + 120)
    door.queue.reject(door.queue.get())

    report = door.client.repair()

    assert [] == [one for one in report.problems if queue_name in one]
    (letter,) = client.queue(queue_name + ".dead").get()
    assert (b"m", 1) == (letter.body, letter.priority)


@pytest.mark.usefixtures("still_time")
def test_u9_a_move_is_ended_only_if_the_schedule_was_read(
    client: cassieq.Client, open_door: OpenDoor, queue_name: str
) -> None:
    client.create_queue(queue_name + ".dead")
    door = open_door(dead_letter_queue=queue_name + ".dead", **QUICK)
    door.queue.put(b"m", due_at=at(door, DAY_S))
    door.clock.advance(DAY_S + 120)
    door.queue.reject(door.queue.get())
    door.faults.before("delete_sink", crash)
    with pytest.raises(Crash):
        door.client.repair()
    door.clock.advance(DAY_S)
    before = door.counts
    door.faults.plan("read_schedule", Fault.REFUSE, times=1)

    report = door.client.repair()

    assert report.problems
    assert 0 == (door.counts - before)["delete_sink"]
    door.client.repair()
    assert 1 <= (door.counts - before)["delete_sink"]
