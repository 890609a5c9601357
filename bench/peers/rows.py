"""A row for each message, through the Spark Cassandra Connector: the queue table of one's own.

This is what people write by hand: a table with a partition for each bucket of ids, written by
``df.write`` and read by ``spark.read``. Nobody claims or acks anything here, and a write is neither
whole nor once if a task is tried again. Its sessions take `spark_config`, as those of
`foreach_batch` do.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Final

from cassandra.cluster import Cluster
from pyspark.sql import functions as F  # noqa: N812 - as Spark's documentation writes it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "org.apache.spark.sql.cassandra"
KEYSPACE: Final = "by_hand"
BUCKET: Final = 10_000
"""Messages a partition: about a megabyte."""

_TABLES: Final = (
    """CREATE KEYSPACE IF NOT EXISTS {ks}
    WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}""",
    """CREATE TABLE {ks}.{table} (
        bucket bigint, id bigint, body blob, enqueued_at timestamp,
        PRIMARY KEY (bucket, id))""",
)


def create(contact_points: str, table: str) -> None:
    """An empty table."""
    host, _, port = contact_points.split(",", maxsplit=1)[0].rpartition(":")
    cluster = Cluster([host], port=int(port), protocol_version=5)
    session = cluster.connect()
    for statement in _TABLES:
        session.execute(statement.format(ks=KEYSPACE, table=table))
    cluster.shutdown()


def numbered(frame: DataFrame) -> DataFrame:
    """The rows of a DataFrame with a column ``body``."""
    return frame.select(F.monotonically_increasing_id().alias("id"), "body").select(
        F.floor(F.col("id") / BUCKET).cast("long").alias("bucket"),
        "id",
        "body",
        F.current_timestamp().alias("enqueued_at"),
    )


def write(frame: DataFrame, table: str) -> float:
    """Seconds of ``df.write``; ``frame`` as `numbered` makes it."""
    began = perf_counter()
    frame.write.format(FORMAT).options(keyspace=KEYSPACE, table=table).mode("append").save()
    return perf_counter() - began


def read(spark: SparkSession, table: str) -> float:
    """Seconds to read all rows into nothing."""
    frame = _stored(spark, table)
    began = perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return perf_counter() - began


def digest(frame: DataFrame) -> tuple[int, int]:
    """How many bodies there are, and a sum of their hashes; the same for the same bodies."""
    row = frame.select(F.count("body"), F.sum(F.xxhash64("body").cast("decimal(20,0)"))).first()
    return (int(row[0]), int(row[1] or 0)) if row else (0, 0)


def stored(spark: SparkSession, table: str) -> tuple[int, int]:
    """The digest of what the table has."""
    return digest(_stored(spark, table))


def _stored(spark: SparkSession, table: str) -> DataFrame:
    reader = spark.read.format(FORMAT).options(keyspace=KEYSPACE, table=table)
    return reader.load().select("body")
