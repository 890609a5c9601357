"""The put handshake and the seal lose nothing, whoever pauses where.

See docs/design/ids-and-buckets.md and docs/design/put.md.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.outcome import Applied
from cassieq_spark.model.pointer import Pointer, minute_of
from cassieq_spark.queue import seal
from cassieq_spark.store import portal, statements
from cassieq_spark.store.tables import messages as unread
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Put, payload

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor

FIRST = Runs.span(0, 0)


@pytest.mark.invariant("I1")
def test_a_proven_put_is_in_the_next_manifest(door: Door) -> None:
    bucket = door.put(b"a", b"b")
    assert door.row(bucket) is None
    closed = portal.run(seal.close(door.lane, bucket))
    assert closed is not None
    assert (Status.SEALED, Runs.span(0, 1), Runs.span(0, 1)) == (
        closed.row.value.status,
        closed.row.value.manifest,
        closed.row.value.fresh,
    )
    assert Put.OK is door.prove(bucket, Runs.span(0, 1))


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("step", ["insert_bucket", "read_pointers", "scan_messages", "fill_bucket"])
def test_a_put_beside_any_step_of_a_seal_is_in_the_manifest_or_knows_that_it_is_not(
    open_door: OpenDoor, step: str
) -> None:
    """The producer writes and asks just before the sealer's step."""
    sealer, producer = open_door(), open_door()
    bucket = producer.put(b"early")
    answers: list[Put] = []

    def put() -> None:
        producer.write(bucket, 5, b"late")
        answers.append(producer.prove(bucket, Runs.span(5, 5)))

    sealer.faults.before(step, put)
    closed = portal.run(seal.close(sealer.lane, bucket))
    assert closed is not None
    manifest = closed.row.value.manifest
    assert 0 in manifest
    assert [Put.OK if 5 in manifest else Put.AGAIN] == answers


@pytest.mark.invariant("I1")
def test_p6_a_row_outside_the_manifest_stays_where_it_is_and_is_never_delivered(door: Door) -> None:
    """It lies between two that are delivered, so a read of these meets it."""
    bucket = door.put(b"a")
    door.write(bucket, 5, b"b")
    portal.run(seal.close(door.lane, bucket))
    door.write(bucket, 3, b"stray")
    assert Put.AGAIN is door.prove(bucket, Runs.span(3, 3))
    assert [b"a", b"b"] == door.drain()
    assert 3 == len(portal.run(door.lane.messages.scan(bucket)))


@pytest.mark.invariant("I1")
def test_p2_a_seal_of_a_bucket_below_the_repair_pointer_delivers_nothing(door: Door) -> None:
    """The row is born twice: sealed, drained and dropped while this sealer slept."""
    bucket = door.put(b"a")
    portal.run(door.lane.pointers.advance(Pointer.READER, bucket + 1))
    portal.run(door.lane.pointers.advance(Pointer.REPAIR, bucket + 1))
    assert portal.run(seal.close(door.lane, bucket)) is None
    assert Status.SEALING is door.value(bucket).status


@pytest.mark.invariant("I1")
def test_p2_a_put_that_finds_no_row_or_a_ghost_asks_the_repair_pointer(door: Door) -> None:
    absent, ghost = door.reserve(2), BucketNo(1)
    door.write(absent, 0, b"a")
    door.write(ghost, 0, b"b")
    portal.run(door.lane.buckets.insert(ghost, rules.sealing(now_us=door.lane.clock.now_us())))
    portal.run(door.lane.pointers.advance(Pointer.REPAIR, 2))
    assert Put.AMBIGUOUS is door.prove(absent, FIRST)
    assert Put.AMBIGUOUS is door.prove(ghost, FIRST)


@pytest.mark.invariant("I1")
def test_p2_the_repair_pointer_is_read_after_the_row(door: Door) -> None:
    """Between the two reads the bucket is dropped: read before the row, it would say "open"."""
    bucket = door.put(b"a")
    door.faults.before(
        "read_pointers",
        lambda: portal.run(door.lane.pointers.advance(Pointer.REPAIR, bucket + 1)),
    )
    assert Put.AMBIGUOUS is door.prove(bucket, FIRST)


