"""Leases on a real node: one holder, one clock, no delivery burnt for nothing.

See docs/design/get-and-leases.md and docs/design/returns-and-hints.md.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import MINUTE_US, Pointer, minute_of
from cassieq_spark.model.settlement import Extend, Release, TakeOver
from cassieq_spark.queue.settle.settle import of_leases, settle_bucket
from cassieq_spark.spark.source.renewal import Renewal, _Held
from cassieq_spark.store import portal
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor


@pytest.mark.invariant("I2")
def test_parked_claims_of_one_bucket_share_no_message(open_door: OpenDoor) -> None:
    doors = [open_door() for _ in range(3)]
    doors[0].put_batch(0, *(b"%d" % number for number in range(9)))
    doors[0].faults.park("update_bucket", 3)
    for door in doors[1:]:
        door.faults._gates = doors[0].faults._gates
    with ThreadPoolExecutor(3) as pool:
        claimed = list(pool.map(lambda door: portal.run(door.reader().get(3)), doors))
    bodies = [body for part in claimed for body in doors[0].bodies(part)]
    assert sorted(set(bodies)) == sorted(bodies)
    assert len(bodies) >= 3


@pytest.mark.invariant("I2")
def test_a_claim_whose_answer_was_lost_is_held_once(door: Door) -> None:
    door.put_batch(0, b"a", b"b")
    for fault in (Fault.TIMEOUT_AFTER, Fault.TIMEOUT_BEFORE):
        door.faults.plan("update_bucket", fault)
        claimed = portal.run(door.reader().get(1))
        assert 1 == len(claimed)
        assert 1 == claimed[0].lease.delivery_count
    assert [] == portal.run(door.reader().get(1))


def test_p17_the_hint_is_written_before_the_claim(door: Door) -> None:
    result = door.put_batch(0, b"a")
    hinted: list[tuple[int, int]] = []

    def look() -> None:
        first = minute_of(door.lane.created_us)
        hinted.extend(portal.run(door.lane.hints.read(first, first + 60)))

    door.faults.before("update_bucket", look)
    (claimed,) = portal.run(door.reader(visibility_s=600).get(1))
    expected = (minute_of(claimed.lease.until_us), result.buckets[0][0].bucket)
    assert [expected] == hinted


def test_p17_a_hint_that_the_time_pointer_has_passed_is_written_again(door: Door) -> None:
    result = door.put_batch(0, b"a")
    bucket = result.buckets[0][0].bucket
    far = minute_of(door.lane.clock.now_us()) + 5
    door.faults.before(
        "update_bucket",
        lambda: portal.run(door.lane.pointers.advance(Pointer.TIME, far)),
    )
    (claimed,) = portal.run(door.reader().get(1))
    assert bucket == claimed.bucket
    # Where it is found as long as the pointer is ahead of now, and where it will be then [T7].
    now = minute_of(door.lane.clock.now_us())
    hinted = portal.run(door.lane.hints.read(now - 1, far + 1))
    assert (far + 1, bucket) in hinted
    assert {(now, bucket), (now - 1, bucket)} & set(hinted)


@pytest.mark.invariant("I10")
def test_p17_the_time_pointer_stays_at_a_minute_that_still_matters(door: Door) -> None:
    door.put_batch(0, b"a")
    (claimed,) = portal.run(door.reader(visibility_s=3_600).get(1))
    door.clock.advance(1_800)
    assert [] == portal.run(door.reader().get(1))
    passed = portal.run(door.lane.pointers.read()).time
    assert minute_of(door.lane.created_us) < passed <= minute_of(claimed.lease.until_us)
    door.clock.advance(7_200)
    # Whoever looks may die before it claims: the hint must still be in sight of the next.
    assert portal.run(door.reader()._scanner.scan(1)).candidates
    assert [b"a"] == door.drain()


def test_p18_a_claim_answered_after_its_end_is_given_back_uncounted(door: Door) -> None:
    """And claimed again: a get says "none" only where there is none."""
    door.put_batch(0, b"a")
    door.faults.before("update_bucket", lambda: door.clock.advance(40))
    (claimed,) = portal.run(door.reader(visibility_s=30).get(1))
    assert claimed.lease.until_us > door.clock.now_us()
    assert 1 == claimed.lease.delivery_count


def test_r21_a_lease_lasts_some_of_the_clients_own_cas_times(door: Door) -> None:
    sender = door.store.sender
    for _ in range(64):
        sender._note_duration(2.0)
    terms = door.reader(visibility_s=0.1)._claimer.terms(1, BucketNo(0))
    assert 8_000_000 == terms.until_us - terms.now_us


@pytest.mark.invariant("I1")
def test_an_expired_lease_comes_back_with_a_higher_count(door: Door) -> None:
    door.put_batch(0, b"a")
    portal.run(door.reader().get(1))
    door.clock.advance(31)
    (again,) = portal.run(door.reader().get(1))
    assert 2 == again.lease.delivery_count


@pytest.mark.invariant("I3")
def test_an_ack_of_a_delivery_that_was_claimed_again_touches_nothing(door: Door) -> None:
    result = door.put_batch(0, b"a")
    first = portal.run(door.reader().get(1))
    door.clock.advance(31)
    second = portal.run(door.reader().get(1))
    door.ack(first)
    assert [second[0].lease] == list(door.value(result.buckets[0][0]).leases)
    door.ack(second)
    assert Status.DRAINED is door.value(result.buckets[0][0]).status


@pytest.mark.invariant("I4")
@pytest.mark.parametrize("fault", [Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER])
def test_an_ack_whose_answer_was_lost_is_final(door: Door, fault: Fault) -> None:
    door.put_batch(0, b"a", b"b")
    claimed = portal.run(door.reader().get(2))
    door.faults.plan("update_bucket", fault)
    door.ack(claimed)
    door.clock.advance(3_600)
    assert [] == portal.run(door.reader().get(2))


def test_r20_an_ack_after_the_end_counts_if_nobody_claimed_again(door: Door) -> None:
    door.put_batch(0, b"a")
    claimed = portal.run(door.reader().get(1))
    door.clock.advance(3_600)
    door.ack(claimed)
    assert [] == portal.run(door.reader().get(1))


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_p16_one_ack_of_any_number_of_messages_is_one_lwt(door: Door) -> None:
    door.put_batch(0, *(b"%d" % number for number in range(9)))
    claimed = [one for _ in range(3) for one in portal.run(door.reader().get(3))]
    before = door.counts["update_bucket"]
    door.ack(claimed)
    assert before + 1 == door.counts["update_bucket"]


def test_r17_extend_never_takes_a_lease_back_from_a_later_run(door: Door) -> None:
    old, new = new_uuid(), new_uuid()
    door.put_batch(0, b"a")
    (claimed,) = portal.run(door.reader(run=old).get(1))
    lease_id = claimed.lease.lease_id
    take_over = TakeOver(run=new, visibility_us=2 * MINUTE_US)
    portal.run(settle_bucket(door.lane, claimed.bucket, of_leases([lease_id], take_over)))
    taken = door.value(claimed.bucket).lease(lease_id)
    longer = Extend(visibility_us=9 * MINUTE_US, of_run=old)
    outcome = portal.run(
        settle_bucket(door.lane, claimed.bucket, of_leases([lease_id, new_uuid()], longer))
    )
    assert (None, {}) == (outcome.changed, outcome.judged.held)
    lease = door.value(claimed.bucket).lease(lease_id)
    assert lease == taken
    assert lease is not None
    assert new == lease.run


@pytest.mark.invariant("I1")
@pytest.mark.parametrize(("idle_s", "is_renewed"), [(59, True), (61, False)])
def test_p23_leases_that_nobody_asks_for_any_more_are_let_go(
    door: Door, idle_s: float, is_renewed: bool
) -> None:
    """Spark tells no planner that its query has ended: renewed for ever, they come back never."""
    door.put_batch(0, b"a")
    run = new_uuid()
    (claimed,) = portal.run(door.reader(run=run, visibility_s=600).get(1))
    renewal = Renewal(door.store, run=run, give_up_after_s=60)
    held = _Held(
        lane=door.lane,
        ids=frozenset({claimed.lease.lease_id}),
        visibility_us=600_000_000,
        until_us=claimed.lease.until_us,
    )
    held.due_s = door.clock.monotonic()
    renewal._held = {claimed.place: held}

    door.clock.advance(idle_s)
    due, _ = renewal._next()
    for place, its in due:
        portal.run(renewal._round(place, its))

    lease = door.value(claimed.bucket).lease(claimed.lease.lease_id)
    assert lease is not None
    assert is_renewed == (lease.until_us > claimed.lease.until_us)


def test_released_messages_are_found_though_the_reader_pointer_has_passed(door: Door) -> None:
    door.put_batch(0, b"a")
    (claimed,) = portal.run(door.reader().get(1))
    assert claimed.bucket + 1 == portal.run(door.lane.pointers.read()).reader
    portal.run(
        settle_bucket(door.lane, claimed.bucket, of_leases([claimed.lease.lease_id], Release()))
    )
    (again,) = portal.run(door.reader().get(1))
    assert 2 == again.lease.delivery_count


def test_r14_messages_out_of_deliveries_go_into_the_open_dead_set(open_door: OpenDoor) -> None:
    graves = open_door(".dead")
    door = open_door(dead_letter_queue=graves.queue.name, max_deliveries=1)
    result = door.put_batch(0, b"a", b"b", b"c")
    bucket = result.buckets[0][0].bucket
    for count in (1, 1):
        assert count == len(portal.run(door.reader().get(1)))
    door.clock.advance(31)
    assert [b"c"] == door.bodies(portal.run(door.reader().get(1)))
    assert [2] == [dead.runs.count for dead in door.value(bucket).dead]
    door.clock.advance(31)
    assert [] == portal.run(door.reader().get(5))
    assert [(3, True)] == [(one.runs.count, one.is_open) for one in door.value(bucket).dead]


@pytest.mark.invariant("I1")
def test_r22_without_a_dead_letter_queue_nothing_dies(open_door: OpenDoor) -> None:
    door = open_door(max_deliveries=1)
    door.put_batch(0, b"a")
    for count in range(1, 4):
        (claimed,) = portal.run(door.reader().get(1))
        assert count == claimed.lease.delivery_count
        door.clock.advance(31)
