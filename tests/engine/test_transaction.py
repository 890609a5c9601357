"""A sink batch appears whole and once, or not at all, whoever acts on it when.

See docs/design/sink.md.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import SinkDiverged, SinkFenced, SinkIdReused
from cassieq_spark.model import bucket as buckets
from cassieq_spark.model import sink_txn as rules
from cassieq_spark.model.bucket import SinkRef, Status
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.outcome import Applied
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.model.sink_txn import BucketList, SinkRow
from cassieq_spark.queue.roll_forward import roll_forward
from cassieq_spark.queue.sink import transaction
from cassieq_spark.queue.sink.transaction import heartbeat
from cassieq_spark.store import portal, statements
from tests.fixtures.faults import Fault
from tests.fixtures.transports import run_cql

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor

pytestmark = pytest.mark.invariant("I7")


def sink_row(door: Door) -> SinkRow:
    stored = portal.run(door.store.sinks.read(door.queue.name))
    assert stored is not None
    return stored.value


def abort(door: Door) -> None:
    """As repair does: roll the list forward, then end the epoch."""
    stored = portal.run(door.store.sinks.read(door.queue.name))
    assert stored is not None
    portal.run(roll_forward(door.lane, door.queue.name, stored.value.listed))
    row = rules.abort(stored.value, now_us=door.lane.clock.now_us())
    assert isinstance(portal.run(door.store.sinks.update(door.queue.name, stored, row)), Applied)


def test_a_committed_batch_is_there_once_however_often_it_is_committed(door: Door) -> None:
    who = door.identity()
    result = door.task(who, 0, b"a", b"b")
    assert [2, 0, 0] == [door.commit(who, 0, result) for _ in range(3)]
    assert [b"a", b"b"] == door.drain()


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER])
@pytest.mark.parametrize("name", ["insert_sink", "insert_bucket", "fill_bucket", "update_sink"])
def test_a_batch_whose_answers_were_lost_is_there_once(door: Door, name: str, fault: Fault) -> None:
    door.faults.plan(name, fault)
    door.put_batch(0, b"a", b"b")
    assert [b"a", b"b"] == door.drain()


def test_p1_an_abort_before_the_commit_point_wins_and_the_commit_is_fenced(
    open_door: OpenDoor,
) -> None:
    """Repair read "not committed" and acted: the driver's commit must not apply any more."""
    door, repair = open_door(), open_door()
    who = door.identity()
    result = door.task(who, 0, b"a")
    door.faults.before("update_sink", lambda: abort(repair))
    with pytest.raises(SinkFenced):
        door.commit(who, 0, result)
    assert [] == door.drain()
    assert Status.VOID is door.value(result.buckets[0][0]).status


def test_p1_a_reader_touches_no_undecided_bucket(door: Door) -> None:
    who = door.identity()
    result = door.task(who, 0, b"a")
    door.clock.advance(86_400)
    assert [] == door.drain()
    assert Status.PREPARED is door.value(result.buckets[0][0]).status


def test_r1_a_commit_reads_the_row_anew_and_must_find_its_own_epoch(door: Door) -> None:
    """The abort comes before the committer's read: a CAS on what it reads then would succeed."""
    who = door.identity()
    result = door.task(who, 0, b"a")
    abort(door)
    with pytest.raises(SinkFenced):
        door.commit(who, 0, result)
    assert [] == door.drain()


def test_p10_what_a_dead_driver_committed_is_rolled_forward_before_its_list_goes(
    door: Door,
) -> None:
    who = door.identity()
    first = door.task(who, 0, b"first")
    # The driver dies right after its commit point: no bucket is rolled forward.
    door.faults.plan("update_bucket", Fault.REFUSE)
    assert 1 == door.commit(who, 0, first)
    assert (0, BucketList.of(first.buckets)) == (sink_row(door).last, sink_row(door).listed)
    assert Status.PREPARED is door.value(first.buckets[0][0]).status

    door.put_batch(1, b"second", run="r2")
    assert [b"first", b"second"] == door.drain()


@pytest.mark.parametrize("is_filled", [False, True])
def test_a_ghost_of_a_dropped_bucket_is_neither_corruption_nor_shown_again(
    door: Door, is_filled: bool
) -> None:
    """What was sent twice, and lands a second time after the drop, means nothing (G5)."""
    result = door.put_batch(0, b"a")
    (((_, bucket), _),) = result.buckets
    assert [b"a"] == door.drain()
    portal.run(door.lane.pointers.advance(Pointer.REPAIR, bucket + 1))
    drop = "DELETE FROM {ks}.bucket WHERE lane = ? AND bucket = ? IF EXISTS"
    run_cql(door.session, drop, door.lane.lane_id, bucket)  # as repair does
    sink = SinkRef(sink_id=door.queue.name, epoch=1, block_end=BucketNo(bucket + 1))
    now_us = door.lane.clock.now_us()
    landed = portal.run(door.lane.buckets.insert(bucket, buckets.writing(sink, now_us=now_us)))
    assert isinstance(landed, Applied)
    if is_filled:
        filled = buckets.prepared(
            landed.now.value, manifest=Runs.span(0, 0), due_us={}, size_bytes=1, now_us=now_us
        )
        portal.run(door.lane.buckets.fill(bucket, landed.now, filled))

    door.put_batch(1, b"b")
    assert [b"b"] == door.drain()
    assert door.value(bucket).status in (Status.WRITING, Status.PREPARED)


def test_p10_a_reader_rolls_forward_what_is_decided(door: Door) -> None:
    who = door.identity()
    result = door.task(who, 0, b"a")
    door.faults.plan("update_bucket", Fault.REFUSE)
    assert 1 == door.commit(who, 0, result)
    assert Status.PREPARED is door.value(result.buckets[0][0]).status
    assert [b"a"] == door.drain()


