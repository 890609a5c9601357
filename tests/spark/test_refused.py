"""What is wrong is refused by name, with a code, in the error that Spark's user sees."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from cassieq_spark.store import portal
from tests.fixtures.streams import Streams, bodies, failure_of

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

DOORS = ["read", "readStream", "write", "writeStream"]


def use(door: str, streams: Streams, **options: object) -> None:
    """Go through a door with these options over the right ones, until it fails."""
    merged = {**streams.options, **options}
    if door == "read":
        streams.spark.read.format("cassieq").options(**merged).load().collect()
    elif door == "readStream":
        frame = streams.spark.readStream.format("cassieq").options(**merged).load()
        streams.start(frame, lambda batch, _: batch.collect()).awaitTermination(120)
    elif door == "write":
        frame = streams.numbered(0, 10)
        frame.write.format("cassieq").options(**merged).mode("append").save()
    else:
        _into(streams, merged).awaitTermination(120)


def _into(streams: Streams, merged: dict[str, Any]) -> StreamingQuery:
    rate = streams.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    return (
        rate.selectExpr("cast('x' as binary) as body")
        .writeStream.format("cassieq")
        .options(**merged)
        .option("checkpointLocation", str(streams.checkpoint()))
        .trigger(availableNow=True)
        .start()
    )


@pytest.mark.parametrize("door", DOORS)
def test_an_unknown_option_is_refused_with_the_nearest_name(streams: Streams, door: str) -> None:
    says = r"\[cassieq:option_unknown\] 'keyspaze' is not an option of .* Did you mean 'keyspace'\?"
    with pytest.raises(PySparkException, match=says):
        use(door, streams, keyspaze="x")


@pytest.mark.parametrize(
    ("door", "name", "value", "allowed"),
    [
        ("readStream", "maxMessagesPerTrigger", "0", "1"),
        ("readStream", "visibilityTimeout", "-5s", "0.1"),
        ("readStream", "onLeaseLost", "ignore", "skip"),
        ("readStream", "failOnDataLoss", "ture", "true"),
        ("read", "minPartitions", "many", "1"),
        ("write", "chunkMessages", "0", "1"),
        ("writeStream", "writesInFlight", "65", "64"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(
    streams: Streams, door: str, name: str, value: str, allowed: str
) -> None:
    says = rf"\[cassieq:option_invalid\] option '{name}' of .* is '{value}', allowed: .*{allowed}"
    with pytest.raises(PySparkException, match=says):
        use(door, streams, **{name: value})


def test_a_missing_queue_option_says_what_to_set(streams: Streams) -> None:
    options = {key: value for key, value in streams.options.items() if key != "queue"}
    with pytest.raises(PySparkException, match=r"\[cassieq:option_invalid\] option 'queue' of"):
        streams.spark.read.format("cassieq").options(**options).load().collect()


def test_a_batch_id_is_refused_in_a_streaming_query(streams: Streams) -> None:
    with pytest.raises(PySparkException, match=r"\[cassieq:usage\] option 'batchId' is for"):
        use("writeStream", streams, sinkId="s", batchId=1)


def test_a_sink_id_without_a_batch_id_is_refused_before_anything_is_written(
    streams: Streams,
) -> None:
    """All such writes would be batch 0, and only the first one would be stored."""
    says = r"\[cassieq:option_invalid\] option 'sinkId' is 's', but 'batchId' is not set: .*neither"
    with pytest.raises(PySparkException, match=says):
        use("write", streams, sinkId="s")
    assert portal.run(streams.lane.store.sinks.read("s")) is None
    assert 0 == streams.queue.stats().visible


@pytest.mark.parametrize("door", DOORS)
def test_a_queue_that_is_not_there_is_named(streams: Streams, door: str) -> None:
    says = r"\[cassieq:queue_not_found\] there is no queue 'nosuch' in keyspace"
    with pytest.raises(PySparkException, match=says):
        use(door, streams, queue="nosuch")


@pytest.mark.parametrize("door", ["readStream", "write"])
def test_a_keyspace_that_was_not_bootstrapped_says_so(streams: Streams, door: str) -> None:
    with pytest.raises(PySparkException, match=r"\[cassieq:schema_missing\].*bootstrap"):
        use(door, streams, keyspace="nothing_here")


@pytest.mark.parametrize("door", ["readStream", "write"])
def test_no_cassandra_at_the_address_ends_and_names_host_and_port(
    streams: Streams, door: str
) -> None:
    with socket.socket() as taken:  # bound and not listening: refused, and nobody else gets it
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        says = rf"\[cassieq:store_unavailable\].*127\.0\.0\.1:{port}"
        with pytest.raises(PySparkException, match=says):
            use(door, streams, contactPoints=f"127.0.0.1:{port}", connectTimeout=2)


@pytest.mark.parametrize("door", DOORS)
def test_a_host_without_an_address_is_named(streams: Streams, door: str) -> None:
    says = r"\[cassieq:store_unavailable\].* knows no address of 'no-such-host\.invalid'"
    with pytest.raises(PySparkException, match=says):
        use(door, streams, contactPoints="no-such-host.invalid")


def test_a_null_body_is_refused_by_its_row(streams: Streams) -> None:
    frame = streams.numbered(0, 100, partitions=1).selectExpr(
        "case when body = cast('m-42' as binary) then null else body end as body"
    )
    with pytest.raises(
        PySparkException, match=r"\[cassieq:body_invalid\] row 42 of its input partition has a null"
    ):
        streams.put(frame)
    assert 0 == streams.queue.stats().visible


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["cast(id as string) as body"], r"column 'body' is string, .*Cast it: .*cast\('binary'\)"),
        (["cast('x' as binary) as boddy"], r"column 'body' \(binary\) is missing"),
        (["cast('x' as binary) as body", "id"], r"unknown column 'id'\. A queue takes"),
        (
            ["cast('x' as binary) as body", "id as ttl"],
            r"column 'ttl' .* Set the queue's retention",
        ),
        (
            ["cast('x' as binary) as body", "id as due_at"],
            r"column 'due_at' is int64, allowed: a timestamp with a time zone",
        ),
        (
            ["cast('x' as binary) as body", "cast('2030-01-01' as timestamp_ntz) as due_at"],
            r"column 'due_at' is timestamp\[us\], .* Cast it, .*cast\('timestamp'\)",
        ),
        (
            ["cast('x' as binary) as body", "id as delay", "now() as due_at"],
            r"columns 'delay' and 'due_at' both say when .* Give one of them",
        ),
        (
            ["cast('x' as binary) as body", "cast(id as string) as dedup_key"],
            r"column 'dedup_key' .* in the queue once whatever happens",
        ),
        (["cast('x' as binary) as body", "id as tag"], r"column 'tag' is int64, allowed: string"),
    ],
)
def test_a_frame_that_cannot_be_put_is_refused_by_its_column(
    streams: Streams, columns: list[str], says: str
) -> None:
    with pytest.raises(PySparkException, match=rf"\[cassieq:option_invalid\] {says}"):
        streams.put(streams.spark.range(5).selectExpr(*columns))


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("'no-uuid' as message_id", "row 0 of its input partition has message_id 'no-uuid'"),
        ("-1 as delay", r"row 0 of its input partition has a delay of -1\.0 s"),
        ("401 * 86400 as delay", "row 0 of its input partition has a delay of"),
        (
            "now() + make_dt_interval(401) as due_at",
            r"row 0 of its input partition is due in 401\.0 days, .* 400 days ahead",
        ),
        (
            "map('a', 'x', 'b', if(id % 2 = 1, null, 'y')) as headers",
            "row [01] of its input partition has no value for header 'b'",
        ),
        (
            "cast(X'41ff' as string) as tag",
            "row 0 of its input partition has text that is not UTF-8 in column 'tag'",
        ),
    ],
)
def test_a_value_that_cannot_be_put_is_refused_by_its_row(
    streams: Streams, column: str, says: str
) -> None:
    frame = streams.spark.range(5).selectExpr("cast('x' as binary) as body", column)
    with pytest.raises(PySparkException, match=rf"\[cassieq:body_invalid\] {says}"):
        streams.put(frame)


def test_a_queue_cannot_be_overwritten(streams: Streams) -> None:
    streams.put(streams.numbered(0, 5))
    writer = streams.numbered(5, 10).write.format("cassieq").options(**streams.options)
    with pytest.raises(PySparkException, match=r"\[cassieq:usage\] a queue cannot be overwritten"):
        writer.mode("overwrite").save()
    assert 5 == streams.queue.stats().visible


def test_output_mode_complete_is_refused(streams: Streams) -> None:
    counts = (
        streams.source()
        .groupBy("tag")
        .count()
        .selectExpr("cast(cast(count as string) as binary) as body")
    )
    streams.put(streams.numbered(0, 5))
    writer = (
        counts.writeStream.format("cassieq")
        .options(**streams.options)
        .option("checkpointLocation", str(streams.checkpoint()))
        .trigger(availableNow=True)
    )
    with pytest.raises(PySparkException, match=r"\[cassieq:usage\] a queue cannot be overwritten"):
        writer.outputMode("complete").start().awaitTermination(120)


def test_a_checkpoint_of_another_source_is_refused(streams: Streams) -> None:
    target = streams.another("target")
    assert _into(target, target.options).awaitTermination(120)
    streams.put(streams.numbered(0, 5))

    failure = failure_of(target.into(streams.source()))

    assert re.search(r"\[cassieq:offset_unreadable\]", failure), failure


def test_a_queue_made_anew_under_a_checkpoint_is_data_loss(streams: Streams) -> None:
    """Another lane in the same name: what the checkpoint names is gone."""
    streams.put(streams.numbered(0, 5))
    assert 5 == len(streams.drain().rows)
    streams.queue.delete()
    streams.queue = streams.client.create_queue(streams.queue.name, bucket_size=500)
    streams.put(streams.numbered(5, 9))

    failure = failure_of(streams.start(streams.source(), lambda batch, _: batch.collect()))
    assert "[cassieq:data_loss]" in failure
    assert "set failOnDataLoss to false" in failure

    assert 4 == len(streams.drain(failOnDataLoss="false").rows)
    assert streams.is_empty()


def test_a_checkpoint_goes_on_with_another_queue(streams: Streams) -> None:
    """As with topics of Kafka: the batch that was not committed would come first [U18]."""
    streams.put(streams.numbered(0, 5))
    assert 5 == len(streams.drain().rows)
    other = streams.another("other")
    other.put(other.numbered(5, 9))
    other.directory = streams.directory
    assert bodies(5, 9) == other.drain().bodies
    assert other.is_empty()
