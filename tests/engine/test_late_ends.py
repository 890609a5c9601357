"""The end of a lease is reckoned when its CAS is sent, however long that had to wait (I2) [T5]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import minute_of
from cassieq_spark.model.settlement import Extend, TakeOver
from cassieq_spark.queue.message import proof_of
from cassieq_spark.queue.settle import batches, settle
from cassieq_spark.store import portal
from tests.fixtures.queues import Door

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.model.bucket import Lease
    from cassieq_spark.queue.message import Delivery
    from tests.fixtures.queues import OpenDoor

pytestmark = pytest.mark.invariant("I2")

SECOND_US: Final = 1_000_000
FIRST: Final = BucketNo(0)
VISIBILITY_S: Final = 120
OUTAGE_S: Final = 400


@pytest.fixture
def door(open_door: OpenDoor) -> Door:
    return open_door(bucket_size=10, visibility_timeout=3_600)


def take_over(door: Door, message: Delivery) -> None:
    action = TakeOver(run=new_uuid(), visibility_us=VISIBILITY_S * SECOND_US)
    portal.run(batches.take_over(door.lane, FIRST, [proof_of(message).lease_id], action))


def renew(door: Door, message: Delivery) -> None:
    action = Extend(visibility_us=VISIBILITY_S * SECOND_US)
    portal.run(
        settle.settle_bucket(
            door.lane, FIRST, settle.of_leases([proof_of(message).lease_id], action)
        )
    )


VERBS: Final[dict[str, Callable[[Door, Delivery], object]]] = {
    "taken over": take_over,
    "renewed": renew,
    "extended": lambda door, one: door.queue.extend(one, VISIBILITY_S),
    "updated": lambda door, one: door.queue.update(one, visibility_timeout=VISIBILITY_S),
    "updated with a body": lambda door, one: door.queue.update(
        one, body=b"new", visibility_timeout=VISIBILITY_S
    ),
}


def lease_of(door: Door) -> Lease:
    (lease,) = door.value(0).leases
    return lease


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_t5_a_lease_lasts_its_whole_time_though_its_row_was_waited_for(
    open_door: OpenDoor, verb: Callable[[Door, Delivery], object]
) -> None:
    getter, door = open_door(), open_door()  # the client that got it would not read its row
    getter.queue.put(b"m")
    (message,) = getter.queue.get()
    door.faults.before("read_bucket", lambda: door.clock.advance(OUTAGE_S))
    verb(door, message)
    until_us = lease_of(door).until_us
    assert until_us > door.clock.now_us() + 0.9 * VISIBILITY_S * SECOND_US
    minute = minute_of(until_us)
    assert (minute, FIRST) in portal.run(door.lane.hints.read(minute, minute))


def test_t5_a_lease_that_was_taken_over_too_late_is_taken_over_again(door: Door) -> None:
    """What a batch delivers is its own when it begins."""
    door.queue.put(b"m")
    (message,) = door.queue.get()
    door.faults.before("update_bucket", lambda: door.clock.advance(OUTAGE_S))
    take_over(door, message)
    assert lease_of(door).until_us > door.clock.now_us()


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I1")
def test_t5_what_is_always_taken_over_too_late_is_left_at_last_and_found_by_others(
    door: Door, open_door: OpenDoor
) -> None:
    door.queue.put(b"m")
    (message,) = door.queue.get()
    other = open_door(bucket_size=10, visibility_timeout=3_600)

    def time_passes() -> None:
        for one in (door, other):
            one.clock.advance(OUTAGE_S)
        portal.run(other.reader().count(1))  # which moves the time pointer on

    for at in range(10):
        door.faults.before("update_bucket", time_passes, after=at)
    before = door.counts["update_bucket"]
    take_over(door, message)
    assert before + batches.TAKE_OVERS_AT_MOST == door.counts["update_bucket"]
    assert [b"m"] == other.drain()
