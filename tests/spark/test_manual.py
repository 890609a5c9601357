"""The planner with ``ackMode`` = ``manual``: it leases, renews and lets go, and acks nothing."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cassieq_spark import metrics
from cassieq_spark.model.offset import INITIAL, SourceOffset
from cassieq_spark.model.settlement import Ack
from cassieq_spark.queue.settle.settle import settle_bucket
from cassieq_spark.spark.source.one_queue import Limits
from cassieq_spark.spark.source.planner import Planner
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.streams import Streams

START = INITIAL.to_json()
ALL = Limits()


@contextmanager
def manual(streams: Streams, **options: object) -> Iterator[Planner]:
    planner = Planner.open(streams.lane.store, streams.parsed(ackMode="manual", **options))
    try:
        yield planner
    finally:
        planner.close()


def settle(streams: Streams, end: dict[str, object], *, leases: int) -> int:
    """Ack so many of the batch's leases; how many messages."""
    named = SourceOffset.from_json(end).leases[:leases]
    for one in named:
        portal.run(settle_bucket(streams.lane, one.place.bucket, {one.lease_id: {Ack(): one.runs}}))
    return sum(one.runs.count for one in named)


def test_a_committed_batch_is_not_acked_and_not_renewed_any_more(streams: Streams) -> None:
    """So what was not settled comes back when its lease ends, as one delivery more."""
    streams.put(streams.numbered(0, 900))
    with manual(streams, visibilityTimeout="1h") as planner:
        end = planner.latest(START, ALL)
        held = streams.leases
        assert {lease.lease_id for lease in held} == set().union(
            *(one.ids for one in planner._renewal._held.values())
        )

        planner.ack(end)
        assert end == planner.latest(end, ALL)

        assert {} == planner._renewal._held
        assert held == streams.leases
    assert 900 == streams.queue.stats().in_flight


def test_a_lease_that_was_settled_while_its_batch_runs_is_not_lost(
    streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    streams.put(streams.numbered(0, 900))
    lost_before = metrics.LEASES_LOST.value
    with (
        manual(streams, visibilityTimeout="0.3s") as planner,
        caplog.at_level(logging.WARNING, logger="cassieq_spark"),
    ):
        end = planner.latest(START, ALL)
        settled = settle(streams, end, leases=1)
        left = streams.leases
        assert 900 - settled == sum(lease.runs.count for lease in left)

        wait_until(lambda: len(planner._renewal._held) == 1, describe="a renewal that finds it")
        ends = max(lease.until_us for lease in streams.leases)
        wait_until(lambda: max(lease.until_us for lease in streams.leases) > ends)

    assert lost_before == metrics.LEASES_LOST.value
    assert "lease_lost_in_batch" not in [record.event for record in caplog.records]


@pytest.mark.invariant("I8")
def test_a_replay_leaves_out_what_was_settled_and_counts_nothing_as_lost(
    streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    streams.put(streams.numbered(0, 900))
    lost_before = metrics.LEASES_LOST.value
    with manual(streams) as died:
        end = died.latest(START, ALL)
        [(_, planned)] = died.plan(START, end)
    settled = settle(streams, end, leases=1)
    with (
        caplog.at_level(logging.WARNING, logger="cassieq_spark"),
        manual(streams, onLeaseLost="fail") as restarted,
    ):
        [(_, replayed)] = restarted.plan(START, end)

    gone = SourceOffset.from_json(end).leases[0].lease_id
    assert [one for one in planned if one.lease_id != gone] == replayed
    assert 900 - settled == sum(one.runs.count for one in replayed)
    assert lost_before == metrics.LEASES_LOST.value
    assert [] == [record.event for record in caplog.records]
