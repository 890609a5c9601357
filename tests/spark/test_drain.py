"""From df.write to an empty queue: nothing lost, nothing twice, no tail that is never acked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import current_timestamp

from cassieq_spark.testing import wait_until
from tests.fixtures.streams import Collected, Streams, bodies, bodies_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@pytest.mark.long
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
def test_what_two_writers_put_at_once_is_read_once_and_acked_to_the_last_batch(
    streams: Streams,
) -> None:
    # Spark 4.3 looks for Python formats at first use, and a second thread does not wait for that.
    assert [] == streams.look().collect()
    frames = [streams.numbered(0, 3_000), streams.numbered(3_000, 6_000)]
    with ThreadPoolExecutor(len(frames)) as writers:
        list(writers.map(streams.put, frames))
    assert 6_000 == streams.queue.stats().visible

    first = streams.drain(maxMessagesPerTrigger=2_500)

    assert bodies(0, 6_000) == first.bodies
    assert [2_500, 2_500, 1_000] == [len(rows) for _, rows in first.calls]
    assert {1} == {row.delivery_count for row in first.rows}
    assert streams.is_empty(), streams.queue.stats()
    assert [] == streams.drain().calls


@pytest.mark.invariant("I4")
def test_an_idle_query_has_acked_its_last_batch(streams: Streams) -> None:
    streams.put(streams.numbered(0, 100))
    collected = Collected()
    query = streams.start(streams.source(), collected, once=False)
    try:
        query.processAllAvailable()
        streams.wait_until_empty()

        streams.put(streams.numbered(100, 200))
        query.processAllAvailable()
        streams.wait_until_empty()
    finally:
        query.stop()
    assert bodies(0, 200) == collected.bodies


def test_a_query_waits_while_its_queue_is_paused_and_available_now_ends(streams: Streams) -> None:
    streams.put(streams.numbered(0, 100))
    streams.queue.pause()
    assert [] == streams.drain().rows

    collected = Collected()
    query = streams.start(streams.source(), collected, checkpoint="another", once=False)
    try:
        wait_until(lambda: bool(query.recentProgress), deadline_s=60)
        streams.put(streams.numbered(100, 200))
        query.processAllAvailable()
        assert [] == collected.rows
        streams.queue.resume()
        wait_until(lambda: len(collected.rows) == 200, deadline_s=60)
    finally:
        query.stop()
    assert bodies(0, 200) == collected.bodies
    assert {1} == {row.delivery_count for row in collected.rows}


def test_available_now_leaves_what_came_after_its_start(streams: Streams) -> None:
    """Else a queue that is written all the time would never let it end."""
    streams.put(streams.numbered(0, 400))
    seen = Collected()

    def handler(frame: DataFrame, batch_id: int) -> None:
        streams.put(streams.numbered(1_000 + batch_id, 1_001 + batch_id))
        seen(frame, batch_id)

    query = streams.start(streams.source(maxMessagesPerTrigger=200), handler)

    assert query.awaitTermination(120)
    assert bodies(0, 400) == seen.bodies
    assert bodies(1_000, 1_002) == streams.drain(checkpoint="second").bodies
    assert streams.is_empty()


def test_a_stored_query_goes_on_where_it_was(streams: Streams) -> None:
    streams.put(streams.numbered(0, 300))
    first = streams.drain()
    streams.put(streams.numbered(300, 500))
    second = streams.drain()

    assert (bodies(0, 300), [0]) == (first.bodies, first.batch_ids)
    assert (bodies(300, 500), [1]) == (second.bodies, second.batch_ids)


def test_a_delayed_message_comes_when_it_is_due_and_not_before(streams: Streams) -> None:
    frame = streams.spark.createDataFrame(
        [(bytearray(b"now"), None), (bytearray(b"soon"), 2.0), (bytearray(b"later"), 600.0)],
        "body binary, delay double",
    )
    streams.put(frame.coalesce(1))
    assert 1 <= streams.queue.stats().delayed
    collected = Collected()
    query = streams.start(
        streams.source().withColumn("read_at", current_timestamp()), collected, once=False
    )
    try:
        wait_until(lambda: len(collected.rows) >= 2, describe=lambda: str(streams.queue.stats()))
    finally:
        query.stop()

    now, soon = sorted(collected.rows, key=lambda row: bytes(row.body))
    assert (b"now", b"soon") == (bytes(now.body), bytes(soon.body))
    assert soon.read_at - soon.enqueued_at >= timedelta(seconds=2)
    assert (1, 1) == (now.delivery_count, soon.delivery_count)
    assert 1 == streams.queue.stats().delayed


@pytest.mark.parametrize("min_partitions", [1, 7])
def test_a_look_shows_all_that_is_visible_and_leases_nothing(
    streams: Streams, min_partitions: int
) -> None:
    streams.put(streams.numbered(0, 1_200))

    frame = streams.look(minPartitions=min_partitions)

    assert min_partitions == frame.rdd.getNumPartitions()
    rows = frame.collect()
    assert bodies(0, 1_200) == bodies_of(rows)
    assert {(0, None)} == {(row.delivery_count, row.receipt) for row in rows}
    assert (1_200, 0) == (streams.queue.stats().visible, streams.queue.stats().in_flight)
