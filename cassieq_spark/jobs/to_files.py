"""`spark-submit "$(cassieq job-path to_files)"` writes a queue into files, each message once.

The file sink knows which batches it has, and the checkpoint knows which messages a batch holds.
With ``--drain`` the job ends when all messages that were there are written.
"""

from __future__ import annotations

import argparse
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession

import cassieq_spark as cassieq
from cassieq_spark.cli.logs import add_logging, logs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.streaming.listener import QueryTerminatedEvent

TOLD_WITHIN_S: Final = 30.0
"""Spark tells listeners in a thread of its own, after the query. Should it never do so, the job
ends all the same, and a line of its log is missing. Nothing is lost: what is drained is acked by
the query itself, and the last batch of a query that was stopped by its next start."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until it is stopped, or drained; raises what the query ends with."""
    given = parser().parse_args(arguments)
    logs_of(given).start()

    spark = SparkSession.builder.appName(f"{given.queue} to files").getOrCreate()
    # Logs the lag of each batch, and acks the last one when the query ends.
    listener = _Listener(contact_points=given.contact_points, keyspace=given.keyspace)
    spark.streams.addListener(listener)
    messages = (
        spark.readStream.format("cassieq")
        .option("contactPoints", given.contact_points)
        .option("keyspace", given.keyspace)
        .option("queue", given.queue)
        .option("maxMessagesPerTrigger", 200_000)
        .schema("message_id string, body binary, tag string, group string, enqueued_at timestamp")
        .load()
    )
    writer = (
        messages.writeStream.format("parquet")
        .option("path", given.output)
        .option("checkpointLocation", given.checkpoint)
    )
    trigger = {"availableNow": True} if given.drain else {"processingTime": given.every}
    writer.trigger(**trigger).start().awaitTermination()
    listener.told.wait(TOLD_WITHIN_S)
    spark.streams.removeListener(listener)
    return 0


class _Listener(cassieq.CassieqListener):
    """Says when it was told all of a query: that is after the query has ended."""

    def __init__(self, **connection: Any) -> None:
        super().__init__(**connection)
        self.told = threading.Event()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Note it, after the last batch is acked."""
        super().onQueryTerminated(event)
        self.told.set()


def parser() -> argparse.ArgumentParser:
    """Of its command line."""
    known = argparse.ArgumentParser(description=__doc__)
    known.add_argument("--contact-points", required=True, help="Cassandra nodes, as host:port")
    known.add_argument("--keyspace", default="cassieq", help="keyspace that holds the queue")
    known.add_argument("--queue", required=True, help="queue to read")
    known.add_argument("--output", required=True, help="directory to write the files to")
    known.add_argument("--checkpoint", required=True, help="directory for the query's checkpoint")
    known.add_argument("--every", default="10 seconds", help="time between batches")
    known.add_argument(
        "--drain", action="store_true", help="end when all present messages are written"
    )
    add_logging(known)
    return known


if __name__ == "__main__":
    sys.exit(main())
