"""Bucket rows that grow with use stop nothing: what is visible is found, what died moves."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.bucket import Lease, Status
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.row_limits import (
    CROWDED_LEASES,
    FURTHER_REASONS,
    REASONS_BYTES,
    limit_of,
)
from cassieq_spark.model.sink_txn import TaskResult, WriteUnder
from cassieq_spark.queue import seal
from cassieq_spark.queue.sink import transaction
from cassieq_spark.store import portal
from cassieq_spark.store.tables.buckets import size_of
from tests.fixtures.queues import payload

if TYPE_CHECKING:
    from cassieq_spark.model.bucket import Bucket
    from tests.fixtures.queues import Door, OpenDoor

pytestmark = [pytest.mark.invariant("I10")]

OLD_LIMIT = 256 * 1024
"""Above it a bucket was never claimed from again."""

BUCKET = BucketNo(0)
REJECTED = 340
NEVER_US = 1 << 60


def test_t2_single_rejects_with_long_reasons_of_their_own_stop_nothing(
    open_door: OpenDoor,
) -> None:
    """They are one dead set while nobody moves it, and one move: not hundreds."""
    graves = open_door(".dead", bucket_size=1_000)
    door = open_door(bucket_size=50_000, max_deliveries=5, dead_letter_queue=graves.queue.name)
    door.queue.put_many([b"%d" % at for at in range(2 * REJECTED)])
    reasons = [f"row {at}: ".ljust(200, "\N{SNAKE}") for at in range(REJECTED)]
    for one, reason in zip(door.queue.get(REJECTED), reasons, strict=True):
        door.queue.reject(one, reason=reason)

    value = door.value(BUCKET)
    assert REASONS_BYTES < size_of(value) < limit_of(50_000)
    assert 1 == len({part.set_id for part in value.dead})
    assert 10 == len(door.queue.get(10))

    done = door.client.repair(door.queue.name).queues[0]

    assert (REJECTED, []) == (done.moved_dead, done.problems)
    assert () == door.value(BUCKET).dead
    assert 1 == door.faults._seen["insert_sink"]
    dead = graves.queue.peek(REJECTED)
    assert [b"%d" % at for at in range(REJECTED)] == [one.body for one in dead]
    kept = [one.headers["cassieq-reason"] for one in dead]
    joined = kept.index(FURTHER_REASONS)
    assert [*reasons[:joined], *[FURTHER_REASONS] * (REJECTED - joined)] == kept
    assert {"1"} == {one.headers["cassieq-deliveries"] for one in dead}


@pytest.mark.invariant("I1")
def test_r14_what_dies_while_a_mover_is_at_work_waits_for_the_next(open_door: OpenDoor) -> None:
    """A set that a mover has is closed: another takes in what dies then."""
    graves = open_door(".dead")
    door = open_door(dead_letter_queue=graves.queue.name)
    other = open_door(dead_letter_queue=graves.queue.name)
    door.queue.put_many([b"first", b"second"])
    first, second = door.queue.get(2)
    door.queue.reject(first)

    door.faults.before("insert_sink", lambda: other.queue.reject(second))
    assert 1 == door.client.repair(door.queue.name).queues[0].moved_dead
    assert [True] == [part.is_open for part in door.value(BUCKET).dead]
    assert 1 == door.client.repair(door.queue.name).queues[0].moved_dead

    assert [b"first", b"second"] == sorted(one.body for one in graves.queue.get(10))
    assert Status.DRAINED is door.value(BUCKET).status


@pytest.mark.long
def test_t2_a_bulk_batch_with_spread_delays_is_delivered_when_it_is_due(
    open_door: OpenDoor,
) -> None:
    """In buckets of 100,000, and the queue goes on behind it before and after."""
    door = open_door(bucket_size=100_000)
    noise = random.Random(1)  # noqa: S311 - repeatable
    who = door.identity()
    admission = portal.run(transaction.admit(door.lane, who, 0))
    assert isinstance(admission, WriteUnder)
    with portal.entered(door.bulk_writer(who, admission.epoch)) as bulk:
        writer = bulk.of(door.lane.lane_id)
        in_an_hour_us = door.clock.now_us() + 3_600_000_000
        for _ in range(40):
            due_us = [in_an_hour_us + noise.randrange(86_400_000_000) for _ in range(2_500)]
            portal.run(writer.add(payload(*[b"x"] * 2_500), 2_500, due_us))
        buckets = portal.run(bulk.finish())
    door.commit(who, 0, TaskResult(who=who, epoch=admission.epoch, buckets=buckets))
    assert OLD_LIMIT < size_of(door.value(BUCKET)) < limit_of(100_000)
    door.queue.put(b"behind it")
    assert [b"behind it"] == [one.body for one in door.queue.get(10)]

    door.clock.advance(2 * 86_400)

    assert 100_000 == door.queue.stats().visible - 1
    got = door.queue.get(1_000)  # in runs of one message, of which a lease has few
    assert len(got) > 100
    door.queue.ack(got)
    assert 100_001 - len(got) == door.queue.stats().visible


def test_t2_many_updated_messages_that_were_given_back_hide_nothing(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=50_000)
    _fill(door, 50_000)
    noise = random.Random(1)  # noqa: S311 - repeatable
    updated = tuple((at, noise.getrandbits(63)) for at in range(10_000, 45_000))
    _change(door, lambda row: replace(row, revisions=updated))
    assert OLD_LIMIT < size_of(door.value(BUCKET)) < limit_of(50_000)
    door.queue.put(b"behind it")

    (one,) = door.queue.get(1)
    one = door.queue.update(one, body=b"one more")

    assert b"one more" == one.body
    assert 35_001 == len(door.value(BUCKET).revisions)
    door.queue.ack(one)
    assert updated == door.value(BUCKET).revisions


def test_t11_sixteen_thousand_single_gets_in_flight_hide_nothing_of_the_rest(
    open_door: OpenDoor,
) -> None:
    door = open_door(bucket_size=50_000)
    _fill(door, 50_000)
    _lease_one_by_one(door, 16_000)
    assert OLD_LIMIT < size_of(door.value(BUCKET)) < limit_of(50_000)

    got = door.queue.get(1)

    assert [16_000] == [one.id for one in got]
    door.queue.ack(got)
    assert 16_000 == len(door.value(BUCKET).leases)
    assert 50_000 - 16_001 == door.queue.stats().visible
    assert [] == door.client.verify(door.queue.name).findings


def test_t11_a_get_looks_for_other_buckets_beside_a_crowded_one(open_door: OpenDoor) -> None:
    """Each CAS on a row with 2,048 leases writes all. The first window ends before the other."""
    door = open_door(bucket_size=5_000)
    _fill(door, 5_000)
    _lease_one_by_one(door, CROWDED_LEASES)
    for _ in range(8):
        portal.run(seal.close(door.lane, door.put(b"later", delay_s=3_600)))
    other = door.put(b"in another bucket")
    portal.run(seal.close(door.lane, other))

    assert [other * 5_000] == [one.id for one in door.queue.get(1)]
    assert [CROWDED_LEASES] == [one.id for one in door.queue.get(1)]
    assert 5_000 - CROWDED_LEASES - 1 == portal.run(door.reader().count(10_000))


@pytest.mark.long
def test_t2_a_row_at_the_limit_is_written_and_read(open_door: OpenDoor) -> None:
    """The largest there can be: Cassandra takes it, and it can be claimed from and acked."""
    door = open_door(bucket_size=100_000)
    _fill(door, 100_000)
    noise = random.Random(1)  # noqa: S311 - repeatable
    _lease_one_by_one(
        door,
        99_999,
        of_runs=True,
        revisions=tuple((at, noise.getrandbits(63)) for at in range(99_999)),
    )
    size = size_of(door.value(BUCKET))
    assert 0.7 * limit_of(100_000) < size <= limit_of(100_000)

    (one,) = door.queue.get(10)

    assert 99_999 == one.id
    door.queue.ack(one)
    assert 99_999 == len(door.value(BUCKET).leases)


def _fill(door: Door, size: int) -> None:
    """One bucket that is full and sealed, and was not claimed from."""
    admission = portal.run(transaction.admit(door.lane, door.identity(), 0))
    assert isinstance(admission, WriteUnder)
    with portal.entered(door.bulk_writer(door.identity(), admission.epoch)) as bulk:
        writer = bulk.of(door.lane.lane_id)
        for _ in range(0, size, 2_500):
            portal.run(writer.add(payload(*[b"x"] * 2_500), 2_500))
        buckets = portal.run(bulk.finish())
    result = TaskResult(who=door.identity(), epoch=admission.epoch, buckets=buckets)
    assert size == door.commit(door.identity(), 0, result)


def _lease_one_by_one(
    door: Door,
    count: int,
    *,
    of_runs: bool = False,
    revisions: tuple[tuple[int, int], ...] = (),
) -> None:
    """What as many gets of one message would do."""

    def change(row: Bucket) -> Bucket:
        leases = tuple(
            Lease(
                lease_id=new_uuid(),
                owner="host:1",
                run=UUID(int=new_uuid().int) if of_runs else None,
                delivery_count=(1 << 30) if of_runs else 1,
                runs=Runs.span(at, at),
                until_us=NEVER_US + at,
            )
            for at in range(count)
        )
        fresh = Runs.span(count, row.manifest.last)
        return replace(row, fresh=fresh, leases=leases, revisions=revisions)

    _change(door, change)


def _change(door: Door, change: object) -> None:
    assert callable(change)
    is_done = False

    def once(row: Bucket, *_: object) -> Bucket | None:
        nonlocal is_done
        if is_done:
            return None
        is_done = True
        new: Bucket = change(row)
        return new

    portal.run(door.lane.change_bucket(BUCKET, once))
