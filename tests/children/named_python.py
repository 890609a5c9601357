"""A streaming query; prints which of Spark's Python processes import PySpark from its zip, as JSON.

Arguments: contact points, a folder, a queue, ``found`` or ``registered``, more settings as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
from pyspark.sql import SparkSession

from cassieq_spark.spark import register
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.processes import say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

contact_points, directory, queue, how, settings = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", os.environ["TEST_JAVA_OPTIONS"])
    .config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
    .config(map=json.loads(settings))
    .getOrCreate()
)
if how == "registered":
    register(spark)
options = {"contactPoints": contact_points, "keyspace": KEYSPACE, "queue": queue}
jvm = spark._jvm
assert jvm is not None
of_spark = psutil.Process(jvm.java.lang.ProcessHandle.current().pid())
found = {"rows": 0, "quick": 0, "zipped": 0}


def note(frame: DataFrame, _: int) -> None:
    """What there is while the query runs."""
    found["rows"] += frame.count()
    for process in of_spark.children():
        with suppress(psutil.Error):  # it may have ended
            if "-m pyspark." in " ".join(process.cmdline()):
                is_zipped = "/pyspark.zip" in process.environ().get("PYTHONPATH", "")
                found["zipped" if is_zipped else "quick"] += 1


source = spark.readStream.format("cassieq").options(**options).load()
query = source.writeStream.foreachBatch(note).trigger(availableNow=True)
query.option("checkpointLocation", f"{directory}/checkpoint").start().awaitTermination()
say(f"FOUND {json.dumps(found)}")
spark.stop()
