"""A get over several lanes where some do not answer, and what its limits mean for priorities."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.entropy import generator
from cassieq_spark.errors import OptionInvalid, StoreError
from cassieq_spark.model.ids import ID_LIMIT, BucketNo
from cassieq_spark.options import parse_source
from cassieq_spark.queue import seal
from cassieq_spark.queue.get.claim import Holder
from cassieq_spark.queue.get.queue_reader import QueueReader
from cassieq_spark.store import caller, portal
from tests.fixtures.faults import Away, Fault
from tests.fixtures.queues import by_priority, to_the_next_minute

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor


pytestmark = pytest.mark.usefixtures("passing_time")
A_MINUTE_US = 60_000_000


def readers(door: Door) -> QueueReader:
    return QueueReader(door.lane, Holder(owner="test", run=None, visibility_us=A_MINUTE_US))


@pytest.mark.invariant("I10")
def test_what_is_young_in_one_lane_does_not_wait_for_a_silent_bucket_of_another(
    open_door: OpenDoor,
) -> None:
    door = open_door(priorities=2, fairness=0, linger=0.3)
    door.queue.put(b"high", priority=1)
    door.faults.unreachable(0, lane=door.lane.lanes[1], how=Away.TIMES_OUT)
    door.queue.put(b"low")
    began = door.clock.monotonic()

    assert [b"low"] == [message.body for message in door.queue.get(1)]
    assert door.clock.monotonic() - began < 5


@pytest.mark.invariant("I10")
def test_what_is_ready_in_one_lane_does_not_wait_for_what_is_young_in_another(
    open_door: OpenDoor,
) -> None:
    door = open_door(priorities=2, fairness=0, linger=2)
    door.queue.put(b"low")
    portal.run(seal.close(door.lane.all[0], BucketNo(0)))
    door.queue.put(b"high", priority=1)

    assert [b"low"] == [message.body for message in door.queue.get(1)]


@pytest.mark.invariant("I1", "I10")
def test_a_lane_that_takes_no_hint_holds_up_no_other(open_door: OpenDoor) -> None:
    """All its buckets answer, so that its own reader has none to pass over: the lane fails."""
    door = open_door(priorities=2, fairness=0, linger=0)
    to_the_next_minute(door)
    door.queue.put_many([b"low"] * 2)
    assert [b"low"] == [message.body for message in door.queue.get(1)]  # the other's hint is there
    door.queue.put(b"high", priority=1)
    portal.run(seal.close(door.lane.all[1], BucketNo(0)))
    door.faults.plan("write_hint", Fault.TIMEOUT_BEFORE, times=100_000)

    assert [b"low"] == [message.body for message in door.queue.get(1)]
    with door.session.within(2), pytest.raises(StoreError):
        door.queue.get(1)


@pytest.mark.parametrize("priorities", [1, 2])
def test_errors_and_events_name_the_lane_of_a_bucket_where_there_are_several(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture, priorities: int
) -> None:
    door = open_door(priorities=priorities, fairness=0, linger=0)
    door.queue.put(b"m", priority=priorities - 1)
    lane = door.lane.lanes[-1]
    door.faults.unreachable(0, lane=lane, how=Away.TIMES_OUT)

    with door.session.within(1), pytest.raises(StoreError) as raised:
        door.queue.get(1)

    fields = [one.fields for one in caplog.records if one.event == "bucket_unreachable"]
    assert fields
    if priorities == 1:
        assert f"bucket 0 of queue {door.queue.name!r}" in str(raised.value)
        assert all(one["bucket"] == 0 and "lane" not in one for one in fields)
    else:
        assert f"bucket 0 of lane {lane} of queue {door.queue.name!r}" in str(raised.value)
        assert all((one["lane"], one["bucket"]) == (str(lane), 0) for one in fields)


@pytest.mark.invariant("I10")
def test_what_comes_into_one_lane_while_a_get_waits_for_another_is_found(
    open_door: OpenDoor,
) -> None:
    door = open_door(priorities=2, fairness=0, linger=0)
    other = open_door(priorities=2, fairness=0, linger=0)
    door.queue.put(b"high", priority=1)
    door.faults.unreachable(0, lane=door.lane.lanes[1], how=Away.TIMES_OUT)
    puts = iter([lambda: None, lambda: None, lambda: other.queue.put(b"low")])
    sleep = door.clock.sleep

    async def put_meanwhile(seconds: float) -> None:
        await caller.in_a_thread(next(puts, lambda: None))
        await sleep(seconds)

    door.clock.sleep = put_meanwhile  # type: ignore[method-assign]  # between two rounds
    began = door.clock.monotonic()

    assert [b"low"] == [message.body for message in door.queue.get(1)]
    assert door.clock.monotonic() - began < 10


@pytest.mark.invariant("I10")
def test_one_deadline_is_for_all_lanes_together(open_door: OpenDoor) -> None:
    door = open_door(priorities=4, fairness=0, linger=0)
    for priority in range(4):
        door.queue.put(b"m", priority=priority)
        lane = door.lane.lanes[priority]
        door.faults.unreachable(0, lane=lane, how=Away.TIMES_OUT)
    began = door.clock.monotonic()

    with door.session.within(3), pytest.raises(StoreError):
        door.queue.get(1)

    assert door.clock.monotonic() - began < 6


@pytest.mark.invariant("I2", "I10")
def test_what_was_claimed_does_not_wait_for_lanes_that_do_not_answer(open_door: OpenDoor) -> None:
    """Each dark lane takes as long as it is asked: together longer than a lease."""
    door = open_door(priorities=10, shards=2, fairness=0, linger=0)
    door.queue.put(b"urgent", priority=9)
    # After both lanes of the highest class.
    door.faults.plan("read_monoton", Fault.TIMEOUT_BEFORE, after=2, times=100_000)

    got = door.queue.get(10, visibility_timeout=3)

    assert [b"urgent"] == [message.body for message in got]


@pytest.mark.invariant("I2", "I10")
def test_what_was_claimed_waits_for_silent_buckets_of_all_lanes_together(
    open_door: OpenDoor,
) -> None:
    """Each lane passes its own over, after a second: none of them is one that does not answer."""
    door = open_door(priorities=8, fairness=0, linger=0)
    for priority in range(8):
        door.queue.put(b"%d" % priority, priority=priority)
    for number, lane in enumerate(door.lane.lanes[:7]):
        door.faults.unreachable(0, lane=lane, how=Away.TIMES_OUT)
        door.faults.before("read_monoton", lambda: door.clock.advance(1), after=1 + number)
    began = door.clock.monotonic()
    assert [b"7"] == [message.body for message in door.queue.get(10, visibility_timeout=6)]
    assert door.clock.monotonic() - began < 4


@pytest.mark.invariant("I10")
def test_a_batch_limited_by_bytes_is_mostly_of_the_highest_priority(open_door: OpenDoor) -> None:
    door = open_door(priorities=2, fairness=0.1, linger=0, bucket_size=1_000)
    chance = generator(1)
    for priority in range(2):
        door.queue.put_many([chance.randbytes(1_000) for _ in range(200)], priority=priority)
    some = readers(door)
    found = sum(
        (by_priority(portal.run(some.get(ID_LIMIT, at_most_bytes=20_000))) for _ in range(5)),
        Counter(),
    )

    assert found[1] > 3 * found[0] > 0


def test_a_claim_of_everything_begins_with_the_highest_priority(open_door: OpenDoor) -> None:
    door = open_door(priorities=2, fairness=0.5, linger=0)
    for priority in range(2):
        door.queue.put_many([b"m"] * 10, priority=priority)

    claimed = portal.run(readers(door).get(ID_LIMIT))

    assert {0: 10, 1: 10} == by_priority(claimed)
    assert 1 == claimed[0].lane.priority


def test_a_get_of_higher_priorities_is_quiet_by_those_alone(open_door: OpenDoor) -> None:
    door = open_door(priorities=3, fairness=0, linger=0)
    door.queue.put(b"low")
    some = readers(door)

    assert [] == portal.run(some.get(1, at_least=1))
    assert some.is_quiet


def test_a_min_priority_that_the_queue_does_not_have_is_refused(open_door: OpenDoor) -> None:
    from cassieq_spark.spark.source.planner import Planner  # noqa: PLC0415 - needs pyspark

    door = open_door(priorities=2)
    options = parse_source({"contactPoints": "here", "queue": door.lane.queue, "minPriority": "5"})

    with pytest.raises(OptionInvalid, match=r"minPriority is 5, allowed: .* 0 to 1"):
        Planner.open(door.lane.store, options)
