"""Rows of queues that are born again by a copy of their INSERT, and deletions that leave nothing
(design, "Rows that are born again")."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.options import QueueSelection
from cassieq_spark.queue import seal
from cassieq_spark.queue.inspect import facts
from cassieq_spark.queue.reserve import reserve
from cassieq_spark.spark.views.columns import VIEWS
from cassieq_spark.spark.views.reader import Asked, queue_rows
from cassieq_spark.store import portal
from cassieq_spark.store.tables.messages import ChunkRow
from cassieq_spark.store.tables.queues import QueueStatus
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Crash, crash, payload
from tests.fixtures.transports import run_cql

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.queue.lane import Lane
    from tests.fixtures.queues import Door, OpenDoor


@pytest.fixture(scope="module")
def keyspace() -> str:
    """Passes over all queues: not over those of all other tests."""
    return "cassieq_born_again"


@pytest.fixture
def ghost(door: Door) -> cassieq.Queue:
    """A queue that was created, used and deleted; then a copy of its INSERT has landed."""
    door.faults.plan("insert_queue", Fault.LATE)
    queue = door.client.create_queue(f"{door.queue.name}.ghost")
    queue.put(b"before")
    door.client.delete_queue(queue.name)
    assert 1 == door.faults.land()
    row = portal.run(door.store.queues.read(queue._lane.queue))
    assert row is not None
    assert QueueStatus.ACTIVE is row.value.status
    return queue


def test_t14_a_queue_row_that_is_born_again_is_no_queue(door: Door, ghost: cassieq.Queue) -> None:
    verbs: list[Callable[[], object]] = [
        lambda: door.client.queue(ghost.name),
        lambda: door.client.alter_queue(ghost.name, visibility_timeout=5),
        lambda: door.client.alter_queue(door.queue.name, dead_letter_queue=ghost.name),
        lambda: door.client.repair(ghost.name),
        lambda: door.client.verify(ghost.name),
        lambda: door.client.redrive(ghost.name),
    ]
    for verb in verbs:
        with pytest.raises(cassieq.QueueNotFound, match=r"\.ghost"):
            verb()
    with pytest.raises(cassieq.QueueDeleted):
        ghost.put(b"m")
    assert ghost.name not in {one.name for one in door.client.queues()}


def test_t14_a_view_shows_a_queue_row_that_is_born_again_as_one_being_deleted(
    door: Door, ghost: cassieq.Queue
) -> None:
    def shown(view: str) -> list[tuple[str, object]]:
        asked = Asked(view=VIEWS[view], names=(), conditions=())
        found = [
            row for row in queue_rows(door.store, QueueSelection(), asked) if row.name == ghost.name
        ]
        assert found == queue_rows(
            door.store, QueueSelection(names=(ghost._lane.queue,), is_one=True), asked
        )
        return [
            (row.status.value, portal.run(facts.queue_facts(door.store, row)).pointers)
            for row in found
        ]

    assert [("deleting", None)] == shown("queues")
    assert [] == shown("stats")


@pytest.mark.invariant("I10")
def test_t14_a_queue_is_created_again_over_a_row_that_was_born_again(
    door: Door, ghost: cassieq.Queue
) -> None:
    queue = door.client.create_queue(ghost.name, bucket_size=20)  # not as the ghost has it
    queue.put(b"after")
    assert [b"after"] == [one.body for one in queue.get()]


def test_t14_repair_removes_a_queue_row_that_was_born_again(
    door: Door, ghost: cassieq.Queue
) -> None:
    assert ghost.name in door.client.repair(dry_run=True).deletions_finished
    assert ghost.name in door.client.repair().deletions_finished
    assert portal.run(door.store.queues.read(ghost._lane.queue)) is None
    assert ghost.name not in door.client.repair().deletions_finished


def test_t14_a_queue_row_that_was_born_again_can_be_deleted(
    door: Door, ghost: cassieq.Queue
) -> None:
    door.client.delete_queue(ghost.name)
    assert portal.run(door.store.queues.read(ghost._lane.queue)) is None


def test_t14_a_create_that_lost_its_name_to_another_has_no_effect_later(
    open_door: OpenDoor,
) -> None:
    """Its INSERT lands when the other's queue is gone: nobody has created a queue since."""
    slow, other = open_door(), open_door()
    name = f"{slow.queue.name}.raced"
    made: list[cassieq.Queue] = []
    slow.faults.plan("insert_queue", Fault.LATE)
    slow.faults.before(
        "insert_queue", lambda: made.append(other.client.create_queue(name)), after=1
    )
    queue = slow.client.create_queue(name)
    queue.put(b"m")
    assert [b"m"] == [one.body for one in made[0].get()]
    other.client.delete_queue(name)
    assert 1 == slow.faults.land()
    with pytest.raises(cassieq.QueueNotFound):
        other.client.queue(name)
    other.client.create_queue(name).put(b"n")
    assert [b"n"] == [one.body for one in slow.client.queue(name).get()]


