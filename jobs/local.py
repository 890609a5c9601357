"""Cassandra and Spark for the demos: on this machine only, quiet, small, and gone afterwards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import SparkSession

import cassieq_spark as cassieq
from cassieq_spark.spark import register
from cassieq_spark.testing import EmbeddedCassandra

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOG4J: Final = (Path(__file__).parent.parent / "conf" / "log4j2.properties").as_uri()
QUICK_JIT: Final = "-XX:TieredStopAtLevel=1"
"""Spark's JVM compiles quickly, not well: it starts with about half of the CPU time. In a demo of a
minute, on two cores, better code would not pay back what its compiler takes."""


class Local(NamedTuple):
    """What a demo runs on."""

    spark: SparkSession
    client: cassieq.Client
    contact_points: str


@contextmanager
def started(name: str, folder: str, queues: Sequence[str] = ()) -> Iterator[Local]:
    """Start Cassandra and Spark side by side, as both wait for the disk now and then.

    Args:
        name: What Spark calls the session.
        folder: Where Spark may leave files.
        queues: They are created.
    """
    cassandra = EmbeddedCassandra()
    with ExitStack() as stack:
        stack.callback(_end, cassandra)
        with ThreadPoolExecutor(1) as aside:
            connecting = aside.submit(_connect, cassandra, queues)
            spark = _spark(name, folder)
            stack.callback(spark.stop)
        client = stack.enter_context(connecting.result())
        yield Local(spark=spark, client=client, contact_points=cassandra.contact_points)


def _connect(cassandra: EmbeddedCassandra, queues: Sequence[str]) -> cassieq.Client:
    cassandra.start()
    client = cassieq.connect(cassandra.contact_points, datacenter=cassandra.datacenter)
    client.bootstrap()
    for queue in queues:
        client.create_queue(queue)
    return client


def _end(cassandra: EmbeddedCassandra) -> None:
    """End it at once: nothing in it is kept, so it need not write its tables to the disk first."""
    cassandra.kill()
    cassandra.stop()


def _spark(name: str, folder: str) -> SparkSession:
    """A session on two cores."""
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG4J} {QUICK_JIT}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",  # as the README has it
        "spark.sql.debug.maxToStringFields": "100",  # else it warns about the 19 columns of a CSV
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    spark = SparkSession.builder.master("local[2]").appName(name).config(map=settings).getOrCreate()
    register(spark)
    return spark
