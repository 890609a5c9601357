"""The sink appears whole and once, or not at all, whoever writes it again (I7)."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import SinkFenced, UsageError
from cassieq_spark.model.sink_txn import AlreadyCommitted, Identity, TaskResult, WriteUnder
from cassieq_spark.queue.sink import transaction
from cassieq_spark.spark.sink import run_of_batch
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.streams import Collected, Streams, bodies, bodies_of, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@pytest.fixture
def small_arrow_batches(spark: SparkSession) -> Iterator[None]:
    """So that a task hands its first rows to the sink while it makes the next."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "100")
    yield
    spark.conf.unset(name)


@pytest.mark.invariant("I7")
def test_a_batch_that_is_written_again_under_its_id_is_there_once(streams: Streams) -> None:
    streams.put(streams.numbered(0, 700), sinkId=f"{streams.queue.name}", batchId=0)
    streams.put(streams.numbered(0, 700), sinkId=f"{streams.queue.name}", batchId=0)
    assert bodies(0, 700) == bodies_of(streams.look().collect())

    streams.put(streams.numbered(700, 900), sinkId=f"{streams.queue.name}", batchId=1)
    assert bodies(0, 900) == bodies_of(streams.look().collect())


@pytest.mark.invariant("I7")
@pytest.mark.usefixtures("small_arrow_batches")
def test_a_reader_that_polls_never_sees_a_part_of_an_uncommitted_batch(streams: Streams) -> None:
    """One task is done and the other half-way while others look, count and get."""
    half, may_end = streams.directory / "half", streams.directory / "may_end"
    sink_id = streams.queue.name
    frame = streams.numbered(0, 4_000)

    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(
            streams.put,
            streams.mapped(frame, _stops_half_way(half, may_end)),
            sinkId=sink_id,
            batchId=0,
            chunkMessages=100,
        )
        try:
            wait_until(lambda: written.done() or half.exists(), describe="a task to be half-way")
            assert not written.done(), written.result()
            # Four buckets of the task that is done; the other's first rows wait in pipes, or not.
            wait_until(
                lambda: streams.queue.stats().buckets.get("prepared", 0) >= 4,
                describe=lambda: str(streams.queue.stats()),
            )
            other = streams.consumer()
            for _ in range(5):
                assert 0 == streams.queue.stats().visible
                assert [] == portal.run(other.get(10_000))
            assert 0 == streams.look().count()
        finally:
            may_end.touch()
        while not written.done():
            seen = streams.queue.stats().visible
            sink = portal.run(streams.lane.store.sinks.read(sink_id))
            assert sink is not None
            assert seen == 0 or sink.value.last == 0
        written.result()
    assert 4_000 == streams.queue.stats().visible
    assert bodies(0, 4_000) == bodies_of(streams.look().collect())


@pytest.mark.invariant("I7")
@pytest.mark.usefixtures("small_arrow_batches")
def test_a_write_that_fails_half_way_leaves_nothing_to_be_seen(streams: Streams) -> None:
    frame = streams.numbered(0, 2_000)

    def fails(rows: Iterator[Row]) -> Iterator[Row]:
        for number, row in enumerate(rows):
            yield row
            if number == 600:
                raise RuntimeError("half-way")

    with pytest.raises(PySparkException, match="half-way"):
        streams.put(streams.mapped(frame, fails), chunkMessages=100)

    assert 0 == streams.queue.stats().visible
    assert [] == portal.run(streams.consumer().get(10))
    streams.put(streams.numbered(0, 300))
    assert bodies(0, 300) == streams.drain().bodies


@pytest.mark.invariant("I7")
def test_a_replayed_batch_of_a_query_is_in_its_target_once(streams: Streams) -> None:
    """foreachBatch wrote its batch, then failed: the restart writes it under the same id.

    Both runs have the job group that the program sets for its jobs.
    """
    target = streams.another("target")
    streams.put(streams.numbered(0, 800))
    seen = Collected()

    def handler(frame: DataFrame, batch_id: int) -> None:
        frame.sparkSession.sparkContext.setJobGroup("nightly", "the program's own name")
        seen(frame, batch_id)
        target.put(frame.select("body"), sinkId=target.queue.name, batchId=batch_id)
        if seen.batch_ids == [0, 1]:
            raise RuntimeError("after the write")

    source = streams.source(maxMessagesPerTrigger=300)
    assert "after the write" in failure_of(streams.start(source, handler))
    assert streams.start(source, handler).awaitTermination(120)

    assert [0, 1, 1, 2] == seen.batch_ids
    assert bodies(0, 800) == bodies_of(target.look().collect())
    assert streams.is_empty()