@pytest.mark.invariant("I1")
def test_t14_a_queue_that_is_in_use_is_not_ended_by_the_creator_who_lost_its_name(
    open_door: OpenDoor,
) -> None:
    """Its INSERT lands before it gives its lane up, and others have put into that queue."""
    slow, other = open_door(), open_door()
    name = f"{slow.queue.name}.raced"
    put: list[cassieq.Queue] = []

    def lands_and_is_used() -> None:
        other.client.delete_queue(name)
        assert 1 == slow.faults.land()
        put.append(other.client.queue(name))
        put[0].put(b"m")

    slow.faults.plan("insert_queue", Fault.LATE)
    slow.faults.before("insert_queue", lambda: other.client.create_queue(name), after=1)
    slow.faults.before("reserve", lands_and_is_used)
    slow.client.create_queue(name)
    assert put
    assert [b"m"] == [one.body for one in other.client.queue(name).get()]


def half_given_up(open_door: OpenDoor) -> tuple[Door, Door, str]:
    """(a creator that died while it gave its lane up, whose INSERT is on its way, another, name)"""
    slow, other = open_door(), open_door()
    name = f"{slow.queue.name}.raced"
    slow.faults.plan("insert_queue", Fault.LATE)
    slow.faults.before("insert_queue", lambda: other.client.create_queue(name), after=1)
    slow.faults.before("advance_pointer", crash)
    with pytest.raises(Crash):
        slow.client.create_queue(name)
    other.client.delete_queue(name)
    return slow, other, name


def test_t14_a_creator_that_dies_while_it_gives_its_lane_up_leaves_no_queue_that_nobody_can_use(
    open_door: OpenDoor,
) -> None:
    slow, other, name = half_given_up(open_door)
    assert 1 == slow.faults.land()
    other.client.create_queue(name).put(b"n")
    assert [b"n"] == [one.body for one in other.client.queue(name).get()]


# --- deletion -------------------------------------------------------------------------------------


def dropped(door: Door, buckets: int) -> None:
    """So many buckets were filled, acked and dropped."""
    door.queue.put_many([b"m"] * 10 * buckets)
    while got := door.queue.get(1_000):
        door.queue.ack(got)
    door.clock.advance(60)
    assert buckets == door.client.repair(door.queue.name).queues[0].dropped


def leave(lane: Lane) -> BucketNo:
    """Reserve a bucket and write into it, as a producer does who knows of nothing."""
    bucket = BucketNo(portal.run(reserve(lane, 1)).start)
    row = ChunkRow(first=0, count=1, payload=payload(b"left"), enqueued_us=lane.clock.now_us())
    writer = lane.store.chunk_writer(writes_in_flight=2)
    portal.run(writer.write(lane.place(bucket), row))
    portal.run(writer.flush())
    return bucket


