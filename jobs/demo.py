"""`make demo`: the flights of 2013 through two queues and three Spark queries, and checked."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from flights import Demo
from local import local_spark

import cassieq_spark as cassieq
from cassieq_spark.embedded import EmbeddedCassandra


def main() -> int:
    """Run it; 0 if every count agrees with the CSV file, else 1."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with (
        tempfile.TemporaryDirectory(prefix="cassieq-demo-") as folder,
        EmbeddedCassandra() as cassandra,
        cassieq.connect(cassandra.contact_points, datacenter=cassandra.datacenter) as client,
    ):
        client.bootstrap()
        spark = local_spark("cassieq demo", folder)
        try:
            return Demo(spark, client, cassandra.contact_points, Path(folder)).run()
        finally:
            spark.stop()


if __name__ == "__main__":
    sys.exit(main())
