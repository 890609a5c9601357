"""`make demo`: the flights of 2013 through two queues and three Spark queries, and checked."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from flights import Demo
from pyspark.sql import SparkSession

import cassieq_spark as cassieq
from cassieq_spark.embedded import EmbeddedCassandra

LOG4J = (Path(__file__).parent.parent / "conf" / "log4j2.properties").as_uri()


def main() -> int:
    """Run it; 0 if every count agrees with the CSV file, else 1."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with (
        tempfile.TemporaryDirectory(prefix="cassieq-demo-") as folder,
        EmbeddedCassandra() as cassandra,
        cassieq.connect(cassandra.contact_points, datacenter=cassandra.datacenter) as client,
    ):
        client.bootstrap()
        spark = (
            SparkSession.builder.master("local[2]")
            .appName("cassieq demo")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={LOG4J}")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .getOrCreate()
        )
        try:
            return Demo(spark, client, cassandra.contact_points, Path(folder)).run()
        finally:
            spark.stop()


if __name__ == "__main__":
    sys.exit(main())
