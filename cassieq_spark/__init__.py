"""cassieq_spark is a work queue on Apache Cassandra, read by Spark. This is its public API."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cassieq_spark.client import Client, QueueInfo, connect
from cassieq_spark.errors import (
    CassieqError,
    PutAmbiguous,
    QueueDeleted,
    QueueExists,
    QueueNotFound,
    ReceiptExpired,
    ReceiptInvalid,
    StoreError,
    StreamError,
    UsageError,
)
from cassieq_spark.options import QueueSettings
from cassieq_spark.queue.consumer import Consumer
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.inspect.hours import ScheduledHour
from cassieq_spark.queue.inspect.stats import QueueStats
from cassieq_spark.queue.message import Message
from cassieq_spark.queue.put.results import PutResult
from cassieq_spark.queue.settle.ack_group import Verdict
from cassieq_spark.queue.settle.counts import Settled
from cassieq_spark.repair.report import Redriven, RepairReport
from cassieq_spark.repair.verify import VerifyReport

if TYPE_CHECKING:
    from cassieq_spark.spark.connector.config import spark_config
    from cassieq_spark.spark.connector.writer import foreach_batch
    from cassieq_spark.spark.data_source import register
    from cassieq_spark.spark.jobs.settle_frame import settle
    from cassieq_spark.spark.listener import CassieqListener

__version__ = "0.1.0"

__all__ = [
    "CassieqError",
    "CassieqListener",
    "Client",
    "Consumer",
    "Message",
    "PutAmbiguous",
    "PutResult",
    "Queue",
    "QueueDeleted",
    "QueueExists",
    "QueueInfo",
    "QueueNotFound",
    "QueueSettings",
    "QueueStats",
    "ReceiptExpired",
    "ReceiptInvalid",
    "Redriven",
    "RepairReport",
    "ScheduledHour",
    "Settled",
    "StoreError",
    "StreamError",
    "UsageError",
    "Verdict",
    "VerifyReport",
    "connect",
    "foreach_batch",
    "register",
    "settle",
    "spark_config",
]


_OF_SPARK = {
    "CassieqListener": "cassieq_spark.spark.listener",
    "foreach_batch": "cassieq_spark.spark.connector.writer",
    "register": "cassieq_spark.spark.data_source",
    "settle": "cassieq_spark.spark.jobs.settle_frame",
    "spark_config": "cassieq_spark.spark.connector.config",
}


if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        """Import names that need Spark on first use: a plain client never imports pyspark."""
        if name in _OF_SPARK:
            return getattr(import_module(_OF_SPARK[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
