"""Uses a queue in a session of Spark Connect, and prints what each step gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's users write it

import cassieq_spark as cassieq
from cassieq_spark.spark import register, settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

here = json.loads(sys.argv[1])
directory = Path(sys.argv[2])


def says(name: str, what: object) -> None:
    # On a line of its own: Spark's bar of progress ends without a new line.
    print(f"\n{name}: {what}", flush=True)  # noqa: T201 - the parent reads it


def copied(batch: DataFrame, _: int) -> None:
    batch.write.parquet(str(directory / "copied"), mode="append")


spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
says("session", type(spark).__module__)

numbered = spark.range(5).select(F.col("id").cast("string").cast("binary").alias("body"))
numbered.write.format("cassieq").options(**here).mode("append").save()
spark.sql(
    "CREATE TEMPORARY VIEW orders (body BINARY, tag STRING) USING cassieq OPTIONS ("
    + ", ".join(f"{name} '{value}'" for name, value in here.items())
    + ")"
)
spark.sql("INSERT INTO orders VALUES (X'41', 'sql')").collect()
says("visible", spark.read.format("cassieq").options(**here).load().count())
says("stats", spark.read.format("cassieq").options(**here, view="stats").load().first().visible)

try:
    spark.readStream.format("cassieq").options(**here, maxMesages=1).load().printSchema()
except AnalysisException as error:
    says("refused", str(error).splitlines()[0])
try:
    receipts = spark.createDataFrame([("r", "ack")], "receipt string, verdict string")
    settle(receipts, queue=here["queue"], contact_points=here["contactPoints"])
except cassieq.CassieqError as error:
    says("settle", error)

query = (
    spark.readStream.format("cassieq")
    .options(**here)
    .load()
    .writeStream.foreachBatch(copied)
    .option("checkpointLocation", str(directory / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination(120)
says("copied", spark.read.parquet(str(directory / "copied")).count())
query = (
    spark.readStream.schema("body binary")
    .parquet(str(directory / "copied"))
    .writeStream.format("cassieq")
    .options(**here)
    .option("checkpointLocation", str(directory / "back"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination(120)
says("back", spark.read.format("cassieq").options(**here).load().count())
messages = spark.readStream.format("cassieq").options(**here).load()
query = (
    messages.alias("x")
    .join(messages.alias("y"), F.expr("x.body = y.body"))
    .select("x.body")
    .writeStream.format("parquet")
    .option("path", str(directory / "joined"))
    .option("checkpointLocation", str(directory / "of-join"))
    .trigger(availableNow=True)
    .start()
)
try:
    query.awaitTermination(120)
    says("joined", "it is not refused")
except StreamingQueryException as error:
    says("joined", "this query reads one load() twice" in str(error))
spark.stop()
