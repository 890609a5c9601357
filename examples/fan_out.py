"""Fan-out: one query moves messages from a queue to two others, each batch exactly once to each.

Run it: spark-submit examples/fan_out.py, or python examples/fan_out.py
"""

import os

from pyspark.sql import DataFrame, SparkSession

import cassieq_spark as cassieq
from cassieq_spark.spark import register

POINTS = os.environ.get("CASSIEQ_CONTACT_POINTS", "127.0.0.1:9042")
KEYSPACE = os.environ.get("CASSIEQ_KEYSPACE", "cassieq")
HERE = {"contactPoints": POINTS, "keyspace": KEYSPACE}


def fan_out(batch: DataFrame, batch_id: int) -> None:
    """Write one batch to both queues. A batch that is run again is in each queue once."""
    batch.persist()
    for target, chosen in (
        ("fan.audit", batch),  # everything
        ("fan.large", batch.where("cast(cast(body as string) as int) >= 900")),
    ):
        (
            chosen.select("body", "headers")
            .write.format("cassieq")
            .options(**HERE, queue=target, sinkId=f"to-{target}", batchId=str(batch_id))
            .mode("append")
            .save()
        )
    batch.unpersist()


with cassieq.connect(POINTS, keyspace=KEYSPACE) as client:
    client.bootstrap()
    for name in ("fan.orders", "fan.audit", "fan.large"):
        client.create_queue(name)
    client.queue("fan.orders").put_many([b"%d" % number for number in range(1_000)])

spark = SparkSession.builder.appName("fan-out").getOrCreate()
register(spark)
spark.sparkContext.setLogLevel("ERROR")
query = (
    spark.readStream.format("cassieq")
    .options(**HERE, queue="fan.orders", maxMessagesPerTrigger="400")
    .load()
    .writeStream.foreachBatch(fan_out)
    .option("checkpointLocation", "checkpoints/fan-out")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()

with cassieq.connect(POINTS, keyspace=KEYSPACE) as client:
    for name in ("fan.orders", "fan.audit", "fan.large"):
        print(name, client.queue(name).stats().visible)
