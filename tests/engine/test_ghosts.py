"""Copies of an INSERT that land after the drop: no row is believed before L was read (ADR 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.outcome import Applied
from cassieq_spark.queue.put.producer import prove
from cassieq_spark.store import portal
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.outcome import Stored
    from tests.fixtures.queues import Door, OpenDoor

FIRST = BucketNo(0)


def sealing_sent_twice(door: Door) -> Stored[Bucket]:
    """The row that the first copy makes; the second stays on its way until `land`."""
    door.faults.plan("insert_bucket", Fault.LATE)
    outcome = portal.run(
        door.lane.buckets.insert(FIRST, rules.sealing(now_us=door.lane.clock.now_us()))
    )
    assert isinstance(outcome, Applied)
    return outcome.now


def live_and_drop(door: Door, late: Door) -> None:
    """Somebody else seals, gets, acks and drops the bucket; then the second copy lands."""
    messages = door.queue.get()
    door.queue.ack(messages)
    door.clock.advance(60)
    assert 1 == door.client.repair(door.queue.name).queues[0].dropped
    assert 1 == late.faults.land()
    assert Status.SEALING is late.value(0).status


@pytest.mark.invariant("I4")
def test_p2_nothing_is_delivered_from_a_ghost(open_door: OpenDoor) -> None:
    """The sealer's own CAS fits the ghost: it has the writer that the sealer read."""
    slow, other = open_door(), open_door()
    slow.queue.put(b"m")
    slow.faults.plan("insert_bucket", Fault.LATE)
    slow.faults.before("fill_bucket", lambda: live_and_drop(other, slow))
    assert [] == slow.queue.get()
    assert Status.SEALED is slow.value(0).status
    slow.queue.put(b"next")
    assert [b"next"] == [one.body for one in slow.queue.get()]


@pytest.mark.invariant("I1")
def test_p2_a_put_is_not_acknowledged_by_the_manifest_of_a_ghost(open_door: OpenDoor) -> None:
    """Its row came after the true scan and before the ghost's: nobody will ever be given it."""
    slow, helper, other = open_door(), open_door(), open_door()
    helper.queue.put(b"early")
    row = sealing_sent_twice(slow)
    true = rules.sealed(
        row.value,
        manifest=Runs.span(0, 0),
        due_us={},
        size_bytes=1,
        now_us=slow.lane.clock.now_us(),
    )
    helper.write(FIRST, 1, b"late")

    def seal_truly_and_drop() -> None:
        portal.run(slow.lane.buckets.fill(FIRST, row, true))
        live_and_drop(other, slow)

    helper.faults.before("fill_bucket", seal_truly_and_drop)
    assert portal.run(prove(helper.lane, FIRST, is_written=True)).kept is None
    ghost = slow.value(0)
    assert (Status.SEALED, ((0, 1),)) == (ghost.status, ghost.manifest.pairs)
    assert portal.run(prove(helper.lane, FIRST, is_written=True)).kept is None


@pytest.mark.invariant("I3")
def test_p2_an_ack_that_counted_is_not_called_stale_by_a_ghost(open_door: OpenDoor) -> None:
    slow, other = open_door(), open_door()
    slow.queue.put(b"m")
    slow.faults.plan("insert_bucket", Fault.LATE)
    (message,) = slow.queue.get()
    slow.faults.plan("update_bucket", Fault.TIMEOUT_AFTER)

    def drop() -> None:
        other.queue.get()
        other.clock.advance(60)
        assert 1 == other.client.repair(other.queue.name).queues[0].dropped
        assert 1 == slow.faults.land()

    slow.faults.before("update_bucket", drop, after=1)
    assert [cassieq.AckResult.ALREADY_ACKED] == slow.queue.ack_each([message])
