"""A get finds what is visible, and nothing hides behind anything.

See docs/design/get-and-leases.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import SinkRef, Status
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.model.row_limits import RUNS_PER_LEASE
from cassieq_spark.queue import admin, seal
from cassieq_spark.queue.get import claim
from cassieq_spark.queue.get import reader as reading
from cassieq_spark.queue.get.claim import Budget
from cassieq_spark.queue.get.open_buckets import FEW
from cassieq_spark.queue.get.unsealed import SEALS_PER_CALL, SHORT_LINGER_S
from cassieq_spark.queue.reserve import reserve
from cassieq_spark.store import portal
from tests.fixtures.faults import Fault
from tests.fixtures.queues import cost

if TYPE_CHECKING:
    from cassieq_spark.queue.get.reader import Reader
    from tests.fixtures.queues import Door, OpenDoor

GAP_S = 11
"""More than the gap timeout of 10 s."""


@pytest.mark.invariant("I1")
def test_the_next_get_finds_a_put_of_this_moment(door: Door) -> None:
    door.put(b"a")
    assert [b"a"] == door.drain()


@pytest.mark.invariant("I10")
def test_p5_a_reserved_bucket_without_a_row_blocks_nobody_and_is_closed(door: Door) -> None:
    door.reserve(3)
    last = door.put(b"behind")
    assert [b"behind"] == door.drain()
    door.clock.advance(GAP_S)
    reader = door.reader()
    assert [] == portal.run(reader.get(1))
    assert [Status.DRAINED] * 4 == [door.value(bucket).status for bucket in range(last + 1)]
    assert last + 1 == portal.run(door.lane.pointers.read()).reader


def test_r11_a_gap_is_as_old_as_any_later_bucket_says(open_door: OpenDoor) -> None:
    """A consumer that was started just now closes it: nothing is remembered from before."""
    door = open_door()
    gap = door.reserve()
    later = door.put(b"later")
    portal.run(seal.close(door.lane, later))
    door.clock.advance(GAP_S)
    door.reserve()  # the monoton row is young again
    door.drain()
    assert Status.DRAINED is door.value(gap).status


@pytest.mark.invariant("I9")
def test_a_get_that_has_enough_closes_gaps_and_seals_nothing_else(open_door: OpenDoor) -> None:
    """Whoever needs the other messages seals their bucket, and claims there by the same CAS."""
    door = open_door(linger=0)
    gap, filled, *sealed = (door.reserve() for _ in range(5))
    door.write(filled, 0, b"n")
    for bucket in sealed:
        door.write(bucket, 0, b"m")
        portal.run(seal.close(door.lane, bucket))
    reader = door.reader()
    reader._choice._count = 0  # none of these gets goes by id
    for bucket in sealed:  # it sees the open ones, and finds them old
        assert [bucket] == [one.bucket for one in portal.run(reader.get(1))]
        door.clock.advance(GAP_S)
    assert Status.DRAINED is door.value(gap).status
    assert door.row(filled) is None
    assert [filled] == [one.bucket for one in portal.run(reader.get(1))]


def test_p5_a_young_gap_is_left_alone(door: Door) -> None:
    gap = door.reserve()
    assert [] == portal.run(door.reader().get(1))
    assert door.row(gap) is None


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I10")
def test_r10_one_call_seals_at_most_so_many_young_buckets(door: Door) -> None:
    for number in range(SEALS_PER_CALL + 4):
        door.put(b"%d" % number)
    before = door.counts["insert_bucket"]
    assert SEALS_PER_CALL == len(portal.run(door.reader().get(1_000)))
    assert before + SEALS_PER_CALL == door.counts["insert_bucket"]


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_get_reads_nothing_behind_as_many_filled_buckets_as_it_seals(door: Door) -> None:
    for number in range(3 * SEALS_PER_CALL):
        door.put(b"%d" % number)
    reader = door.reader()
    spent = cost(door, lambda: _is_one(portal.run(reader.get(1))))
    assert (SEALS_PER_CALL, SEALS_PER_CALL) == (spent["read_bucket"], spent["peek_bucket"])


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_bucket_is_asked_once_whether_it_holds_messages(door: Door) -> None:
    buckets = 3 * SEALS_PER_CALL
    for number in range(buckets):
        door.put(b"%d" % number)
    reader = door.reader()
    spent = cost(door, lambda: [_is_one(portal.run(reader.get(1))) for _ in range(buckets)])
    assert spent["peek_bucket"] <= buckets
    assert [] == portal.run(reader.get(1))


@pytest.mark.invariant("I10")
def test_buckets_that_are_dropped_while_a_get_looks_hide_no_message_behind_them(
    open_door: OpenDoor,
) -> None:
    """It has ended its look early for them; repair passes them before it asks for L."""
    door = open_door(linger=0)
    for number in range(2 * SEALS_PER_CALL):
        door.put(b"%d" % number)

    def drop() -> None:
        for pointer in (Pointer.READER, Pointer.REPAIR):
            portal.run(door.lane.pointers.advance(pointer, SEALS_PER_CALL))

    door.faults.before("read_pointers", drop, after=1)
    assert [SEALS_PER_CALL] == [one.bucket for one in portal.run(door.reader().get(1))]


@pytest.mark.parametrize("linger_s", [0.01, 60.0])
@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I10")
def test_young_buckets_hide_no_sealed_one_for_longer_than_a_moment(
    open_door: OpenDoor, linger_s: float
) -> None:
    """Where they ripen late, a get sees those behind them, however many they are."""
    door = open_door(linger=linger_s)
    for number in range(2 * SEALS_PER_CALL):
        door.put(b"%d" % number)
    sealed = door.put_sealed(b"visible")
    reader = door.reader()
    reader._choice._count = 0  # it does not go by id
    began = door.clock.monotonic()
    claimed = portal.run(reader.get(1))
    assert door.clock.monotonic() - began < SHORT_LINGER_S
    assert (linger_s > SHORT_LINGER_S) == ([sealed] == [one.bucket for one in claimed])


LINGER_S = 60


def look(reader: Reader) -> int:
    """Look once, and wait for nothing; return how many messages were claimed."""
    search = reader.search()
    claimed = portal.run(reader.go_round(search, Budget(messages=1_000), waits=False))
    return sum(one.lease.runs.count for one in claimed)


def test_messages_that_come_singly_are_taken_at_once(open_door: OpenDoor) -> None:
    door = open_door(linger=LINGER_S)
    reader = door.reader(visibility_s=3_600)
    door.put(b"the first: more may come soon")
    assert 0 == look(reader)
    door.clock.advance(LINGER_S + 1)
    assert 1 == look(reader)
    door.clock.advance(LINGER_S + 1)
    door.put(b"nothing has come since")
    assert 1 == look(reader)


def test_r10_no_two_seals_of_messages_that_come_singly_are_close_together(
    open_door: OpenDoor,
) -> None:
    door = open_door(linger=LINGER_S)
    reader = door.reader(visibility_s=3_600)
    door.put(b"one")
    look(reader)
    door.clock.advance(LINGER_S + 1)
    assert 1 == look(reader)
    door.put(b"soon after it")
    assert 0 == look(reader)
    door.clock.advance(LINGER_S - 1)
    door.put(b"shares its wait")
    assert 0 == look(reader)
    door.clock.advance(2)
    assert 2 == look(reader)


def test_r10_readers_that_take_turns_leave_buckets_open(open_door: OpenDoor) -> None:
    """One after the other they would seal whenever they look, and every put would reserve."""
    door = open_door(linger=LINGER_S)
    readers = [door.reader(visibility_s=3_600) for _ in range(2)]
    for reader in readers:
        door.put(b"one")
        look(reader)
        door.clock.advance(LINGER_S + 1)
        assert 1 == look(reader)
    door.clock.advance(LINGER_S + 1)
    door.put(b"the other reader has sealed since")
    assert 0 == look(readers[0])
    assert 1 == look(readers[1])  # which was the last


def test_r10_after_a_bucket_of_many_the_next_stays_open(open_door: OpenDoor) -> None:
    door = open_door(linger=LINGER_S, bucket_size=FEW + 1)
    reader = door.reader(visibility_s=3_600)
    door.put(*[b"x"] * (FEW + 1))
    look(reader)
    door.clock.advance(LINGER_S + 1)
    assert FEW + 1 == look(reader)
    door.clock.advance(LINGER_S + 1)
    door.put(b"perhaps one of many")
    assert 0 == look(reader)


@pytest.mark.invariant("I10")
def test_r10_many_empty_open_buckets_hide_no_message_behind_them(door: Door) -> None:
    door.reserve(100)
    door.put(b"the 101st")
    assert [b"the 101st"] == door.drain()


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_r10_silent_buckets_cost_one_read_of_the_repair_pointer_together(door: Door) -> None:
    door.reserve(30)
    before = door.counts["read_pointers"]
    portal.run(door.reader()._scanner.scan(1))
    assert before + 2 == door.counts["read_pointers"]


def test_r9_a_producers_wrong_clock_hides_no_message(open_door: OpenDoor) -> None:
    producer, consumer = open_door(), open_door()
    producer.clock.advance(3_600)
    producer.put(b"from the future")
    assert [b"from the future"] == consumer.drain()


@pytest.mark.invariant("I10")
def test_p22_the_rest_of_a_block_that_is_being_written_is_no_gap(door: Door) -> None:
    """One row says where the block ends: its writer, who is slow, finds the others as they were."""
    who = door.identity()
    door.task(who, 0)  # creates the sink row
    block = portal.run(reserve(door.lane, 4))
    sink = SinkRef(sink_id=who.sink_id, epoch=1, block_end=block.stop)
    row = rules.writing(sink, now_us=door.lane.clock.now_us())
    portal.run(door.lane.buckets.insert(block.start, row))
    door.put(b"behind")
    door.clock.advance(3_600)

    assert [b"behind"] == door.drain()
    assert [None] * 3 == [door.row(bucket) for bucket in range(block.start + 1, block.stop)]


@pytest.mark.invariant("I10")
def test_p22_a_block_that_is_being_written_hides_nothing_behind_it(door: Door) -> None:
    who = door.identity()
    result = door.task(who, 0, b"x")  # creates the sink row; stays undecided
    first = result.buckets[0][0].bucket
    door.reserve()
    behind = door.put(b"behind")
    assert first < behind
    assert [b"behind"] == door.drain()
    assert Status.PREPARED is door.value(first).status


@pytest.mark.invariant("I1")
def test_p22_what_was_jumped_is_found_when_it_is_committed(door: Door) -> None:
    who = door.identity()
    result = door.task(who, 0, b"x")
    reader = door.reader()
    assert [] == portal.run(reader.get(1))
    door.commit(who, 0, result)
    assert [b"x"] == door.bodies(portal.run(reader.get(1)))


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I2")
def test_p28_a_reader_that_lost_its_race_goes_to_another_bucket(open_door: OpenDoor) -> None:
    slow, quick = open_door(), open_door()
    slow.put_batch(0, b"a")
    slow.put_batch(1, b"b")
    slow.faults.before("update_bucket", lambda: _is_one(portal.run(quick.reader().get(1))))
    before = slow.counts["read_monoton"]
    claimed = portal.run(slow.reader().get(1))
    assert [b"b"] == slow.bodies(claimed)
    assert before + 1 == slow.counts["read_monoton"]  # in the same look


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_drained_history_is_not_read_again(door: Door) -> None:
    for number in range(12):
        door.put_batch(number, b"%d" % number)
    assert 12 == len(door.drain())
    portal.run(door.reader().get(1))
    before = door.counts["read_bucket"]
    assert [] == portal.run(door.reader().get(1))
    hinted = door.counts["read_bucket"] - before
    door.clock.advance(7_200)
    portal.run(door.reader().get(1))  # the time pointer passes the hints
    before = door.counts["read_bucket"]
    assert [] == portal.run(door.reader().get(1))
    assert 0 == door.counts["read_bucket"] - before <= hinted


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_r13_the_first_look_begins_at_the_queues_own_minute(door: Door) -> None:
    before = door.counts["read_hints"]
    portal.run(door.reader().get(1))
    assert door.counts["read_hints"] - before <= 4


@pytest.mark.invariant("I10")
def test_a_trickle_behind_a_long_lease_is_delivered(door: Door) -> None:
    door.put(b"slow")
    assert 1 == len(portal.run(door.reader(visibility_s=86_400).get(1)))
    for number in range(3):
        door.put(b"%d" % number)
        assert [b"%d" % number] == door.drain()


def test_a_get_stays_below_its_target(door: Door) -> None:
    door.put_batch(0, b"a", b"b", b"c")
    reader = door.reader()
    reader._claimer.holder.below = {door.lane.lane_id: 2}
    assert [b"a", b"b"] == door.bodies(portal.run(reader.get(10)))
    assert [] == portal.run(reader.get(10))
    assert [b"c"] == door.drain()


@pytest.mark.invariant("I1")
def test_a_delayed_message_comes_at_its_time_and_counts_from_one(door: Door) -> None:
    bucket = door.reserve()
    door.write(bucket, 0, b"now")
    door.write(bucket, 1, b"later", delay_s=300)
    assert [b"now"] == door.drain()
    door.clock.advance(302)
    (claimed,) = portal.run(door.reader().get(5))
    assert (b"later", 1) == (door.bodies([claimed])[0], claimed.lease.delivery_count)


@pytest.mark.invariant("I1")
def test_reads_that_time_out_are_sent_again(door: Door) -> None:
    door.put(b"a")
    for name in ("read_bucket", "scan_messages", "read_monoton", "read_pointers", "read_messages"):
        door.faults.plan(name, Fault.TIMEOUT_BEFORE)
    assert [b"a"] == door.drain()


@pytest.mark.invariant("I1")
def test_p2_a_half_done_seal_is_carried_on_by_the_next_reader(door: Door) -> None:
    bucket = door.put(b"a")
    door.faults.plan("fill_bucket", Fault.REFUSE)
    with pytest.raises(ValueError, match="fill_bucket"):
        portal.run(seal.close(door.lane, BucketNo(bucket)))
    assert Status.SEALING is door.value(bucket).status
    assert [b"a"] == door.drain()


@pytest.mark.invariant("I1")
def test_p2_a_bucket_that_is_dropped_while_a_reader_looks_is_not_closed(door: Door) -> None:
    """Its row was absent, and repair passed it before the reader asked for the repair pointer."""
    bucket = door.put(b"long delivered")
    door.faults.before(
        "read_pointers",
        lambda: portal.run(door.lane.pointers.advance(Pointer.REPAIR, bucket + 1)),
        after=1,
    )
    assert [] == portal.run(door.reader().get(1))
    assert door.row(bucket) is None


def _is_one(claimed: list[object]) -> None:
    assert 1 == len(claimed)


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I2")
def test_a_look_ahead_spares_the_next_get_its_look_and_nothing_else(door: Door) -> None:
    for number in range(3):
        door.put_batch(number, b"%d" % number, b"more")
    reader = door.reader(run=new_uuid())
    assert [b"0", b"more"] == door.bodies(portal.run(reader.get(2)))
    portal.run(reader.look_ahead(2))
    before = door.counts["read_monoton"], door.counts["read_bucket"]
    assert [b"1", b"more"] == door.bodies(portal.run(reader.get(2)))
    assert before == (door.counts["read_monoton"], door.counts["read_bucket"])
    assert [b"2", b"more"] == door.bodies(portal.run(reader.get(2)))
    assert [] == portal.run(reader.get(2))
    assert portal.run(door.lane.read_pointers()).reader > 2


@pytest.mark.invariant("I2")
def test_what_a_look_ahead_has_seen_and_others_took_goes_to_nobody_twice(
    open_door: OpenDoor,
) -> None:
    slow, quick = open_door(), open_door()
    for number in range(3):
        slow.put_batch(number, b"%d" % number, b"%d again" % number)
    reader = slow.reader(run=new_uuid())
    portal.run(reader.look_ahead(3))
    taken = quick.bodies(portal.run(quick.reader().get(3)))
    assert [b"0", b"0 again", b"1"] == taken
    found: list[bytes] = []
    while some := slow.bodies(portal.run(reader.get(3))):
        found += some
    assert [b"1 again", b"2", b"2 again"] == sorted(found)


@pytest.mark.usefixtures("still_time")
def test_a_look_ahead_of_something_else_or_of_long_ago_does_not_count(door: Door) -> None:
    door.put_batch(0, b"a", b"b")
    door.put_batch(1, b"c")
    reader = door.reader(visibility_s=600, run=new_uuid())
    portal.run(reader.look_ahead(1))
    before = door.counts["read_monoton"]
    assert [b"a", b"b"] == door.bodies(portal.run(reader.get(2)))
    portal.run(reader.look_ahead(1))
    door.clock.advance(60)
    assert [b"c"] == door.bodies(portal.run(reader.get(1)))
    assert before + 3 == door.counts["read_monoton"]


@pytest.mark.invariant("I4")
def test_what_was_purged_since_the_look_ahead_is_not_found(open_door: OpenDoor) -> None:
    mine, other = open_door(), open_door()
    mine.put_batch(0, b"a", b"b")
    reader = mine.reader(run=new_uuid())
    portal.run(reader.look_ahead(2))
    portal.run(admin.purge(other.lane))
    assert [] == portal.run(reader.get(2))


def fill_every_second(door: Door, buckets: int, *, size: int) -> None:
    """Sealed buckets in which every second id has a message: each is a run of its own."""
    for _ in range(buckets):
        bucket = door.reserve()
        for at in range(0, size, 2):
            door.write(bucket, at, b"m")
        portal.run(seal.close(door.lane, bucket))


def test_one_call_takes_so_many_runs_of_ids_that_an_offset_can_name_them(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every second message came back, each message is a run of its own."""
    door = open_door(bucket_size=100)
    fill_every_second(door, 12, size=100)
    monkeypatch.setattr(claim, "RUNS_PER_CALL", 200)
    reader = door.reader()
    sizes = []
    while claimed := portal.run(reader.get(10_000)):
        sizes.append(sum(len(one.lease.runs.pairs) for one in claimed))
    assert 600 == sum(sizes)
    assert 200 + 50 >= max(sizes)
    assert 4 >= len(sizes)  # and no fewer


@pytest.mark.invariant("I10")
def test_a_bucket_of_more_runs_than_a_call_may_take_is_claimed_from(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = open_door(bucket_size=100)
    fill_every_second(door, 1, size=100)
    monkeypatch.setattr(claim, "RUNS_PER_CALL", 1)
    assert 50 == sum(one.lease.runs.count for one in portal.run(door.reader().get(10_000)))


def test_a_bucket_counts_for_as_many_runs_as_one_claim_takes_there(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for as many as came back: one round goes to as many buckets as it may."""
    door = open_door(bucket_size=400)
    fill_every_second(door, 4, size=400)
    monkeypatch.setattr(claim, "RUNS_PER_CALL", 4 * RUNS_PER_LEASE)
    monkeypatch.setattr(reading, "TRIES", 1)
    claimed = portal.run(door.reader().get(10_000))
    assert {0, 1, 2, 3} == {one.bucket for one in claimed}
