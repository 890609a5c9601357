"""A message that is due much later goes to a due lane, whose birth may die at each statement."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.errors import CassieqError, OptionInvalid, QueueDeleted, SettingFixed
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.lanes import DueLane
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.pointer import DELETED, Pointer
from cassieq_spark.queue import schedule
from cassieq_spark.recent import Recent
from cassieq_spark.store import portal
from cassieq_spark.store.tables.lanes import Monoton
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Crash, crash

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from cassieq_spark.queue.lane import Lane
    from tests.fixtures.queues import Door, OpenDoor

DAY_S = 86_400
BIRTH = ["insert_monoton", "add_to_schedule", "read_pointers", "reserve", "write_message"]


def at(door: Door, seconds: float) -> datetime:
    return time_of(door.clock.now_us() + int(seconds * 1e6))


def count(lane: Lane) -> int:
    """How many messages are in its first bucket, which nobody has sealed."""
    return sum(row.count for row in portal.run(lane.messages.scan(BucketNo(0))))


def the_due_lane(door: Door, seconds: float, priority: int = 0) -> Lane:
    period = (door.clock.now_us() + int(seconds * 1e6)) // door.lane.settings.period_us
    return door.lane.due_lane(DueLane(period, priority))


@pytest.mark.usefixtures("still_time")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"due_at": datetime(2030, 1, 1)}, "allowed: a datetime with a time zone"),  # noqa: DTZ001
        ({"due_at": "2030-01-01"}, "allowed: a datetime with a time zone"),
        ({"due_at": datetime(2090, 1, 1, tzinfo=UTC)}, "400 days, and 10,000 periods"),
        ({"delay": 401 * DAY_S}, "delay is"),
        ({"delay": 5, "due_at": datetime(2030, 1, 1, tzinfo=UTC)}, "Give one of the two"),
        ({"delay": True, "due_at": datetime(2030, 1, 1, tzinfo=UTC)}, "Give one of the two"),
    ],
)
def test_a_wrong_due_time_is_refused_before_anything_is_written(
    open_door: OpenDoor, wrong: dict[str, Any], says: str
) -> None:
    door = open_door()
    before = door.counts
    with pytest.raises(OptionInvalid, match=says):
        door.queue.put(b"m", **wrong)
    assert before == door.counts


def test_short_periods_bound_how_far_ahead_a_message_is_due(open_door: OpenDoor) -> None:
    door = open_door(schedule_period=60)
    with pytest.raises(OptionInvalid, match=r"schedule_period=60 .* at most"):
        door.queue.put(b"m", due_at=at(door, 10_001 * 60))
    assert door.queue.put(b"m", due_at=at(door, 9_000 * 60))


def test_the_period_cannot_change(client: cassieq.Client, queue_name: str) -> None:
    client.create_queue(queue_name)
    with pytest.raises(SettingFixed, match=r"schedule_period of queue .* cannot change"):
        client.alter_queue(queue_name, schedule_period=60)
    assert 60 == client.alter_queue(queue_name, schedule_after=60).settings.schedule_after_s


@pytest.mark.parametrize("late_s", [-DAY_S, 0, 600])
def test_what_is_due_soon_or_was_due_goes_to_an_ordinary_lane(
    open_door: OpenDoor, late_s: float
) -> None:
    door = open_door(linger=0)
    door.queue.put(b"m", due_at=at(door, late_s))
    assert [] == portal.run(schedule.begun_and_later(door.lane))[1]
    door.clock.advance(max(0, late_s) + 90)
    assert [b"m"] == [message.body for message in door.queue.get()]


@pytest.mark.parametrize("how", ["delay", "due_at"])
def test_what_is_due_much_later_goes_to_the_due_lane_of_its_period_and_class(
    open_door: OpenDoor, how: str
) -> None:
    door = open_door(priorities=2)
    due: Any = {"delay": timedelta(days=300), "due_at": at(door, 300 * DAY_S)}[how]

    door.queue.put_many([b"a", b"b"], priority=1, **{how: due})
    door.queue.put(b"c", priority=1, **{how: due})

    lane = the_due_lane(door, 300 * DAY_S, 1)
    assert [lane] == portal.run(schedule.begun_and_later(door.lane))[1]
    assert 3 == count(lane)
    assert 1 == lane.priority


@pytest.mark.usefixtures("still_time")
def test_the_second_put_of_a_period_costs_no_birth(open_door: OpenDoor) -> None:
    door = open_door()
    door.queue.put(b"a", due_at=at(door, 2 * DAY_S))
    before = door.counts
    door.queue.put(b"b", due_at=at(door, 2 * DAY_S))
    spent = door.counts - before
    assert 0 == spent["insert_monoton"] + spent["add_to_schedule"] + spent["reserve"]


@pytest.mark.parametrize("statement", BIRTH)
@pytest.mark.invariant("I1")
def test_a_birth_that_dies_at_any_statement_stops_no_other(
    open_door: OpenDoor, statement: str
) -> None:
    door = open_door()
    due_at = at(door, 2 * DAY_S)
    door.faults.before(statement, crash)
    with pytest.raises(Crash):
        door.queue.put(b"dead", due_at=due_at)
    door.queue._work.puts.due_lanes._known.clear()
    door.queue._work.puts.producers = Recent(1)

    door.queue.put(b"m", due_at=due_at)

    lane = the_due_lane(door, 2 * DAY_S)
    assert [lane] == portal.run(schedule.begun_and_later(door.lane))[1]


def close_period(door: Door, lane: Lane) -> None:
    assert lane.due is not None
    portal.run(door.lane.pointers.advance(Pointer.SCHEDULE_CLOSED, lane.due.period + 1))


def test_u2_a_birth_in_a_closed_period_is_undone_and_the_message_goes_elsewhere(
    open_door: OpenDoor,
) -> None:
    door = open_door()
    lane = the_due_lane(door, 2 * DAY_S)
    close_period(door, lane)

    door.queue.put(b"m", due_at=at(door, 2 * DAY_S))

    assert portal.run(lane.monotons.find()) is None
    assert [] == portal.run(schedule.begun_and_later(door.lane))[1]
    assert 1 == count(door.lane)


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("is_heard", [True, False])
def test_a_birth_in_a_closed_period_leaves_what_another_has_begun_to_use(
    open_door: OpenDoor, is_heard: bool
) -> None:
    """Also where the INSERT is sent again: by its tag the row tells that it was applied."""
    door, other = open_door(), open_door()
    lane, others = (the_due_lane(one, 2 * DAY_S) for one in (door, other))

    def another_uses_it() -> None:
        row = portal.run(others.monotons.read())
        assert row is not None
        portal.run(others.monotons.update(row, Monoton(next_id=lane.bucket_size, reserved_us=1)))
        close_period(door, lane)

    if is_heard:
        door.faults.before("add_to_schedule", another_uses_it)
    else:
        door.faults.plan("insert_monoton", Fault.TIMEOUT_AFTER)
        door.faults.before("insert_monoton", another_uses_it, after=1)
    door.queue.put(b"m", due_at=at(door, 2 * DAY_S))

    assert [lane] == portal.run(schedule.begun_and_later(door.lane))[1]
    assert lane.bucket_size == portal.run(lane.read_monoton()).next_id
    assert 1 == count(door.lane)


def test_a_birth_of_a_lane_that_is_acked_is_undone(open_door: OpenDoor) -> None:
    """A late copy of an INSERT would open it again: what is put there is ambiguous for ever."""
    door = open_door()
    lane = the_due_lane(door, 2 * DAY_S)
    portal.run(lane.pointers.advance(Pointer.REPAIR, DELETED))

    door.queue.put(b"m", due_at=at(door, 2 * DAY_S))

    assert portal.run(lane.monotons.find()) is None
    assert [] == portal.run(schedule.begun_and_later(door.lane))[1]
    assert 1 == count(door.lane)


def test_a_lane_that_was_closed_since_its_birth_takes_nothing_more(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=2)
    due_at = at(door, 2 * DAY_S)
    door.queue.put_many([b"a", b"b"], due_at=due_at)
    lane = the_due_lane(door, 2 * DAY_S)
    row = portal.run(lane.monotons.read())
    assert row is not None
    portal.run(lane.monotons.update(row, Monoton(next_id=2, reserved_us=1, is_closed=True)))

    door.queue.put(b"c", due_at=due_at)

    assert 2 == portal.run(lane.read_monoton()).next_id
    assert 1 == count(door.lane)


def test_a_birth_in_a_deleted_queue_says_so_and_leaves_nothing(open_door: OpenDoor) -> None:
    door = open_door()
    due_at, lane, first = at(door, 2 * DAY_S), the_due_lane(door, 2 * DAY_S), door.lane

    def delete() -> None:
        portal.run(first.pointers.advance(Pointer.REPAIR, DELETED))

    door.faults.before("add_to_schedule", delete)
    with pytest.raises(QueueDeleted):
        door.queue.put(b"m", due_at=due_at)
    assert portal.run(lane.monotons.find()) is None
    assert lane.due is not None
    year = lane.due.year(first.settings.period_us)
    assert [] == portal.run(first.store.schedules.drop(first.lane_id, year))


def test_a_birth_whose_insert_is_not_answered_is_settled(open_door: OpenDoor) -> None:
    door = open_door()
    door.faults.plan("insert_monoton", Fault.TIMEOUT_AFTER)
    door.queue.put(b"m", due_at=at(door, 2 * DAY_S))
    assert 1 == count(the_due_lane(door, 2 * DAY_S))


def test_a_schedule_that_cannot_be_written_stores_nothing(open_door: OpenDoor) -> None:
    door = open_door()
    door.faults.plan("add_to_schedule", Fault.REFUSE)
    with pytest.raises(CassieqError):
        door.queue.put(b"m", due_at=at(door, 2 * DAY_S))
    assert [] == portal.run(schedule.begun_and_later(door.lane))[1]
