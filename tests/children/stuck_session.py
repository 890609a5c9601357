"""A stream through the connector's door whose connector session gets stuck: does it get on?

Tells of its points by ``reached`` and goes on when the test says so.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from cassieq_spark.spark import foreach_batch, spark_config
from cassieq_spark.spark.connector import sessions
from cassieq_spark.testing import wait_until
from tests.fixtures.processes import reached, say
from tests.storm.calm import committed_batches

ROWS_PER_BATCH = 20


def build_session(contact_points: str) -> Any:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as in tests/fixtures/spark.py

    return (
        SparkSession.builder.master("local[2]")
        .config(map={**spark_config(contact_points)})
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", os.environ["TEST_JAVA_OPTIONS"])
        .getOrCreate()
    )


def the_session(spark: Any) -> Any:
    """Of the connector's Java driver, as it has it now."""
    values = sessions.connector_of(spark.sparkContext).sessionCache().cache()
    return values.valuesIterator().next()


def refresh(session: Any) -> Any:
    return session.refreshSchemaAsync().toCompletableFuture()


def main() -> None:
    connection, queue, directory = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    sessions.LOOKS_EVERY_S = 2.0  # type: ignore[misc]
    sessions.AGREEMENT_S = 0.5  # type: ignore[misc]

    def committed() -> int:
        return len(committed_batches(directory))

    spark = build_session(connection["contact_points"])
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_PER_BATCH)
        .option("numPartitions", 2)
        .load()
        .selectExpr("cast(cast(value as string) as binary) as body")
    )
    paused = threading.Event()
    door = foreach_batch(queue=queue, connect_timeout=2, **connection)

    def write(frame: Any, batch: int) -> None:
        wait_until(lambda: not paused.is_set(), deadline_s=600)
        door(frame, batch)

    query = (
        rows.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(directory))
        .trigger(processingTime="1 second")
        .start()
    )
    wait_until(lambda: committed() > 0, deadline_s=120, describe=lambda: str(query.exception()))
    paused.set()  # no batch is in the way of the node's death: only the session is
    reached("kill")
    session = the_session(spark)
    wait_until(lambda: refresh_has_failed(session), deadline_s=60)
    reached("start")
    wait_until(lambda: session.getMetadata().getNodes().size() > 0, deadline_s=60)
    stuck = refresh(session)
    threading.Event().wait(8)
    say(f"STUCK {not stuck.isDone()}")
    before = committed()
    paused.clear()
    wait_until(
        lambda: committed() >= before + 2 or not query.isActive,
        deadline_s=120,
        describe=lambda: f"two more batches: {committed()}, {query.exception()}",
    )
    say(f"ACTIVE {query.isActive} {query.exception()}")
    query.stop()
    say("DONE")


def refresh_has_failed(session: Any) -> bool:
    """A driver that has no control connection at that moment."""
    asked = refresh(session)
    try:
        wait_until(asked.isDone, deadline_s=15)
    except AssertionError:
        return True  # it was stuck already
    return bool(asked.isCompletedExceptionally())


if __name__ == "__main__":
    main()
