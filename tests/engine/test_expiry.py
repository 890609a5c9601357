"""A message that nobody was given in time is never delivered, and it goes, read or not (ADR 26)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError, OptionInvalid
from cassieq_spark.model.bucket import Status
from cassieq_spark.queue import seal
from cassieq_spark.queue.inspect.facts import browse
from cassieq_spark.store import portal
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Crash, crash, to_the_next_minute

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from cassieq_spark.repair.report import QueueRepair
    from tests.fixtures.queues import Door, OpenDoor

DAY_S = 86_400.0


def repaired(door: Door) -> QueueRepair:
    report = door.client.repair(door.queue.name)
    assert [] == report.problems
    return report.queues[0]


def with_dead_letters(open_door: OpenDoor, **settings: object) -> tuple[Door, cassieq.Queue]:
    target = open_door(".dead").queue
    door = open_door(dead_letter_queue=target.name, dead_letter_expired=True, **settings)
    return door, target


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_message_lives_to_the_end_of_its_minute_and_is_then_seen_by_nobody(
    door: Door, *, is_sealed: bool
) -> None:
    to_the_next_minute(door)
    door.queue.put(b"short", ttl=60)
    door.queue.put(b"long", ttl=DAY_S)
    door.queue.put(b"for ever")
    if is_sealed:
        first = door.queue.get(1, visibility_timeout=5)  # seals it, and puts one back
        door.queue.release(first, count_delivery=False)
    door.clock.advance(60)
    assert 3 == door.queue.stats().visible
    assert 3 == len(door.queue.peek())
    to_the_next_minute(door)
    assert 2 == door.queue.stats().visible
    assert {b"long", b"for ever"} == {one.body for one in door.queue.peek()}
    assert {b"long", b"for ever"} == {one.body for one in portal.iterate(browse(door.lane))}
    assert [b"for ever", b"long"] == door.drain()


def test_a_time_to_live_counts_from_when_the_message_is_due(door: Door) -> None:
    to_the_next_minute(door)
    door.queue.put(b"later", delay=3_600, ttl=60)
    door.clock.advance(3_601)
    assert [b"later"] == [one.body for one in door.queue.peek()]
    portal.run(seal.close(door.lane, portal.run(door.lane.read_pointers()).reader))
    assert [b"later"] == [one.body for one in door.queue.get(visibility_timeout=5)]
    door.clock.advance(180)
    assert [] == door.queue.get()
    assert 0 == door.queue.stats().visible


@pytest.mark.invariant("I3")
def test_what_is_leased_stays_its_holders_and_is_expired_when_given_back(door: Door) -> None:
    door.queue.put_many([b"a", b"b", b"c"], ttl=60)
    got = door.queue.get(visibility_timeout=600)
    assert 3 == len(got)
    door.clock.advance(180)
    assert 0 == repaired(door).expired
    door.queue.ack(got[0])
    door.queue.release(got[1])
    assert [] == door.queue.get()
    door.clock.advance(600)
    assert [] == door.queue.get()  # the third's lease ran out
    assert Status.DRAINED is door.value(0).status


def test_expired_messages_are_counted_and_dropped_by_the_claim_that_meets_them(
    door: Door,
) -> None:
    door.queue.put_many([b"a", b"b"], ttl=1)
    portal.run(seal.close(door.lane, portal.run(door.lane.read_pointers()).reader))
    door.clock.advance(61)
    before = metrics.MESSAGES_EXPIRED.value
    assert [] == door.queue.get()
    assert 2 == metrics.MESSAGES_EXPIRED.value - before
    assert Status.DRAINED is door.value(0).status


def test_expired_messages_are_dead_letters_where_the_queue_asks_for_it(
    open_door: OpenDoor,
) -> None:
    door, target = with_dead_letters(open_door)
    message_id = door.queue.put(b"late", ttl=1, tag="t", headers={"k": "v"})
    portal.run(seal.close(door.lane, portal.run(door.lane.read_pointers()).reader))
    door.clock.advance(61)
    assert [] == door.queue.get()
    assert 1 == door.queue.stats().dead
    assert 1 == repaired(door).moved_dead
    (letter,) = target.get()
    assert (b"late", "t", "v") == (letter.body, letter.tag, letter.headers["k"])
    assert "expired" == letter.headers["cassieq-reason"]
    assert "0" == letter.headers["cassieq-deliveries"]
    assert message_id == letter.headers["cassieq-source-id"] or letter.message_id


def test_without_the_setting_they_are_dropped_and_not_dead(open_door: OpenDoor) -> None:
    target = open_door(".dead").queue
    door = open_door(dead_letter_queue=target.name)
    door.queue.put(b"late", ttl=1)
    door.clock.advance(61)
    assert (1, 0, 0) == ((did := repaired(door)).expired, did.moved_dead, did.marked_dead)
    assert [] == target.get()


def test_a_bucket_that_nobody_reads_is_sealed_when_something_in_it_expired(door: Door) -> None:
    """No retention, no reader: an earlier version kept it for ever."""
    door.queue.put(b"stays")
    door.queue.put(b"goes", ttl=60)
    assert 0 == repaired(door).closed_expired
    assert door.row(0) is None
    door.clock.advance(121)
    foreseen = door.client.repair(door.queue.name, dry_run=True).queues[0]
    assert (1, 1) == (foreseen.closed_expired, foreseen.expired)
    done = repaired(door)
    assert (1, 1, 0) == (done.closed_expired, done.expired, done.marked_dead)
    assert [b"stays"] == door.drain()


def test_u7_retention_ends_for_a_bucket_that_nobody_reads(open_door: OpenDoor) -> None:
    door = open_door(retention=DAY_S)
    door.queue.put(b"first")
    door.clock.advance(DAY_S / 2)
    bucket = 0
    door.write(
        portal.run(door.lane.read_pointers()).reader, 5, b"last"
    )  # half a day later, the same bucket
    door.clock.advance(DAY_S / 2 + 1)
    assert {b"first", b"last"} == {one.body for one in door.queue.peek()}
    assert (1, 0) == ((did := repaired(door)).closed_expired, did.expired)
    assert {b"first", b"last"} == {one.body for one in door.queue.peek()}
    door.clock.advance(DAY_S / 2)
    assert [] == door.queue.peek()
    assert 0 == door.queue.stats().visible
    assert 2 == repaired(door).expired
    assert Status.DRAINED is door.value(bucket).status


def test_retention_holds_for_batches_too(open_door: OpenDoor) -> None:
    door = open_door(retention=DAY_S)
    door.put_batch(0, b"a", b"b")
    door.clock.advance(DAY_S - 60)
    assert 2 == len(door.queue.peek())
    door.clock.advance(120)
    assert [] == door.queue.peek()
    assert [] == door.queue.get()


@pytest.mark.parametrize("step", ["read_bucket", "update_bucket", "read_pointers"])
def test_a_claim_that_dies_at_any_step_delivers_nothing_expired(
    open_door: OpenDoor, step: str
) -> None:
    door, target = with_dead_letters(open_door)
    _an_expired_and_a_live_one(door)
    door.faults.before(step, crash)
    with pytest.raises(Crash):
        door.queue.get()
    _check_the_end(door, target)


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_AFTER, Fault.TIMEOUT_BEFORE])
def test_a_claim_whose_answer_is_lost_takes_expired_messages_out_once(
    open_door: OpenDoor, fault: Fault
) -> None:
    door, target = with_dead_letters(open_door)
    _an_expired_and_a_live_one(door)
    door.faults.plan("update_bucket", fault)
    try:
        got = door.queue.get(visibility_timeout=5)
    except CassieqError:
        got = []
    assert b"late" not in {one.body for one in got}
    door.clock.advance(6)
    _check_the_end(door, target)


REPAIR_STEPS = [
    "oldest_message",
    "expired_message",
    "insert_bucket",
    "scan_messages",
    "fill_bucket",
    "update_bucket",
    "insert_sink",
    "write_message",
    "update_sink",
    "delete_sink",
]


@pytest.mark.parametrize("step", REPAIR_STEPS)
def test_a_repair_that_dies_at_any_step_is_ended_by_the_next(
    open_door: OpenDoor, step: str
) -> None:
    door, target = with_dead_letters(open_door)
    door.queue.put_many([b"late"], ttl=1)
    door.queue.put(b"live")
    door.clock.advance(61)
    door.faults.before(step, crash)
    with pytest.raises(Crash):
        door.client.repair(door.queue.name)
    door.clock.advance(60)  # the dead mover is silent
    _check_the_end(door, target)


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_AFTER, Fault.TIMEOUT_BEFORE])
@pytest.mark.parametrize("step", ["insert_bucket", "fill_bucket", "update_bucket"])
def test_a_repair_whose_answer_is_lost_loses_and_repeats_nothing(
    open_door: OpenDoor, step: str, fault: Fault
) -> None:
    door, target = with_dead_letters(open_door)
    door.queue.put_many([b"late"], ttl=1)
    door.queue.put(b"live")
    door.clock.advance(61)
    door.faults.plan(step, fault)
    door.client.repair(door.queue.name)
    door.clock.advance(60)
    _check_the_end(door, target)


def _an_expired_and_a_live_one(door: Door) -> None:
    door.queue.put_many([b"late"], ttl=1)
    door.queue.put(b"live")
    portal.run(seal.close(door.lane, portal.run(door.lane.read_pointers()).reader))
    door.clock.advance(61)


def _check_the_end(door: Door, target: cassieq.Queue) -> None:
    """Each message is where it belongs, once."""
    door.clock.advance(60)
    repaired(door)
    repaired(door)
    assert [b"live"] == [one.body for one in door.queue.peek()]
    assert [b"live"] == door.drain()
    assert [b"late"] == [one.body for one in target.get()]
    assert [] == target.get()


@pytest.mark.parametrize("ttl", [0, -1, 0.5, 400 * DAY_S + 1, "60", True])
def test_a_wrong_time_to_live_is_refused_before_anything_is_written(
    door: Door, ttl: object
) -> None:
    with pytest.raises(OptionInvalid, match=r"^\[cassieq:option_invalid\] ttl is "):
        door.queue.put(b"a", ttl=ttl)  # type: ignore[arg-type]  # that is the question
    assert [] == door.queue.peek()


@pytest.mark.parametrize("retention", [59, 400 * DAY_S + 1, "1d"])
def test_a_wrong_retention_is_refused(door: Door, retention: object) -> None:
    with pytest.raises(OptionInvalid, match="retention"):
        door.client.alter_queue(door.queue.name, retention=retention)
    assert door.queue.settings.retention_s is None
