"""What repair ends that nobody else does: gaps, silent transactions, rows that are over, litter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import PutAmbiguous, SinkFenced
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.queue.sink import transaction
from cassieq_spark.repair.transactions import LONGEST_PATIENCE_S, REST_S
from cassieq_spark.store import portal
from tests.fixtures.queues import Crash, crash

if TYPE_CHECKING:
    from cassieq_spark.repair.report import QueueRepair
    from tests.fixtures.queues import Door, OpenDoor


@pytest.fixture(scope="module")
def keyspace() -> str:
    """Passes over all queues: not over those of all other tests."""
    return "cassieq_repair_ends"


def repair(door: Door, *, full: bool = False) -> QueueRepair:
    (done,) = door.client.repair(door.queue.name, full=full).queues
    assert [] == done.problems
    return done


def once(door: Door, *bodies: bytes, commits: bool = True) -> str:
    """A ``df.write`` without an id."""
    sink_id = f"once:{door.queue.name}:{len(bodies)}"
    begun = portal.run(transaction.begin_once(door.lane, sink_id))
    result = door.task_once(begun, *bodies)
    if commits:
        portal.run(transaction.commit_once(door.lane, begun, [result]))
    return sink_id


# --- gaps -----------------------------------------------------------------------------------------


@pytest.mark.invariant("I10")
def test_gaps_are_closed_and_dropped_where_nobody_reads(door: Door) -> None:
    door.reserve(3)
    assert 0 == repair(door).gaps_closed
    door.clock.advance(60)
    assert 3 == repair(door).gaps_closed
    door.clock.advance(60)
    assert 3 == repair(door).dropped
    door.queue.put(b"m")
    assert [b"m"] == door.drain()


@pytest.mark.invariant("I1")
def test_an_open_bucket_that_holds_messages_is_no_gap(door: Door) -> None:
    bucket = door.reserve()
    door.write(bucket, 0, b"of a producer that sleeps before its look")
    door.clock.advance(3_600)
    assert 0 == repair(door).gaps_closed
    assert [b"of a producer that sleeps before its look"] == door.drain()


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("before", ["write_message", "read_bucket"])
def test_a_producer_that_slept_longer_than_every_timeout_is_told_what_became_of_it(
    open_door: OpenDoor, before: str, passes: int
) -> None:
    """CassieQ's reason for a repair worker: there its late message was lost.

    Here it is delivered, or delivered already, or the producer is told that nobody can know.
    """
    late, other = open_door(), open_door()
    delivered: list[bytes] = []

    def everything_ends() -> None:
        for _ in range(passes):
            other.clock.advance(3_600)
            delivered.extend(other.drain())
            repair(other, full=True)

    late.faults.before(before, everything_ends)
    unknown: PutAmbiguous | None = None
    try:
        late.queue.put(b"late")
    except PutAmbiguous as error:
        unknown = error
    if unknown is None:
        assert [b"late"] == [*delivered, *other.drain()]
    else:
        assert passes == 3  # its bucket was dropped, and all that was known of it
        assert 1 == len(unknown.message_ids)
        assert delivered == ([b"late"] if before == "read_bucket" else [])
    late.queue.put(b"later")
    assert [b"later"] == other.drain()


# --- transactions ---------------------------------------------------------------------------------


@pytest.mark.invariant("I7")
def test_r3_a_transaction_whose_writer_is_silent_becomes_void(open_door: OpenDoor) -> None:
    died, door = open_door(), open_door()
    who = died.identity()
    result = died.task(who, 0, b"a", b"b")
    door.clock.advance(door.lane.settings.repair_timeout_s - 1)
    assert 0 == repair(door).aborted
    door.clock.advance(2)
    assert 1 == repair(door).aborted
    assert Status.VOID is door.value(result.buckets[0][0]).status
    with pytest.raises(SinkFenced):
        died.commit(who, 0, result)
    assert [] == door.drain()

    # The next transaction of the sink has twice as long.
    again = died.task(who, 0, b"a", b"b")
    door.clock.advance(door.lane.settings.repair_timeout_s * 1.5)
    assert 0 == repair(door).aborted
    assert 2 == died.commit(who, 0, again)
    assert [b"a", b"b"] == door.drain()


@pytest.mark.invariant("I7")
def test_r3_a_writer_that_says_it_is_alive_is_left_alone(door: Door) -> None:
    who = door.identity()
    result = door.task(who, 0, b"a")
    door.clock.advance(3_600)
    portal.run(door.store.heartbeats.beat(who.sink_id, ttl_s=60))
    assert 0 == repair(door).aborted
    assert 1 == door.commit(who, 0, result)
    assert [b"a"] == door.drain()


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("step", ["update_bucket", "update_sink"])
def test_an_abort_that_dies_is_carried_on_and_hides_nothing_committed(
    open_door: OpenDoor, step: str
) -> None:
    """The list of the batch before is rolled forward first: the abort overwrites it [P10]."""
    door, other = open_door(), open_door()
    who = door.identity()
    first = door.task(who, 0, b"committed")
    door.faults.before("update_bucket", crash)
    with pytest.raises(Crash):
        door.commit(who, 0, first)
    door.task(who, 1, b"orphan")
    other.clock.advance(3_600)
    other.faults.before(step, crash)
    with pytest.raises(Crash):
        other.client.repair(other.queue.name)
    last = open_door()
    last.clock.advance(3_600)
    repair(last)
    assert [b"committed"] == last.drain()
    assert {"sealed", "drained", "void"} >= last.queue.stats().buckets.keys()


@pytest.mark.invariant("I7")
def test_the_row_of_a_write_without_an_id_goes_when_all_of_it_is_visible(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(), open_door()
    door.faults.before("update_bucket", crash)
    with pytest.raises(Crash):
        once(door, b"a", b"b")
    sink_id = f"once:{door.queue.name}:2"
    assert 0 == repair(other).sinks_ended
    assert [b"a", b"b"] == other.drain()
    assert portal.run(other.store.sinks.read(sink_id)) is not None
    other.clock.advance(REST_S)
    assert 1 == repair(other).sinks_ended
    assert portal.run(other.store.sinks.read(sink_id)) is None


@pytest.mark.invariant("I7")
def test_a_write_without_an_id_that_nobody_commits_becomes_void_with_its_row(door: Door) -> None:
    sink_id = once(door, b"a", commits=False)
    assert 0 == repair(door).sinks_ended
    door.clock.advance(LONGEST_PATIENCE_S)
    repair(door)
    assert [] == door.drain()
    door.clock.advance(REST_S)
    assert 1 == repair(door).sinks_ended
    assert portal.run(door.store.sinks.read(sink_id)) is None
    assert {"void"} >= door.queue.stats().buckets.keys()


def test_the_row_of_a_stream_stays(door: Door) -> None:
    """Without it its next batch would be a first one (I7)."""
    door.put_batch(0, b"a")
    door.clock.advance(3_600)
    assert 0 == repair(door).sinks_ended
    assert portal.run(door.store.sinks.read(door.identity().sink_id)) is not None


def test_p24_the_row_of_a_move_whose_mover_died_at_its_end_goes(open_door: OpenDoor) -> None:
    dead = open_door(".dead")
    door = open_door(max_deliveries=1, dead_letter_queue=dead.queue.name)
    door.queue.put(b"m")
    assert 1 == len(door.queue.get(visibility_timeout=0.1))
    door.clock.advance(60)
    door.faults.before("delete_sink", crash)
    with pytest.raises(Crash):
        door.client.repair(door.queue.name)
    rows = [
        one.sink_id for one in portal.run(dead.store.sinks.once()) if one.lane == dead.lane.lane_id
    ]
    assert 1 == len(rows)
    dead.clock.advance(60 + REST_S)

    # Of one queue alone it cannot be known whether the set is gone.
    dead.client.repair(dead.queue.name)
    assert portal.run(dead.store.sinks.read(rows[0])) is not None
    dead.client.repair()
    assert portal.run(dead.store.sinks.read(rows[0])) is None
    assert [b"m"] == [one.body for one in dead.queue.get()]


# --- space ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_finished_messages_go_though_something_below_them_waits(door: Door) -> None:
    door.queue.put(b"long")
    door.queue.get(visibility_timeout=86_400)
    door.queue.put_many([b"m"] * 20)
    while messages := door.queue.get(100):
        door.queue.ack(messages)
    done = repair(door)
    assert (0, 2) == (done.dropped, done.freed)
    assert [] == portal.run(door.lane.messages.scan(BucketNo(1)))
    before = door.counts
    assert 0 == repair(door).freed
    assert before["drop_messages"] == door.counts["drop_messages"]


def test_what_landed_below_the_repair_pointer_is_swept_by_a_full_pass(door: Door) -> None:
    door.put(b"m")
    door.ack(portal.run(door.reader().get(10)))
    lane = door.lane
    portal.run(door.store.lane(lane.lane_id).pointers.advance(Pointer.REPAIR, 1))
    ghost = door.row(0)
    assert ghost is not None
    assert 0 == repair(door).swept
    assert 1 == repair(door, full=True).swept
    assert door.row(0) is None
    assert [] == portal.run(door.store.lane(lane.lane_id).messages.scan(BucketNo(0)))
    assert 0 == repair(door, full=True).swept
