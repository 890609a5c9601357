"""``python -m bench``: our sink and source against the raw limit, interleaved, on one node.

See ``docs/benchmarks.md`` for what the ratios say.
"""

from __future__ import annotations

import argparse
import compileall
import os
import sys
import tempfile
import uuid
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
HEAP = "1g"
FULL = (2_000_000, 5, 4)
SMOKE = (200_000, 1, 1)
"""Messages a side, rounds, and rounds before them that do not count: Cassandra's LWT path takes
thousands of LWTs until its JVM has compiled it, the plain writes of the raw side far fewer."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from bench.raw import RawSide
    from bench.report import Samples
    from bench.sides import Sides


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the ratios; 1 if a count was off."""
    asked = _parser().parse_args(arguments)
    messages, rounds, warm_up = SMOKE if asked.smoke else FULL
    messages, rounds = asked.messages or messages, asked.rounds or rounds
    set_environment()

    import cassieq_spark as cassieq  # noqa: PLC0415 - after the environment is set
    from bench import report  # noqa: PLC0415 - as above
    from bench.raw import RawSide  # noqa: PLC0415 - as above
    from bench.sides import Sides  # noqa: PLC0415 - as above
    from cassieq_spark.embedded import EmbeddedCassandra  # noqa: PLC0415 - as above

    samples = report.Samples(messages=messages)
    with (
        tempfile.TemporaryDirectory(prefix="cassieq-bench-") as folder,
        EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra,
        cassieq.connect(cassandra.contact_points, datacenter=cassandra.datacenter) as client,
    ):
        client.bootstrap()
        port = int(cassandra.contact_points.rpartition(":")[2])
        spark = spark_session(folder)
        try:
            sides = Sides(
                spark,
                client,
                {"contactPoints": cassandra.contact_points, "keyspace": "cassieq"},
                messages=messages,
                seed=asked.seed,
                folder=Path(folder),
            )
            with RawSide(port=port, keyspace="cassieq", seed=asked.seed) as raw:
                for number in range(-warm_up, rounds):
                    began = perf_counter()
                    into = samples if number >= 0 else report.Samples(messages=messages)
                    _round(number, raw, sides, into)
                    print(f"round {number + 1}: {perf_counter() - began:.0f} s", file=sys.stderr)
        finally:
            spark.stop()
    result = report.result(samples, seed=asked.seed, cassandra_heap=HEAP, argv=sys.argv[1:])
    report.save(result, Path(asked.results), name="smoke" if asked.smoke else "queue")
    print(report.as_text(result))
    return 0


def _round(number: int, raw: RawSide, sides: Sides, samples: Samples) -> None:
    """Each side once; raw before and after ours, so that neither has the better moment."""
    batch, stream = f"batch{number}", f"stream{number}"
    sides.new_queue(batch)
    sides.new_queue(stream)
    lanes = [uuid.uuid4() for _ in range(3)]  # noqa: TID251 - nothing of them is repeated
    samples.add("raw_write", raw.run("write", lanes[0], samples.messages))
    samples.add_timed("sink_batch", sides.write(batch))
    samples.add("raw_write", raw.run("write", lanes[1], samples.messages))
    samples.add_timed("sink_stream", sides.write_stream(stream))
    samples.add_timed("nowhere", sides.write_nowhere())
    samples.add("raw_write", raw.run("write", lanes[2], samples.messages))

    samples.add("raw_read", raw.run("read", lanes[0], samples.messages))
    for name, queue, columns in (
        ("source_all", batch, None),
        ("source_body", stream, "body binary"),
    ):
        drained = sides.drain(queue, columns=columns)
        samples.add_timed(name, drained)
        samples.add_timed("empty", sides.empty(drained.batches))
        samples.add("raw_read", raw.run("read", lanes[1], samples.messages))


def set_environment() -> None:
    """Before Spark starts: its workers import this package too, with this very Python."""
    compile_package()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    from cassieq_spark.interpreter import for_spark  # noqa: PLC0415 - Kafka's side has no such package

    os.environ["PYSPARK_PYTHON"] = for_spark()


def compile_package() -> None:
    """As pip compiles what it installs: a checkout that was edited costs each process 0.06 s more.

    Otherwise, where PYTHONDONTWRITEBYTECODE is set, all of them compile all that they import.
    """
    compileall.compile_dir(ROOT / "cassieq_spark", quiet=1)


def spark_session(folder: str, **more: str) -> SparkSession:
    """As all benchmarks with Spark have it, and more settings."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the environment is set

    log4j = (ROOT / "conf" / "log4j2.properties").as_uri()
    return (
        SparkSession.builder.master("local[2]")
        .appName("cassieq bench")
        .config("spark.driver.memory", "2g")  # the messages to write lie there, cached
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")  # as the README has it
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.local.dir", f"{folder}/local")
        .config(map=more)
        .getOrCreate()
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--smoke", "--small", action="store_true", help="small: does it run, do counts agree"
    )
    parser.add_argument("--messages", type=int, help="per round and side; a multiple of 10,000")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=20131)
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
