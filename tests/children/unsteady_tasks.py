"""Drains a queue on a cluster of two hosts, on which a worker dies and a task is a straggler.

On one host, and in local mode at all, Spark never runs a speculative attempt (4.3.0).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

from cassieq_spark.testing import wait_until
from tests.children.stopping import StoppingSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row

HOSTS = ["127.0.0.1", "127.0.0.2"]
DEPLOY = "org.apache.spark.deploy"

options, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
java_options = os.environ["TEST_JAVA_OPTIONS"]


def start(part: str, *arguments: str) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_JAVA_OPTS": java_options,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(directory / "work"),
    }
    command = [str(home / "bin" / "spark-class"), f"{DEPLOY}.{part}", *arguments]
    return subprocess.Popen([*command, "--webui-port", "0"], env=environment)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOSTS[0], 0))
        return int(taken.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOSTS[0], port)) == 0


def noted(rows: Iterator[Row]) -> Iterator[Row]:
    """In the second batch the first two attempts of a task wait for what each other has read.

    Whichever is done first ends the other one, and the second may well be: its worker is warm.
    """
    seen = [[row.body.decode(), row.message_id, row.receipt] for row in rows]
    context = TaskContext.get()
    assert context is not None
    batch = context.getLocalProperty("streaming.sql.batchId")
    task, attempt = context.partitionId(), context.attemptNumber()
    attempts = f"{batch}-{task}"
    written = directory / f"writing-{attempts}-{attempt}"
    written.write_text(json.dumps(seen))
    written.rename(directory / f"attempt-{attempts}-{attempt}")
    if "1-0" == attempts and attempt in (0, 1):
        wait_until((directory / f"attempt-1-0-{1 - attempt}").exists, deadline_s=120)
    return iter(())


def read(frame: DataFrame, _: int) -> None:
    frame.rdd.mapPartitions(noted).count()


cloudpickle.register_pickle_by_value(sys.modules["tests.children.stopping"])
port = free_port()
master = f"spark://{HOSTS[0]}:{port}"
daemons = [start("master.Master", "--host", HOSTS[0], "--port", str(port))]
try:
    wait_until(lambda: answers(port), deadline_s=120)
    daemons += [start("worker.Worker", "--host", host, "--cores", "1", master) for host in HOSTS]
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", HOSTS[0])
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.executor.extraJavaOptions", java_options)
        .config("spark.executor.cores", "1")
        .config("spark.executor.memory", "512m")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .getOrCreate()
    )
    spark.dataSource.register(StoppingSource)
    query = (
        spark.readStream.format(StoppingSource.name())
        .options(**options)
        .load()
        .writeStream.foreachBatch(read)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
finally:
    for daemon in daemons:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
