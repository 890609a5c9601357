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
    DataLoss,
    EmbeddedFailed,
    EnvironmentProblem,
    JavaNotFound,
    LeaderLost,
    LeaseLost,
    OffsetUnreadable,
    OptionInvalid,
    OptionUnknown,
    PutAmbiguous,
    QueueDeleted,
    QueueError,
    QueueExists,
    QueueNotFound,
    ReceiptError,
    ReceiptExpired,
    ReceiptInvalid,
    RepairError,
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
from cassieq_spark.queue.verdict import Verdict

if TYPE_CHECKING:
    from cassieq_spark.spark.data_source import register

__version__ = "0.1.0"

__all__ = [
    "AuthenticationRefused",
    "BodyInvalid",
    "CasAmbiguous",
    "CasContention",
    "CassieqError",
    "Client",
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
    "RepairError",
    "RowCorrupt",
    "SchemaMismatch",
    "SchemaMissing",
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
    "register",
]


_OF_SPARK = {"register": "cassieq_spark.spark.data_source"}


def __getattr__(name: str) -> Any:
    """Spark's names are looked up when they are used: a plain client never imports pyspark."""
    if name in _OF_SPARK:
        return getattr(import_module(_OF_SPARK[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
