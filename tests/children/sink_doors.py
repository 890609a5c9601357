"""Writes one batch through each door, at the pace of the test that started it.

Its arguments: a JSON object of `connect`, the queues of both doors, a directory. In there the Arrow
door's rows say how far they are, and wait for the test: ``begun``, ``go_on.1``, ``without``,
``go_on.2``. ``<door>.done`` is there when a door's batch is committed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from cassieq_spark.spark import foreach_batch, spark_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

MESSAGES = 6_000
BODY_BYTES = 2_000
THROTTLE_MB = 0.25
"""A second and core, so that the connector writes its 12 MB for 20 s and more."""


def body(number: int) -> bytes:
    """Nothing that compresses, and no two alike."""
    from numpy.random import default_rng  # noqa: PLC0415 - runs in a worker, too

    return number.to_bytes(8, "big") + default_rng(number).bytes(BODY_BYTES - 8)


def frame(spark: SparkSession) -> DataFrame:
    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow  # noqa: PLC0415 - runs in a worker

        for batch in batches:
            made = [body(number) for number in batch.column(0).to_pylist()]
            yield pyarrow.RecordBatch.from_arrays(
                [pyarrow.array(made, pyarrow.binary())], names=["body"]
            )

    return spark.range(0, MESSAGES, 1, 2).mapInArrow(make, "body binary")


def held(whole: DataFrame, directory: str) -> DataFrame:
    """The same rows; after each third the first task waits for the test."""
    third = MESSAGES // 2 // 3

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path  # noqa: PLC0415 - runs in a worker

        from pyspark import TaskContext  # noqa: PLC0415 - as above

        from cassieq_spark.testing import wait_until  # noqa: PLC0415 - as above

        context, seen, here = TaskContext.get(), 0, Path(directory)
        assert context is not None
        steps = [(third, "begun", "go_on.1"), (2 * third, "without", "go_on.2")]
        if context.partitionId() != 0:
            steps = []
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if steps and seen >= steps[0][0]:
                _, says, waits_for = steps.pop(0)
                (here / says).touch()
                wait_until((here / waits_for).exists, deadline_s=240)

    return whole.mapInArrow(hold, "body binary")


def main() -> None:
    connection, (arrow, connector, directory) = json.loads(sys.argv[1]), sys.argv[2:5]
    points = connection["contact_points"]
    builder = SparkSession.builder.master("local[2]")
    settings = {
        **spark_config(points),
        "spark.driver.memory": "768m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": os.environ["TEST_JAVA_OPTIONS"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Small batches: rows come in thirds, and not all at once.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "250",
        "spark.local.dir": f"{directory}/local",
    }
    spark = builder.config(map=settings).getOrCreate()
    whole = frame(spark)
    options = {"contactPoints": points, "keyspace": connection["keyspace"], "queue": arrow}
    # One chunk under way: what the task has taken is stored, but for that.
    options |= {"chunkMessages": "50", "writesInFlight": "1"}
    held(whole, directory).write.format("cassieq").options(**options).mode("append").save()
    (Path(directory) / "arrow.done").touch()

    put = foreach_batch(
        queue=connector,
        sink_id=connector,
        contact_points=points,
        keyspace=connection["keyspace"],
        chunk_messages=50,
        connector={"spark.cassandra.output.throughputMBPerSec": THROTTLE_MB},
    )
    put(whole, 0)
    (Path(directory) / "connector.done").touch()
    spark.stop()


if __name__ == "__main__":
    main()
