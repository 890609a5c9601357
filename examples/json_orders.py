"""JSON by a schema: valid orders to the next queue, bad ones to the dead letters, counts a minute.

Run it: spark-submit examples/json_orders.py, or python examples/json_orders.py
Kill it when you like, also with -9, and run it again: it goes on where it was.
"""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all the world calls it

import cassieq_spark as cassieq
from cassieq_spark.spark import register, settle

POINTS = os.environ.get("CASSIEQ_CONTACT_POINTS", "127.0.0.1:9042")
KEYSPACE = os.environ.get("CASSIEQ_KEYSPACE", "cassieq")
HERE = {"contact_points": POINTS, "keyspace": KEYSPACE}
SPARK_HERE = {"contactPoints": POINTS, "keyspace": KEYSPACE}

SCHEMA = "number int, amount double, at timestamp"
IS_VALID = "number is not null and amount is not null and at is not null"


def read(queue: str) -> DataFrame:
    """A stream of a queue's messages, with what their JSON says."""
    messages = (
        spark.readStream.format("cassieq")
        .options(**SPARK_HERE, queue=queue, maxMessagesPerTrigger="60")
        .load()
    )
    # What is no JSON, or does not fit the schema, becomes null: no row ends the query.
    return messages.select("*", F.from_json(F.col("body").cast("string"), SCHEMA).alias("o"))


def sort(batch: DataFrame, batch_id: int) -> None:
    """Send valid orders on and reject the others; Spark's commit acks what was sent on."""
    judged = batch.select("*", "o.*").withColumn("ok", F.expr(IS_VALID)).persist()
    for target in ("json.valid", "json.counted"):
        (
            judged.where("ok")
            .select("message_id", "body", "tag", "headers")
            .write.format("cassieq")
            # With these, a batch that is run again puts nothing twice.
            .options(**SPARK_HERE, queue=target, sinkId=f"to-{target}", batchId=str(batch_id))
            .mode("append")
            .save()
        )
    bad = judged.where("not ok").withColumn("verdict", F.lit("reject"))
    settle(bad, "verdict", queue="json.orders", reason="no valid order", **HERE)
    judged.unpersist()


with cassieq.connect(POINTS, keyspace=KEYSPACE) as client:
    client.bootstrap()
    for name in ("json.dead", "json.valid", "json.counted"):
        client.create_queue(name)
    orders = client.create_queue(
        "json.orders", dead_letter_queue="json.dead", max_deliveries=5, dedup_window=86_400
    )
    bodies = [
        b'{"number": %d, "amount": 9.5, "at": "2026-01-01T12:%02d:30Z"}' % (number, number // 10)
        for number in range(100)
    ]
    # The counts of a minute come when a later order has moved the watermark past its end.
    bodies += [b'{"number": 100, "amount": 1, "at": "2026-01-01T12:30:00Z"}']
    bodies += [b"no JSON", b'{"number": 7}', b'{"number": "x", "amount": 1, "at": "noon"}']
    # With keys, a program that is run again puts none of them twice.
    orders.put_many(bodies, dedup_keys=[f"order {at}" for at in range(len(bodies))])

spark = SparkSession.builder.appName("json orders").getOrCreate()
register(spark)
spark.sparkContext.setLogLevel("ERROR")
spark.conf.set("spark.sql.session.timeZone", "UTC")
spark.conf.set("spark.sql.shuffle.partitions", "2")
(
    read("json.orders")
    .writeStream.foreachBatch(sort)
    .option("checkpointLocation", "checkpoints/json-sort")
    .trigger(availableNow=True)  # without it, the query goes on for ever
    .start()
    .awaitTermination()
)
(
    read("json.counted")
    .select("o.*")
    .withWatermark("at", "10 minutes")  # an order that comes later than that is not counted
    .groupBy(F.window("at", "1 minute"))
    .agg(F.count("*").alias("orders"))
    .select("window.start", "orders")
    .writeStream.format("parquet")  # each minute once, when it is over
    .option("path", "orders-a-minute")
    .option("checkpointLocation", "checkpoints/json-count")
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
for row in spark.read.parquet("orders-a-minute").orderBy("start").collect():
    print(f"{row.start:%H:%M}", row.orders)
spark.stop()

with cassieq.connect(POINTS, keyspace=KEYSPACE) as client:
    client.repair("json.orders")  # moves dead letters; in production it runs on a schedule
    print("valid:", client.queue("json.valid").stats().visible)
    for letter in client.queue("json.dead").peek():
        print("dead:", letter.body.decode(), "-", letter.headers["cassieq-reason"])
