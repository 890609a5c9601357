"""Consumers side by side on one queue: Spark queries, and others."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.model.offset import INITIAL
from cassieq_spark.spark.source.planner import Planner
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.streams import Collected, Streams, bodies, failure_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class _StartsTogether(Collected):
    """Holds its first batch until the other query has one too."""

    def __init__(self, both: threading.Barrier) -> None:
        super().__init__()
        self._both = both

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        super().__call__(frame, batch_id)
        if batch_id == 0:
            self._both.wait(60)


@pytest.mark.invariant("I2")
def test_two_queries_share_a_queue_and_no_message_is_in_both(streams: Streams) -> None:
    streams.put(streams.numbered(0, 4_000))
    both = threading.Barrier(2)
    seen = [_StartsTogether(both), _StartsTogether(both)]
    source = streams.source(maxMessagesPerTrigger=450)

    queries = [
        streams.start(source, collected, checkpoint=str(number), once=False)
        for number, collected in enumerate(seen)
    ]
    try:
        streams.wait_until_empty()
    finally:
        for query in queries:
            query.stop()

    first, second = seen
    # Neither takes more than its limit at a time, so neither starves.
    assert 2 <= min(len(first.batch_ids), len(second.batch_ids))
    assert 450 >= max(len(rows) for one in seen for _, rows in one.calls)
    assert bodies(0, 4_000) == first.bodies + second.bodies


@pytest.mark.invariant("I2")
def test_leases_are_renewed_while_a_batch_runs_longer_than_they_do(streams: Streams) -> None:
    """Another consumer polls all the while and gets nothing."""
    streams.put(streams.numbered(0, 300))
    running, may_end = threading.Event(), threading.Event()
    seen = Collected()

    def handler(frame: DataFrame, batch_id: int) -> None:
        running.set()
        assert may_end.wait(120)
        seen(frame, batch_id)

    query = streams.start(streams.source(visibilityTimeout="1s"), handler)
    try:
        assert running.wait(60)
        other = streams.consumer()
        taken: list[object] = []
        ends: set[int] = set()

        def has_been_renewed_over_ten_timeouts() -> bool:
            taken.extend(portal.run(other.get(1_000)))
            ends.update(lease.until_us for lease in streams.leases)
            return max(ends) - min(ends) > 10_000_000

        wait_until(has_been_renewed_over_ten_timeouts, describe=lambda: f"lease ends: {ends}")
    finally:
        may_end.set()
    assert query.awaitTermination(120)

    assert [] == taken
    assert bodies(0, 300) == seen.bodies
    assert {1} == {row.delivery_count for row in seen.rows}
    assert streams.is_empty()


def test_a_copied_checkpoint_fences_the_first_query(streams: Streams) -> None:
    """The copy takes the running batch over; the first query ends instead of acking it [P25].

    The copy is a bare planner: Spark keeps two runs of one query out of one session.
    """
    streams.put(streams.numbered(0, 600))
    running, may_end = threading.Event(), threading.Event()

    def handler(frame: DataFrame, _: int) -> None:
        frame.collect()
        running.set()
        assert may_end.wait(120)

    query = streams.start(streams.source(visibilityTimeout="0.5s"), handler, once=False)
    try:
        assert running.wait(60)
        offset = (streams.checkpoint() / "offsets" / "0").read_text().splitlines()[-1]
        copy = Planner.open(streams.lane.store, streams.parsed(visibilityTimeout="1h"))
        try:
            assert 600 == sum(
                planned.runs.count
                for _, some in copy.plan(INITIAL.to_json(), json.loads(offset))
                for planned in some
            )
        finally:
            copy.close()
        # Renewals come by every sixth of a second; one that is under way may not see the copy yet.
        over_us = streams.lane.clock.now_us() + 3_000_000
        wait_until(lambda: streams.lane.clock.now_us() > over_us)
        may_end.set()
        assert "[cassieq:stream_fenced]" in failure_of(query)
    finally:
        may_end.set()
        query.stop()
    assert {copy.run} == {lease.run for lease in streams.leases}
    assert 600 == streams.queue.stats().in_flight
