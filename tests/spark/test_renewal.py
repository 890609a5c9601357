"""The renewal of a batch's leases by itself.

See docs/design/source.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.model.offset import INITIAL, SourceOffset
from cassieq_spark.spark.source.one_queue import Limits
from cassieq_spark.spark.source.planner import Planner
from cassieq_spark.store import portal
from cassieq_spark.testing import ManualClock, wait_until
from tests.fixtures.faults import Away, FaultyStore

if TYPE_CHECKING:
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.lane import Lane
    from tests.fixtures.streams import Streams

VISIBILITY_S = 600


def turn(clock: ManualClock, planner: Planner, seconds: float) -> None:
    """Let time pass for a task that waits in real time."""
    clock.advance(seconds)
    portal.portal().loop.call_soon_threadsafe(planner._renewal._changed.set)


@pytest.mark.invariant("I2")
def test_a_renewal_that_an_outage_held_up_is_followed_by_another_at_once(streams: Streams) -> None:
    """What it has written at last is an end that was reckoned before the outage."""
    streams.put(streams.numbered(0, 50, 1))
    with streams.in_an_hour() as lane:
        clock = lane.clock
        assert isinstance(clock, ManualClock)
        planner = Planner.open(lane.store, streams.parsed(visibilityTimeout=VISIBILITY_S))
        try:
            planner.latest(INITIAL.to_json(), Limits())
            with FaultyStore().on(lane.store.session) as faults:
                faults.before("write_hint", lambda: clock.advance(VISIBILITY_S))
                before = lane.store.session.counts["write_hint"]
                turn(clock, planner, VISIBILITY_S / 3)
                wait_until(lambda: lane.store.session.counts["write_hint"] >= before + 2)
        finally:
            planner.close()


@pytest.mark.invariant("I2")
def test_t5_leases_that_were_granted_late_are_renewed_before_they_run_out(
    streams: Streams,
) -> None:
    """A third of the timeout is too late for what has less than that left."""
    streams.put(streams.numbered(0, 50, 1))
    with streams.in_an_hour() as lane:
        clock = lane.clock
        assert isinstance(clock, ManualClock)
        planner = Planner.open(lane.store, streams.parsed(visibilityTimeout=VISIBILITY_S))
        try:
            with FaultyStore().on(lane.store.session) as faults:
                faults.before("update_bucket", lambda: clock.advance(VISIBILITY_S * 0.8))
                end = planner.latest(INITIAL.to_json(), Limits())
            buckets = [leased.place.bucket for leased in SourceOffset.from_json(end).leases]
            turn(clock, planner, VISIBILITY_S * 0.15)
            wait_until(partial(_all_renewed, lane, buckets))
        finally:
            planner.close()


@pytest.mark.parametrize("how", [Away.STANDS_STILL, Away.UNAVAILABLE, Away.TIMES_OUT])
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I10")
def test_t5_other_leases_are_renewed_while_one_bucket_does_not_answer(
    streams: Streams, how: Away
) -> None:
    """Period by period: nobody gets what the batch holds."""
    for first in range(0, 40, 10):
        streams.put(streams.numbered(first, first + 10, 1))
    with streams.in_an_hour() as lane:
        clock = lane.clock
        assert isinstance(clock, ManualClock)
        lane.store.session.patience_s = 100.0  # as `store.shared` has it
        planner = Planner.open(lane.store, streams.parsed(visibilityTimeout=VISIBILITY_S))
        try:
            end = planner.latest(INITIAL.to_json(), Limits())
            buckets = {leased.place.bucket for leased in SourceOffset.from_json(end).leases}
            away, *others = sorted(buckets)
            assert others
            with FaultyStore().on(lane.store.session) as faults:
                faults.unreachable(away, how=how)
                try:
                    for _ in range(4):
                        turn(clock, planner, VISIBILITY_S / 3)
                        wait_until(partial(_all_renewed, lane, others))
                finally:
                    faults.reachable()
                reader = streams.consumer(lane)
                claimed = {one.bucket for one in portal.run(reader.get(100))}
            assert claimed <= {away}
        finally:
            planner.close()


def _all_renewed(lane: Lane, buckets: list[BucketNo]) -> bool:
    """Whether nothing of these ends before the next period but one."""
    soon_us = lane.clock.now_us() + int(VISIBILITY_S * 0.9e6)
    rows, _ = portal.run(lane.buckets.read_many(buckets))
    return all(
        lease.until_us >= soon_us for row in rows.values() if row for lease in row.value.leases
    )
