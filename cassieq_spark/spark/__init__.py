"""All code that needs Spark: the data source ``cassieq``, both writers, and jobs."""

from __future__ import annotations

from importlib.util import find_spec

from cassieq_spark.errors import SparkMissing

if find_spec("pyspark") is None:
    raise SparkMissing(
        "this needs PySpark, which is not installed in this Python. Run: "
        'pip install "cassieq_spark[spark]"'
    )
