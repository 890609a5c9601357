"""Registers the data source, and prints what that says."""

from __future__ import annotations

from pyspark.sql import SparkSession

import cassieq_spark
from cassieq_spark.spark import register

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
try:
    register(spark)
except cassieq_spark.CassieqError as error:
    print(f"SAID {error}", flush=True)  # noqa: T201 - the parent reads it
spark.stop()
