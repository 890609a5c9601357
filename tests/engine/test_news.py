"""A look that follows the question for news begins with what that has read (ADR 29)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import QueueDeleted
from cassieq_spark.queue import seal
from cassieq_spark.queue.get.reader import QUIET_FOR_S
from cassieq_spark.queue.get.scan import NEWS_FOR_S, POINTERS_FOR_S
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from cassieq_spark.queue.get.reader import Reader
    from tests.fixtures.queues import Door, OpenDoor


def look_costs(door: Door, reader: Reader) -> Counter[str]:
    before = door.counts
    assert portal.run(reader.may_find())
    (claimed,) = portal.run(reader.get(1))
    assert [b"next"] == door.bodies([claimed])
    return door.counts - before


def quiet_reader(door: Door) -> Reader:
    door.put_sealed(b"first")
    reader = door.reader(visibility_s=3_600)
    assert [b"first"] == door.bodies(portal.run(reader.get(1)))
    assert [] == portal.run(reader.get(1))
    assert not portal.run(reader.may_find())
    return reader


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_look_after_the_question_for_news_reads_nothing_twice(door: Door) -> None:
    reader = quiet_reader(door)
    door.put_sealed(b"next")
    spent = look_costs(door, reader)
    assert (1, 1) == (spent["read_monoton"], spent["read_hints"])
    assert 1 == spent["read_pointers"]  # the claim's


@pytest.mark.invariant("I10")
def test_a_look_long_after_the_question_for_news_reads_all_of_it(door: Door) -> None:
    """Or a get would say "none" although a message was put before it began."""
    reader = quiet_reader(door)
    door.put_sealed(b"other")
    assert portal.run(reader.may_find())
    door.clock.advance(1)
    door.put_sealed(b"next")
    assert [b"other", b"next"] == door.bodies(portal.run(reader.get(5)))


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_no_two_looks_one_after_the_other_begin_with_old_pointers(door: Door) -> None:
    """News in which a get finds nothing, again and again: reservations of slow producers."""
    reader = quiet_reader(door)
    spent = []
    for _ in range(5):
        door.clock.advance(POINTERS_FOR_S)
        portal.run(seal.close(door.lane, door.reserve()))
        before = door.counts["read_pointers"]
        assert portal.run(reader.may_find())
        assert [] == portal.run(reader.get(1))
        spent.append(door.counts["read_pointers"] - before)
    assert [0, 1, 0, 1, 0] == spent


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_look_after_much_news_reads_the_pointers_and_no_history(open_door: OpenDoor) -> None:
    """Others have gone far meanwhile."""
    door, other = open_door(), open_door()
    reader = quiet_reader(door)
    for number in range(20):
        other.put_sealed(b"%d" % number)
    taking = other.reader(visibility_s=3_600)  # whose hints nobody reads now
    other.ack(portal.run(taking.get(100)))
    assert [] == portal.run(taking.get(1))  # the reader pointer is behind them now
    before = door.counts
    assert portal.run(reader.may_find())
    assert [] == portal.run(reader.get(1))
    spent = door.counts - before
    assert 1 == spent["read_pointers"]
    assert spent["read_bucket"] <= 2


@pytest.mark.invariant("I1")
def test_a_queue_that_is_deleted_between_two_looks_is_noticed(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    reader = quiet_reader(door)
    other.client.delete_queue(door.queue.name)
    assert portal.run(reader.may_find())
    with pytest.raises(QueueDeleted):
        portal.run(reader.get(1))


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I10")
def test_what_one_call_has_read_serves_no_other_call(door: Door) -> None:
    """The second asks nothing, as its last look is old, and begins anew: a put came between."""
    reader = quiet_reader(door)
    door.put_sealed(b"other")
    assert portal.run(reader.may_find())
    door.clock.advance(NEWS_FOR_S / 2)
    assert reader.since is not None
    reader.since.looked_at -= QUIET_FOR_S
    door.put_sealed(b"next")
    assert portal.run(reader.may_find())
    assert [b"other", b"next"] == door.bodies(portal.run(reader.get(5)))
