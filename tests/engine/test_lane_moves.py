"""Dead letters and redrives of queues with several lanes keep their priority and shard [U19]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.dead_letter import headers_of

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from tests.fixtures.queues import Door, OpenDoor

LANES: dict[str, Any] = {"priorities": 3, "shards": 2, "fairness": 0, "linger": 0}


@pytest.fixture
def doors(open_door: OpenDoor) -> tuple[Door, Door]:
    """A queue of six lanes, and its dead-letter queue of two priorities."""
    dead = open_door(".dead", priorities=2, linger=0)
    return open_door(dead_letter_queue=dead.queue.name, max_deliveries=1, **LANES), dead


def reject_all(door: Door, count: int) -> list[cassieq.Delivery]:
    got = [message for _ in range(count) for message in door.queue.get(1)]
    door.queue.reject(got, reason="bad")
    return got


@pytest.mark.invariant("I1")
def test_dead_letters_keep_their_priority_as_far_as_there_are_such(
    client: cassieq.Client, doors: tuple[Door, Door]
) -> None:
    door, dead = doors
    for priority in range(3):
        door.queue.put(b"%d" % priority, priority=priority, key="k")
    shard = {door.lane.fixed.class_and_shard(one.lane)[1] for one in reject_all(door, 3)}.pop()

    report = client.repair(door.queue.name)

    assert [] == report.problems
    assert 3 == report.queues[0].moved_dead
    found = {message.body: message for message in dead.queue.peek()}
    assert {b"0": 0, b"1": 1, b"2": 1} == {body: one.priority for body, one in found.items()}
    assert [(at, shard) for at in range(3)] == [
        (headers.priority, headers.shard)
        for body in sorted(found)
        for headers in [headers_of(found[body].headers)]
    ]
    assert [] == client.verify(door.queue.name).findings


@pytest.mark.invariant("I1")
def test_a_redrive_puts_messages_back_into_their_priority_and_shard(
    client: cassieq.Client, doors: tuple[Door, Door]
) -> None:
    door, dead = doors
    before = {}
    for number in range(12):
        door.queue.put(b"%d" % number, priority=number % 3, key=str(number))
    for message in reject_all(door, 12):
        before[message.body] = message.lane
    client.repair(door.queue.name)

    done = client.redrive(dead.queue.name)

    assert (12, [], {door.queue.name: 12}) == (done.moved, done.problems, done.by_target)
    assert before == {message.body: message.lane for message in door.queue.peek(20)}
    assert 0 == dead.queue.stats().visible


def test_a_redrive_takes_messages_of_the_lanes_they_are_in_and_no_others(
    client: cassieq.Client, doors: tuple[Door, Door]
) -> None:
    """Both lanes of the dead-letter queue have a message 0."""
    door, dead = doors
    for priority in (0, 2):
        door.queue.put(b"%d" % priority, priority=priority)
    reject_all(door, 2)
    client.repair(door.queue.name)
    high, low = dead.queue.peek()
    assert high.id == low.id
    assert high.lane != low.lane

    done = client.redrive(dead.queue.name, [low])

    assert (1, 0) == (done.moved, done.gone)
    assert [b"0"] == [message.body for message in door.queue.peek()]
    assert [b"2"] == [message.body for message in dead.queue.peek()]
    with pytest.raises(OptionInvalid, match="has 2 lanes, and each counts its messages from 0"):
        client.redrive(dead.queue.name, [high.id])


def test_a_redrive_of_so_many_goes_on_in_the_next_lane_and_ends_there(
    client: cassieq.Client, doors: tuple[Door, Door]
) -> None:
    door, dead = doors
    for number in range(8):
        door.queue.put(b"%d" % number, priority=2 * (number % 2))
    reject_all(door, 8)
    client.repair(door.queue.name)

    assert 6 == client.redrive(dead.queue.name, max_messages=6).moved
    assert {0: 2, 1: 0} == dead.queue.stats().by_priority
    assert {0: 2, 1: 0, 2: 4} == door.queue.stats().by_priority


def test_a_header_that_a_producer_has_made_up_sends_a_redrive_nowhere_else(
    client: cassieq.Client, doors: tuple[Door, Door]
) -> None:
    door, dead = doors
    dead.queue.put(
        b"m",
        headers={
            "cassieq-source-queue": door.queue.name,
            "cassieq-priority": "99",
            "cassieq-shard": "7" * 18,
        },
    )

    assert 1 == client.redrive(dead.queue.name).moved
    [found] = door.queue.peek()
    assert (2, 1) == door.lane.fixed.class_and_shard(found.lane)
