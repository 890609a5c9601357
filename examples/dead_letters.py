"""Dead letters into a Parquet table, where somebody looks at them, and back into their queue.

Run it: spark-submit examples/dead_letters.py, or python examples/dead_letters.py
With Delta in the session, write format("delta") in place of Parquet: the rest stays.
"""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all the world calls it

import cassieq_spark as cassieq
from cassieq_spark.spark import register

POINTS = os.environ.get("CASSIEQ_CONTACT_POINTS", "127.0.0.1:9042")
KEYSPACE = os.environ.get("CASSIEQ_KEYSPACE", "cassieq")
HERE = {"contactPoints": POINTS, "keyspace": KEYSPACE}

with cassieq.connect(POINTS, keyspace=KEYSPACE) as client:
    client.bootstrap()
    client.create_queue("mail.dead")
    queue = client.create_queue("mail.out", max_deliveries=3, dead_letter_queue="mail.dead")
    queue.put_many([b"to ada", b"too bob", b"too eve"])
    got = queue.get()
    bad = [one for one in got if one.body.startswith(b"too")]
    queue.reject(bad, reason="no address")
    queue.ack([one for one in got if one not in bad])
    client.repair("mail.out")  # moves the two into mail.dead

spark = SparkSession.builder.appName("dead letters").getOrCreate()
register(spark)
spark.sparkContext.setLogLevel("ERROR")
letters = spark.readStream.format("cassieq").options(**HERE, queue="mail.dead").load()
(
    letters.select(
        "message_id",
        "body",
        F.col("headers")["cassieq-source-queue"].alias("source"),
        F.col("headers")["cassieq-reason"].alias("reason"),
    )
    .writeStream.format("parquet")  # exactly once: Spark's file sink and our source
    .option("path", "dead-letters")
    .option("checkpointLocation", "checkpoints/dead-letters")
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)

table = spark.read.parquet("dead-letters")
for row in table.orderBy("body").collect():
    print(row.source, row.reason, bytes(row.body).decode())

mended = table.where("reason = 'no address'").select(
    "message_id",  # the same message as before
    F.regexp_replace(F.col("body").cast("string"), "^too ", "to ").cast("binary").alias("body"),
)
(
    mended.write.format("cassieq")
    # With these, a job that is run again puts nothing twice.
    .options(**HERE, queue="mail.out", sinkId="mended-letters", batchId="0")
    .mode("append")
    .save()
)
spark.stop()

with cassieq.connect(POINTS, keyspace=KEYSPACE) as client:
    print("back:", sorted(one.body.decode() for one in client.queue("mail.out").peek()))
    print("dead letters left:", client.queue("mail.dead").stats().visible)
