"""Use queues from Spark: the data source ``cassieq``, its writers, and what programs call.

    from cassieq_spark.spark import register

    register(spark)                         # once a session: the format, in this Python
    orders = spark.readStream.format("cassieq").option("queue", "orders").load()

Its names:

    register            registers the format with a session, and checks its Python workers
    settle              acks, releases or rejects each message of a DataFrame
    CassieqListener     reports the lag of queries, and acks the last batch
    foreach_batch       writes through the Spark Cassandra Connector
    spark_config        the settings of a session that `foreach_batch` needs

All of it needs PySpark, and only this room imports it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from cassieq_spark.errors import SparkMissing
from cassieq_spark.lazy import offer as _offer

if find_spec("pyspark") is None:
    raise SparkMissing(
        "this needs PySpark, which is not installed in this Python. Run: "
        'pip install "cassieq_spark[spark]"'
    )

if TYPE_CHECKING:
    from cassieq_spark.spark.api import *  # noqa: F403 - the table of names
else:  # as in cassieq_spark
    __getattr__, __dir__, __all__ = _offer(__name__)
