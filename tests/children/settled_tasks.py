"""Settles messages in tasks whose first attempts all die behind their writes; prints the counts."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

from cassieq_spark.spark.jobs import settle_frame as module
from tests.fixtures.processes import say

if TYPE_CHECKING:
    from collections.abc import Iterator

connection, rows, buckets_per_task = (json.loads(argument) for argument in sys.argv[1:])


def dies_once(order: module._Order, work: Iterator[module.Work]) -> Iterator[module.Settled]:
    from cassieq_spark.spark.jobs.settle_frame import _in_task  # noqa: PLC0415 - the worker's, as it is

    settled = list(_in_task(order, work))
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("every first attempt dies")
    return iter(settled)


module._in_task = dies_once
module.BUCKETS_PER_TASK = buckets_per_task
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
frame = spark.createDataFrame(rows, "receipt string, verdict string")
settled = module.settle(frame.repartition(3), **connection)
say("SETTLED " + json.dumps(asdict(settled)))
spark.stop()
