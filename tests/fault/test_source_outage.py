"""Cassandra goes away for half a minute in mid-query, and comes back with its data."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.testing import wait_until
from tests.children.stopping import Stop, StoppingSource
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.streams import Collected, Streams, bodies, failure_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from cassieq_spark.testing import EmbeddedCassandra

DOWN_S = 30.0
MESSAGES = 150
A_BATCH = 50
OPTIONS: dict[str, Any] = {"maxMessagesPerTrigger": A_BATCH, "minPartitions": 1}


@pytest.fixture
def on_own_node(
    spark: SparkSession, own_cassandra: EmbeddedCassandra, queue_name: str, tmp_path: Path
) -> Iterator[Streams]:
    """As ``streams``, on a node that may be killed."""
    with cassieq.connect(own_cassandra.contact_points, keyspace=KEYSPACE) as client:
        client.bootstrap()
        queue = client.create_queue(queue_name, bucket_size=20, visibility_timeout=300)
        yield Streams(spark, client, own_cassandra, queue, tmp_path)


class _Running:
    """A query over 150 messages of its own, and what it has seen of them."""

    def __init__(self, streams: Streams, source: DataFrame) -> None:
        self.streams = streams
        self.seen = Collected()
        self.is_there = threading.Event()
        self._may_go_on = threading.Event()
        streams.put(streams.numbered(0, MESSAGES, 1), chunkMessages=10)
        self.query: StreamingQuery = streams.start(source, self._handle, once=False)

    def _handle(self, frame: DataFrame, batch_id: int) -> None:
        self.seen(frame, batch_id)

    def wait_until_there(self) -> None:
        """Where the outage is to meet it."""
        self.finish()

    def go_on(self) -> None:
        self._may_go_on.set()

    def hold(self) -> None:
        self.is_there.set()
        assert self._may_go_on.wait(120)

    def finish(self) -> None:
        def is_empty() -> bool:
            if not self.query.isActive:
                pytest.fail(f"the query has ended: {self.query.exception()}")
            return self.streams.is_empty()

        wait_until(is_empty, deadline_s=120, describe=lambda: str(self.streams.queue.stats()))


class _HeldBeforeTasks(_Running):
    """Its second batch is read when the store is away."""

    def _handle(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            self.hold()
        self.seen(frame, batch_id)

    def wait_until_there(self) -> None:
        assert self.is_there.wait(120)


class _HeldBeforeAck(_HeldBeforeTasks):
    """Its second batch is done, committed and acked when the store is away."""

    def _handle(self, frame: DataFrame, batch_id: int) -> None:
        self.seen(frame, batch_id)
        if batch_id == 1:
            self.hold()


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
def test_queries_outlast_an_outage_of_half_a_minute_and_one_that_cannot_says_why(
    on_own_node: Streams, own_cassandra: EmbeddedCassandra
) -> None:
    """It meets them idle, in a task, and at an ack; the last has no patience."""
    on_own_node.spark.dataSource.register(StoppingSource)
    stop = Stop(notes=str(on_own_node.directory / "notes"), patience_s=-19.0)
    kinds: dict[str, type[_Running]] = {
        "idle": _Running,
        "reading": _HeldBeforeTasks,
        "acking": _HeldBeforeAck,
        "impatient": _HeldBeforeAck,
    }
    running: dict[str, _Running] = {}
    try:
        for name, kind in kinds.items():
            streams = on_own_node.another(name, bucket_size=20, visibility_timeout=300)
            source = streams.source(**OPTIONS) if name != "impatient" else _stopping(streams, stop)
            running[name] = kind(streams, source)
            running[name].wait_until_there()

        (node,) = own_cassandra.nodes
        node.kill()
        for one in running.values():
            one.go_on()
        SystemClock().wait(DOWN_S)
        node.start()

        patient = [one for name, one in running.items() if name != "impatient"]
        idle = running["idle"].streams
        idle.put(idle.numbered(MESSAGES, MESSAGES + 10, 1))
        for one in patient:
            one.finish()
        says = failure_of(running["impatient"].query)
    finally:
        for one in running.values():
            one.query.stop()

    assert "[cassieq:cas_ambiguous]" in says, says
    assert bodies(0, MESSAGES + 10) == running["idle"].seen.bodies
    for name in ("reading", "acking"):
        assert bodies(0, MESSAGES) == running[name].seen.bodies, name
    # Its second batch is in Spark's commit log, and was not acked.
    failed = running["impatient"]
    assert (2 * A_BATCH, [0, 1]) == (len(failed.seen.rows), failed.seen.batch_ids)
    assert A_BATCH <= failed.streams.queue.stats().in_flight
    rest = failed.streams.drain(**OPTIONS)
    assert bodies(0, MESSAGES) == failed.seen.bodies + rest.bodies
    assert failed.streams.is_empty()


def _stopping(streams: Streams, stop: Stop) -> DataFrame:
    return (
        streams.spark.readStream.format(StoppingSource.name())
        .options(**streams.options, **OPTIONS, stop=stop.to_option())
        .load()
    )
