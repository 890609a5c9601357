"""What Spark does for a queue or a topic, the same code on both sides, in two environments.

It runs in a child process (`bench.spark_child`) with the Python of its side, so nothing here may
import the package: only a `Door` knows what is behind it.
"""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.__main__ import spark_session
from bench.latency import LONGEST_PAUSE_S, Seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from bench.spark_doors import Door

FILES_PER_TRIGGER = 5
TASKS = 2


@dataclass(slots=True)
class Sums:
    """A ``foreachBatch`` function that adds up what passes."""

    count: int = 0
    checksum: int = 0

    def __call__(self, frame: DataFrame, _: int) -> None:
        """Spark's call; the only column is the body."""
        count, checksum = summed(frame)
        self.count += count
        self.checksum += checksum


class Work:
    """One Spark session, and what can be asked of it by name; all results are JSON."""

    def __init__(self, door: Door, folder: str, settings: dict[str, str]) -> None:
        self._door = door
        self._folder = Path(folder)
        began = perf_counter()
        self._spark = spark_session(folder, **settings)
        self.started_s = perf_counter() - began
        door.prepare(self._spark)
        self._frame: DataFrame | None = None
        self._bodies = ""
        self._checkpoints = 0

    def close(self) -> None:
        """End the session."""
        self._door.close()
        self._spark.stop()

    def versions(self) -> dict[str, str]:
        """Of what is in this environment."""
        return {"pyspark": self._spark.version, "python": sys.version.split()[0]}

    def load(self, bodies: str) -> dict[str, int]:
        """Cache the rows of these Parquet files; how many there are, and their checksum."""
        if self._frame is not None:
            self._frame.unpersist(blocking=True)
        self._bodies = bodies
        # Two partitions of the same size, whatever Spark makes of the files' lengths.
        self._frame = self._spark.read.parquet(bodies).repartition(TASKS).cache()
        count, checksum = summed(self._frame)
        return {"count": count, "checksum": checksum}

    def create(self, queue: str, durability: str) -> None:
        """A fresh queue or topic."""
        self._door.create(queue, durability)

    def stored(self, queue: str) -> int:
        """How many messages were put and not yet taken."""
        return self._door.stored(queue)

    def left(self, queue: str) -> int:
        """How many messages are still there after a drain."""
        return self._door.left(queue)

    def write(self, queue: str) -> dict[str, float]:
        """``df.write`` of the cached rows."""
        frame = self._loaded().withColumnRenamed("body", self._door.body)
        began = perf_counter()
        writer = frame.write.format(self._door.format).options(**self._door.sink(queue))
        writer.mode("append").save()
        return {"wall": perf_counter() - began}

    def write_few(self, queue: str, rows: int) -> None:
        """``df.write`` of so many rows."""
        frame = self._spark.range(0, rows, 1, 1).selectExpr(
            f"cast(lpad(cast(id as string), 96, '0') as binary) as {self._door.body}"
        )
        writer = frame.write.format(self._door.format).options(**self._door.sink(queue))
        writer.mode("append").save()

    def write_stream(self, queue: str) -> dict[str, float]:
        """``writeStream`` from the Parquet files on the local disk."""
        reader = self._spark.readStream.schema(self._loaded().schema)
        files = reader.option("maxFilesPerTrigger", FILES_PER_TRIGGER).parquet(self._bodies)
        frame = files.withColumnRenamed("body", self._door.body)
        writer = frame.writeStream.format(self._door.format).options(**self._door.sink(queue))
        timed, _ = self._run(writer)
        return timed

    def drain(self, queue: str, limit: int | None) -> dict[str, float]:
        """``readStream`` of everything into Spark's ``noop`` sink, with ``limit`` a batch."""
        timed, rows = self._run(self._read(queue, limit).writeStream.format("noop"))
        return timed | {"rows": rows}

    def drain_summed(self, queue: str, limit: int | None) -> dict[str, int]:
        """The same into a checksum."""
        sums = Sums()
        self._run(self._read(queue, limit).writeStream.foreachBatch(sums))
        return {"count": sums.count, "checksum": sums.checksum}

    def first_row(self, queue: str) -> dict[str, float]:
        """From ``start()`` until a ``foreachBatch`` has rows, and until the query has ended."""
        seen = Seen()
        writer = self._read(queue, None).writeStream.foreachBatch(seen)
        writer = writer.option("checkpointLocation", self._checkpoint()).trigger(availableNow=True)
        began = perf_counter()
        first_row = seen.after(lambda: writer.start().awaitTermination())
        return {"first_row": first_row, "wall": perf_counter() - began}

    def trickle(
        self, queue: str, samples: int, warm_up: int, seed: int, own: bool = False
    ) -> list[float]:
        """From a put to its row in ``foreachBatch``, of an idle query with the default trigger.

        Args:
            own: Of a source that only looks at a file: what Spark itself takes.
        """
        frame, put = self._ticks() if own else (self._read(queue, None), self._putting(queue))
        pauses, pause = random.Random(seed), threading.Event()  # noqa: S311 - lengths of pauses
        seen, took = Seen(), []
        writer = frame.writeStream.foreachBatch(seen)
        query = writer.option("checkpointLocation", self._checkpoint()).start()
        try:
            for at in range(-warm_up, samples):
                pause.wait(pauses.uniform(0.05, LONGEST_PAUSE_S))
                each = seen.after(put)
                if at >= 0:
                    took.append(each)
        finally:
            query.stop()
        return took

    def _putting(self, queue: str) -> Callable[[], object]:
        return lambda: self._door.put(queue, b"x" * 96)

    def _ticks(self) -> tuple[DataFrame, Callable[[], object]]:
        from itertools import count  # noqa: PLC0415 - for this alone

        from bench.tick_source import TickSource, tick  # noqa: PLC0415 - Spark 4.0 has no such API

        self._checkpoints += 1
        file = self._folder / f"ticks{self._checkpoints}"
        tick(file, 0)
        numbers = count(1)
        self._spark.dataSource.register(TickSource)
        frame = self._spark.readStream.format("bench_tick").option("file", str(file)).load()
        return frame, lambda: tick(file, next(numbers))

    def _read(self, queue: str, limit: int | None) -> DataFrame:
        reader = self._spark.readStream.format(self._door.format)
        reader = reader.options(**self._door.source(queue, limit))
        if self._door.schema:
            reader = reader.schema(self._door.schema)
        return reader.load().select(self._door.body)

    def _loaded(self) -> DataFrame:
        if self._frame is None:
            raise RuntimeError("load the bodies first")
        return self._frame

    def _checkpoint(self) -> str:
        self._checkpoints += 1
        return str(self._folder / f"checkpoint{self._checkpoints}")

    def _run(self, writer: Any) -> tuple[dict[str, float], int]:
        writer = writer.option("checkpointLocation", self._checkpoint()).trigger(availableNow=True)
        began = perf_counter()
        query = writer.start()
        query.awaitTermination()
        wall = perf_counter() - began
        progress = query.recentProgress
        triggers = sum(one["durationMs"]["triggerExecution"] for one in progress) / 1e3
        rows = sum(one["numInputRows"] for one in progress)
        batches = sum(1 for one in progress if one["numInputRows"])
        return {"wall": wall, "triggers": triggers, "batches": batches}, rows


def summed(frame: DataFrame) -> tuple[int, int]:
    """How many rows, and the sum of a hash of each body: the order does not matter."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as in Spark's documentation

    each = F.xxhash64(frame.columns[0]).cast("decimal(38,0)")
    row = frame.agg(F.count("*"), F.sum(each)).first()
    return (int(row[0]), int(row[1] or 0)) if row else (0, 0)