def left_of(door: Door, lane: LaneId) -> dict[str, list[object]]:
    """What the tables hold of a lane, but for its pointers, which stay, and what ends by a TTL."""
    found: dict[str, list[object]] = {}
    for table in ("monoton", "bucket", "message", "overlay"):
        rows = run_cql(door.session, f"SELECT lane FROM {{ks}}.{table}")  # noqa: S608
        found[table] = [row for row in rows if row.lane == lane]
    return {table: rows for table, rows in found.items() if rows}


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
@pytest.mark.parametrize("step", ["delete_monoton", "drop_messages", "delete_queue"])
def test_t15_a_deletion_that_was_cut_off_goes_over_no_dropped_bucket_again(
    open_door: OpenDoor, step: str
) -> None:
    door, other = open_door(), open_door()
    dropped(door, 12)
    door.queue.put_many([b"last"] * 10)
    lane = door.lane.lane_id
    door.faults.before(step, crash)
    with pytest.raises(Crash):
        door.queue.delete()
    other.client.delete_queue(door.queue.name)
    deleted = door.counts["delete_bucket"] - 12 + other.counts["delete_bucket"]
    assert 1 == deleted
    assert {} == left_of(other, lane)


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_t15_a_deletion_beside_another_goes_over_no_dropped_bucket(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    dropped(door, 12)
    door.queue.put_many([b"last"] * 10)
    lane = door.lane.lane_id
    door.faults.before("read_pointers", lambda: other.client.delete_queue(door.queue.name), after=1)
    door.queue.delete()
    deleted = door.counts["delete_bucket"] - 12 + other.counts["delete_bucket"]
    assert deleted <= 2
    assert {} == left_of(other, lane)


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_t15_a_long_deletion_goes_on_where_it_was_cut_off(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cassieq_spark.queue.admin.WINDOW", 4)
    door, other = open_door(), open_door()
    door.queue.put_many([b"m"] * 100)
    lane = door.lane.lane_id
    door.faults.before("drop_messages", crash, after=8)
    with pytest.raises(Crash):
        door.queue.delete()
    assert 8 <= door.counts["delete_bucket"]
    other.client.delete_queue(door.queue.name)
    assert 2 == other.counts["delete_bucket"]
    assert {} == left_of(other, lane)


@pytest.mark.usefixtures("still_time")
@pytest.mark.parametrize("step", ["read_pointers", "advance_pointer", "delete_monoton"])
def test_t15_what_is_reserved_beside_a_deletion_goes_with_it(
    open_door: OpenDoor, step: str
) -> None:
    door, late = open_door(), open_door()
    lane = late.lane
    door.queue.put(b"m")

    def reserve_and_write() -> None:
        bucket = leave(lane)
        with suppress(cassieq.QueueDeleted):  # as soon as L is raised
            portal.run(seal.close(lane, bucket))

    # Before the first step; when it has read where the ids end, and noted it; at the last moment.
    after = {"read_pointers": 1, "advance_pointer": 1, "delete_monoton": 0}[step]
    door.faults.before(step, reserve_and_write, after=after)
    door.queue.delete()
    assert late.counts["write_message"]
    assert {} == left_of(door, lane.lane_id)


def test_t15_a_full_repair_removes_what_lands_in_a_lane_that_is_gone(open_door: OpenDoor) -> None:
    """Rows that are born again there mean nothing to anybody, and would stay for ever."""
    door, other = open_door(), open_door()
    lane = door.lane
    door.queue.put(b"m")
    door.faults.plan("insert_bucket", Fault.LATE)
    assert 1 == len(door.queue.get())
    other.faults.plan("insert_monoton", Fault.LATE)
    ended = other.client.create_queue(f"{door.queue.name}.monoton")
    for queue in (door.queue, ended):
        queue.delete()
    assert (1, 1) == (door.faults.land(), other.faults.land())
    assert {"bucket"} == left_of(door, lane.lane_id).keys()
    assert {"monoton"} == left_of(door, ended._lane.lane_id).keys()
    door.client.repair()
    assert {"bucket"} == left_of(door, lane.lane_id).keys()
    assert 2 <= door.client.repair(full=True).swept_lanes
    assert {} == left_of(door, lane.lane_id) | left_of(door, ended._lane.lane_id)
    assert BucketNo(0) not in {
        bucket
        for lane_id, bucket in portal.run(door.store.everything.buckets())
        if lane_id == lane.lane_id
    }


def test_t15_two_that_delete_at_once_leave_nothing_between_them(open_door: OpenDoor) -> None:
    """One reads where the data ends when the other has just removed the row that says so."""
    door, other = open_door(), open_door()
    lane = door.lane.lane_id
    door.queue.put_many([b"m"] * 25)

    def cut_off_behind_the_monoton_row() -> None:
        other.faults.before("drop_messages", crash)
        with pytest.raises(Crash):
            other.client.delete_queue(door.queue.name)

    door.faults.before("advance_pointer", crash, after=1)  # L is raised, the end is not noted
    with pytest.raises(Crash):
        door.queue.delete()
    door.faults.before("read_monoton", cut_off_behind_the_monoton_row)
    door.client.delete_queue(door.queue.name)
    assert {} == left_of(door, lane)


def test_t15_a_full_repair_leaves_a_lane_to_its_deletion(open_door: OpenDoor) -> None:
    """What is written into it behind the scan would be nobody's."""
    door, other, late = open_door(), open_door(), open_door()
    lane = late.lane
    door.queue.put(b"m")

    def cut_off() -> None:
        door.faults.before("advance_pointer", crash, after=1)
        with pytest.raises(Crash):
            door.queue.delete()
        leave(lane)

    other.faults.before("list_monotons", cut_off)
    other.client.repair(full=True)
    door.client.delete_queue(door.queue.name)
    assert {} == left_of(door, lane.lane_id)


def test_t15_a_full_repair_ends_a_lane_that_was_half_given_up(open_door: OpenDoor) -> None:
    slow, other, name = half_given_up(open_door)
    assert 1 <= other.client.repair(full=True).swept_lanes
    assert 1 == slow.faults.land()
    with pytest.raises(cassieq.QueueNotFound):
        other.client.queue(name)
