"""``python -m bench.sinks``: both doors against the raw write, at three sizes of messages.

And the memory of a Python worker whose partition holds a gigabyte. Raw writes the same bytes in
rows as large as ours, before and after each door, on the same node. Between the doors the same
DataFrame is packed and written by Spark's tasks with the plain driver, without a queue: what is
left between that and a door is the protocol. What is put is counted by the queue's own ``stats``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.__main__ import HEAP, ROOT, set_environment, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    import cassieq_spark as cassieq
    from bench.raw import Shape

TARGETS = {"arrow": 0.8, "connector": 0.7}
MOST_LWTS = 0.001
MOST_WORKER_BYTES = 300 * 1024**2
ROUNDS, WARM_UP = 5, 3
PLAIN = "plain"
TASKS = 2
GIGABYTE = 1024**3
SAMPLE_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    """So many messages of so many bytes; raw's rows are as large as our chunks."""

    messages: int
    body_bytes: int
    chunk_messages: int
    chunks_per_bucket: int

    @property
    def name(self) -> str:
        """As in the tables."""
        return f"{self.messages:,} x {self.body_bytes:,} B"

    @property
    def shape(self) -> Shape:
        """For the raw side."""
        from bench.raw import Shape  # noqa: PLC0415 - after the environment is set

        return Shape(self.body_bytes, self.chunk_messages, self.chunks_per_bucket)


SIZES = (
    Size(2_000_000, 96, 2_500, 20),
    Size(200_000, 1_024, 250, 100),
    Size(2_000, 100 * 1_024, 2, 125),
)
SMOKE_SIZES = (Size(50_000, 96, 2_500, 20), Size(250, 100 * 1_024, 2, 125))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.sinks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small: does it run")
    parser.add_argument("--only-memory", action="store_true", help="no ratios; nothing is saved")
    parser.add_argument("--seed", type=int, default=20131)
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    asked = parser.parse_args(arguments)
    set_environment()

    import cassieq_spark as cassieq  # noqa: PLC0415 - after the environment is set
    from bench import report  # noqa: PLC0415 - as above
    from cassieq_spark.embedded import EmbeddedCassandra  # noqa: PLC0415 - as above
    from cassieq_spark.spark import spark_config  # noqa: PLC0415 - as above

    with (
        tempfile.TemporaryDirectory(prefix="cassieq-bench-") as folder,
        EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra,
        cassieq.connect(cassandra.contact_points, datacenter=cassandra.datacenter) as client,
    ):
        client.bootstrap()
        spark = spark_session(folder, **spark_config(cassandra.contact_points))
        try:
            bench = _Bench(spark, client, cassandra.contact_points, seed=asked.seed)
            rounds, warm_up = (1, 1) if asked.smoke else (ROUNDS, WARM_UP)
            partition_bytes = GIGABYTE // 8 if asked.smoke else GIGABYTE
            memory = bench.memory(partition_bytes)
            print(f"workers of {partition_bytes:,} B partitions: {memory}", file=sys.stderr)
            if asked.only_memory:
                return 0
            sizes = {
                size.name: bench.compare(size, rounds=rounds, warm_up=warm_up)
                for size in (SMOKE_SIZES if asked.smoke else SIZES)
            }
        finally:
            spark.stop()
    found: dict[str, Any] = {
        "sizes": sizes,
        "targets": TARGETS,
        "worker_bytes": memory,
        "most_worker_bytes": MOST_WORKER_BYTES,
        "partition_bytes": partition_bytes,
        "most_lwts": MOST_LWTS,
        "rounds": rounds,
        "seed": asked.seed,
        "heaps": {"cassandra": HEAP, "spark": "2g"},
    }
    found |= report.circumstances("python -m bench.sinks", sys.argv[1:])
    directory = Path(asked.results)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"sinks{'-smoke' if asked.smoke else ''}.json"
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({key: found[key] for key in ("sizes", "worker_bytes")}, indent=1))
    return 0


