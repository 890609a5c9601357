"""What the source and the sink rely on in Spark, seen on a source of our own.

See docs/design/source.md and docs/design/sink.md.

A Spark release that changes one of these fails here, not in somebody's queue.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.streams import failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

BATCHES = 3

Calls = list[dict[str, Any]]


@pytest.fixture
def noted(spark: SparkSession, tmp_path: Path) -> Callable[[], Calls]:
    """Registers format ``probe``; gives its calls so far, in order."""
    file = tmp_path / "calls"
    file.touch()
    spark.dataSource.register(_probe(str(file), str(tmp_path / "checkpoint" / "commits")))
    return lambda: [json.loads(line) for line in file.read_text().splitlines()]


def run(spark: SparkSession, tmp_path: Path, sink: str = "noop") -> None:
    query = (
        spark.readStream.format("probe")
        .load()
        .writeStream.format(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def test_commit_comes_one_batch_late_and_never_for_the_last(
    spark: SparkSession, tmp_path: Path, noted: Callable[[], Calls]
) -> None:
    run(spark, tmp_path)
    assert [1, 2] == [call["end"] for call in noted() if call["call"] == "commit"]

    run(spark, tmp_path)  # nothing new: no commit either
    assert [1, 2] == [call["end"] for call in noted() if call["call"] == "commit"]


def test_the_start_of_latest_offset_is_in_the_commit_log_already(
    spark: SparkSession, tmp_path: Path, noted: Callable[[], Calls]
) -> None:
    """So what it names may be acked; and it comes once more after the last batch."""
    run(spark, tmp_path)

    asked = [call for call in noted() if call["call"] == "latestOffset"]
    assert {0, 1, 2, BATCHES} == {call["start"] for call in asked}
    for call in asked:
        assert list(range(call["start"])) == call["committed"]
    assert BATCHES == asked[-1]["start"]


def test_a_restart_replays_by_partitions_before_it_asks_for_an_offset(
    spark: SparkSession, tmp_path: Path, noted: Callable[[], Calls]
) -> None:
    def fails(frame: DataFrame, _: int) -> None:
        frame.collect()
        raise RuntimeError("in the batch")

    frame = spark.readStream.format("probe").load()
    query = (
        frame.writeStream.foreachBatch(fails)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert "in the batch" in failure_of(query)
    before = len(noted())

    run(spark, tmp_path)

    after = noted()[before:]
    order = [call["call"] for call in after if call["call"] in ("partitions", "latestOffset")]
    assert "partitions" == order[0]
    assert (0, 1) == next(
        (call["start"], call["end"]) for call in after if call["call"] == "partitions"
    )
    assert 1 == len({call["pid"] for call in after if call["call"] != "read"})


def test_tasks_of_a_streaming_query_know_query_batch_and_run(
    spark: SparkSession, tmp_path: Path, noted: Callable[[], Calls]
) -> None:
    run(spark, tmp_path, sink="probe")
    run(spark, tmp_path, sink="probe")

    written = [call for call in noted() if call["call"] == "write"]
    assert ["0", "1", "2"] == sorted(call["batch"] for call in written)
    metadata = json.loads((tmp_path / "checkpoint" / "metadata").read_text())
    assert {metadata["id"]} == {call["query"] for call in written}
    assert 1 == len({call["run"] for call in written})
    assert metadata["id"] != written[0]["run"]


def test_a_write_inside_foreach_batch_knows_query_batch_and_run_too(
    spark: SparkSession, tmp_path: Path, noted: Callable[[], Calls]
) -> None:
    def handler(frame: DataFrame, _: int) -> None:
        frame.write.format("probe").mode("append").save()

    query = (
        spark.readStream.format("probe")
        .load()
        .writeStream.foreachBatch(handler)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)

    written = [call for call in noted() if call["call"] == "write"]
    assert ["0", "1", "2"] == sorted(call["batch"] for call in written)
    assert {query.id} == {call["query"] for call in written}
    assert {query.runId} == {call["run"] for call in written}


def test_a_write_outside_a_query_knows_no_query(
    spark: SparkSession, noted: Callable[[], Calls]
) -> None:
    spark.range(1, numPartitions=1).write.format("probe").mode("append").save()

    [written] = [call for call in noted() if call["call"] == "write"]
    assert (None, None) == (written["query"], written["batch"])


def test_the_writer_of_a_commit_remembers_nothing_of_its_tasks(
    spark: SparkSession, tmp_path: Path, noted: Callable[[], Calls]
) -> None:
    """So messages carry what the commit must know; they and the batch id are all it gets."""
    run(spark, tmp_path, sink="probe")

    commits = [call for call in noted() if call["call"] == "sinkCommit"]
    assert [0, 1, 2] == [call["batch"] for call in commits]
    assert [False] * BATCHES == [call["remembers"] for call in commits]
    assert [1] * BATCHES == [call["messages"] for call in commits]


def test_the_checkpoint_location_is_among_a_stream_writers_options(
    spark: SparkSession, tmp_path: Path, noted: Callable[[], Calls]
) -> None:
    run(spark, tmp_path, sink="probe")

    made = [call for call in noted() if call["call"] == "streamWriter"]
    assert made
    assert {str(tmp_path / "checkpoint")} == {call["checkpoint"] for call in made}


def test_a_worker_that_is_used_again_collects_all_garbage_between_tasks(
    spark: SparkSession,
) -> None:
    """Why `spark.worker.settle_in` freezes what is imported."""

    def collections(_: object) -> Iterator[tuple[int, int]]:
        import gc  # noqa: PLC0415 - runs in a worker
        import os  # noqa: PLC0415 - as above

        gc.disable()  # what it counts from here on was asked for by somebody
        yield os.getpid(), gc.get_stats()[2]["collections"]

    by_worker: dict[int, list[int]] = {}
    for _ in range(4):
        tasks = spark.sparkContext.parallelize(range(2), 2).mapPartitions(collections)
        for worker, count in tasks.collect():
            by_worker.setdefault(worker, []).append(count)

    used_again = [counts for counts in by_worker.values() if len(counts) > 1]
    assert used_again
    for counts in used_again:
        assert sorted(set(counts)) == counts


# Classes are local, so that Spark pickles their code: its workers need not import this module.


def _probe(file: str, commits: str) -> type:
    """A source of three batches of one row, and a sink, that note what Spark does to them."""
    from pyspark.sql import datasource  # noqa: PLC0415 - the one place that defines a format

    note = _noting(file)
    reader, writer, stream_writer = _reader(note, commits), *_writers(note)

    class Probe(datasource.DataSource):
        @classmethod
        def name(cls) -> str:
            return "probe"

        def schema(self) -> str:
            return "id long"

        def streamReader(self, schema: object) -> Any:  # noqa: ARG002, N802 - Spark's
            return reader()

        def writer(self, schema: object, overwrite: bool) -> Any:  # noqa: ARG002 - Spark's
            return writer()

        def streamWriter(self, schema: object, overwrite: bool) -> Any:  # noqa: ARG002, N802 - Spark's
            note("streamWriter", checkpoint=self.options.get("checkpointLocation"))
            return stream_writer()

    return Probe


def _noting(file: str) -> Callable[..., None]:
    def note(call: str, **what: object) -> None:
        import json  # noqa: PLC0415 - runs in a worker
        import os  # noqa: PLC0415 - as above

        with open(file, "a", encoding="utf-8") as notes:  # noqa: PTH123 - runs in a worker
            notes.write(json.dumps({"call": call, "pid": os.getpid(), **what}) + "\n")

    return note


def _reader(note: Callable[..., None], commits: str) -> type:
    from pyspark.sql import datasource  # noqa: PLC0415 - as above
    from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - as above
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    last = BATCHES

    def committed() -> list[int]:
        import os  # noqa: PLC0415 - runs in a worker

        names = os.listdir(commits) if os.path.isdir(commits) else []  # noqa: PTH112, PTH208 - as above
        return sorted(int(name) for name in names if name.isdigit())

    class Reader(datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            note("initialOffset")
            return {"at": 0}

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
            return ReadMaxRows(1)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            note("prepareForTriggerAvailableNow")

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's
            note("latestOffset", start=start["at"], committed=committed())
            return {"at": min(start["at"] + 1, last)}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> Any:
            note("partitions", start=start["at"], end=end["at"])
            return [datasource.InputPartition(end["at"])]

        def read(self, partition: Any) -> Iterator[tuple[int]]:
            note("read", end=partition.value)
            yield (partition.value,)

        def commit(self, end: dict[str, int]) -> None:
            note("commit", end=end["at"])

    return Reader


def _writers(note: Callable[..., None]) -> tuple[type, type]:
    from pyspark.sql import datasource  # noqa: PLC0415 - as above

    class Notes:
        remembers = False

        def write(self, iterator: Iterator[object]) -> datasource.WriterCommitMessage:
            from pyspark import TaskContext  # noqa: PLC0415 - runs in a worker

            self.remembers = bool(list(iterator))
            context = TaskContext.get()
            assert context is not None
            note(
                "write",
                query=context.getLocalProperty("sql.streaming.queryId"),
                batch=context.getLocalProperty("streaming.sql.batchId"),
                run=context.getLocalProperty("spark.jobGroup.id"),
            )
            return datasource.WriterCommitMessage()

    class Writer(Notes, datasource.DataSourceWriter):
        pass

    class StreamWriter(Notes, datasource.DataSourceStreamWriter):
        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
            note("sinkCommit", batch=batchId, messages=len(messages), remembers=self.remembers)

    return Writer, StreamWriter
