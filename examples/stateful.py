"""State over a queue: a streaming query counts orders for each customer, across restarts.

Run it: spark-submit examples/stateful.py, or python examples/stateful.py
"""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all the world calls it

import cassieq_spark as cassieq
from cassieq_spark.spark import register

POINTS = os.environ.get("CASSIEQ_CONTACT_POINTS", "127.0.0.1:9042")
KEYSPACE = os.environ.get("CASSIEQ_KEYSPACE", "cassieq")

spark = (
    SparkSession.builder.appName("stateful")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
register(spark)
spark.sparkContext.setLogLevel("ERROR")
orders = (
    spark.readStream.format("cassieq")
    .options(contactPoints=POINTS, keyspace=KEYSPACE, queue="state.orders")
    .load()
)
totals = orders.groupBy(F.col("tag").alias("customer")).agg(
    F.count("*").alias("orders"),
    F.sum(F.col("body").cast("string").cast("int")).alias("amount"),
)


def run() -> None:
    """Count what is there. The state is in the checkpoint: the next run goes on with it."""
    query = (
        totals.writeStream.outputMode("complete")
        .foreachBatch(lambda rows, _: rows.write.mode("overwrite").parquet("totals"))
        .option("checkpointLocation", "checkpoints/stateful")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for row in spark.read.parquet("totals").orderBy("customer").collect():
        print(row.customer, row.orders, row.amount)


with cassieq.connect(POINTS, keyspace=KEYSPACE) as client:
    client.bootstrap()
    queue = client.create_queue("state.orders")
    queue.put_many([b"10", b"20"], tag="ada")
    queue.put(b"5", tag="bob")
    print("first run")
    run()
    queue.put(b"70", tag="ada")
    print("second run")
    run()
    print("left in the queue:", queue.stats().visible + queue.stats().in_flight)
spark.stop()
