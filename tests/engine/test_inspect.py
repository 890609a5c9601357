"""What the views say of a bucket, of a lease and of a queue, on a real node."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.options import QueueSelection, QueueSettings
from cassieq_spark.options import queue_name as checked_name
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.inspect import facts
from cassieq_spark.queue.inspect.facts import BucketFacts, LeaseFacts
from cassieq_spark.queue.inspect.stats import look, stats
from cassieq_spark.spark.views.columns import QUEUES, VIEWS
from cassieq_spark.spark.views.reader import Asked, QueuesPartition, queue_rows
from cassieq_spark.store import portal
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.store.tables.queues import QueueRow
    from tests.fixtures.queues import Door, OpenDoor

OF_BUCKETS = re.compile("bucket|message")
"""Statements that read a bucket: its row, and what is in it."""

DISJOINT = ("fresh", "returned", "leased", "delayed", "dead", "acked")


def buckets(door: Door) -> dict[int, BucketFacts]:
    now_us = door.lane.clock.now_us()
    return {
        bucket: facts.bucket_facts(door.lane, bucket, row, waiting, now_us=now_us)
        for bucket, row, waiting in portal.iterate(facts.live_rows(door.lane))
    }


def leases(door: Door) -> list[LeaseFacts]:
    now_us = door.lane.clock.now_us()
    return [
        one
        for bucket, row, _ in portal.iterate(facts.live_rows(door.lane, scans=False))
        if row is not None
        for one in facts.lease_facts(door.lane, bucket, row.value, now_us=now_us)
    ]


def counts(found: BucketFacts) -> dict[str, int]:
    """Those that are not 0."""
    return {name: value for name in DISJOINT if (value := getattr(found, name))}


def test_every_message_of_a_bucket_is_counted_once_wherever_it_is(open_door: OpenDoor) -> None:
    open_door(".dead")
    door = open_door(max_deliveries=2, dead_letter_queue=open_door(".dead").queue.name)
    door.put(*(b"m-%d" % number for number in range(8)))
    first = door.queue.get(2)
    door.queue.release(first)
    door.queue.release(door.queue.get(2))
    door.queue.get(2)  # they are dead, and two fresh ones leased by whom nobody hears of again
    door.clock.advance(3_600)
    [held] = door.queue.get(1, consumer="billing")
    door.queue.ack(door.queue.get(1))
    [delayed, back] = door.queue.get(2)
    door.queue.release(delayed, delay=60)
    door.queue.update(back, body=b"again", visibility_timeout=0)

    [found] = buckets(door).values()

    assert ("sealed", 0, 9, 8) == (
        found.status,
        found.first_id,
        found.last_id,
        found.messages,
    )
    assert 8 == sum(getattr(found, name) for name in DISJOINT)
    assert {"billing": 1} == found.consumers
    assert 1 == found.updated
    assert (1, 2, 1) == (found.leased, found.dead, found.acked)
    told = door.queue.stats()
    assert (told.visible, told.in_flight, told.delayed, told.dead) == (
        found.fresh + found.returned,
        found.leased,
        found.delayed,
        found.dead,
    )
    assert held.id in {one.first_id for one in leases(door) if one.consumer == "billing"}


def test_an_open_bucket_has_no_row_and_its_messages(door: Door) -> None:
    bucket = door.reserve()
    door.write(bucket, 0, b"a", b"b")
    door.write(bucket, 2, b"later", delay_s=60)

    found = buckets(door)[bucket]

    assert (facts.OPEN, 3, {"fresh": 2, "delayed": 1}) == (
        found.status,
        found.messages,
        counts(found),
    )
    assert (None, None) == (found.row_version, found.changed_us)
    assert 0 < found.stored_bytes


def test_a_bucket_of_a_transaction_names_it_before_it_is_committed(door: Door) -> None:
    door.task(door.identity(sink_id="s"), 0, b"a", b"b")

    [found] = [one for one in buckets(door).values() if one.status == Status.PREPARED.value]

    assert ("s", 1, 2, {"fresh": 2}) == (
        found.sink_id,
        found.epoch,
        found.messages,
        counts(found),
    )


def test_a_lease_that_ran_out_says_so_until_somebody_takes_its_messages_over(door: Door) -> None:
    door.put(b"a", b"b", b"c")
    [first, _, _] = door.queue.get(3, consumer="slow", visibility_timeout=30)
    door.queue.ack(first)
    door.clock.advance(31)

    [lease] = leases(door)

    assert ("slow", 2, 1, True, ((1, 2),), None) == (
        lease.consumer,
        lease.messages,
        lease.delivery_count,
        lease.is_expired,
        lease.id_runs,
        lease.run,
    )
    [found] = buckets(door).values()
    assert ({"returned": 2, "acked": 1}, {}, 1) == (counts(found), found.consumers, found.leases)

    assert 2 == len(door.queue.get(3, consumer="quick"))
    assert [("quick", 2, False)] == [
        (one.consumer, one.delivery_count, one.is_expired) for one in leases(door)
    ]


@pytest.mark.invariant("I4")
def test_a_ghost_is_in_no_view(open_door: OpenDoor) -> None:
    """Its row is read when it is there, and left out when the repair pointer has passed it (G5)."""
    looking, other = open_door(), open_door()
    other.put(b"m")

    def drop_and_come_back() -> None:
        other.queue.ack(other.queue.get())
        other.queue.get()
        other.clock.advance(60)
        assert 1 == other.client.repair(other.queue.name).queues[0].dropped
        portal.run(
            other.lane.buckets.insert(BucketNo(0), rules.sealing(now_us=other.lane.clock.now_us()))
        )

    looking.faults.before("read_bucket", drop_and_come_back)
    assert 0 not in buckets(looking)
    assert other.row(0) is not None


@pytest.mark.invariant("I4")
def test_a_bucket_that_is_dropped_while_it_is_looked_into_is_not_looked_at(
    open_door: OpenDoor,
) -> None:
    """Its row comes back as a ghost after the scan: only the repair pointer tells (ADR 11)."""
    looking, other = open_door(), open_door()
    bucket = other.reserve()
    other.write(bucket, 0, b"m")
    other.faults.plan("insert_bucket", Fault.LATE)
    portal.run(other.lane.buckets.insert(bucket, rules.sealing(now_us=other.lane.clock.now_us())))

    def drop_and_come_back() -> None:
        seal_and_drop(other)
        other.faults.land()
        ghost = other.row(bucket)
        assert ghost is not None
        portal.run(
            other.lane.buckets.fill(
                bucket,
                ghost,
                rules.sealed(
                    ghost.value,
                    manifest=Runs.span(0, 0),
                    due_us={},
                    size_bytes=1,
                    now_us=other.lane.clock.now_us(),
                ),
            )
        )

    looking.faults.before("scan_messages", drop_and_come_back)

    assert {} == buckets(looking)
    assert Status.SEALED is other.value(bucket).status


def seal_and_drop(door: Door) -> None:
    door.clock.advance(60)
    door.queue.ack(door.queue.get())
    door.queue.get()
    door.clock.advance(60)
    assert door.client.repair(door.queue.name).queues[0].dropped


def test_a_queue_shows_its_settings_and_what_it_has_handed_out(door: Door) -> None:
    door.put(b"m")
    row = portal.run(door.store.queues.read(door.lane.queue))
    assert row is not None

    found = portal.run(facts.queue_facts(door.store, row.value))

    assert (10, 0) == (found.next_id, found.pointers.repair if found.pointers else None)
    assert {one.name for one in fields(QueueSettings)} <= set(QUEUES.schema.names)


def test_a_queue_whose_deletion_was_interrupted_is_shown_as_that(door: Door) -> None:
    door.faults.plan("advance_pointer", Fault.REFUSE)
    with pytest.raises(cassieq.UsageError):
        door.client.delete_queue(door.queue.name)
    name = door.lane.queue

    def rows(view: str) -> list[QueueRow]:
        asked = Asked(view=VIEWS[view], names=(), conditions=())
        return [row for row in queue_rows(door.store, QueueSelection(), asked) if row.name == name]

    [row] = rows("queues")
    assert ("deleting", None, None) == (
        row.status.value,
        portal.run(facts.queue_facts(door.store, row)).next_id,
        portal.run(facts.queue_facts(door.store, row)).pointers,
    )
    assert [] == rows("stats")
    door.client.delete_queue(door.queue.name)
    assert [] == rows("queues")


def test_a_queue_that_is_deleted_while_all_are_counted_is_left_out(open_door: OpenDoor) -> None:
    looking, other = open_door(), open_door()
    asked = Asked(view=VIEWS["stats"], names=("queue",), conditions=())

    def seen() -> list[str]:
        batches = QueuesPartition(QueueSelection(), 0, 1).read(looking.store, asked)
        return [name for batch in batches for name in batch.column("queue").to_pylist()]

    name = looking.queue.name
    assert name in seen()
    looking.faults.before("read_monoton", lambda: other.client.delete_queue(name))
    assert name not in seen()


def test_a_look_counts_and_draws_by_reading_each_bucket_once(
    client: cassieq.Client, queue_name: str
) -> None:
    queue = client.create_queue(queue_name, bucket_size=10, priorities=2, fairness=0)
    for priority in (0, 1):
        for _ in range(4):
            queue.put_many([b"x"] * 10, priority=priority)
    assert 15 == len(queue.get(15))
    lane = portal.run(open_lane(client.store, checked_name(queue_name)))

    def reads(work: Callable[[], object]) -> dict[str, int]:
        before = metrics.STATEMENTS.values
        work()
        after = metrics.STATEMENTS.values
        return {name: after[name] - before.get(name, 0) for name in after}

    counted = reads(lambda: portal.run(stats(lane)))
    looked = reads(lambda: portal.run(look(lane, most_lanes=32, most_buckets=200)))

    found = portal.run(look(lane, most_lanes=32, most_buckets=200))
    assert 15 == sum(lease.messages for one in found.lanes for lease in one.leases)
    assert 65 == found.stats.visible == portal.run(stats(lane)).visible
    assert sum(found.stats.buckets.values()) == sum(len(one.buckets) for one in found.lanes) > 7
    rows = {name for name in counted if counted[name] and OF_BUCKETS.search(name)}
    assert len(rows) > 1
    assert {name: counted[name] for name in rows} == {name: looked[name] for name in rows}
    cut = portal.run(look(lane, most_lanes=1, most_buckets=3))
    assert (1, 3, 65) == (len(cut.lanes), len(cut.lanes[0].buckets), cut.stats.visible)
