"""cassieq_spark: a work queue on Apache Cassandra, run by Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cassieq_spark.client import Client, QueueInfo, connect
from cassieq_spark.errors import (
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
    UsageError,
    WorkerEnvironment,
)
from cassieq_spark.options import QueueSettings
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.look import QueueStats

if TYPE_CHECKING:
    from cassieq_spark.spark.data_source import register

__version__ = "0.1.0"

__all__ = [
    "BodyInvalid",
    "CasAmbiguous",
    "CasContention",
    "CassieqError",
    "Client",
    "DataLoss",
    "EmbeddedFailed",
    "EnvironmentProblem",
    "JavaNotFound",
    "LeaderLost",
    "LeaseLost",
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
    "UsageError",
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
