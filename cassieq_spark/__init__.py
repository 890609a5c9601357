"""cassieq_spark: a work queue on Apache Cassandra, run by Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cassieq_spark.client import Client, QueueInfo, connect
from cassieq_spark.errors import (
    AuthenticationRefused,
    BodyInvalid,
    CasAmbiguous,
    CasContention,
    CassieqError,
    ConnectorMissing,
    DataLoss,
    EmbeddedFailed,
    EnvironmentProblem,
    JavaNotFound,
    LeaderLost,
    LeaseLost,
    OffsetUnreadable,
    OptionInvalid,
    OptionUnknown,
    OutputFailed,
    PutAmbiguous,
    QueueDeleted,
    QueueError,
    QueueExists,
    QueueNotFound,
    ReceiptError,
    ReceiptExpired,
    ReceiptInvalid,
    RepairError,
    ReplicationDiffers,
    RowCorrupt,
    SchemaMismatch,
    SchemaMissing,
    SinkDiverged,
    SinkFenced,
    SinkIdReused,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    StreamError,
    StreamFenced,
    TlsFailed,
    UsageError,
    WorkerEnvironment,
)
from cassieq_spark.options import QueueSettings
from cassieq_spark.queue.consumer import Consumer
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.look import QueueStats
from cassieq_spark.queue.message import Message
from cassieq_spark.queue.rulings import Settled
from cassieq_spark.queue.verdict import Verdict
from cassieq_spark.repair.report import Redriven

if TYPE_CHECKING:
    from cassieq_spark.spark.config import spark_config
    from cassieq_spark.spark.connector import foreach_batch
    from cassieq_spark.spark.data_source import register
    from cassieq_spark.spark.listener import CassieqListener
    from cassieq_spark.spark.settle import settle

__version__ = "0.1.0"

__all__ = [
    "AuthenticationRefused",
    "BodyInvalid",
    "CasAmbiguous",
    "CasContention",
    "CassieqError",
    "CassieqListener",
    "Client",
    "ConnectorMissing",
    "Consumer",
    "DataLoss",
    "EmbeddedFailed",
    "EnvironmentProblem",
    "JavaNotFound",
    "LeaderLost",
    "LeaseLost",
    "Message",
    "OffsetUnreadable",
    "OptionInvalid",
    "OptionUnknown",
    "OutputFailed",
    "PutAmbiguous",
    "Queue",
    "QueueDeleted",
    "QueueError",
    "QueueExists",
    "QueueInfo",
    "QueueNotFound",
    "QueueSettings",
    "QueueStats",
    "ReceiptError",
    "ReceiptExpired",
    "ReceiptInvalid",
    "Redriven",
    "RepairError",
    "ReplicationDiffers",
    "RowCorrupt",
    "SchemaMismatch",
    "SchemaMissing",
    "Settled",
    "SinkDiverged",
    "SinkFenced",
    "SinkIdReused",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "StreamError",
    "StreamFenced",
    "TlsFailed",
    "UsageError",
    "Verdict",
    "WorkerEnvironment",
    "connect",
    "foreach_batch",
    "register",
    "settle",
    "spark_config",
]


_OF_SPARK = {
    "CassieqListener": "cassieq_spark.spark.listener",
    "foreach_batch": "cassieq_spark.spark.connector",
    "register": "cassieq_spark.spark.data_source",
    "settle": "cassieq_spark.spark.settle",
    "spark_config": "cassieq_spark.spark.config",
}


def __getattr__(name: str) -> Any:
    """Spark's names are looked up when they are used: a plain client never imports pyspark."""
    if name in _OF_SPARK:
        return getattr(import_module(_OF_SPARK[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
