"""`make demo-gateway`: three kinds of programs share one queue, and every count agrees.

boto3 ── HTTP ─► gateway ─► queue `orders` ─┬─ HTTP ─► a Celery worker
                                            └────────► a Spark query, at bulk speed
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import boto3
from local import started
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's users write it
from rich.console import Console
from rich.table import Table

import cassieq_spark as cassieq

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUEUE: Final = "orders"
IN_BATCH: Final = 10
"""The most messages of one request in the protocol of SQS."""

PER_TRIGGER: Final = 200
LONGEST_S: Final = 300.0
LISTENS: Final = re.compile(r"Listening on (?P<url>\S+)\. ")

TASKS: Final = """
    import os, pathlib
    from celery import Celery

    app = Celery("tasks", broker="sqs://key:secret@" + os.environ["GATEWAY"])
    app.conf.update(
        task_default_queue=os.environ["QUEUE"],
        worker_enable_remote_control=False,
        task_acks_late=True,  # the queue is empty when all tasks are done
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "region": "eu-central-1",
            "is_secure": False,
            "predefined_queues": {os.environ["QUEUE"]: {
                "url": os.environ["QUEUE_URL"],
                "access_key_id": "key",
                "secret_access_key": "secret",
            }},
            "wait_time_seconds": 1,
        },
    )

    @app.task(name="order")
    def order(number):
        with pathlib.Path(os.environ["NOTES"]).open("a") as notes:
            notes.write(f"{number}\\n")
"""


def main(arguments: list[str] | None = None) -> int:
    """Run it; 0 if each order was handled once, by the worker or by the query, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--orders", type=int, default=5_000, help="how many are sent")
    count = parser.parse_args(arguments).orders
    output = Console(soft_wrap=True, highlight=False)
    began_s = time.monotonic()
    output.print(
        "Starting Cassandra and Spark on this machine. Java warns that Spark uses an incubator "
        "module; that is harmless."
    )
    with (
        tempfile.TemporaryDirectory(prefix="cassieq-demo-") as name,
        started("cassieq demo of the gateway", name) as (spark, client, contact_points),
    ):
        folder = Path(name)
        with _gateway(contact_points, folder) as url:
            output.print(f"The gateway listens on {url} while the demo runs; its page is {url}/ui/")
            sqs = boto3.client(
                "sqs", endpoint_url=url, region_name="eu-central-1",
                aws_access_key_id="key", aws_secret_access_key="secret",  # noqa: S106 - nobody's
            )  # fmt: skip
            queue_url = sqs.create_queue(QueueName=QUEUE)["QueueUrl"]
            by_query: list[int] = []
            with _worker(url, queue_url, folder) as notes:
                query = _query(spark, contact_points, folder, by_query)
                output.print("A Celery worker and a Spark query read the queue. boto3 sends ...")
                seconds = _send(sqs, queue_url, count)
                output.print(
                    f"boto3 has sent {count:,} orders in {seconds:.1f} s, {IN_BATCH} in a request."
                )
                _wait_until_empty(client.queue(QUEUE))
                query.stop()
                by_worker = [int(line) for line in notes.read_text().split()]
    code = _compare(output, count, by_worker, by_query)
    output.print(f"The demo took {time.monotonic() - began_s:.0f} s.")
    return code


def task_of(number: int) -> str:
    """A task of Celery, as its protocol 2 has it: what a producer without Celery sends."""
    task_id = str(uuid4())
    arguments = json.dumps([[number], {}, {"callbacks": None, "errbacks": None, "chain": None}])
    envelope = {
        "body": base64.b64encode(arguments.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": "order", "id": task_id, "root_id": task_id},
        "properties": {
            "body_encoding": "base64",
            "correlation_id": task_id,
            "delivery_info": {"exchange": "", "routing_key": QUEUE},
            "delivery_tag": task_id,
        },
    }
    return base64.b64encode(json.dumps(envelope).encode()).decode()


def _send(sqs: Any, queue_url: str, count: int) -> float:
    """Send all orders; return how long that took, in seconds."""
    began_s = time.monotonic()
    for first in range(0, count, IN_BATCH):
        numbers = range(first, min(first + IN_BATCH, count))
        sqs.send_message_batch(
            QueueUrl=queue_url,
            Entries=[{"Id": str(one), "MessageBody": task_of(one)} for one in numbers],
        )
    return time.monotonic() - began_s


def _query(
    spark: SparkSession, contact_points: str, folder: Path, numbers: list[int]
) -> StreamingQuery:
    """A query that reads the same queue, and decodes the same tasks."""

    def note(batch: DataFrame, _batch_id: int) -> None:
        envelope = F.unbase64(F.col("body").cast("string")).cast("string")
        task = F.unbase64(F.get_json_object(envelope, "$.body")).cast("string")
        number = F.get_json_object(task, "$[0][0]").cast("int").alias("number")
        numbers.extend(row.number for row in batch.select(number).collect())

    source = (
        spark.readStream.format("cassieq")
        .option("contactPoints", contact_points)
        .option("queue", QUEUE)
        .option("maxMessagesPerTrigger", PER_TRIGGER)
        .load()
    )
    return (
        source.writeStream.foreachBatch(note)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def _wait_until_empty(queue: cassieq.Queue) -> None:
    """Return when all messages are acked.

    Raises:
        TimeoutError: They are not, after five minutes.
    """
    until_s = time.monotonic() + LONGEST_S
    while (stats := queue.stats()).visible + stats.in_flight + stats.delayed:
        if time.monotonic() > until_s:
            raise TimeoutError(f"not all orders were handled in {LONGEST_S:g} s: {stats}")
        time.sleep(0.5)


def _compare(output: Console, count: int, by_worker: list[int], by_query: list[int]) -> int:
    table = Table("handled by", "orders")
    table.add_row("the Celery worker", f"{len(by_worker):,}")
    table.add_row("the Spark query", f"{len(by_query):,}")
    output.print(table)
    handled = Counter(by_worker) + Counter(by_query)
    missing = count - len(handled)
    twice = sum(times > 1 for times in handled.values())
    if missing or twice:
        output.print(f"[red]WRONG[/red] {missing:,} orders are missing, {twice:,} came twice.")
        return 1
    output.print(f"[green]Every count agrees[/green]: {count:,} orders, each of them once.")
    return 0


@contextmanager
def _gateway(contact_points: str, folder: Path) -> Iterator[str]:
    """``cassieq serve``; yields its URL."""
    command = [str(Path(sys.executable).with_name("cassieq")), "serve", "--port", "0"]
    with (folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - ours
            [*command, "--contact-points", contact_points], stdout=log, stderr=log
        )
        with _ended(process):
            while not (found := LISTENS.search((folder / "gateway.log").read_text())):
                if process.poll() is not None:
                    raise RuntimeError((folder / "gateway.log").read_text())
                time.sleep(0.1)
            yield found["url"]


@contextmanager
def _worker(url: str, queue_url: str, folder: Path) -> Iterator[Path]:
    """``celery worker``; yields the file of what it has done."""
    (folder / "tasks.py").write_text(textwrap.dedent(TASKS), encoding="utf-8")
    notes = folder / "notes"
    notes.touch()
    of_worker = {
        "GATEWAY": url.removeprefix("http://"),
        "QUEUE": QUEUE,
        "QUEUE_URL": queue_url,
        "NOTES": str(notes),
    }
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo"],
            cwd=folder, env={**os.environ, **of_worker}, stdout=log, stderr=log,
        )  # fmt: skip
        with _ended(process):
            yield notes


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process with the block, by SIGTERM if it listens."""
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
