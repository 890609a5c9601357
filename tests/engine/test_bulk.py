"""A task attempt's buckets: its own, prepared, undecided until its sink row lists them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.errors import SinkFenced
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.model.sink_txn import TaskResult
from cassieq_spark.queue import seal
from cassieq_spark.queue.message import proof_of
from cassieq_spark.queue.sink.writer import open_buckets, prepare
from cassieq_spark.store import portal, statements
from cassieq_spark.store.tables.lanes import Monoton
from tests.fixtures.queues import drain, payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark import Queue
    from cassieq_spark.store.call import Sent
    from cassieq_spark.store.statements import Statement
    from tests.fixtures.queues import Door, OpenDoor


@pytest.mark.invariant("I7")
def test_what_is_written_is_invisible_until_it_is_committed(door: Door) -> None:
    who = door.identity()
    result = door.task(who, 0, b"a", b"b")
    assert [2] == [count for _, count in result.buckets]
    assert [] == door.drain()
    assert 2 == door.commit(who, 0, result)
    assert [b"a", b"b"] == door.drain()


def test_p5_a_bulk_writer_reads_the_repair_pointer_after_its_row(door: Door) -> None:
    """The reserved bucket was closed as a gap and dropped: another one is taken."""
    door.faults.before(
        "read_pointers",
        lambda: portal.run(door.lane.pointers.advance(Pointer.REPAIR, 1)),
    )
    result = door.put_batch(0, b"a")
    assert [(door.place(1), 1)] == list(result.buckets)
    assert [b"a"] == door.drain()


def test_r11_a_refused_bucket_is_replaced(door: Door) -> None:
    portal.run(
        door.lane.buckets.insert(BucketNo(0), rules.sealing(now_us=door.lane.clock.now_us()))
    )
    assert [(door.place(1), 1)] == list(door.put_batch(0, b"a").buckets)
    assert [b"a"] == door.drain()


@pytest.mark.invariant("I7")
def test_p8_attempts_have_buckets_of_their_own_and_the_loser_is_void(open_door: OpenDoor) -> None:
    door, late = open_door(), open_door()
    who = door.identity()
    loser, winner = late.task(who, 0, b"a"), door.task(who, 0, b"a")
    assert {place for place, _ in loser.buckets}.isdisjoint(place for place, _ in winner.buckets)
    door.commit(who, 0, winner)
    assert [b"a"] == door.drain()
    assert Status.VOID is door.value(loser.buckets[0][0]).status


def test_p8_a_bucket_closed_under_its_writer_fences_the_attempt(door: Door) -> None:
    who = door.identity()
    door.task(who, 0)
    with portal.entered(door.bulk_writer(who, 1)) as bulk:
        writer = bulk.of(door.lane.lane_id)
        portal.run(writer.add(payload(b"a"), 1))
        (bucket,) = (at for at in range(3) if door.row(at) is not None)
        portal.run(
            door.lane.change_bucket(
                BucketNo(bucket), lambda row, *_: rules.voided(row, now_us=row.changed_us)
            )
        )
        with pytest.raises(SinkFenced):
            portal.run(bulk.finish())


def test_a_bucket_takes_its_ids_or_its_bytes_whichever_is_first(door: Door) -> None:
    result = door.task(door.identity(), 0, *(b"%d" % number for number in range(25)))
    assert [10, 10, 5] == [count for _, count in result.buckets]
    with portal.entered(door.bulk_writer(door.identity(), 1)) as bulk:
        writer = bulk.of(door.lane.lane_id)
        writer._bucket_bytes = 1
        for body in (b"a", b"b"):
            portal.run(writer.add(payload(body), 1))
        assert [1, 1] == [count for _, count in portal.run(bulk.finish())]


@pytest.mark.invariant("I10")
def test_what_was_reserved_and_not_used_is_given_back(door: Door) -> None:
    door.put_batch(0, *(b"%d" % number for number in range(11)))
    monoton = portal.run(door.lane.monotons.read())
    assert monoton is not None
    assert isinstance(monoton.value, Monoton)
    rows = [door.value(bucket).status for bucket in range(monoton.value.next_id // 10)]
    assert set(rows) <= {Status.SEALED, Status.VOID}
    assert 11 == len(door.drain())


@pytest.mark.invariant("I1")
def test_delays_of_a_batch_are_groups_with_hints(door: Door) -> None:
    who = door.identity()
    door.task(who, 0)
    with portal.entered(door.bulk_writer(who, 1)) as bulk:
        writer = bulk.of(door.lane.lane_id)
        now_us = door.lane.clock.now_us()
        portal.run(writer.add(payload(b"now", b"later"), 2, [0, now_us + 3_600_000_000]))
        buckets = portal.run(bulk.finish())
    door.commit(who, 0, TaskResult(who=who, epoch=1, buckets=buckets))
    assert [b"now"] == door.drain()
    # Past the minutes that the first claim's own hint is in.
    door.clock.advance(1_800)
    assert [] == door.drain()
    door.clock.advance(1_802)
    assert [b"later"] == door.drain()


def test_p2_a_seal_leaves_a_bulk_bucket_to_its_sink(door: Door) -> None:
    result = door.task(door.identity(), 0, b"a")
    closed = portal.run(seal.close(door.lane, result.buckets[0][0].bucket))
    assert closed is not None
    assert Status.PREPARED is closed.row.value.status


@pytest.mark.invariant("I7")
@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(lambda queue: queue.stats().visible, id="stats"),
        pytest.param(lambda queue: len(queue.peek(10)), id="peek"),
    ],
)
def test_a_look_into_a_bucket_that_is_being_opened_sees_nothing_of_it(
    open_door: OpenDoor, seen: Callable[[Queue], int]
) -> None:
    """It finds no row, and the messages that were written behind its back."""
    writing, looking = open_door(), open_door()
    who = writing.identity()
    is_reserved, may_write = Event(), Event()

    def hold() -> None:
        is_reserved.set()
        assert may_write.wait(30)

    writing.faults.before("insert_bucket", hold)
    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(writing.task, who, 0, b"a", b"b")

        def go_on() -> None:
            may_write.set()
            written.result(30)

        try:
            assert is_reserved.wait(30)
            looking.faults.before("scan_messages", go_on)
            assert 0 == seen(looking.queue)
        finally:
            may_write.set()
    writing.commit(who, 0, written.result())
    assert 2 == seen(looking.queue)


@pytest.mark.invariant("I7")
def test_a_look_sees_all_of_a_batch_whose_driver_died_behind_its_commit(
    open_door: OpenDoor,
) -> None:
    died, looking = open_door(), open_door()
    who = died.identity()
    result = died.task(who, 0, *(b"%d" % number for number in range(25)))
    died.faults.before("update_bucket", _crash, after=1)
    with pytest.raises(_CrashError):
        died.commit(who, 0, result)
    assert Status.PREPARED in {looking.value(bucket).status for bucket, _ in result.buckets}

    assert 25 == looking.queue.stats().visible
    assert 25 == len(looking.queue.peek(100))
    assert Status.PREPARED in {looking.value(bucket).status for bucket, _ in result.buckets}
    assert 25 == len(looking.drain())


class _CrashError(BaseException):
    """Ends a call as a killed process would."""


def _crash() -> None:
    raise _CrashError


# --- several lanes --------------------------------------------------------------------------------


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I7")
def test_a_task_writes_no_more_at_once_into_many_lanes_than_into_one(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``writesInFlight`` is a task's limit: a node does not care whose lane a statement is for."""
    door = open_door(shards=8, bucket_size=10)
    under_way, most = 0, 0
    start_together, finish = door.session.start_together, door.session.finish

    def started(statement: Statement, rows: Any) -> Any:
        nonlocal under_way, most
        under_way += len(rows) * (statement is statements.WRITE_MESSAGE)
        most = max(most, under_way)
        return start_together(statement, rows)

    def finished(sent: Sent) -> Any:
        nonlocal under_way
        under_way -= sent.statement is statements.WRITE_MESSAGE
        return finish(sent)

    monkeypatch.setattr(door.session, "start_together", started)
    monkeypatch.setattr(door.session, "finish", finished)
    who = door.identity()
    door.task(who, 0)
    before = door.counts["write_message"]
    with portal.entered(door.bulk_writer(who, 1)) as bulk:
        for number in range(15):
            for lane_id in door.lane.lanes:
                portal.run(bulk.of(lane_id).add(payload(b"%d" % number), 1))
        buckets = portal.run(bulk.finish())

    assert 8 * 15 == door.counts["write_message"] - before
    assert (4, 0) == (most, under_way)
    assert Counter({5: 8, 10: 8}) == Counter(count for _, count in buckets)
    assert 120 == door.commit(who, 0, TaskResult(who=who, epoch=1, buckets=buckets))
    got = Counter(message.body for message in drain(door.queue))
    assert {b"%d" % number: 8 for number in range(15)} == got


