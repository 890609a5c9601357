"""What comes back by time is found without a repair, however late its CAS came.

See docs/design/returns-and-hints.md.

The time pointer may pass a minute between the hint in it and the CAS that the hint is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest

from cassieq_spark.model.bucket import Status
from cassieq_spark.model.expiry import DELAYED_GROUPS_LIMIT
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.pointer import minute_of
from cassieq_spark.model.settlement import Action, Extend, Release
from cassieq_spark.model.sink_txn import TaskResult
from cassieq_spark.queue import seal
from cassieq_spark.queue.get.claim import Holder
from cassieq_spark.queue.get.hints import TimePointer
from cassieq_spark.queue.get.scan import Scan, Scanner
from cassieq_spark.queue.message import Delivery, proof_of
from cassieq_spark.queue.settle import settle
from cassieq_spark.repair.cleanup import close_gaps
from cassieq_spark.store import portal
from cassieq_spark.store.tables.messages import ChunkRow
from tests.fixtures.queues import Door, cost, payload

if TYPE_CHECKING:
    from tests.fixtures.queues import OpenDoor

FIRST: Final = BucketNo(0)
SECOND_US: Final = 1_000_000
LONG_S: Final = 300


@pytest.fixture
def door(open_door: OpenDoor) -> Door:
    return open_door(bucket_size=10, visibility_timeout=3_600)


@pytest.fixture
def other(open_door: OpenDoor) -> Door:
    return open_door(bucket_size=10, visibility_timeout=3_600)


def time_passes(*doors: Door, seconds: float = LONG_S) -> None:
    """Somebody else looks at the queue meanwhile, which moves the time pointer on."""
    for one in doors:
        one.clock.advance(seconds)
    last = doors[-1]
    portal.run(last.reader().count(1))
    now_us = last.clock.now_us()
    assert portal.run(last.lane.pointers.read()).time >= minute_of(now_us) - 2


def batch(door: Door, buckets: int, *, delay_s: float) -> TaskResult:
    """Written, not committed: all of it delayed."""
    who = door.identity()
    door.task(who, 0)
    with portal.entered(door.bulk_writer(who, 1)) as bulk:
        writer = bulk.of(door.lane.lane_id)
        due_us = door.clock.now_us() + int(delay_s * SECOND_US)
        for _ in range(buckets):
            portal.run(writer.add(payload(*[b"m"] * 10), 10, [due_us] * 10))
        return TaskResult(who=who, epoch=1, buckets=portal.run(bulk.finish()))


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("buckets", [1, 20])
def test_t4_what_fell_due_before_its_batch_was_committed_is_got_at_once(
    door: Door, other: Door, buckets: int
) -> None:
    result = batch(door, buckets, delay_s=10)
    time_passes(door, other)
    assert buckets * 10 == door.commit(result.who, 0, result)
    assert buckets * 10 == other.queue.stats().visible
    found = []
    # By small gets: the first of each bucket lets the reader pointer pass it.
    while claimed := portal.run(other.reader().get(4)):
        found += other.bodies(claimed)
        other.ack(claimed)
    assert buckets * 10 == len(found)


@pytest.mark.invariant("I1")
def test_t4_what_fell_due_before_a_bucket_was_published_is_fresh(door: Door, other: Door) -> None:
    """A look-ahead finds it, whatever became of its hint: the reader pointer is not past it."""
    result = batch(door, 1, delay_s=10)
    time_passes(door, other)
    door.commit(result.who, 0, result)
    row = door.value(result.buckets[0][0])
    assert (10, ()) == (row.fresh.count, row.delayed)


@pytest.mark.invariant("I1")
def test_t4_a_roll_forward_that_sleeps_between_hint_and_cas_keeps_the_time_pointer_there(
    door: Door, other: Door
) -> None:
    """The prepared row says what its hint is for."""
    result = batch(door, 1, delay_s=60)
    (group,) = door.value(result.buckets[0][0]).delayed
    hinted = minute_of(group.due_us)

    def sleep() -> None:
        for one in (door, other):
            one.clock.advance(LONG_S)
        scan = scan_of(other)

        async def look() -> None:
            scan.now_us = other.lane.clock.now_us()
            scan.hints = await TimePointer(other.lane).begin_hints(scan.pointers, scan.now_us)()
            holder = Holder(owner="test", run=None, visibility_us=1)
            await Scanner(other.lane, holder)._look_at_hints(scan)

        portal.run(look())
        assert hinted == portal.run(other.lane.pointers.read()).time

    door.faults.before("update_bucket", sleep)
    door.commit(result.who, 0, result)
    assert Status.SEALED is door.value(result.buckets[0][0]).status
    assert 10 == len(other.drain())


@pytest.mark.invariant("I1")
def test_t4_a_seal_that_sleeps_between_hint_and_cas_hints_again(door: Door, other: Door) -> None:
    bucket = door.put(b"m", delay_s=60)
    door.faults.before("fill_bucket", lambda: time_passes(door, other))
    closed = portal.run(seal.close(door.lane, bucket))
    assert closed is not None
    assert closed.row.value.delayed
    portal.run(
        close_gaps(other.lane)
    )  # a look that claims nothing: the reader pointer passes what is not fresh
    assert portal.run(other.lane.read_pointers()).reader > bucket
    assert [b"m"] == other.drain()


@pytest.mark.usefixtures("still_time")
def test_t4_a_cas_in_time_writes_no_second_hint(door: Door) -> None:
    bucket = door.put(b"m", delay_s=60)
    assert 1 == cost(door, lambda: portal.run(seal.close(door.lane, bucket)))["write_hint"]


def scan_of(door: Door) -> Scan:
    monoton = portal.run(door.lane.monotons.read())
    assert monoton is not None
    pointers = portal.run(door.lane.read_pointers())
    return Scan(pointers=pointers, monoton=monoton.value, looked_at=door.clock.monotonic())


def rule(door: Door, message: Delivery) -> None:
    """As a Spark program's verdict does."""
    proof = proof_of(message)
    release = Release(due_us=soon_us(door))
    portal.run(
        settle.settle_bucket(
            door.lane, FIRST, {proof.lease_id: {release: Runs.span(proof.first, proof.last)}}
        )
    )