@pytest.mark.invariant("I5")
def test_p3_two_sealers_make_one_manifest_and_the_loser_takes_it(open_door: OpenDoor) -> None:
    one, two = open_door(), open_door()
    bucket = one.put(b"a")
    one.faults.park("fill_bucket", 2)
    two.faults.park("fill_bucket", 1)
    two.faults._gates = one.faults._gates
    with ThreadPoolExecutor(2) as pool:
        closed = list(
            pool.map(
                lambda door: portal.run(
                    seal.close(door.lane, bucket, door.reader()._claimer.terms(10, bucket))
                ),
                (one, two),
            )
        )
    first, second = closed
    assert first is not None
    assert second is not None
    assert first.row == second.row
    assert [0, 1] == sorted(len(part.leases) for part in closed if part is not None)
    assert 1 == len(first.row.value.leases)


@pytest.mark.invariant("I10")
def test_p5_a_put_that_timed_out_learns_its_outcome_by_a_seal(door: Door) -> None:
    stored, lost = door.reserve(2), BucketNo(1)
    door.write(stored, 0, b"a")
    for bucket, expected in ((stored, Put.OK), (lost, Put.AGAIN)):
        portal.run(seal.close(door.lane, bucket))
        assert expected is door.prove(bucket, FIRST)


@pytest.mark.usefixtures("still_time")
def test_p16_a_sealer_claims_by_the_same_cas_that_seals(door: Door) -> None:
    bucket = door.put(b"a", b"b")
    before = door.counts
    closed = portal.run(seal.close(door.lane, bucket, door.reader()._claimer.terms(1, bucket)))
    assert closed is not None
    sent = door.counts - before
    assert (1, 1, 0) == (sent["insert_bucket"], sent["fill_bucket"], sent["update_bucket"])
    assert [FIRST] == [lease.runs for lease in closed.leases]
    assert Runs.span(1, 1) == closed.row.value.fresh


def test_r12_hints_of_lease_and_delays_are_written_before_the_seal(door: Door) -> None:
    bucket = door.reserve()
    door.write(bucket, 0, b"now")
    door.write(bucket, 1, b"soon", delay_s=600)
    door.write(bucket, 2, b"late", delay_s=1_200)
    hinted: list[tuple[int, BucketNo]] = []

    def look() -> None:
        first = minute_of(door.lane.created_us)
        hinted.extend(portal.run(door.lane.hints.read(first, first + 60)))

    door.faults.before("fill_bucket", look)
    closed = portal.run(
        seal.close(door.lane, bucket, door.reader(visibility_s=90)._claimer.terms(1, bucket))
    )
    assert closed is not None
    row = closed.row.value
    times = [closed.leases[0].until_us, *(group.due_us for group in row.delayed)]
    assert [(minute_of(time_us), bucket) for time_us in times] == hinted
    assert 3 == len(times)


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("statement", ["insert_bucket", "fill_bucket"])
@pytest.mark.parametrize("fault", [Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER])
def test_a_seal_whose_answer_was_lost_has_one_manifest(
    door: Door, statement: str, fault: Fault
) -> None:
    bucket = door.put(b"a", b"b")
    door.faults.plan(statement, fault)
    closed = portal.run(seal.close(door.lane, bucket))
    assert closed is not None
    assert closed.row == door.row(bucket)
    assert [b"a", b"b"] == door.drain()


def test_r15_a_message_with_a_part_missing_does_not_exist(door: Door) -> None:
    bucket = door.reserve()
    whole = payload(b"whole")
    now_us = door.lane.clock.now_us()
    for first, part, data in ((0, 0, whole[:10]), (0, 1, whole[10:]), (1, 0, whole[:10])):
        portal.run(
            door.session.run(
                statements.WRITE_MESSAGE,
                (door.lane.lane_id, bucket, first, part, 1, 2, data, None, now_us),
            )
        )
    closed = portal.run(seal.close(door.lane, bucket))
    assert closed is not None
    assert FIRST == closed.row.value.manifest
    assert [b"whole"] == door.drain()


