"""Spark on a queue with several lanes: a transaction goes over all of them, and so does a batch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's users write it

from cassieq_spark.errors import SinkFenced
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.lanes import shard_of
from cassieq_spark.model.sink_txn import Identity, TaskResult, WriteUnder
from cassieq_spark.queue.roll_forward import settle_decided
from cassieq_spark.queue.sink import transaction
from cassieq_spark.queue.sink.writer import BulkWriter
from cassieq_spark.spark.source.one_queue import Limits
from cassieq_spark.spark.source.planner import Planner
from cassieq_spark.store import portal, store
from tests.fixtures.queues import payload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row

    from tests.fixtures.streams import Streams


@pytest.fixture
def _disconnected() -> Iterator[None]:
    """`settle` connects in this process."""
    yield
    store.close_shared()


COLUMNS = "body binary, id long, lane string, priority int, receipt string"


@pytest.fixture
def lanes(streams: Streams) -> Streams:
    """A queue of three classes and two shards."""
    return streams.another("lanes", priorities=3, shards=2, fairness=0, linger=0, bucket_size=100)


def keyed(lanes: Streams, rows: int) -> DataFrame:
    """Body ``m-<n>``, class n % 3 or null, a key for every second row."""
    return lanes.spark.range(0, rows, 1, 3).selectExpr(
        "cast(concat('m-', id) as binary) as body",
        "cast(if(id % 10 = 9, null, id % 3) as int) as priority",
        "if(id % 2 = 0, concat('k', id % 7), null) as key",
    )


def class_of(number: int) -> int:
    return 0 if number % 10 == 9 else number % 3


def number_of(row: Row) -> int:
    return int(bytes(row.body).decode().removeprefix("m-"))


def test_each_row_is_in_the_lane_of_its_priority_and_key(lanes: Streams) -> None:
    lanes.put(keyed(lanes, 200))

    found = lanes.spark.read.format("cassieq").options(**lanes.options).schema(COLUMNS).load()
    rows = found.collect()

    assert set(range(200)) == {number_of(row) for row in rows}
    fixed = lanes.lane.fixed
    for row in rows:
        number = number_of(row)
        priority, shard = fixed.class_and_shard(LaneId(_uuid(row.lane)))
        assert class_of(number) == priority == row.priority
        if number % 2 == 0:
            assert shard_of(f"k{number % 7}", 2) == shard
    assert Counter(map(class_of, range(200))) == lanes.queue.stats().by_priority


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("cast(3 as int) as priority", "has priority 3, allowed: 0 to 2"),
        ("cast(-1 as long) as priority", "has priority -1, allowed: 0 to 2"),
        ("repeat('k', 1025) as key", "has a key of 1025 bytes"),
        ("'high' as priority", "column 'priority' is string, allowed: an integer"),
        ("1 as key", "column 'key' is int32, allowed: string"),
    ],
)
def test_a_wrong_priority_or_key_fails_the_write_and_nothing_is_in_the_queue(
    lanes: Streams, expression: str, says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        lanes.put(lanes.numbered(0, 10).selectExpr("body", expression))
    assert 0 == lanes.queue.stats().visible


def test_a_queue_with_one_lane_takes_keys_and_priority_0(streams: Streams) -> None:
    streams.put(streams.numbered(0, 10).withColumns({"key": F.lit("k"), "priority": F.lit(0)}))

    assert 10 == streams.queue.stats().visible


@pytest.mark.invariant("I4", "I7")
def test_a_stream_through_lanes_delivers_each_message_once(lanes: Streams) -> None:
    keyed(lanes, 300).write.parquet(str(lanes.directory / "in"))
    rows = lanes.spark.readStream.schema("body binary, priority int, key string").parquet(
        str(lanes.directory / "in")
    )
    query = (
        rows.writeStream.format("cassieq")
        .options(**lanes.options)
        .option("checkpointLocation", str(lanes.checkpoint("sink")))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)

    collected = lanes.drain(maxMessagesPerTrigger=70)

    assert Counter(b"m-%d" % number for number in range(300)) == collected.bodies
    assert len(collected.calls) >= 4
    classes = [class_of(number_of(row)) for row in collected.rows]
    assert sorted(classes, reverse=True) == classes
    counted = lanes.queue.stats()
    assert (0, 0) == (counted.visible, counted.in_flight)


def test_min_priority_leaves_lower_classes(lanes: Streams) -> None:
    lanes.put(keyed(lanes, 100))

    collected = lanes.drain(minPriority=1)

    assert {1, 2} == {class_of(number_of(row)) for row in collected.rows}
    assert {0: 40, 1: 0, 2: 0} == lanes.queue.stats().by_priority


@pytest.mark.invariant("I8")
def test_a_batch_over_lanes_is_replayed_from_its_offset_alone(lanes: Streams) -> None:
    """Bucket 0 of six lanes: entries that named buckets alone would be one."""
    lanes.put(keyed(lanes, 120))
    first = Planner.open(lanes.lane.store, lanes.parsed())
    end = first.latest(first_offset := _initial(), Limits())
    planned = first.plan(first_offset, end)
    first.close()

    again = Planner.open(lanes.lane.store, lanes.parsed(minPriority=2))
    replayed = again.plan(first_offset, end)

    def content(plan: Any) -> dict[Any, Any]:
        return {(one.lane, one.bucket, one.lease_id): one.runs for _, some in plan for one in some}

    assert 6 == len({one.lane for _, some in planned for one in some})
    assert content(planned) == content(replayed)
    again.ack(end)
    again.close()
    counted = lanes.queue.stats()
    assert (0, 0) == (counted.visible, counted.in_flight)


@pytest.mark.usefixtures("_disconnected")
def test_settle_takes_verdicts_for_all_lanes(lanes: Streams) -> None:
    from cassieq_spark.spark import settle  # noqa: PLC0415 - here alone

    lanes.put(keyed(lanes, 60))

    def handle(frame: DataFrame, _: int) -> None:
        judged = frame.withColumn(
            "verdict", F.when(F.col("priority") == 1, "release").otherwise("ack")
        )
        settled.append(
            settle(
                judged, contact_points=lanes.options["contactPoints"], delay=600, **_where(lanes)
            )
        )

    settled: list[Any] = []
    query = lanes.start(lanes.source(schema=COLUMNS, ackMode="manual", minPriority=1), handle)
    assert query.awaitTermination(120)

    counted = lanes.queue.stats()
    held = Counter(map(class_of, range(60)))
    assert ({0: held[0], 1: 0, 2: 0}, held[1], 0) == (
        counted.by_priority,
        counted.delayed,
        counted.in_flight,
    )
    assert [(held[2], held[1])] == [(one.acked, one.released) for one in settled]


@pytest.mark.invariant("I7")
def test_a_transaction_over_lanes_is_visible_in_all_or_none(lanes: Streams) -> None:
    """Its driver dies after the commit; whoever reads one lane makes all of it visible."""
    lane = lanes.lane
    result = _written(lanes, 1)
    assert 0 == lanes.queue.stats().visible
    stored = portal.run(lane.store.sinks.read(lanes.queue.name))
    assert stored is not None
    decision = _decided(stored.value, result)
    portal.run(lane.store.sinks.update(lanes.queue.name, stored, decision))

    assert 6 == lanes.queue.stats().visible  # looks show it as decided
    top = lane.sibling(lane.lanes[-1])
    rows = {
        at: row
        for at, row in portal.run(top.buckets.read_many(range(4)))[0].items()
        if row is not None
    }
    portal.run(settle_decided(top, rows))

    statuses = {
        portal.run(one.buckets.read(place.bucket)).value.status.value  # type: ignore[union-attr]
        for place, _ in result.buckets
        for one in [lane.sibling(place.lane)]
    }
    assert {"sealed"} == statuses


@pytest.mark.invariant("I7")
def test_an_aborted_transaction_is_void_in_every_lane(lanes: Streams) -> None:
    result = _written(lanes, 1)
    portal.run(transaction.forget(lanes.lane, lanes.queue.name))

    assert [] == lanes.queue.get(10)
    with pytest.raises(SinkFenced):
        portal.run(transaction.commit(lanes.lane, result.who, 0, [result]))
    assert 0 == lanes.queue.stats().visible


def _written(lanes: Streams, count: int) -> TaskResult:
    lane = lanes.lane
    who = Identity(sink_id=lanes.queue.name, lane=lane.lane_id)
    admission = portal.run(transaction.admit(lane, who, 0))
    assert isinstance(admission, WriteUnder)
    with portal.entered(
        BulkWriter(
            lane,
            sink_id=who.sink_id,
            epoch=admission.epoch,
            bucket_bytes=1 << 20,
            writes_in_flight=4,
        )
    ) as writer:
        for lane_id in lane.lanes:
            portal.run(writer.of(lane_id).add(payload(*[b"m"] * count), count))
        buckets = portal.run(writer.finish())
    return TaskResult(who=who, epoch=admission.epoch, buckets=buckets)


def _decided(row: Any, result: TaskResult) -> Any:
    from cassieq_spark.model import sink_txn  # noqa: PLC0415 - here alone

    decision = sink_txn.decide(row, result.who, 0, [result], now_us=row.changed_us + 1)
    assert isinstance(decision, sink_txn.Commit)
    return decision.row


def _initial() -> dict[str, Any]:
    from cassieq_spark.model.offset import INITIAL  # noqa: PLC0415 - here alone

    return INITIAL.to_json()


def _uuid(text: str) -> Any:
    from uuid import UUID  # noqa: PLC0415 - here alone

    return UUID(text)


def _where(lanes: Streams) -> dict[str, str]:
    return {"keyspace": lanes.options["keyspace"], "queue": lanes.options["queue"]}