# --- no bucket takes more than its ids ------------------------------------------------------------


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I6")
def test_t1_a_writer_that_is_given_more_than_its_room_writes_nothing_of_it(door: Door) -> None:
    """Ids beyond the bucket are those of the next one: a caller's mistake, told at once."""
    who = door.identity()
    door.task(who, 0)
    with portal.entered(door.bulk_writer(who, 1)) as bulk:
        writer = bulk.of(door.lane.lane_id)
        portal.run(writer.add(payload(*[b"m"] * 8), 8))
        assert 2 == writer.capacity()
        written = door.counts["write_message"]
        for count in (3, 11, 0, -1):
            with pytest.raises(ValueError, match="2"):
                portal.run(writer.add(payload(*[b"m"] * 3), count))
        assert written == door.counts["write_message"]
        portal.run(writer.add(payload(b"m", b"m"), 2))
        assert [10] == [count for _, count in portal.run(bulk.finish())]


@pytest.mark.invariant("I6")
def test_t1_no_bucket_is_prepared_with_more_than_its_ids(door: Door) -> None:
    ((opened,),) = portal.run(open_buckets([(door.lane, 1)], sink_id="s", epoch=1))
    opened.count = 11
    with pytest.raises(rules.IllegalMove, match="10 ids"):
        portal.run(prepare(door.lane, opened))
    assert Status.WRITING is door.value(opened.bucket).status


