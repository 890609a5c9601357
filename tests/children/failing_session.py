"""One Spark session in which writes and streams of every kind fail, and good ones come between.

Prints what has failed and ``GOOD`` for each round of good jobs; its output has the JVM's log, too.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from pyspark.errors import StreamingQueryException

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.spark import foreach_batch, settle
from cassieq_spark.testing import wait_until
from tests.children.stopping_sink import SinkStop, StoppingSink
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.processes import say
from tests.fixtures.spark import build_session
from tests.fixtures.streams import Streams, bodies, bodies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming import StreamingQuery

    from cassieq_spark.testing import EmbeddedCassandra

ROUNDS = int(sys.argv[3])
MESSAGES = 20
LONG = "a long word " * 5_000

contact_points, directory = sys.argv[1:3]
spark = build_session(Path(directory))
client = cassieq.connect(contact_points, keyspace=KEYSPACE)
node = cast("EmbeddedCassandra", SimpleNamespace(contact_points=contact_points))


def fresh(name: str) -> Streams:
    """A queue of its own, with messages."""
    name = f"{name}.{new_uuid().hex[:12]}"
    place = Path(directory) / name
    place.mkdir()
    return Streams(spark, client, node, client.create_queue(name, bucket_size=500), place)


def filled(name: str) -> Streams:
    streams = fresh(name)
    streams.queue.put_many([b"m-%d" % number for number in range(MESSAGES)])
    return streams


def good() -> None:
    """A collect, a write, a stream: each with all it should have."""
    assert 45 == sum(row.id for row in spark.range(10).collect())
    streams = fresh("good")
    streams.put(streams.numbered(0, MESSAGES))
    assert bodies(0, MESSAGES) == bodies_of(streams.look().collect())
    assert bodies(0, MESSAGES) == streams.drain().bodies
    say("GOOD")


def said(error: BaseException) -> str:
    """One line of an error."""
    found = re.search(r"\[cassieq:\w+\]", str(error))
    return found.group(0) if found else type(error).__name__


# Writes.


def put_to(streams: Streams, **options: str) -> None:
    """With these options over the right ones."""
    frame = streams.numbered(0, 5)
    merged = {**streams.options, **options}
    frame.write.format("cassieq").options(**merged).mode("append").save()


def never_there() -> None:
    put_to(fresh("never_there"), queue="nosuch")


def misspelt() -> None:
    streams = fresh("misspelt")
    streams.put(streams.numbered(0, 5), keyspaze="x")


def of_a_wrong_schema() -> None:
    fresh("of_a_wrong_schema").put(spark.range(5))


def without_cassandra() -> None:
    put_to(fresh("without_cassandra"), contactPoints="127.0.0.1:1", connectTimeout="1")


def without_a_keyspace() -> None:
    put_to(fresh("without_a_keyspace"), keyspace="nothing_here")


def with_a_null() -> None:
    streams = fresh("with_a_null")
    streams.put(streams.numbered(0, 5).selectExpr("cast(null as binary) as body"))


def under_a_used_id() -> None:
    one, other = fresh("one"), fresh("other")
    one.put(one.numbered(0, 5), sinkId=one.queue.name, batchId=0)
    other.put(other.numbered(0, 5), sinkId=one.queue.name, batchId=0)


def with_a_task_that_fails() -> None:
    streams = fresh("with_a_task_that_fails")

    def task(rows: Iterator[Row]) -> Iterator[Row]:
        yield from rows
        raise ValueError(LONG) from KeyError(LONG)

    streams.put(streams.mapped(streams.numbered(0, 50), task), chunkMessages=10)


def _deleting(streams: Streams) -> DataFrame:
    """Rows among which the queue is deleted, when the first of them are in it.

    Spark hands on 10,000 at a time, and the end of each when it has begun the next.
    """
    options = streams.options

    def delete() -> None:
        with cassieq.connect(options["contactPoints"], keyspace=KEYSPACE) as own:
            queue = own.queue(options["queue"])
            wait_until(lambda: queue.stats().buckets)
            queue.delete()

    def task(rows: Iterator[Row]) -> Iterator[Row]:
        for number, row in enumerate(rows):
            if number == 25_000:
                delete()
            yield row

    return streams.mapped(streams.numbered(0, 30_000, partitions=1), task)


def deleted_under_its_tasks() -> None:
    streams = fresh("deleted_under_its_tasks")
    streams.put(_deleting(streams), chunkMessages=100)


def deleted_before_its_tasks() -> None:
    """With an id of its own the driver asks nothing of the queue."""
    streams = fresh("deleted_before_its_tasks")
    streams.put(streams.numbered(0, 5), sinkId=streams.queue.name, batchId=0)
    client.delete_queue(streams.queue.name)
    streams.put(streams.numbered(0, 5), sinkId=streams.queue.name, batchId=1)


WRITES: list[Callable[[], None]] = [
    never_there,
    misspelt,
    of_a_wrong_schema,
    without_cassandra,
    without_a_keyspace,
    with_a_null,
    under_a_used_id,
    with_a_task_that_fails,
    deleted_under_its_tasks,
    deleted_before_its_tasks,
]


# Streams.


def ended(query: StreamingQuery) -> None:
    """Raises what ended it."""
    assert query.awaitTermination(120)


def misspelt_source() -> None:
    streams = filled("misspelt_source")
    ended(streams.start(streams.source(maxMesagesPerTrigger=1), lambda *_: None))


def source_never_there() -> None:
    streams = filled("source_never_there")
    merged = {**streams.options, "queue": "nosuch"}
    frame = spark.readStream.format("cassieq").options(**merged).load()
    ended(streams.start(frame, lambda *_: None))


def deleted_while_it_waits() -> None:
    """So `latestOffset` fails."""
    streams = filled("deleted_while_it_waits")
    query = streams.start(streams.source(), lambda *_: None, once=False)
    streams.wait_until_empty()
    streams.queue.delete()
    ended(query)


def deleted_in_its_batch() -> None:
    """So `read` fails in tasks."""
    streams = filled("deleted_in_its_batch")

    def handler(frame: DataFrame, _: int) -> None:
        streams.queue.delete()
        frame.collect()

    ended(streams.start(streams.source(), handler))


def replayed_from_another_release() -> None:
    """So `partitions` fails."""
    streams = filled("replayed_from_another_release")

    def handler(*_: object) -> None:
        raise RuntimeError("so that the batch is logged, and not committed")

    with suppress(StreamingQueryException):
        ended(streams.start(streams.source(), handler))
    log = streams.checkpoint() / "offsets"
    text = (log / "0").read_text(encoding="utf-8")
    (log / ".0.crc").unlink()
    (log / "0").write_text(text.replace('"v": 1', '"v": 99'), encoding="utf-8")
    ended(streams.start(streams.source(), handler))


def handler_with_long_causes() -> None:
    streams = filled("handler_with_long_causes")

    def handler(*_: object) -> None:
        raise ValueError(LONG) from KeyError(LONG)

    ended(streams.start(streams.source(), handler))


def handler_whose_write_fails(fails: Callable[[], None]) -> None:
    streams = filled("handler_whose_write_fails")
    ended(streams.start(streams.source(), lambda *_: fails()))


def handler_whose_verdicts_are_none() -> None:
    streams = filled("handler_whose_verdicts_are_none")
    connection = {"queue": streams.queue.name, "contact_points": contact_points}

    def handler(frame: DataFrame, _: int) -> None:
        judged = frame.selectExpr("receipt", "'maybe' as verdict")
        settle(judged, keyspace=KEYSPACE, **connection)

    ended(streams.start(streams.source(ackMode="manual"), handler))


def handler_without_a_connector() -> None:
    streams = filled("handler_without_a_connector")
    put = foreach_batch(queue=streams.queue.name, contact_points=contact_points, keyspace=KEYSPACE)
    ended(streams.start(streams.source().select("body"), put))


def _sink(streams: Streams, frame: DataFrame, format_name: str, **options: str) -> StreamingQuery:
    return (
        frame.writeStream.format(format_name)
        .options(**streams.options, **options)
        .option("checkpointLocation", str(streams.checkpoint("sink")))
        .trigger(availableNow=True)
        .start()
    )


def sink_with_a_null() -> None:
    streams = filled("sink_with_a_null")
    target = fresh("sink_with_a_null.target")
    frame = streams.source().selectExpr("cast(null as binary) as body")
    ended(_sink(target, frame, "cassieq"))


def sink_that_fails(step: str, statement: str) -> None:
    streams = filled("sink_that_fails")
    target = fresh("sink_that_fails.target")
    stop = SinkStop(
        notes=str(target.directory / "notes"), step=step, statement=statement, dies=False
    )
    frame = streams.source().select("body")
    ended(_sink(target, frame, StoppingSink.name(), stop=stop.to_option()))


STREAMS: list[Callable[[], None]] = [
    misspelt_source,
    source_never_there,
    deleted_while_it_waits,
    deleted_in_its_batch,
    replayed_from_another_release,
    handler_with_long_causes,
    *(partial(handler_whose_write_fails, fails) for fails in WRITES),
    handler_whose_verdicts_are_none,
    handler_without_a_connector,
    sink_with_a_null,
    partial(sink_that_fails, "write", "write_message"),
    partial(sink_that_fails, "commit", "update_sink"),
]


# Queries that are told to stop in the middle of their function.


def _slowly(frame: DataFrame, place: Path) -> DataFrame:
    """Rows that come when nobody waits for them any more."""

    def task(rows: Iterator[Row]) -> Iterator[Row]:
        (place / "begun").touch()
        wait_until((place / "stopped").exists, deadline_s=120)
        yield from rows

    return spark.createDataFrame(frame.rdd.mapPartitions(task), frame.schema)


def stopped_in(job: Callable[[Streams, DataFrame], object]) -> None:
    """Ends as a query that was stopped: without an error, and at once."""
    streams = filled("stopped")
    place = streams.directory
    errors: list[BaseException] = []

    def handler(frame: DataFrame, _: int) -> None:
        judged = frame.selectExpr("receipt", "body", "'ack' as verdict")
        try:
            job(streams, _slowly(judged, place))
        except Exception as error:
            errors.append(error)
            raise

    query = streams.start(streams.source(ackMode="manual"), handler, once=False)
    wait_until(lambda: (place / "begun").exists() or not query.isActive, deadline_s=120)
    query.stop()
    (place / "stopped").touch()
    assert not query.isActive
    assert query.exception() is None, str(query.exception())
    (error,) = errors
    say(f"STOPPED {len(str(error))}")


def settling(streams: Streams, frame: DataFrame) -> None:
    settle(frame, queue=streams.queue.name, contact_points=contact_points, keyspace=KEYSPACE)


spark.dataSource.register(StoppingSink)
good()
for number in range(ROUNDS):
    for fails in WRITES:
        try:
            fails()
        except Exception as error:  # noqa: BLE001 - whatever it is
            say("WRITE " + json.dumps([fails.__name__, said(error)]))
    for fails in STREAMS[number::ROUNDS]:
        name = fails.func.__name__ if isinstance(fails, partial) else fails.__name__
        try:
            fails()
        except Exception as error:  # noqa: BLE001 - as above
            say("STREAM " + json.dumps([name, said(error)]))
    good()
for _ in range(3):
    stopped_in(settling)
    good()
client.close()
ENGINE = {"cassieq-engine", "cassieq-log"}  # a process keeps these
names = [one.name for one in threading.enumerate()]
others = [name for name in names if name.startswith("cassieq-") and name not in ENGINE]
say("ENDED " + json.dumps(others))
spark.stop()