@pytest.mark.invariant("I7")
def test_a_query_from_queue_to_queue_moves_every_message_once(streams: Streams) -> None:
    target = streams.another("target", bucket_size=300)
    for number in range(2):
        streams.put(streams.numbered(number * 1_000, (number + 1) * 1_000))
        query = target.into(streams.source(maxMessagesPerTrigger=450))
        assert query.awaitTermination(120)
        assert bodies(0, (number + 1) * 1_000) == bodies_of(target.look().collect())
    assert streams.is_empty()


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([None, None], marks=pytest.mark.long),
        pytest.param(["one", "one"], marks=pytest.mark.long),
        [None, "two"],
    ],
)
def test_two_writes_of_one_batch_under_one_sink_id_are_refused(
    streams: Streams, groups: list[str | None]
) -> None:
    """The second would be taken for a replay of the first, and lost [R26].

    A program may set a job group of its own before either.
    """
    target = streams.another("target")
    streams.put(streams.numbered(0, 100))

    def handler(frame: DataFrame, batch_id: int) -> None:
        for group in groups:
            if group is not None:
                frame.sparkSession.sparkContext.setJobGroup(group, "the program's own name")
            target.put(frame.select("body"), sinkId=target.queue.name, batchId=batch_id)

    failure = failure_of(streams.start(streams.source(), handler))

    assert "[cassieq:sink_id_reused]" in failure
    assert "Give each write of a batch its own sink id" in failure
    assert bodies(0, 100) == bodies_of(target.look().collect())


class _Properties:
    """The local properties of a task or of a driver's thread."""

    def __init__(self, **properties: str) -> None:
        self._properties = {name.replace("_", "."): one for name, one in properties.items()}

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(key)


def test_a_run_that_nothing_names_is_refused_and_not_taken_for_another() -> None:
    of_run, other = str(new_uuid()), str(new_uuid())
    tags = f"mine,spark-session-{other},spark-session-{of_run}-execution-root-id-17"
    known = [
        _Properties(spark_job_tags=tags, spark_jobGroup_id="mine"),
        _Properties(spark_job_tags="mine", spark_jobGroup_id=of_run),
    ]
    assert [of_run, of_run] == [run_of_batch(one) for one in known]  # type: ignore[arg-type]  # has what it asks

    for group in ({}, {"spark_jobGroup_id": "mine"}):
        with pytest.raises(UsageError, match="the run of this streaming query is unknown"):
            run_of_batch(_Properties(spark_job_tags="mine", **group))  # type: ignore[arg-type]  # as above


def test_two_queries_with_one_sink_id_are_told(streams: Streams) -> None:
    """They would skip each other's batches as replays [P9]."""
    target = streams.another("target")
    sink_id = target.queue.name
    streams.put(streams.numbered(0, 100))
    assert target.into(streams.source(), checkpoint="one", sinkId=sink_id).awaitTermination(120)

    streams.put(streams.numbered(100, 200))
    failure = failure_of(target.into(streams.source(), checkpoint="two", sinkId=sink_id))

    assert f"[cassieq:sink_id_reused] sink id '{sink_id}' belongs to query" in failure
    assert bodies(0, 100) == bodies_of(target.look().collect())


@pytest.mark.long
def test_a_deleted_checkpoint_is_a_new_query_until_its_sink_is_forgotten(streams: Streams) -> None:
    target = streams.another("target")
    sink_id = target.queue.name

    def run(first: int) -> StreamingQuery:
        """From a file source: its new checkpoint begins with batch 0 and the old rows again."""
        streams.put(streams.numbered(first, first + 100))
        return target.into(streams.source(), sinkId=sink_id)

    assert run(0).awaitTermination(120)
    shutil.rmtree(target.checkpoint())
    failure = failure_of(run(100))
    assert "[cassieq:sink_id_reused]" in failure
    assert "client.forget_sink(" in failure

    target.client.forget_sink(target.queue.name, sink_id)
    assert run(200).awaitTermination(120)
    # The failed query's checkpoint is used: its batch 0 is replayed, then what came later.
    assert bodies(0, 300) == bodies_of(target.look().collect())