def test_a_bucket_that_is_not_being_sealed_is_returned_as_it_is(door: Door) -> None:
    bucket = door.put(b"a")
    first, second = (
        portal.run(seal.close(door.lane, bucket)),
        portal.run(seal.close(door.lane, bucket)),
    )
    assert first is not None
    assert second is not None
    assert (first.row, ()) == (second.row, second.leases)


@pytest.mark.invariant("I6")
def test_p15_a_reservation_is_whole_buckets_of_its_own(door: Door) -> None:
    assert [0, 1, 3] == [door.reserve(), door.reserve(2), door.reserve()]
    monoton = portal.run(door.lane.monotons.read())
    assert monoton is not None
    outcome = portal.run(
        door.lane.monotons.update(
            monoton,
            type(monoton.value)(next_id=43, reserved_us=monoton.value.reserved_us),
        )
    )
    assert isinstance(outcome, Applied)
    assert 5 == door.reserve()


@pytest.mark.invariant("I6")
def test_parked_reservations_all_get_blocks_of_their_own(open_door: OpenDoor) -> None:
    doors = [open_door() for _ in range(4)]
    doors[0].faults.park("reserve", 4)
    for door in doors[1:]:
        door.faults._gates = doors[0].faults._gates
    with ThreadPoolExecutor(4) as pool:
        assert [0, 1, 2, 3] == sorted(pool.map(lambda door: door.reserve(), doors))


# --- what a get's seal has read is not read again -------------------------------------------------


@pytest.mark.usefixtures("still_time")
def test_a_get_reads_no_body_that_its_seal_has_read(door: Door) -> None:
    door.queue.put_many([b"one", b"two"])
    before = door.counts["read_messages"]
    assert [b"one", b"two"] == [one.body for one in door.queue.get(2)]
    assert before == door.counts["read_messages"]


def test_the_rest_of_a_bucket_is_read_by_later_gets(door: Door) -> None:
    door.queue.put_many([b"one", b"two", b"three"])
    assert [b"one"] == [one.body for one in door.queue.get(1)]
    assert [b"two", b"three"] == [one.body for one in door.queue.get(2)]


@pytest.mark.usefixtures("still_time")
def test_a_seal_keeps_only_so_many_bytes_for_its_get(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "UNREAD_BYTES", 10)
    door.queue.put(b"larger than that")
    before = door.counts["read_messages"]
    assert [b"larger than that"] == [one.body for one in door.queue.get(1)]
    assert before + 1 == door.counts["read_messages"]


@pytest.mark.usefixtures("still_time")
def test_a_get_returns_what_it_reads_and_what_it_has_read_in_order(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "UNREAD_BYTES", 5_700)  # of the first two, or of the last two
    bodies = [b"small", os.urandom(4_000), b"small, too"]
    for body in bodies:
        door.put(body)
    before = door.counts["read_messages"]
    assert bodies == [one.body for one in door.queue.get(3)]
    assert before + 1 == door.counts["read_messages"]


@pytest.mark.invariant("I2")
def test_t17_a_get_hands_out_nothing_that_ran_out_after_its_seal(open_door: OpenDoor) -> None:
    """Nothing is read after the claim was confirmed, but confirming takes time, too."""
    slow, quick = open_door(), open_door()
    slow.queue.put(b"m")
    taken: list[bytes] = []

    def sleep() -> None:
        for one in (slow, quick):
            one.clock.advance(61)
        taken.extend(message.body for message in quick.queue.get())

    slow.faults.before("read_pointers", sleep, after=3)  # look twice, seal, confirm
    assert [] == slow.queue.get(visibility_timeout=30)
    assert [b"m"] == taken
