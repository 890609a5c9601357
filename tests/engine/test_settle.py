"""Settling on a real node: each message its own way, one CAS a bucket, and once.

See docs/design/settle.md.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model import dead_letter
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import EMPTY, BucketNo, Runs
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.settlement import Ack, Reject, Release
from cassieq_spark.queue.message import proof_of, read_deliveries
from cassieq_spark.queue.settle.batches import Settled, counted
from cassieq_spark.queue.settle.settle import settle_bucket
from cassieq_spark.store import portal
from tests.fixtures.faults import Fault
from tests.fixtures.transports import run_cql

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from cassieq_spark.model.settlement import Action
    from tests.fixtures.queues import Door, OpenDoor

    Asked = dict[UUID, dict[Action, Runs]]

WHY = "no such customer"
FIRST = BucketNo(0)
DROP_ROW = "DELETE FROM {ks}.bucket WHERE lane = ? AND bucket = ? IF EXISTS"
ACTIONS: dict[str, Action] = {"ack": Ack(), "release": Release(), "reject": Reject(reason=WHY)}


def with_dead_letters(open_door: OpenDoor, **settings: int) -> tuple[Door, cassieq.Queue]:
    target = open_door(".dead").queue
    return open_door(dead_letter_queue=target.name, **settings), target


def held(door: Door, count: int) -> dict[bytes, cassieq.Delivery]:
    """So many messages, by body ``0``, ``1``, ...; the hint of their lease lies an hour ahead."""
    door.queue.put_many([b"%d" % number for number in range(count)])
    return {one.body: one for one in door.queue.get(count, visibility_timeout=3_600)}


def asked_of(messages: Mapping[bytes, cassieq.Delivery], **bodies: bytes) -> Asked:
    """``ack=b"012"``: those three are acked."""
    found: Asked = {}
    for name, ones in bodies.items():
        for one in ones.decode():
            proof = proof_of(messages[one.encode()])
            by_action = found.setdefault(proof.lease_id, {})
            runs = by_action.get(ACTIONS[name], EMPTY)
            by_action[ACTIONS[name]] = runs | Runs.span(proof.first, proof.last)
    return found


def settle(door: Door, asked: Asked, bucket: BucketNo = FIRST) -> Settled:
    return counted(
        door.lane,
        bucket,
        portal.run(settle_bucket(door.lane, bucket, asked, tells_acked=True)).judged,
    )


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
def test_all_that_is_asked_of_a_bucket_is_one_cas_and_again_it_is_none(open_door: OpenDoor) -> None:
    door, _ = with_dead_letters(open_door)
    asked = asked_of(held(door, 9), ack=b"01", release=b"234", reject=b"56")
    before = door.counts["update_bucket"]

    assert Settled(acked=2, released=3, rejected=2) == settle(door, asked)
    row = door.value(0)
    assert Settled(already_acked=2, released=3, rejected=2) == settle(door, asked)

    assert 1 == door.counts["update_bucket"] - before
    assert row == door.value(0)
    stats = door.queue.stats()
    assert (3, 2, 2) == (stats.visible, stats.in_flight, stats.dead)
    assert {2} == {one.delivery_count for one in door.queue.get()}


def test_two_tasks_at_once_settle_once(open_door: OpenDoor) -> None:
    """A speculative one: whose CAS loses reads the row again, and finds all of it done."""
    door, _ = with_dead_letters(open_door)
    other = open_door(dead_letter_queue=door.queue.settings.dead_letter_queue)
    asked = asked_of(held(door, 6), ack=b"01", release=b"23", reject=b"45")
    door.faults.park("update_bucket", 2)
    other.faults._gates = door.faults._gates

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda one: settle(one, asked), (door, other)))

    assert [0, 2] == sorted(one.acked for one in both)
    assert [(2, 2, 0)] * 2 == [(one.released, one.rejected, one.stale) for one in both]
    row = door.value(0)
    assert [2] == [part.runs.count for part in row.dead]
    assert [(1, 2)] == [(part.deliveries, part.runs.count) for part in row.returned]


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_AFTER, Fault.TIMEOUT_BEFORE])
def test_what_is_asked_and_whose_answer_was_lost_is_carried_out_once(
    open_door: OpenDoor, fault: Fault
) -> None:
    door, _ = with_dead_letters(open_door)
    asked = asked_of(held(door, 6), ack=b"01", release=b"23", reject=b"45")
    door.faults.plan("update_bucket", fault)

    assert Settled(acked=2, released=2, rejected=2) == settle(door, asked)
    assert [2] == [part.runs.count for part in door.value(0).dead]


def test_what_is_released_is_found_behind_the_reader_pointer(door: Door) -> None:
    """By the hint alone, which is written first [R12]."""
    messages = held(door, 10)
    held(door, 1)
    door.queue.get()
    assert FIRST < portal.run(door.lane.read_pointers()).reader

    settle(door, asked_of(messages, release=b"3"))

    assert [b"3"] == [one.body for one in door.queue.get()]


@pytest.mark.invariant("I3")
def test_what_came_to_somebody_again_is_stale_and_named(door: Door) -> None:
    messages = held(door, 4)
    door.queue.release([messages[b"1"], messages[b"2"]])
    again = {one.body: one for one in door.queue.get()}

    settled = settle(door, asked_of(messages, ack=b"01", release=b"2", reject=b"3"))

    assert Settled(acked=1, rejected=1, stale=2, stale_receipts=settled.stale_receipts) == settled
    assert {messages[b"1"].receipt, messages[b"2"].receipt} == set(settled.stale_receipts)
    assert Settled(acked=2) == settle(door, asked_of(again, ack=b"12"))


@pytest.mark.invariant("I4")
def test_what_repair_has_dropped_since_was_acked(door: Door) -> None:
    """No row, or a ghost of one, knows of it (ADR 11)."""
    messages = held(door, 2)
    door.queue.ack(list(messages.values()))
    portal.run(door.lane.pointers.advance(Pointer.REPAIR, FIRST + 1))
    asked = asked_of(messages, ack=b"0", reject=b"1")
    assert Settled(already_acked=2) == settle(door, asked)

    run_cql(door.session, DROP_ROW, door.lane.lane_id, FIRST)
    assert Settled(already_acked=2) == settle(door, asked)


def drops_the_row(door: Door, *, before: str) -> None:
    """Others have acked all of it, and repair drops the row, just before this statement."""

    def drop() -> None:
        portal.run(door.lane.pointers.advance(Pointer.REPAIR, FIRST + 1))
        run_cql(door.session, DROP_ROW, door.lane.lane_id, FIRST)

    door.faults.before(before, drop)


@pytest.mark.invariant("I4")
def test_an_ack_whose_row_vanishes_under_its_cas_has_acked_nothing_itself(door: Door) -> None:
    (message,) = held(door, 1).values()
    before = metrics.MESSAGES_ACKED.value
    drops_the_row(door, before="update_bucket")
    assert [cassieq.AckResult.ALREADY_ACKED] == door.queue.ack_each([message])
    assert before == metrics.MESSAGES_ACKED.value


@pytest.mark.invariant("I4")
@pytest.mark.parametrize(
    "settles",
    [
        lambda queue, message: queue.extend(message, 60),
        lambda queue, message: queue.release(message),
        lambda queue, message: queue.update(message, body=b"new"),
        lambda queue, message: queue.update(message, visibility_timeout=60),
    ],
    ids=["extend", "release", "update", "update the end"],
)
def test_a_lease_whose_row_vanishes_under_its_cas_is_held_by_nobody(
    door: Door, settles: Callable[[cassieq.Queue, cassieq.Delivery], object]
) -> None:
    """Else a consumer that was suspended would hand out what others have acked."""
    (message,) = held(door, 1).values()
    drops_the_row(door, before="update_bucket")
    with pytest.raises(cassieq.ReceiptExpired):
        settles(door.queue, message)


@pytest.mark.usefixtures("still_time")
@pytest.mark.parametrize(
    "settles",
    [
        lambda queue, message: queue.extend(message, 60),
        lambda queue, message: queue.release(message),
        lambda queue, message: queue.update(message, body=b"new"),
    ],
    ids=["extend", "release", "update"],
)
def test_no_pointer_is_read_for_a_lease_that_is_not_held(
    door: Door, settles: Callable[[cassieq.Queue, cassieq.Delivery], object]
) -> None:
    """Its answer is the same whoever has acked it; and the read may fail behind a CAS."""
    door.queue.put(b"m")
    (message,) = door.queue.get(visibility_timeout=1)
    door.clock.advance(10)
    assert door.queue.get()
    before = door.counts["read_pointers"]
    with pytest.raises(cassieq.ReceiptExpired):
        settles(door.queue, message)
    assert before == door.counts["read_pointers"]


def test_a_consumer_that_ends_after_its_queue_says_nothing_of_it(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    door.queue.put_many([b"a", b"b"])
    with door.queue.consumer(prefetch=2) as consumer:
        assert consumer.get(wait=30) is not None
        other.queue.delete()


def test_an_update_of_what_a_batch_held_and_was_acked_is_expired(door: Door) -> None:
    """It is not the batch that is in the way."""
    door.queue.put_many([b"a", b"b"])
    (claimed,) = portal.run(door.reader(run=new_uuid()).get(10))
    offset = claimed.lease.runs.first
    receipt = Receipt(
        lane=door.lane.lane_id,
        bucket=claimed.bucket,
        lease_id=claimed.lease.lease_id,
        first=offset,
        last=offset,
    )
    door.queue.ack(receipt.encode())
    (message,) = (
        one
        for one in portal.run(read_deliveries(door.lane, [(claimed.planned, claimed.lease)]))
        if one.body == b"a"
    )
    with pytest.raises(cassieq.ReceiptExpired):
        door.queue.update(message, visibility_timeout=60)


def test_what_never_was_is_no_receipt(door: Door) -> None:
    messages = held(door, 2)
    asked = {**asked_of(messages, ack=b"0"), new_uuid(): {Ack(): Runs.span(5, 5)}}
    with pytest.raises(cassieq.ReceiptInvalid, match="never existed"):
        settle(door, asked)
    with pytest.raises(cassieq.ReceiptInvalid, match="never existed"):
        settle(door, asked_of(messages, ack=b"1"), BucketNo(77))

    door.queue.delete()
    with pytest.raises(cassieq.QueueDeleted):
        settle(door, asked_of(messages, ack=b"1"), BucketNo(77))


def test_a_rejected_message_moves_with_its_updated_body_and_the_reason(
    open_door: OpenDoor,
) -> None:
    door, target = with_dead_letters(open_door, max_deliveries=5)
    messages = held(door, 3)
    updated = door.queue.update(messages[b"0"], body=b"new")

    door.queue.reject([updated, messages[b"1"]], reason=WHY)

    assert (2, 1) == (door.queue.stats().dead, door.queue.stats().in_flight)
    assert [] == door.queue.get()
    assert 2 == door.client.repair(door.queue.name).queues[0].moved_dead
    moved = target.get()
    assert [b"1", b"new"] == sorted(one.body for one in moved)
    for one in moved:
        (hop,) = json.loads(one.headers[dead_letter.HISTORY])
        assert (WHY, WHY, "1") == (
            hop["reason"],
            one.headers["cassieq-reason"],
            one.headers["cassieq-deliveries"],
        )
    door.queue.ack(messages[b"2"])
    assert Status.DRAINED is door.value(0).status


def test_a_rejection_that_comes_too_late_is_refused_and_named(open_door: OpenDoor) -> None:
    door, _ = with_dead_letters(open_door)
    messages = held(door, 3)
    door.queue.release(messages[b"0"])
    assert 1 == len(door.queue.get())

    with pytest.raises(cassieq.ReceiptExpired) as refused:
        door.queue.reject(list(messages.values()))

    assert (messages[b"0"].receipt,) == refused.value.refused
    assert 2 == door.queue.stats().dead
    door.queue.reject([messages[b"1"], messages[b"2"]])  # again: harmless
    assert [2] == [part.runs.count for part in door.value(0).dead]


def test_a_rejection_of_what_was_acked_is_refused_and_named(open_door: OpenDoor) -> None:
    """Also when the bucket was dropped since."""
    door, _ = with_dead_letters(open_door)
    messages = held(door, 3)
    door.queue.ack(messages[b"0"])

    with pytest.raises(cassieq.ReceiptExpired) as refused:
        door.queue.reject([messages[b"0"], messages[b"1"]])

    assert (messages[b"0"].receipt,) == refused.value.refused
    assert 1 == door.queue.stats().dead
    door.queue.ack(messages[b"2"])
    for _ in range(2):  # the second drops what the first has moved out of
        door.clock.advance(3_600)
        door.client.repair(door.queue.name)
    assert portal.run(door.lane.is_dropped(BucketNo(0)))
    with pytest.raises(cassieq.ReceiptExpired):
        door.queue.reject(messages[b"2"])


def test_r22_nothing_is_rejected_where_it_could_not_go(door: Door) -> None:
    messages = held(door, 1)
    row = door.value(0)

    with pytest.raises(cassieq.UsageError, match="has no dead-letter queue"):
        door.queue.reject(messages[b"0"])
    with pytest.raises(OptionInvalid, match="reason is ''"):
        door.queue.reject(messages[b"0"], reason="")

    assert row == door.value(0)
