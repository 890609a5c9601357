"""Drains a queue in tasks that all fail at their first attempt; notes the rows of each attempt."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row

options, directory = json.loads(sys.argv[1]), Path(sys.argv[2])


def noted(rows: Iterator[Row]) -> Iterator[Row]:
    seen = [[row.body.decode(), row.message_id, row.receipt] for row in rows]
    context = TaskContext.get()
    assert context is not None
    name = f"attempt-{context.partitionId()}-{context.attemptNumber()}"
    (directory / name).write_text(json.dumps(seen))
    if context.attemptNumber() == 0:
        raise RuntimeError("every first attempt fails")
    return iter(())


def read(frame: DataFrame, _: int) -> None:
    frame.rdd.mapPartitions(noted).count()


spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
frame = spark.readStream.format("cassieq").options(**options).load()
query = (
    frame.writeStream.foreachBatch(read)
    .option("checkpointLocation", str(directory / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