def test_p10_an_empty_batch_commits_and_keeps_its_number(door: Door) -> None:
    who = door.identity()
    assert 0 == door.commit(who, 0, door.task(who, 0))
    assert (0, 2) == (sink_row(door).last, sink_row(door).epoch)
    assert 0 == door.commit(who, 1)
    assert 0 == sink_row(door).last


def test_p1_parked_commits_of_two_drivers_have_one_winner(open_door: OpenDoor) -> None:
    one, two = open_door(), open_door()
    whos = one.identity("r1"), two.identity("r2")
    results = one.task(whos[0], 0, b"a"), two.task(whos[1], 0, b"a")
    one.faults.park("update_sink", 2)
    two.faults._gates = one.faults._gates

    def commit(number: int) -> int | str:
        try:
            return (one, two)[number].commit(whos[number], 0, results[number])
        except SinkFenced as error:
            return error.code

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(commit, (0, 1)))
    assert [1, "sink_fenced"] == sorted(outcomes, key=str)
    assert [b"a"] == one.drain()


def test_r5_a_restarted_run_takes_over_and_the_old_one_is_fenced(door: Door) -> None:
    door.put_batch(0, b"a")
    again = door.task(door.identity("r2"), 0, b"a")
    assert again.epoch is None
    assert 0 == door.commit(door.identity("r2"), 0, again)
    assert ("r2", ("r1",)) == (sink_row(door).run, sink_row(door).past)
    with pytest.raises(SinkFenced):
        door.task(door.identity("r1"), 1, b"b")
    door.put_batch(1, b"b", run="r2")
    assert [b"a", b"b"] == door.drain()


def test_r4_an_older_batch_is_diverged(door: Door) -> None:
    door.put_batch(0, b"a")
    door.put_batch(1, b"b")
    with pytest.raises(SinkDiverged):
        door.task(door.identity(), 0, b"other")


def test_r26_the_second_write_of_a_batch_is_refused(door: Door) -> None:
    door.put_batch(0, b"a")
    with pytest.raises(SinkIdReused):
        portal.run(transaction.admit(door.lane, door.identity(), 0, refuse_second_write=True))


def test_r24_one_sink_id_serves_one_queue(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door(".other")
    door.put_batch(0, b"a")
    with pytest.raises(SinkIdReused):
        other.task(other.identity(sink_id=door.queue.name), 1, b"b")
    with pytest.raises(SinkIdReused):
        portal.run(transaction.forget(other.lane, door.queue.name))
    assert [b"a"] == door.drain()


def test_r24_a_forgotten_sink_keeps_what_it_committed_and_begins_anew(door: Door) -> None:
    who = door.identity()
    result = door.task(who, 0, b"a")
    door.faults.plan("update_bucket", Fault.REFUSE)
    assert 1 == door.commit(who, 0, result)
    undecided = door.task(who, 1, b"gone")
    door.client.forget_sink(door.queue.name, door.queue.name)
    door.put_batch(0, b"b", run="r9")
    assert [b"a", b"b"] == door.drain()
    assert Status.VOID is door.value(undecided.buckets[0][0]).status


def test_r24_a_long_list_is_kept_beside_the_row_and_read_back_whole(door: Door) -> None:
    """Buckets of two counts in turn do not join into runs: 10,000 entries are > 64 KB."""
    listed = BucketList.of((door.place(2**32 + at), 1 + at % 2) for at in range(10_000))
    who = door.identity()
    door.task(who, 0)
    stored = portal.run(door.store.sinks.read(who.sink_id))
    assert stored is not None
    decision = rules.decide(stored.value, who, 0, [rules.TaskResult(who=who, epoch=1)], now_us=1)
    assert isinstance(decision, rules.Commit)
    from dataclasses import replace  # noqa: PLC0415

    portal.run(door.store.sinks.update(who.sink_id, stored, replace(decision.row, listed=listed)))
    assert listed == sink_row(door).listed
    row = portal.run(door.session.one(statements.READ_SINK, (who.sink_id,)))
    assert row is not None
    assert row.list is None
    assert row.list_parts > 1


def test_r3_a_writer_is_known_to_be_at_work_from_its_first_moment(door: Door) -> None:
    """Repair aborts what looks abandoned: a beat must not wait for the first period's end."""
    heartbeats = door.store.heartbeats
    assert not portal.run(heartbeats.is_alive(door.queue.name, timeout_s=60))
    with portal.entered(heartbeat(door.lane, door.queue.name)):
        assert portal.run(heartbeats.is_alive(door.queue.name, timeout_s=60))


def test_r14_a_task_never_creates_the_row_of_a_sink_for_one_transaction(door: Door) -> None:
    who = door.identity(None)
    once = portal.run(transaction.begin_once(door.lane, who.sink_id))
    assert rules.WriteUnder(epoch=1) == portal.run(transaction.admit_once(door.lane, once))
    assert sink_row(door).is_once
    stored = portal.run(door.store.sinks.read(who.sink_id))
    assert stored is not None
    portal.run(door.store.sinks.delete(who.sink_id, stored))
    with pytest.raises(SinkFenced):
        portal.run(transaction.admit_once(door.lane, once))
    assert portal.run(door.store.sinks.read(who.sink_id)) is None


def test_a_heartbeat_whose_time_has_ended_before_its_row_is_no_sign_of_life(door: Door) -> None:
    """Its time to live was over on a node whose clock is ahead, and compaction has removed it."""
    session, heartbeats = door.store.session, door.store.heartbeats
    params = (door.queue.name, None, session.clock.now_us(), 60)
    portal.run(session.run(statements.WRITE_ALIVE, params))
    assert not portal.run(heartbeats.is_alive(door.queue.name, timeout_s=60))
