"""Cancel what nobody was given yet: never both delivered and cancelled, whatever happens [U14]."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CasAmbiguous, OptionInvalid, QueueDeleted, StoreError
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.moments import time_of
from cassieq_spark.store import portal
from tests.fixtures.faults import AtStatement, Fault
from tests.fixtures.transports import intercept

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor

QUICK: dict[str, Any] = {"linger": 0, "repair_timeout": 0.2}
DAY_S = 86_400


def in_two_days(door: Door) -> Any:
    return time_of(door.clock.now_us()) + timedelta(days=2)


def got(door: Door) -> list[bytes]:
    return sorted(one.body for one in door.queue.get(100))


@pytest.mark.parametrize("how", ["fresh", "delayed", "scheduled", "ranked"])
def test_what_nobody_was_given_is_cancelled_once_and_for_all(open_door: OpenDoor, how: str) -> None:
    door = open_door(priorities=2, shards=2, **QUICK)
    options: dict[str, Any] = {
        "fresh": {},
        "delayed": {"delay": 60},
        "scheduled": {"due_at": in_two_days(door)},
        "ranked": {"priority": 1, "key": "k", "due_at": in_two_days(door)},
    }[how]
    wanted, other = door.queue.put_many([b"wanted", b"other"], **options)

    assert door.queue.cancel(wanted) is True
    assert door.queue.cancel(UUID(wanted)) is True  # whoever lost the answer learns it
    door.clock.advance(3 * DAY_S)
    assert [b"other"] == got(door)
    assert door.queue.cancel(other) is False
    stats = door.queue.stats()
    assert (0, 1, 0, 0) == (stats.visible, stats.in_flight, stats.delayed, stats.scheduled)


def test_what_was_given_to_somebody_is_not_cancelled(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    held, released, unseen, acked = door.queue.put_many([b"h", b"r", b"u", b"a"])
    messages = {one.body: one for one in door.queue.get(4)}
    door.queue.release(messages[b"r"])
    door.queue.release(messages[b"u"], count_delivery=False)
    door.queue.ack(messages[b"a"])

    assert [False, False, True, False] == [
        door.queue.cancel(one) for one in (held, released, unseen, acked)
    ]
    assert [b"r"] == got(door)
    door.queue.release(messages[b"h"], delay=60)
    assert door.queue.cancel(held) is False


def test_ids_that_the_queue_has_not_made_are_not_cancelled(open_door: OpenDoor) -> None:
    door, other = open_door(**QUICK), open_door("other", **QUICK)
    chosen = str(new_uuid())
    door.queue.put(b"chosen", message_id=chosen)
    foreign = other.queue.put(b"foreign", due_at=in_two_days(other))
    beyond = UUID(int=UUID(door.queue.put(b"one")).int + 7)

    assert [False] * 3 == [door.queue.cancel(one) for one in (chosen, foreign, beyond)]
    assert [b"chosen", b"one"] == got(door)
    for bad in ("no-uuid", 5, None, b"x"):
        with pytest.raises(OptionInvalid, match="message_id is"):
            door.queue.cancel(bad)  # type: ignore[arg-type]


def test_what_is_scheduled_is_counted_by_hour_and_priority(open_door: OpenDoor) -> None:
    door = open_door(priorities=2, schedule_period=600, **QUICK)
    hour = in_two_days(door).replace(minute=0, second=0, microsecond=0)
    first, *_ = door.queue.put_many([b"a"] * 3, due_at=hour + timedelta(minutes=1))
    door.queue.put(b"b", due_at=hour + timedelta(minutes=59))
    door.queue.put(b"c", due_at=hour + timedelta(minutes=30), priority=1)
    door.queue.put(b"d", due_at=hour + timedelta(minutes=60))
    door.queue.put(b"soon", delay=600)

    later = hour + timedelta(hours=1)
    found = [(one.due_from, one.priority, one.messages) for one in door.queue.scheduled()]
    assert [(hour, 1, 1), (hour, 0, 4), (later, 0, 1)] == found
    assert door.queue.cancel(first) is True
    assert 5 == sum(one.messages for one in door.queue.scheduled()) == door.queue.stats().scheduled
    until = (hour - time_of(door.clock.now_us())).total_seconds()
    door.clock.advance(until + 120)
    assert 3 == sum(one.messages for one in door.queue.scheduled()) == door.queue.stats().scheduled


def test_an_open_bucket_without_the_message_stays_open(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    first = door.queue.put(b"one")
    assert door.queue.cancel(UUID(int=UUID(first).int + 7)) is False
    assert {"open": 1} == door.queue.stats().buckets


def test_what_is_expired_is_not_cancelled(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    wanted = door.queue.put(b"short", ttl=60)
    door.clock.advance(180)
    assert door.queue.cancel(wanted) is False


def test_a_settled_bucket_and_a_finished_lane_are_too_late(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    early = door.queue.put(b"early")
    late = door.queue.put(b"late", due_at=in_two_days(door))
    door.queue.ack(door.queue.get())
    door.clock.advance(3 * DAY_S)
    door.queue.ack(door.queue.get())
    for _ in range(5):
        assert [] == door.client.repair(door.queue.name).problems
        door.clock.advance(60)

    assert [False, False] == [door.queue.cancel(one) for one in (early, late)]
    door.queue.delete()
    with pytest.raises(QueueDeleted):
        door.queue.cancel(early)


def test_the_last_cancelled_message_drains_its_bucket_and_repair_drops_it(
    open_door: OpenDoor,
) -> None:
    door = open_door(**QUICK)
    wanted = door.queue.put(b"one")
    assert door.queue.cancel(wanted) is True
    assert Status.DRAINED is door.value(0).status
    for _ in range(4):
        assert [] == door.client.repair(door.queue.name).problems
        door.clock.advance(60)
    assert portal.run(door.lane.read_pointers()).repair > 0
    assert {} == door.queue.stats().buckets


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_AFTER, Fault.TIMEOUT_BEFORE, Fault.LATE])
@pytest.mark.parametrize("statement", ["update_bucket", "insert_bucket", "fill_bucket"])
def test_u14_a_lost_answer_changes_nothing(
    open_door: OpenDoor, statement: str, fault: Fault
) -> None:
    door = open_door(**QUICK)
    wanted, _ = door.queue.put_many([b"wanted", b"other"])
    door.faults.plan(statement, fault)
    cancelled = False
    with suppress(StoreError, CasAmbiguous):
        cancelled = door.queue.cancel(wanted)
    assert cancelled or door.queue.cancel(wanted)
    assert [b"other"] == got(door)


def test_u14_whoever_is_delivered_to_meanwhile_has_it(open_door: OpenDoor) -> None:
    """A get between the look and the CAS of a cancellation."""
    door = open_door(**QUICK)
    other = open_door(**QUICK)
    wanted = door.queue.put(b"wanted")
    other.queue.release(other.queue.get(), count_delivery=False)
    taken: list[bytes] = []
    door.faults.before("update_bucket", lambda: taken.extend(got(other)))

    assert door.queue.cancel(wanted) is False
    assert [b"wanted"] == taken


@pytest.mark.invariant("I2")
def test_u14_cancellations_beside_gets_never_both(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=40, **QUICK)
    others = [open_door(bucket_size=40, **QUICK) for _ in range(3)]
    ids = [door.queue.put(b"%d" % at) for at in range(200)]
    delivered: set[bytes] = set()
    lock, stop = threading.Lock(), threading.Event()

    def get(one: Door) -> None:
        while not stop.is_set():
            found = {message.body for message in one.queue.get(3)}
            with lock:
                delivered.update(found)

    with ThreadPoolExecutor(4) as pool:
        gets = [pool.submit(get, one) for one in others]
        # Not in the order of the gets: those would always be a step ahead.
        order = random.Random(0).sample(range(200), 200)  # noqa: S311 - no secret
        cancelled = {b"%d" % at for at in order if door.queue.cancel(ids[at])}
        stop.set()
        for one in gets:
            one.result()
    delivered |= set(got(door))
    while more := got(door):
        delivered |= set(more)

    assert set() == cancelled & delivered
    assert {b"%d" % at for at in range(200)} == cancelled | delivered
    assert cancelled
    assert delivered


@pytest.mark.parametrize("is_sealed", [True, False])
def test_u14_a_slow_canceller_is_told_what_became_of_the_message(
    open_door: OpenDoor, *, is_sealed: bool
) -> None:
    """All else of the bucket is consumed, and it is dropped, just before its n-th statement."""
    number = 0
    sent: list[str] = []
    while number <= len(sent):
        door, other = (open_door(f"-{number}", linger=0, repair_timeout=0.2) for _ in range(2))
        message_id = door.queue.put(b"m")
        door.queue.put(b"beside")
        if is_sealed:
            other.queue.release(other.queue.get(), count_delivery=False)
        delivered: list[bytes] = []

        def consume(other: Door = other, delivered: list[bytes] = delivered) -> None:
            while got := other.queue.get(10):
                delivered.extend(one.body for one in got)
                other.queue.ack(got)
            for _ in range(4):
                other.clock.advance(15)
                assert [] == other.client.repair(other.queue.name).problems

        tried = AtStatement(number, consume)
        intercept(door.session, tried)
        is_cancelled = door.queue.cancel(message_id)
        sent = [name for name, *_ in tried.sent]
        if number == len(sent):
            consume()
        assert is_cancelled == (b"m" not in delivered), (number, sent)
        number += 1
