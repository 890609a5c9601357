"""A Spark session for the demos: this machine only, quiet, and small."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

LOG4J: Final = (Path(__file__).parent.parent / "conf" / "log4j2.properties").as_uri()


def local_spark(name: str, folder: str) -> SparkSession:
    """A session on two cores.

    Args:
        folder: Where it may leave files.
    """
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG4J}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    return SparkSession.builder.master("local[2]").appName(name).config(map=settings).getOrCreate()
