"""ETL with a verdict for each row: good orders go to Parquet, bad ones to the dead letters.

Run it: spark-submit examples/etl_verdicts.py, or python examples/etl_verdicts.py
"""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all the world calls it

import cassieq_spark as cassieq
from cassieq_spark.spark import register, settle

HERE = {
    "contact_points": os.environ.get("CASSIEQ_CONTACT_POINTS", "127.0.0.1:9042"),
    "keyspace": os.environ.get("CASSIEQ_KEYSPACE", "cassieq"),
}


def load(batch: DataFrame, batch_id: int) -> None:
    """Write the good rows, then settle each row."""
    text = F.col("body").cast("string")
    rows = batch.select(
        "*",
        F.get_json_object(text, "$.customer").cast("int").alias("customer"),
        F.get_json_object(text, "$.amount").cast("double").alias("amount"),
    )
    judged = rows.withColumn(
        "verdict",
        F.when(F.col("amount").isNull(), "reject")  # to the dead letters, at once
        .when(F.col("customer").isNull() & (F.col("delivery_count") < 3), "release")  # once more
        .otherwise("ack"),
    ).persist()
    # The work comes first. A batch that is run again overwrites its own folder.
    good = judged.where("verdict = 'ack'").select("message_id", "customer", "amount")
    good.write.mode("overwrite").parquet(f"orders/batch={batch_id}")
    settled = settle(judged, "verdict", queue="etl", reason="no amount", **HERE)
    print(f"acked {settled.acked}, released {settled.released}, rejected {settled.rejected}")
    judged.unpersist()


with cassieq.connect(**HERE) as client:
    client.bootstrap()
    client.create_queue("etl.dead")
    queue = client.create_queue("etl", max_deliveries=5, dead_letter_queue="etl.dead")
    queue.put_many([b'{"customer": %d, "amount": 9.5}' % number for number in range(97)])
    queue.put_many([b'{"amount": 1}', b'{"customer": 7}', b"no JSON"])

spark = SparkSession.builder.appName("etl").getOrCreate()
register(spark)
spark.sparkContext.setLogLevel("ERROR")
messages = (
    spark.readStream.format("cassieq")
    .options(contactPoints=HERE["contact_points"], keyspace=HERE["keyspace"])
    .options(queue="etl", ackMode="manual")
    .load()
)
for _ in range(3):  # what was released comes again, as it would in a query that goes on
    query = (
        messages.writeStream.foreachBatch(load)
        .option("checkpointLocation", "checkpoints/etl")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

print("orders in the table:", spark.read.parquet("orders").count())
with cassieq.connect(**HERE) as client:
    client.repair("etl")  # moves dead letters; in production it runs on a schedule
    for letter in client.queue("etl.dead").peek():
        print("dead:", letter.body.decode(), "-", letter.headers["cassieq-reason"])
spark.stop()
