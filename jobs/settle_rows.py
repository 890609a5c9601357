"""`spark-submit jobs/settle_rows.py` reads JSON orders and gives each a verdict of its own.

Messages that are not JSON go to the queue's dead-letter queue. Orders whose ``not_before`` is in
the future are given back for a minute. The others are appended to a table of files, and acked.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's users write it

from cassieq_spark.spark import register, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

ORDER = "id string, amount double, not_before timestamp"


def main(arguments: Sequence[str] | None = None) -> int:
    """Take what is there now; raises what the query ends with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contact-points", required=True, help="Cassandra nodes, as host:port")
    parser.add_argument("--keyspace", default="cassieq", help="keyspace that holds the queue")
    parser.add_argument("--queue", required=True, help="queue to read")
    parser.add_argument("--output", required=True, help="directory of the table")
    parser.add_argument("--checkpoint", required=True, help="directory for the query's checkpoint")
    given = parser.parse_args(arguments)
    where = {"contact_points": given.contact_points, "keyspace": given.keyspace}

    def work(batch: DataFrame, batch_id: int) -> None:
        order = F.from_json(F.col("body").cast("string"), ORDER)
        judged = batch.select("message_id", "receipt", order.alias("order")).withColumn(
            "verdict",
            F.when(F.col("order.id").isNull(), "reject")
            .when(F.col("order.not_before") > F.current_timestamp(), "release")
            .otherwise("ack"),
        )
        # Read twice, and the clock moves on: fixed once, or a row might have two verdicts.
        judged = judged.persist()
        # First the work, then the verdicts: cut off between them, these rows come again and are
        # appended again, so who reads the table drops duplicates by message_id.
        done = judged.where("verdict = 'ack'").select("message_id", "order.*")
        done.write.mode("append").parquet(given.output)
        settled = settle(judged, "verdict", queue=given.queue, delay=60, **where)
        print(f"batch {batch_id}: {settled}")
        judged.unpersist()

    spark = SparkSession.builder.appName(f"{given.queue}, row by row").getOrCreate()
    register(spark)
    messages = (
        spark.readStream.format("cassieq")
        .option("contactPoints", given.contact_points)
        .option("keyspace", given.keyspace)
        .option("queue", given.queue)
        .option("ackMode", "manual")
        .schema("message_id string, body binary, receipt string")
        .load()
    )
    (
        messages.writeStream.foreachBatch(work)
        .option("checkpointLocation", given.checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