def of_its_lease(door: Door, message: Delivery, action: Action) -> None:
    """As a streaming query does."""
    lease_ids = [proof_of(message).lease_id]
    portal.run(settle.settle_bucket(door.lane, FIRST, settle.of_leases(lease_ids, action)))


def soon_us(door: Door) -> int:
    return door.clock.now_us() + 20 * SECOND_US


LATE_MOVES: Final[dict[str, Callable[[Door, Delivery], object]]] = {
    "released": lambda door, one: door.queue.release(one),
    "released with a delay": lambda door, one: door.queue.release(one, delay=20),
    "extended to an earlier end": lambda door, one: door.queue.extend(one, 20),
    "updated with an earlier end": lambda door, one: door.queue.update(
        one, body=b"m", visibility_timeout=20
    ),
    "ruled to come again": rule,
    "given back by its lease": lambda door, one: of_its_lease(door, one, Release()),
    "renewed for less": lambda door, one: of_its_lease(
        door, one, Extend(visibility_us=20 * SECOND_US)
    ),
}


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("move", LATE_MOVES.values(), ids=LATE_MOVES)
def test_t4_what_is_given_back_by_a_cas_that_came_late_is_hinted_again(
    door: Door, other: Door, move: Callable[[Door, Delivery], object]
) -> None:
    door.queue.put(b"m")
    (message,) = door.queue.get()
    door.faults.before("update_bucket", lambda: time_passes(door, other))
    move(door, message)
    assert [b"m"] == other.drain()


def test_t4_a_hint_is_never_written_behind_the_present_minute(door: Door) -> None:
    """The time pointer may be past it, and then nobody reads it."""
    now_us = door.clock.now_us()
    portal.run(door.lane.hints.write([(FIRST, now_us - 600 * SECOND_US)], now_us=now_us))
    minute = minute_of(now_us)
    assert [(minute, FIRST)] == portal.run(door.lane.hints.read(minute - 20, minute))


@pytest.mark.long
@pytest.mark.invariant("I1")
def test_t4_delays_that_a_release_moves_are_hinted_where_they_are_now(open_door: OpenDoor) -> None:
    """One delay too many for a row widens the steps of all: their old minutes are long passed."""
    door = open_door(bucket_size=5_000)
    bucket, now_us = door.reserve(), door.clock.now_us()
    chunks = door.store.chunk_writer(writes_in_flight=32, bytes_in_flight=1 << 20)
    for at in range(DELAYED_GROUPS_LIMIT + 1):
        due_us = None if at == DELAYED_GROUPS_LIMIT else now_us + (at + 1) * 600 * SECOND_US
        chunk = ChunkRow(
            first=at, count=1, payload=payload(b"m"), enqueued_us=now_us, due_us=due_us
        )
        portal.run(chunks.write(door.place(bucket), chunk))
    portal.run(chunks.flush())
    portal.run(seal.close(door.lane, bucket))
    before = {group.due_us for group in door.value(bucket).delayed}
    (one,) = door.queue.get(1)

    door.queue.release(one, delay=300)

    later = sorted({group.due_us for group in door.value(bucket).delayed} - before)
    assert len(later) > 1_000
    hours = range(minute_of(later[0]), minute_of(later[-1]) + 1)
    hinted = {minute for minute, _ in portal.run(door.lane.hints.read(hours[0], hours[-1]))}
    assert {minute_of(due_us) for due_us in later} <= hinted