def test_one_sink_id_on_two_queues_is_refused(streams: Streams) -> None:
    target = streams.another("target")
    streams.put(streams.numbered(0, 10), sinkId=streams.queue.name, batchId=0)

    with pytest.raises(PySparkException, match=r"\[cassieq:sink_id_reused\].*another queue"):
        target.put(target.numbered(0, 10), sinkId=streams.queue.name, batchId=0)
    assert 0 == target.queue.stats().visible


@pytest.mark.long
def test_a_checkpoint_restored_from_a_backup_is_not_skipped_silently(streams: Streams) -> None:
    """Its next batches have ids that the sink has seen with other rows [R4]."""
    target = streams.another("target")
    backup = target.directory / "backup"

    def run(number: int) -> StreamingQuery:
        streams.put(streams.numbered(number * 100, (number + 1) * 100))
        return target.into(streams.source())

    assert run(0).awaitTermination(120)
    shutil.copytree(target.checkpoint(), backup)
    for number in (1, 2):
        assert run(number).awaitTermination(120)
    shutil.rmtree(target.checkpoint())
    shutil.copytree(backup, target.checkpoint())

    failure = failure_of(run(3))

    assert "[cassieq:sink_diverged]" in failure
    assert "has committed batch 2 and was asked to write batch 1 again" in failure
    assert bodies(0, 300) == bodies_of(target.look().collect())


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("zombie_commits", ["first", "last"])
def test_of_two_drivers_of_one_query_one_batch_gets_in(
    streams: Streams, zombie_commits: str
) -> None:
    """Spark itself keeps two drivers off one checkpoint only where its file system can."""
    lane = streams.lane
    zombie, restarted = (
        Identity(sink_id=streams.queue.name, lane=lane.lane_id, query_id="q", run=str(new_uuid()))
        for _ in range(2)
    )
    results = {}
    for who, written in ((zombie, b"zombie"), (restarted, b"restarted")):
        admission = portal.run(transaction.admit(lane, who, 0))
        assert isinstance(admission, WriteUnder)
        buckets = streams.write_buckets(who.sink_id, admission.epoch, [written])
        results[who] = [TaskResult(who=who, epoch=admission.epoch, buckets=buckets)]

    winner, loser = (zombie, restarted) if zombie_commits == "first" else (restarted, zombie)
    assert 1 == portal.run(transaction.commit(lane, winner, 0, results[winner]))
    with pytest.raises(SinkFenced, match=r"Two queries run on one checkpoint|epoch"):
        portal.run(transaction.commit(lane, loser, 0, results[loser]))

    expected = b"zombie" if zombie_commits == "first" else b"restarted"
    assert {expected: 1} == dict(bodies_of(streams.look().collect()))
    portal.run(streams.consumer().get(10))
    assert {"sealed": 1, "void": 1} == streams.queue.stats().buckets


@pytest.mark.invariant("I7")
def test_a_superseded_run_is_refused_for_good(streams: Streams) -> None:
    """It has slept since batch 0; its driver must not commit batch 1 beside the new one."""
    lane = streams.lane
    old, new = (
        Identity(sink_id=streams.queue.name, lane=lane.lane_id, query_id="q", run=str(new_uuid()))
        for _ in range(2)
    )
    portal.run(transaction.admit(lane, old, 0))
    portal.run(transaction.commit(lane, old, 0, [TaskResult(who=old, epoch=1)]))
    assert isinstance(portal.run(transaction.admit(lane, new, 0)), AlreadyCommitted)
    portal.run(transaction.commit(lane, new, 0, [TaskResult(who=new, epoch=None)]))

    with pytest.raises(SinkFenced, match="was superseded by run"):
        portal.run(transaction.admit(lane, old, 1))
    with pytest.raises(SinkFenced, match="was superseded by run"):
        portal.run(transaction.commit(lane, old, 1, [TaskResult(who=old, epoch=2)]))


