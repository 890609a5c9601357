"""A program's looks that follow each other read the pointers once (ADR 37)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from cassieq_spark.errors import QueueDeleted
from cassieq_spark.queue.get import scan
from cassieq_spark.queue.get.choice import LEFT_FOR_S
from cassieq_spark.queue.get.scan import FIRST_WINDOW
from cassieq_spark.store import portal
from tests.fixtures.queues import cost, to_the_next_minute

if TYPE_CHECKING:
    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.queue.get.reader import Reader
    from tests.fixtures.queues import Door, OpenDoor

RUN = UUID(int=1)

LONG_S = 3.0


@pytest.fixture
def other(open_door: OpenDoor) -> Door:
    return open_door()


def working(door: Door, other: Door, *, run: UUID | None = None) -> Reader:
    """A reader that has just looked, and has taken what it found."""
    reader = door.reader(visibility_s=3_600, run=run)
    other.put_sealed(b"first")
    door.ack(taken(door, reader, b"first"))
    return reader


def taken(door: Door, reader: Reader, *bodies: bytes) -> list[Claimed]:
    claimed = portal.run(reader.get(len(bodies)))
    assert list(bodies) == door.bodies(claimed)
    return claimed


def pointers_read(door: Door, reader: Reader, *bodies: bytes) -> int:
    """By one get that finds these, besides the claim's."""
    return cost(door, lambda: taken(door, reader, *bodies))["read_pointers"] - 1


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_look_just_after_another_goes_on_with_its_pointers(
    door: Door, other: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "POINTERS_FOR_S", LONG_S)  # however slow the machine
    reader = working(door, other)
    read = []
    for _ in range(3):
        other.put_sealed(b"next")
        read.append(pointers_read(door, reader, b"next"))
    door.clock.advance(LONG_S)
    other.put_sealed(b"later")
    read.append(pointers_read(door, reader, b"later"))
    assert [0, 0, 0, 1] == read


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_batch_of_spark_reads_the_pointers_each_time(door: Door, other: Door) -> None:
    reader = working(door, other, run=RUN)
    other.put_sealed(b"next")
    assert 1 == pointers_read(door, reader, b"next")


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_it_begins_behind_what_it_has_passed_itself(door: Door, other: Door) -> None:
    """Or a program would read the rows of half a second again and again."""
    reader = working(door, other)
    rows = []
    for _ in range(FIRST_WINDOW + 2):
        other.put_sealed(b"next")
        spent = cost(door, lambda: door.ack(taken(door, reader, b"next")))
        rows.append(spent["read_bucket"])
    assert 1 == max(rows), rows


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_where_others_have_gone_far_it_reads_the_pointers_and_no_history(
    door: Door, other: Door
) -> None:
    reader = working(door, other)
    for number in range(FIRST_WINDOW + 2):
        other.put_sealed(b"%d" % number)
    taking = other.reader(visibility_s=3_600)
    other.ack(portal.run(taking.get(100)))
    assert [] == portal.run(taking.get(1))  # the reader pointer is behind them now
    other.put_sealed(b"next")
    spent = cost(door, lambda: taken(door, reader, b"next"))
    assert (1 + 1, 2) == (spent["read_pointers"], spent["read_monoton"])
    assert spent["read_bucket"] <= 2


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_behind_a_backlog_nothing_is_read_twice(door: Door, other: Door) -> None:
    reader = working(door, other)
    for number in range(FIRST_WINDOW + 5):
        other.put_sealed(b"%d" % number)
    for number in range(3):
        door.clock.advance(LEFT_FOR_S)
        spent = cost(door, lambda number=number: taken(door, reader, b"%d" % number))
        assert (1 + 1, 1) == (spent["read_pointers"], spent["read_monoton"])


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_the_time_pointer_is_moved_once(door: Door, other: Door) -> None:
    reader = working(door, other)
    to_the_next_minute(door)
    door.clock.advance(600)
    moved = Counter[str]()
    for _ in range(3):
        other.put_sealed(b"next")
        moved += cost(door, lambda: door.ack(taken(door, reader, b"next")))
    assert 3 + 1 == moved["advance_pointer"]  # the reader pointer thrice


@pytest.mark.invariant("I10")
def test_what_came_back_between_two_looks_is_found(door: Door, other: Door) -> None:
    """Behind the reader pointer, by its hint, which each look reads."""
    reader = working(door, other)
    other.put_sealed(b"back")
    (theirs,) = other.queue.get()
    assert b"back" == theirs.body
    other.put_sealed(b"next")
    taken(door, reader, b"next")
    other.queue.release(theirs)
    other.put_sealed(b"last")
    taken(door, reader, b"back", b"last")


@pytest.mark.invariant("I1")
def test_a_queue_that_is_deleted_between_two_looks_is_noticed(door: Door, other: Door) -> None:
    reader = working(door, other)
    other.client.delete_queue(door.queue.name)
    with pytest.raises(QueueDeleted):
        portal.run(reader.get(1))
