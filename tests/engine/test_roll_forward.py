"""A batch's buckets are looked at beside its commit, together; what is missing is read again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.model.bucket import Status
from cassieq_spark.queue import roll_forward
from cassieq_spark.store import session as sessions
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from cassieq_spark.model.sink_txn import TaskResult
    from tests.fixtures.queues import Door, OpenDoor

pytestmark = pytest.mark.invariant("I7")

BODIES = [b"a", b"b", b"c", b"d", b"e"]


def five_tasks(door: Door) -> list[TaskResult]:
    return [door.task(door.identity(), 0, body) for body in BODIES]


def commit(door: Door, results: list[TaskResult]) -> Counter[str]:
    """Commit a batch; return what was sent."""
    before = door.counts
    assert 5 == door.commit(door.identity(), 0, *results)
    return door.counts - before


def is_visible(door: Door, results: list[TaskResult]) -> bool:
    return all(Status.SEALED is door.value(one.buckets[0][0]).status for one in results)


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_commit_reads_each_row_once_and_the_pointers_twice(door: Door) -> None:
    """Whether its queue is there still, and whether a bucket is below L."""
    results = five_tasks(door)
    spent = commit(door, results)
    assert {"read_bucket": 5, "update_bucket": 5, "read_pointers": 2, "update_sink": 1} == {
        name: count for name, count in spent.items() if name != "read_sink"
    }
    assert is_visible(door, results)
    assert BODIES == door.drain()


@pytest.mark.usefixtures("still_time")
def test_more_buckets_than_are_looked_at_together_are_all_published(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll_forward, "TOGETHER", 2)
    results = five_tasks(door)
    commit(door, results)
    assert is_visible(door, results)
    assert BODIES == door.drain()


@pytest.mark.usefixtures("still_time")
def test_a_row_that_does_not_answer_at_once_is_asked_for_again(door: Door) -> None:
    results = five_tasks(door)
    door.faults.plan("read_bucket", Fault.TIMEOUT_BEFORE, times=3)
    spent = commit(door, results)
    # What is asked again has a pointer read of its own: the one for all came before it.
    assert (5, 2 + 3) == (spent["read_bucket"], spent["read_pointers"])
    assert is_visible(door, results)


@pytest.mark.usefixtures("still_time")
def test_a_pointer_that_does_not_answer_at_once_is_asked_for_again(door: Door) -> None:
    results = five_tasks(door)
    door.faults.plan("read_pointers", Fault.TIMEOUT_BEFORE, times=2)
    commit(door, results)
    assert is_visible(door, results)


@pytest.mark.usefixtures("still_time")
def test_a_bucket_that_a_reader_has_published_and_claimed_meanwhile_stays_as_it_is(
    open_door: OpenDoor,
) -> None:
    """The row as it was looked at only loses its CAS."""
    door, other = open_door(), open_door()
    results = five_tasks(door)
    taken: list[bytes] = []
    door.faults.before("update_bucket", lambda: taken.extend(other.drain()))
    commit(door, results)
    assert BODIES == taken
    assert [] == door.drain()


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I4")
def test_a_bucket_that_is_dropped_between_the_look_and_its_cas_is_not_made_anew(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(), open_door()
    results = five_tasks(door)

    def take_all() -> None:
        other.queue.ack(other.queue.get(5))
        for one in (door, other):
            one.clock.advance(60)
        assert 5 == other.client.repair(door.queue.name).queues[0].dropped

    door.faults.before("update_bucket", take_all)
    commit(door, results)
    assert [None] * 5 == [door.row(one.buckets[0][0]) for one in results]


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I10")
def test_buckets_that_do_not_answer_are_waited_for_together(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though none of them is looked at together with another."""
    monkeypatch.setattr(sessions, "DEADLINE_S", 2.0)
    monkeypatch.setattr(roll_forward, "TOGETHER", 1)
    results = five_tasks(door)
    door.faults.plan("read_bucket", Fault.TIMEOUT_BEFORE, times=5_000)
    began = door.clock._real.monotonic()
    commit(door, results)
    assert door.clock._real.monotonic() - began < 2 * 2.0
    door.faults._plan.clear()
    assert BODIES == door.drain()