def _stops_half_way(half: Path, may_end: Path) -> Callable[[Iterator[Row]], Iterator[Row]]:
    """The first partition waits after its first rows; the second one runs through."""

    def stops(rows: Iterator[Row]) -> Iterator[Row]:
        from pyspark import TaskContext  # noqa: PLC0415 - in a worker

        from cassieq_spark.testing import wait_until as wait  # noqa: PLC0415 - in a worker

        context = TaskContext.get()
        for number, row in enumerate(rows):
            yield row
            if number == 1_200 and context is not None and context.partitionId() == 0:
                half.touch()
                wait(may_end.exists, deadline_s=120)

    return stops


@pytest.mark.invariant("I7")
def test_partitions_of_any_size_are_one_batch(streams: Streams) -> None:
    """One task has nearly all, one a single row, two have none."""
    lopsided = streams.spark.range(0, 3_001, 1, 1).selectExpr(
        "cast(concat('m-', id) as binary) as body", "if(id = 3000, 1, 0) as part"
    )
    frame = lopsided.repartition(4, "part").select("body")
    assert 4 == frame.rdd.getNumPartitions()
    streams.put(frame)
    assert bodies(0, 3_001) == bodies_of(streams.look().collect())


def test_three_of_two_hundred_columns_are_put(streams: Streams) -> None:
    wide = streams.spark.range(0, 50).selectExpr(
        "cast(concat('m-', id) as binary) as body",
        "'a' as tag",
        "map('n', cast(id as string)) as headers",
        *(f"id + {number} as column_{number}" for number in range(197)),
    )
    with pytest.raises(Exception, match=r"\[cassieq:option_invalid\].*column_0"):
        streams.put(wide)
    streams.put(wide.select("body", "tag", "headers"))
    rows = streams.look().collect()
    assert bodies(0, 50) == bodies_of(rows)
    assert {("a", str(at)) for at in range(50)} == {(row.tag, row.headers["n"]) for row in rows}


def test_bodies_of_five_megabytes_are_put_and_read(streams: Streams) -> None:
    """In parts of one megabyte, a few under way at a time."""
    large = streams.spark.range(0, 8, 1, 2).selectExpr(
        "cast(concat(id, repeat(sha2(cast(id as string), 512), 40000)) as binary) as body"
    )
    streams.put(large)
    found = {bytes(row.body)[:1]: len(row.body) for row in streams.look().collect()}
    assert dict.fromkeys((b"%d" % at for at in range(8)), 1 + 128 * 40_000) == found


def test_messages_with_one_id_are_messages_each(streams: Streams) -> None:
    one = "00000000-0000-0000-0000-000000000001"
    frame = streams.numbered(0, 40).selectExpr("body", f"'{one}' as message_id")
    streams.put(frame)
    rows = streams.look().collect()
    assert bodies(0, 40) == bodies_of(rows)
    assert {one} == {row.message_id for row in rows}


@pytest.mark.invariant("I6")
def test_batches_of_one_sink_keep_their_order_and_their_query_can_count_what_it_puts(
    streams: Streams,
) -> None:
    files, per_batch = streams.directory / "files", 50
    streams.numbered(0, 4 * per_batch).repartitionByRange(4, "body").write.parquet(str(files))
    frame = streams.spark.readStream.schema("body binary").option("maxFilesPerTrigger", 1)
    counted = frame.parquet(str(files)).observe(
        "put", F.count("body").alias("messages"), F.sum(F.octet_length("body")).alias("bytes")
    )
    query = (
        counted.writeStream.format("cassieq")
        .options(**streams.options)
        .option("checkpointLocation", str(streams.checkpoint()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    observed = [one.observedMetrics["put"] for one in query.recentProgress if one.numInputRows]

    rows = streams.look().orderBy("id").collect()
    assert 4 * per_batch == len(rows) == sum(one.messages for one in observed)
    at = 0
    for one in observed:
        some = rows[at : at + one.messages]
        assert one.bytes == sum(len(row.body) for row in some)
        # Each batch has buckets of its own, and those of the next come behind them.
        assert rows[at - 1].bucket < some[0].bucket or at == 0
        at += one.messages
