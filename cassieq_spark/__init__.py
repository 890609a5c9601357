"""cassieq_spark is a work queue on Apache Cassandra, read by Spark. This is its public API."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cassieq_spark.interpreter import name_for_spark

if TYPE_CHECKING:
    from cassieq_spark.aio.client import AsyncClient
    from cassieq_spark.aio.consumer import AsyncConsumer
    from cassieq_spark.aio.queue import AsyncQueue
    from cassieq_spark.client import Client
    from cassieq_spark.connecting import connect, connect_async
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
    from cassieq_spark.queue.find import QueueInfo
    from cassieq_spark.queue.handle import Queue
    from cassieq_spark.queue.inspect.stats import QueueStats, ScheduledHour
    from cassieq_spark.queue.message import Message
    from cassieq_spark.queue.put.results import PutResult
    from cassieq_spark.queue.settle.batches import Settled
    from cassieq_spark.queue.settle.settle import Verdict
    from cassieq_spark.repair.report import Progress, Redriven, RepairReport, VerifyReport
    from cassieq_spark.spark.connector.config import spark_config
    from cassieq_spark.spark.connector.writer import foreach_batch
    from cassieq_spark.spark.data_source import register
    from cassieq_spark.spark.jobs.settle_frame import settle
    from cassieq_spark.spark.listener import CassieqListener

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncQueue",
    "CassieqError",
    "CassieqListener",
    "Client",
    "Consumer",
    "Message",
    "Progress",
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
    "connect_async",
    "foreach_batch",
    "register",
    "settle",
    "spark_config",
]


_HOMES = {
    "aio.client": ("AsyncClient",),
    "aio.consumer": ("AsyncConsumer",),
    "aio.queue": ("AsyncQueue",),
    "client": ("Client",),
    "connecting": ("connect", "connect_async"),
    "errors": (
        "CassieqError",
        "PutAmbiguous",
        "QueueDeleted",
        "QueueExists",
        "QueueNotFound",
        "ReceiptExpired",
        "ReceiptInvalid",
        "StoreError",
        "StreamError",
        "UsageError",
    ),
    "options": ("QueueSettings",),
    "queue.consumer": ("Consumer",),
    "queue.find": ("QueueInfo",),
    "queue.handle": ("Queue",),
    "queue.inspect.stats": ("QueueStats", "ScheduledHour"),
    "queue.message": ("Message",),
    "queue.put.results": ("PutResult",),
    "queue.settle.batches": ("Settled",),
    "queue.settle.settle": ("Verdict",),
    "repair.report": ("Progress", "Redriven", "RepairReport", "VerifyReport"),
    "spark.connector.config": ("spark_config",),
    "spark.connector.writer": ("foreach_batch",),
    "spark.data_source": ("register",),
    "spark.jobs.settle_frame": ("settle",),
    "spark.listener": ("CassieqListener",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        """Import a name on first use: a process pays only for what it uses (PEP 562).

        Spark's Python workers import this package with every task's first module, and a program
        that only puts has no PySpark at all.
        """
        if name in _HOME_OF:
            found = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
            globals()[name] = found
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


name_for_spark()


def __dir__() -> list[str]:
    """The public names, and none that only this module uses."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