class _Bench:
    """Both doors of one session, on queues of one client."""

    def __init__(
        self, spark: SparkSession, client: cassieq.Client, contact_points: str, *, seed: int
    ) -> None:
        self._spark = spark
        self._client = client
        self._contact_points = contact_points
        self._seed = seed
        self._queues = 0
        self._doors: dict[str, Callable[[DataFrame, str], int | None]] = {
            "arrow": self._arrow,
            "connector": self._connector,
            PLAIN: self._plain,
        }

    def compare(self, size: Size, *, rounds: int, warm_up: int) -> dict[str, Any]:
        """Ratios of each door, messages a second, LWTs a message."""
        from bench.raw import RawSide  # noqa: PLC0415 - see main
        from bench.report import spread  # noqa: PLC0415 - see main

        port = int(self._contact_points.rpartition(":")[2])
        frame = self._generated(size, size.messages).cache()
        frame.count()
        seconds: dict[str, list[float]] = {side: [] for side in (*self._doors, "raw")}
        ratios: dict[str, list[float]] = {door: [] for door in self._doors}
        lwts: dict[str, float] = {}
        with RawSide(port=port, keyspace="cassieq", seed=self._seed, shape=size.shape) as raw:

            def attainable() -> float:
                lane = uuid.uuid4()  # noqa: TID251 - nothing of it is repeated
                return raw.run("write", lane, size.messages)

            before = attainable()
            for number in range(-warm_up, rounds):
                for door, write in self._doors.items():
                    name = self._new_queue()
                    began = perf_counter()
                    written = write(frame, name)
                    took = perf_counter() - began
                    after = attainable()
                    if written is None:
                        stats = self._client.queue(name).stats()
                        written = stats.visible
                        lwts[door] = stats.applied_lwts / size.messages
                    _check(door, written, size.messages)
                    if number >= 0:
                        seconds[door].append(took)
                        seconds["raw"].append(after)
                        ratios[door].append(median([before, after]) / took)
                    before = after
                print(f"{size.name}, round {number + 1}", file=sys.stderr)
        frame.unpersist(blocking=True)
        return {
            "ratios": {door: spread(values) for door, values in ratios.items()},
            "messages_per_s": {
                side: spread([size.messages / one for one in values])
                for side, values in seconds.items()
            },
            "of_plain": {
                door: spread(
                    [best / ours for best, ours in zip(seconds[PLAIN], seconds[door], strict=True)]
                )
                for door in TARGETS
            },
            "lwts_per_message": lwts,
            "samples_s": seconds,
        }

    def memory(self, partition_bytes: int) -> dict[str, int]:
        """Most resident bytes of a Python worker, for one partition of that size."""
        size = Size(partition_bytes // (100 * 1_024), 100 * 1_024, 2, 125)
        found: dict[str, int] = {}
        for door, write in ((door, self._doors[door]) for door in TARGETS):
            with _Watch() as watch:
                write(self._generated(size, size.messages, tasks=1), self._new_queue())
            found[door] = watch.most
        return found

    def _arrow(self, frame: DataFrame, queue: str) -> None:
        options = {"contactPoints": self._contact_points, "queue": queue}
        frame.write.format("cassieq").options(**options).mode("append").save()

    def _connector(self, frame: DataFrame, queue: str) -> None:
        from cassieq_spark.spark import foreach_batch  # noqa: PLC0415 - see main

        put = foreach_batch(queue=queue, sink_id=queue, contact_points=self._contact_points)
        put(frame, 0)

    def _plain(self, frame: DataFrame, queue: str) -> int:
        """Into a lane that no queue has; how many were written."""
        from bench import plain  # noqa: PLC0415 - see main

        write = plain.writing(
            port=int(self._contact_points.rpartition(":")[2]),
            keyspace="cassieq",
            lane=uuid.uuid5(uuid.NAMESPACE_OID, queue),
        )
        total = frame.mapInArrow(write, "written long").groupBy().sum().first()
        return int(total[0]) if total else 0

    def _new_queue(self) -> str:
        self._queues += 1
        name = f"sinks{self._queues}"
        self._client.create_queue(name)
        return name

    def _generated(self, size: Size, messages: int, *, tasks: int = TASKS) -> DataFrame:
        shape, seed = size.shape, self._seed
        # Whatever the size, a generator holds a few megabytes.
        at_once = max(1, (1024**2) // size.body_bytes)

        def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow  # noqa: PLC0415 - in a worker

            for batch in batches:
                for at in range(0, batch.num_rows, at_once):
                    some = batch.slice(at, at_once)
                    made = shape.bodies(some.num_rows, seed + some.column(0)[0].as_py())
                    yield pyarrow.RecordBatch.from_arrays([made], names=["body"])

        frame = self._spark.range(0, messages, 1, tasks)
        return frame.mapInArrow(make, "body binary")


def _check(side: str, found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{side}: {found} messages instead of {expected}")


class _Watch:
    """The most resident memory of any Python process below this one, while the block runs."""

    def __init__(self) -> None:
        self.most = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop looking."""
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        import psutil  # noqa: PLC0415 - see main

        me = psutil.Process()
        while not self._end.wait(SAMPLE_EVERY_S):
            for one in me.children(recursive=True):
                try:
                    if "pyspark.daemon" in " ".join(one.cmdline()):
                        self.most = max(self.most, one.memory_info().rss)
                except psutil.Error:
                    continue


if __name__ == "__main__":
    sys.exit(main())
