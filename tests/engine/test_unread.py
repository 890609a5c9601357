"""A program's gets read no chunk twice, and hand out nothing else by it than by reading again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.store.tables import messages as unread
from tests.fixtures.queues import cost

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from tests.fixtures.queues import Door, OpenDoor

BUCKET = 2_000
MANY = [b"%d" % number for number in range(1_000)]


@pytest.fixture
def door(open_door: OpenDoor) -> Door:
    return open_door(bucket_size=BUCKET)


def bodies(messages: list[cassieq.Message]) -> list[bytes]:
    return [message.body for message in messages]


def all_of(door: Door, at_most: int = 100) -> list[bytes]:
    found: list[bytes] = []
    while some := door.queue.get(at_most):
        found += bodies(some)
        door.queue.ack(some)
    return found


@pytest.mark.usefixtures("still_time")
@pytest.mark.parametrize("at_once", [1_000, 100, 30])
def test_gets_that_go_on_read_no_chunk(door: Door, at_once: int) -> None:
    for first in range(0, len(MANY), at_once):
        door.queue.put_many(MANY[first : first + at_once])
    got: list[bytes] = []
    spent = cost(door, lambda: got.extend(all_of(door)))
    assert MANY == got
    assert (1, 0) == (spent["scan_messages"], spent["read_messages"])


@pytest.mark.usefixtures("still_time")
def test_a_chunk_of_a_sealed_bucket_is_read_once_for_many_gets(open_door: OpenDoor) -> None:
    """It is what a sink or another consumer has sealed: nothing was read here before."""
    door, other = (open_door(bucket_size=BUCKET) for _ in range(2))
    door.queue.put_many(MANY)
    assert MANY[:1] == bodies(other.queue.get(1))
    got: list[bytes] = []
    spent = cost(door, lambda: got.extend(all_of(door)))
    assert MANY[1:] == got
    assert 2 == spent["read_messages"]  # the chunk begins below what was asked for


def test_what_others_take_from_the_middle_is_not_handed_out_here(open_door: OpenDoor) -> None:
    door, other = (open_door(bucket_size=BUCKET) for _ in range(2))
    door.queue.put_many(MANY)
    first = bodies(door.queue.get(100))
    middle = bodies(other.queue.get(300))
    assert MANY == sorted(first + middle + all_of(door), key=int)


@pytest.mark.invariant("I2")
def test_a_message_that_was_updated_meanwhile_has_its_new_body(open_door: OpenDoor) -> None:
    door, other = (open_door(bucket_size=BUCKET) for _ in range(2))
    door.queue.put_many(MANY[:20])
    door.queue.get(1)
    (taken,) = other.queue.get(1)
    other.queue.update(taken, body=b"new", visibility_timeout=0)
    assert sorted([b"new", *MANY[2:20]]) == sorted(all_of(door))


@pytest.mark.usefixtures("still_time")
def test_what_comes_back_is_read_again(door: Door) -> None:
    door.queue.put_many(MANY[:10])
    door.queue.get(10, visibility_timeout=30)
    door.clock.advance(61)
    spent = cost(door, lambda: door.queue.ack(door.queue.get(10)))
    assert 1 == spent["read_messages"]


def test_a_message_that_is_given_back_is_read_once_more(door: Door) -> None:
    door.queue.put_many(MANY[:10])
    first, *others = door.queue.get(10)
    door.queue.ack(others)
    door.queue.release(first)
    assert MANY[:1] == all_of(door)


@pytest.mark.usefixtures("still_time")
def test_large_messages_are_kept_as_far_as_they_fit(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "UNREAD_BYTES", 500_000)
    large = [os.urandom(100_000) for _ in range(10)]
    for body in large:
        door.queue.put(body)
    got: list[bytes] = []
    spent = cost(door, lambda: got.extend(all_of(door, 2)))
    assert large == got
    assert (1, 3) == (spent["scan_messages"], spent["read_messages"])


@pytest.mark.usefixtures("still_time")
def test_a_look_at_messages_keeps_nothing_and_uses_nothing(door: Door) -> None:
    door.queue.put_many(MANY)
    door.queue.get(100)
    assert 1 <= cost(door, lambda: door.queue.peek(5))["read_messages"]
    assert MANY[100:] == all_of(door)