@pytest.mark.invariant("I6")
def test_t1_a_seal_takes_nothing_into_its_manifest_that_is_beyond_the_bucket(door: Door) -> None:
    """What is there was never acknowledged: its id is the next bucket's."""
    bucket = door.put(b"a", b"b")
    door.write(bucket, 8, b"c", b"d", b"beyond", b"beyond")
    closed = portal.run(seal.close(door.lane, bucket))
    assert closed is not None
    assert Runs.of((0, 1), (8, 9)) == closed.row.value.manifest


@pytest.mark.invariant("I3")
@pytest.mark.parametrize(
    ("bucket_size", "messages"),
    [
        (1, 4),
        (7, 60),
        (256, 1_500),
        (600, 2_300),
        (1_024, 2_500),
        (1_500, 3_200),
        (50_000, 2_600),
    ],
)
def test_t1_whatever_the_bucket_size_each_moved_message_has_an_id_of_its_own_and_can_be_acked(
    open_door: OpenDoor, bucket_size: int, messages: int
) -> None:
    graves = open_door(".dead", bucket_size=bucket_size)
    door = open_door(bucket_size=5_000, max_deliveries=1, dead_letter_queue=graves.queue.name)
    door.queue.put_many([b"%d" % number for number in range(messages)])
    door.queue.release(door.queue.get(messages))
    assert [] == door.queue.get()
    assert messages == door.client.repair(door.queue.name).queues[0].moved_dead
    assert [] == graves.client.verify(graves.queue.name).findings
    found = []
    while some := graves.queue.get(messages):
        found += some
    assert messages == len({one.id for one in found}) == len({one.body for one in found})
    assert all(proof_of(one).first < bucket_size for one in found)
    graves.queue.ack(found)
    assert (0, 0) == (graves.queue.stats().visible, graves.queue.stats().in_flight)


def test_no_more_buckets_are_opened_ahead_than_are_expected(open_door: OpenDoor) -> None:
    """However slow opening is: each one that nobody needs costs two LWTs."""
    door = open_door(bucket_size=4)
    for after in range(2):
        door.faults.before("insert_bucket", lambda: door.clock.advance(10), after=after)
    who = door.identity()
    epoch = door.task(who, 0).epoch
    assert epoch is not None
    with portal.entered(door.bulk_writer(who, epoch)) as bulk:
        writer = bulk.of(door.lane.lane_id)
        portal.run(writer.begin(expected=3))
        for _ in range(6):
            portal.run(writer.add(payload(b"a", b"b"), 2))
        assert [4, 4, 4] == [count for _, count in portal.run(bulk.finish())]
    assert 3 * 4 == portal.run(door.lane.read_monoton()).next_id
