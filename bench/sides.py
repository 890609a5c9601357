"""Our side: a whole DataFrame into a queue, by both doors, and a queue drained into nothing."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as Spark's documentation writes it

from bench import raw
from bench.empty_source import EmptySource
from cassieq_spark.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    import cassieq_spark as cassieq

PER_TRIGGER = 200_000
TASKS = 2
STREAM_FILES = 10
FILES_PER_TRIGGER = 5
_GENERATED = 10_000
_EPOCH_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True, slots=True)
class Timed:
    """One sample.

    Attributes:
        seconds: Of the work; a query's start-up before its first trigger is not in it.
        phases: Spark's own ``durationMs``, summed over the batches.
    """

    seconds: float
    batches: int = 1
    lwts: int = 0
    phases: dict[str, int] | None = None


class Sides:
    """Everything Spark does in the benchmark, on queues of one client."""

    def __init__(
        self,
        spark: SparkSession,
        client: cassieq.Client,
        options: dict[str, str],
        *,
        messages: int,
        seed: int,
        folder: Path,
    ) -> None:
        self._spark = spark
        self._client = client
        self._options = options
        self._messages = messages
        self._folder = folder
        self._checkpoints = 0
        spark.dataSource.register(EmptySource)
        self._frame = self._generate(seed)
        self._directory = str(folder / "bodies")
        frame = self._frame.repartition(STREAM_FILES)
        frame.write.option("compression", "uncompressed").parquet(self._directory)

    @property
    def frame(self) -> DataFrame:
        """What is put: one column, ``body``; in memory."""
        return self._frame

    def new_queue(self, name: str) -> None:
        """A fresh queue."""
        self._client.create_queue(name)

    def write(self, queue: str) -> Timed:
        """``df.write`` of the cached DataFrame."""
        began = perf_counter()
        self._frame.write.format("cassieq").options(**self._options, queue=queue).mode(
            "append"
        ).save()
        return self._written(queue, Timed(perf_counter() - began))

    def write_stream(self, queue: str) -> Timed:
        """``writeStream`` from uncompressed Parquet files on the local disk."""
        writer = self._files().writeStream.format("cassieq")
        timed, _ = self._run(writer.options(**self._options, queue=queue))
        return self._written(queue, timed)

    def write_nowhere(self) -> Timed:
        """The same stream into Spark's ``noop`` sink: what a sink has no part in."""
        timed, rows = self._run(self._files().writeStream.format("noop"))
        _check("read from files", rows, self._messages)
        return timed

    def drain(self, queue: str, *, columns: str | None = None) -> Timed:
        """Claim, read and ack everything; every message must come once.

        Raises:
            RuntimeError: A count is off.
        """
        before = self._client.queue(queue).stats().applied_lwts
        reader = self._spark.readStream.format("cassieq").options(**self._options, queue=queue)
        if columns:
            reader = reader.schema(columns)
        frame = reader.option("maxMessagesPerTrigger", PER_TRIGGER).load()
        timed, rows = self._run(frame.writeStream.format("noop"))
        stats = self._client.queue(queue).stats()
        _check(f"drain of {queue}", rows, self._messages)
        _check(f"left in {queue}", stats.visible + stats.in_flight, 0)
        return Timed(timed.seconds, timed.batches, stats.applied_lwts - before, timed.phases)

    def empty(self, batches: int) -> Timed:
        """So many micro-batches of a source that does nothing."""
        frame = self._spark.readStream.format("bench_empty").option("batches", batches).load()
        timed, rows = self._run(frame.writeStream.format("noop"))
        _check("empty micro-batches", rows, batches)
        return timed

    def _files(self) -> DataFrame:
        reader = self._spark.readStream.schema(self._frame.schema)
        return reader.option("maxFilesPerTrigger", FILES_PER_TRIGGER).parquet(self._directory)

    def _written(self, queue: str, timed: Timed) -> Timed:
        stats = self._client.queue(queue).stats()
        _check(f"put into {queue}", stats.visible, self._messages)
        return Timed(timed.seconds, timed.batches, stats.applied_lwts, timed.phases)

    def _run(self, writer: Any) -> tuple[Timed, int]:
        self._checkpoints += 1
        checkpoint = str(self._folder / f"checkpoint{self._checkpoints}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        ended_us = SystemClock().now_us()
        progress = [one for one in query.recentProgress if one["numInputRows"]]
        phases: dict[str, int] = {}
        for one in progress:
            for name, took in one["durationMs"].items():
                phases[name] = phases.get(name, 0) + took
        seconds = (ended_us - _epoch_us(progress[0]["timestamp"])) / 1e6
        timed = Timed(seconds, len(progress), phases=phases)
        return timed, sum(one["numInputRows"] for one in progress)

    def _generate(self, seed: int) -> DataFrame:
        """Random bodies, in memory before anything is timed."""

        def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                first = batch.column(0)[0].as_py()
                made = raw.SMALL.bodies(batch.num_rows, seed + first)
                yield pa.RecordBatch.from_arrays([made], names=["body"])

        frame = (
            self._spark.range(0, self._messages, 1, TASKS)
            .select(F.col("id"))
            .mapInArrow(make, "body binary")
            .cache()
        )
        _check("generated", frame.count(), self._messages)
        return frame


def _epoch_us(timestamp: str) -> int:
    from datetime import UTC, datetime  # noqa: PLC0415 - parses Spark's text, tells no time

    parsed = datetime.strptime(timestamp, _EPOCH_FORMAT).replace(tzinfo=UTC)
    return int(parsed.timestamp() * 1e6)


def _check(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{what}: {found} messages instead of {expected}")
