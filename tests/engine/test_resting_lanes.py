"""A program that finds enough lets quiet lanes rest for a moment, and misses nothing by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.lanes import shard_of
from cassieq_spark.queue.get.choice import LEFT_FOR_S
from cassieq_spark.queue.get.claim import Holder
from cassieq_spark.queue.get.queue_reader import RESTS_FOR_S, QueueReader
from cassieq_spark.queue.get.reader import Reader
from cassieq_spark.queue.reserve import reserve
from cassieq_spark.store import portal
from tests.fixtures.queues import cost

if TYPE_CHECKING:
    from cassieq_spark.model.ids import LaneId
    from tests.fixtures.queues import Door, OpenDoor

SHARDS = 4
KEYS = {shard_of(str(number), SHARDS): str(number) for number in range(100)}
"""A key of each shard; of four shards, the first two are those of two as well."""

OF_A_LOOK = ("read_monoton", "read_hints", "read_old_hints")
HALF_A_MINUTE_US = 30_000_000


def backlog(open_door: OpenDoor, count: int = 60, **settings: Any) -> Door:
    """All messages are in shard 0, and a consumer has seen that the others are quiet."""
    door = open_door(shards=SHARDS, fairness=0, linger=0, **settings)
    door.queue.put_many([b"many"] * count, key=KEYS[0])
    for _ in range(SHARDS):
        assert bodies(door, 1) == [b"many"]
    return door


def bodies(door: Door, at_most: int, **wanted: Any) -> list[bytes]:
    return [message.body for message in door.queue.get(at_most, **wanted)]


@pytest.mark.usefixtures("still_time")
def test_u15_gets_from_one_lane_do_not_ask_the_quiet_ones_each_time(open_door: OpenDoor) -> None:
    door = backlog(open_door)
    spent = cost(door, lambda: [bodies(door, 1) for _ in range(5)])
    assert [0, 0, 0] == [spent[name] for name in OF_A_LOOK]
    assert 5 == spent["update_bucket"]


@pytest.mark.invariant("I10")
def test_what_comes_into_a_quiet_lane_waits_for_a_second_behind_a_backlog(
    open_door: OpenDoor,
) -> None:
    door = backlog(open_door)
    door.queue.put(b"one", key=KEYS[2])
    assert [b"many"] * SHARDS == [body for _ in range(SHARDS) for body in bodies(door, 1)]
    door.clock.advance(RESTS_FOR_S)
    assert b"one" in [body for _ in range(SHARDS) for body in bodies(door, 1)]


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("left", [0, 3])
def test_a_get_that_finds_too_little_asks_all_lanes(open_door: OpenDoor, left: int) -> None:
    door = backlog(open_door, SHARDS + left)
    door.queue.put(b"one", key=KEYS[2])
    assert [b"many"] * left + [b"one"] == sorted(bodies(door, 10))


@pytest.mark.invariant("I10")
def test_if_all_lanes_were_quiet_each_get_asks_them_all(open_door: OpenDoor) -> None:
    door = backlog(open_door, SHARDS)
    for _ in range(2):
        assert [] == bodies(door, 1)
        door.queue.put(b"one", key=KEYS[2])
        assert [b"one"] == bodies(door, 1)


@pytest.mark.invariant("I10")
def test_a_quiet_lane_of_a_higher_class_is_asked_by_each_get(open_door: OpenDoor) -> None:
    door = backlog(open_door, priorities=2)
    door.queue.put(b"high", key=KEYS[2], priority=1)
    assert [b"high"] == bodies(door, 1)


@pytest.mark.invariant("I10")
def test_no_lower_class_fills_a_get_before_what_rests_in_a_higher_one(open_door: OpenDoor) -> None:
    """A shard of the higher class is not quiet: a producer has reserved an empty bucket there."""
    door = open_door(shards=SHARDS, fairness=0, linger=0, priorities=2)
    portal.run(reserve(door.lane.sibling(door.lane.fixed.lane(1, 0)), 1))
    door.queue.put_many([b"low"] * 60, key=KEYS[1])
    for _ in range(SHARDS):
        assert [b"low"] == bodies(door, 1)
    door.queue.put(b"high", key=KEYS[2], priority=1)
    assert [b"high"] == bodies(door, 1)


@pytest.mark.invariant("I10")
def test_u15_a_lane_with_news_does_not_rest_until_it_was_read(open_door: OpenDoor) -> None:
    """It was asked, and others have filled the get: the next one asks again."""
    door = backlog(open_door)
    for _ in range(SHARDS):
        door.queue.put(b"one", key=KEYS[2])
        door.clock.advance(RESTS_FOR_S)
        got = [body for _ in range(SHARDS) for body in bodies(door, 1)]
        assert [b"many"] * (SHARDS - 1) + [b"one"] == sorted(got)
        bodies(door, 1)  # so that each shard comes first once


@pytest.mark.usefixtures("still_time")
def test_spark_asks_all_lanes_at_each_batch(open_door: OpenDoor) -> None:
    door = backlog(open_door)
    holder = Holder(owner="test", run=new_uuid(), visibility_us=HALF_A_MINUTE_US)
    readers = QueueReader(door.lane, holder)
    for _ in range(SHARDS):
        portal.run(readers.get(1))
    assert SHARDS <= cost(door, lambda: portal.run(readers.get(1)))["read_hints"]


def met(open_door: OpenDoor) -> tuple[Door, list[LaneId]]:
    """Two shards with a backlog of two buckets each, and a client that has just lost a race.

    Returns:
        The client, and the lane of the get that lost it.
    """
    slow, quick = (open_door(shards=2, fairness=0, linger=0, bucket_size=20) for _ in range(2))
    for shard in range(2):
        slow.queue.put_many([b"m"] * 40, key=KEYS[shard])
    assert 2 == len({*lanes_of_gets(slow, 2)})
    readers = [
        Reader(one, Holder(owner="quick", run=None, visibility_us=HALF_A_MINUTE_US))
        for one in quick.lane.all
    ]
    slow.faults.before("update_bucket", lambda: [portal.run(reader.get(1)) for reader in readers])
    return slow, lanes_of_gets(slow, 1)


def lanes_of_gets(door: Door, count: int) -> list[LaneId]:
    return [message.lane for _ in range(count) for message in door.queue.get(1)]


@pytest.mark.usefixtures("still_time")
def test_p28_with_rivals_a_program_goes_on_in_the_lane_of_its_own_bucket(
    open_door: OpenDoor,
) -> None:
    """By turns it would meet them in each lane, and find its own bucket there taken meanwhile."""
    door, (lane,) = met(open_door)
    got: list[LaneId] = []
    spent = cost(door, lambda: got.extend(lanes_of_gets(door, 6)))
    assert [lane] * 6 == got
    assert (6, 0) == (spent["update_bucket"], spent["read_monoton"])


@pytest.mark.invariant("I10")
def test_u15_with_rivals_the_next_shard_comes_after_a_second(open_door: OpenDoor) -> None:
    door, (lane,) = met(open_door)
    assert [lane] * 2 == lanes_of_gets(door, 2)
    door.clock.advance(LEFT_FOR_S)
    assert [lane] != lanes_of_gets(door, 1)
