"""`spark-submit "$(cassieq job-path to_files)"` writes a queue into files, each message once.

The file sink knows which batches it has, and the checkpoint knows which messages a batch holds.
With ``--drain`` the job ends when all messages that were there are written.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

import typer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from cassieq_spark.cli.flags import command
from cassieq_spark.cli.logs import Logged
from cassieq_spark.cli.shell import run_job
from cassieq_spark.spark import CassieqListener, register

job = typer.Typer(add_completion=False)

TOLD_WITHIN_S: Final = 30.0
"""Spark tells listeners in a thread of its own, after the query. Should it never do so, the job
ends all the same, and a line of its log is missing. Nothing is lost: what is drained is acked by
the query itself, and the last batch of a query that was stopped by its next start."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until it is stopped, or drained; raises what the query ends with."""
    return run_job(job, arguments)


@command(job)
def to_files(
    logs: Logged,
    *,
    contact_points: str,
    keyspace: str = "cassieq",
    queue: str,
    output: str,
    checkpoint: str,
    every: str = "10 seconds",
    drain: bool = False,
) -> None:
    """Write a queue into files, each message once.

    Args:
        contact_points: Cassandra nodes, as host:port.
        keyspace: The keyspace that holds the queue.
        queue: The queue to read.
        output: The directory to write the files to.
        checkpoint: The directory for the query's checkpoint.
        every: The time between batches.
        drain: End when all present messages are written.
    """
    logs.start()
    spark = SparkSession.builder.appName(f"{queue} to files").getOrCreate()
    register(spark)
    # Logs the lag of each batch, and acks the last one when the query ends.
    listener = _Listener(contact_points=contact_points, keyspace=keyspace)
    spark.streams.addListener(listener)
    messages = (
        spark.readStream.format("cassieq")
        .option("contactPoints", contact_points)
        .option("keyspace", keyspace)
        .option("queue", queue)
        .option("maxMessagesPerTrigger", 200_000)
        .schema("message_id string, body binary, tag string, group string, enqueued_at timestamp")
        .load()
    )
    writer = (
        messages.writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
    )
    trigger = {"availableNow": True} if drain else {"processingTime": every}
    writer.trigger(**trigger).start().awaitTermination()
    listener.told.wait(TOLD_WITHIN_S)
    spark.streams.removeListener(listener)


class _Listener(CassieqListener):
    """Tell when all events of a query have come: that is after the query has ended."""

    def __init__(self, **connection: Any) -> None:
        super().__init__(**connection)
        self.told = threading.Event()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Note it, after the last batch is acked."""
        super().onQueryTerminated(event)
        self.told.set()


if __name__ == "__main__":
    sys.exit(main())
