"""Spark imports every top-level module named ``pyspark_*`` to find the data sources in it."""

from cassieq_spark.spark.data_source import CassieqDataSource as DefaultSource

__all__ = ["DefaultSource"]
