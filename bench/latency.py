"""``python -m bench.latency``: from a put to its row in ``foreachBatch``, beside Spark's own time.

Spark's own is a source whose only work is to look at a file: from the moment in which the file says
that there is a row, until the row is seen. Both queries do the same in ``foreachBatch``, each
sample begins at a random moment of an idle query, and the two take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.__main__ import HEAP, ROOT, set_environment, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

SAMPLES, WARM_UP, TURNS = 60, 15, 5
TARGET_S = 0.1
LONGEST_PAUSE_S = 0.4
DEADLINE_S = 60.0
QUEUE = "latency"


class Seen:
    """A ``foreachBatch`` function that says when it has its first row."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._at = 0.0

    def __call__(self, frame: DataFrame, _: int) -> None:
        """Spark's call."""
        if frame.collect() and not self._event.is_set():
            self._at = perf_counter()
            self._event.set()

    def after(self, action: Callable[[], object]) -> float:
        """Seconds from the beginning of ``action`` until a row is seen.

        Raises:
            RuntimeError: None was.
        """
        self._event.clear()
        began = perf_counter()
        action()
        if not self._event.wait(DEADLINE_S):
            raise RuntimeError(f"no row was seen within {DEADLINE_S} s")
        return self._at - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="few samples: does it run")
    parser.add_argument("--seed", type=int, default=20131)
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    asked = parser.parse_args(arguments)
    set_environment()

    import cassieq_spark as cassieq  # noqa: PLC0415 - after the environment is set
    from bench import report  # noqa: PLC0415 - as above
    from cassieq_spark.embedded import EmbeddedCassandra  # noqa: PLC0415 - as above

    samples, warm_up = (4, 2) if asked.smoke else (SAMPLES, WARM_UP)
    with (
        tempfile.TemporaryDirectory(prefix="cassieq-bench-") as name,
        EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra,
        cassieq.connect(cassandra.contact_points, datacenter=cassandra.datacenter) as client,
    ):
        client.bootstrap()
        queue = client.create_queue(QUEUE)
        folder = Path(name)
        spark = spark_session(name)
        try:
            options = {"contactPoints": cassandra.contact_points, "queue": QUEUE}
            sides = _sides(spark, folder, options, lambda: queue.put(b"x" * 96))
            took = _measure(sides, folder, samples=samples, warm_up=warm_up, seed=asked.seed)
        finally:
            spark.stop()
    found: dict[str, Any] = {
        "seconds": {side: _summary(each) for side, each in took.items()},
        "behind_spark_s": statistics.median(took["queue"]) - statistics.median(took["spark"]),
        "target_s": TARGET_S,
        "samples": samples,
        "seed": asked.seed,
    }
    found |= report.circumstances("python -m bench.latency", sys.argv[1:])
    directory = Path(asked.results)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"latency{'-smoke' if asked.smoke else ''}.json"
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({key: found[key] for key in ("seconds", "behind_spark_s", "target_s")}))
    return 0


def _sides(
    spark: SparkSession, folder: Path, options: dict[str, str], put: Callable[[], object]
) -> dict[str, tuple[DataFrame, Callable[[], object]]]:
    """Of each side its stream, and what makes a row appear in it."""
    from bench.tick_source import TickSource, tick  # noqa: PLC0415 - for Spark, see main

    spark.dataSource.register(TickSource)
    ticks = folder / "ticks"
    tick(ticks, 0)
    numbers = count(1)
    return {
        "queue": (spark.readStream.format("cassieq").options(**options).load(), put),
        "spark": (
            spark.readStream.format("bench_tick").option("file", str(ticks)).load(),
            lambda: tick(ticks, next(numbers)),
        ),
    }


def _measure(
    sides: dict[str, tuple[DataFrame, Callable[[], object]]],
    folder: Path,
    *,
    samples: int,
    warm_up: int,
    seed: int,
) -> dict[str, list[float]]:
    from cassieq_spark.clock import SystemClock  # noqa: PLC0415 - see main
    from cassieq_spark.entropy import generator  # noqa: PLC0415 - as above

    pauses, clock = generator(seed), SystemClock()
    took: dict[str, list[float]] = {"queue": [], "spark": []}
    for turn in range(TURNS):
        for side, (frame, action) in sides.items():
            seen = Seen()
            query = (
                frame.writeStream.foreachBatch(seen)
                .option("checkpointLocation", str(folder / f"{side}"))
                .start()
            )
            try:
                for at in range(-warm_up, -(-samples // TURNS)):
                    clock.wait(pauses.uniform(0.05, LONGEST_PAUSE_S))
                    each = seen.after(action)
                    if at >= 0:
                        took[side].append(each)
            finally:
                query.stop()
        print(f"turn {turn + 1} of {TURNS}", file=sys.stderr)
    return took


def _summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50": statistics.median(ordered),
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
        "min": ordered[0],
        "max": ordered[-1],
    }


if __name__ == "__main__":
    sys.exit(main())
