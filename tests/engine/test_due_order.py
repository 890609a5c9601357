"""What is due comes by its due time, as far as that is promised (docs/design/due-lanes.md)."""

from __future__ import annotations

import random
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.lanes import DueLane
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.row_limits import PREFERRED_LEASES, RUNS_PER_LEASE
from cassieq_spark.queue import seal
from cassieq_spark.queue.get.claim import Holder
from cassieq_spark.queue.get.queue_reader import QueueReader
from cassieq_spark.store import portal
from tests.fixtures.queues import to_the_next_minute

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor

SETTINGS: dict[str, Any] = {
    "bucket_size": 1_000,
    "linger": 0,
    "fairness": 0,
    "schedule_after": 60,
    "schedule_period": 3_600,
}
MANY = 300
STEP_S = 2


def put_due(door: Door, *, delays: list[int]) -> None:
    """Put one message for each, due so many seconds from now."""
    now_us = door.clock.now_us()
    for delay in delays:
        door.queue.put(b"%06d" % delay, due_at=time_of(now_us + delay * 1_000_000))


def begins_in(door: Door) -> int:
    """Seconds until the next period begins; nothing that is put is due before it."""
    to_the_next_minute(door)
    period_us = door.lane.settings.period_us
    return (period_us - door.clock.now_us() % period_us) // 1_000_000 + 120


def close_all(door: Door, first_delay: int) -> None:
    """Seal the buckets of the due lane, as a producer or repair may at any time."""
    period = (door.clock.now_us() + first_delay * 1_000_000) // door.lane.settings.period_us
    lane = door.lane.due_lane(DueLane(period, 0))
    end = -(-portal.run(lane.read_monoton()).next_id // lane.bucket_size)
    for bucket in range(end):
        portal.run(seal.close(lane, BucketNo(bucket)))


def in_order(door: Door) -> list[int]:
    begin = begins_in(door)
    return [begin + at * STEP_S for at in range(MANY)]


def in_any_order(door: Door) -> list[int]:
    delays = in_order(door)
    random.Random(5).shuffle(delays)  # noqa: S311 - the same for each run
    return delays


def gets(door: Door, count: int) -> list[list[int]]:
    """The delays of all messages, get by get; what is got stays leased."""
    found = []
    while got := door.queue.get(count, visibility_timeout=36_000):
        found.append([int(one.body) for one in got])
    return found


def test_a_bucket_that_was_sealed_before_gives_its_messages_by_due_time(
    open_door: OpenDoor,
) -> None:
    door = open_door(**SETTINGS)
    put_due(door, delays=(delays := in_any_order(door)))
    close_all(door, min(delays))
    door.clock.advance(max(delays) + 60)
    found = gets(door, 50)
    assert [50] * (MANY // 50) == list(map(len, found))
    assert sorted(delays) == [*chain(*found)]


def test_so_it_does_when_so_many_hold_parts_of_it_that_its_row_is_tidied(
    open_door: OpenDoor,
) -> None:
    """Claims merge what came back, but not the groups of different due times [R6]."""
    door = open_door(**SETTINGS)
    put_due(door, delays=(delays := in_any_order(door)))
    close_all(door, min(delays))
    door.clock.advance(max(delays) + 60)
    found = gets(door, 1)
    assert len(found) > 2 * PREFERRED_LEASES
    assert sorted(delays) == [*chain(*found)]


def test_each_get_is_sorted_though_the_bucket_was_sealed_too_late_to_know(
    open_door: OpenDoor,
) -> None:
    door = open_door(**SETTINGS)
    put_due(door, delays=(delays := in_any_order(door)))
    door.clock.advance(max(delays) + 60)
    found = gets(door, 50)
    assert sorted(delays) == sorted([*chain(*found)])
    assert all(some == sorted(some) for some in found)


def test_messages_of_a_key_stay_in_the_order_of_their_puts(open_door: OpenDoor) -> None:
    """Short delays are no due lane, and such a bucket is one whose order is that of its ids."""
    door = open_door(**{**SETTINGS, "schedule_after": 900})
    for body, delay in ((b"0", 0), (b"1", 2), (b"2", 0), (b"3", 1)):
        door.queue.put(body, key="k", delay=delay)
    door.clock.advance(60)
    got: list[bytes] = []
    while messages := door.queue.get(10):
        got += [one.body for one in messages]
    assert [b"0", b"1", b"2", b"3"] == got


def test_what_came_back_goes_first(open_door: OpenDoor) -> None:
    door = open_door(**SETTINGS)
    put_due(door, delays=(delays := in_order(door)[:6]))
    door.clock.advance(max(delays) + 60)
    door.queue.get(6)
    door.clock.advance(60)  # the leases of the first get run out
    first = door.queue.get(3)
    assert sorted(delays)[:3] == [int(one.body) for one in first]
    assert {2} == {one.delivery_count for one in first}


@pytest.mark.parametrize("is_program", [True, False])
def test_a_program_gets_as_many_as_it_asks_for_and_a_query_what_its_offset_can_name(
    open_door: OpenDoor, *, is_program: bool
) -> None:
    door = open_door(**SETTINGS)
    delays = in_order(door)
    # Every second one is due much later, so no two of the others are in one run.
    put_due(door, delays=[delay + 1_500 * (at % 2) for at, delay in enumerate(delays)])
    close_all(door, min(delays))
    door.clock.advance(max(delays) + 60)
    holder = Holder(owner="q", run=None if is_program else new_uuid(), visibility_us=60_000_000)
    claimed = portal.run(QueueReader(door.lane, holder).get(1_000))
    most = max(len(one.lease.runs.pairs) for one in claimed)
    assert (MANY // 2 if is_program else RUNS_PER_LEASE) == most
