"""cassieq_spark is a work queue on Apache Cassandra, read by Spark. This is its public API."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a type checker exports what is imported as itself
    from cassieq_spark.aio.client import AsyncClient as AsyncClient
    from cassieq_spark.aio.consumer import AsyncConsumer as AsyncConsumer
    from cassieq_spark.aio.queue import AsyncQueue as AsyncQueue
    from cassieq_spark.client import Client as Client
    from cassieq_spark.connecting import connect as connect
    from cassieq_spark.connecting import connect_async as connect_async
    from cassieq_spark.errors import CassieqError as CassieqError
    from cassieq_spark.errors import PutAmbiguous as PutAmbiguous
    from cassieq_spark.errors import QueueDeleted as QueueDeleted
    from cassieq_spark.errors import QueueExists as QueueExists
    from cassieq_spark.errors import QueueNotFound as QueueNotFound
    from cassieq_spark.errors import ReceiptExpired as ReceiptExpired
    from cassieq_spark.errors import ReceiptInvalid as ReceiptInvalid
    from cassieq_spark.errors import StoreError as StoreError
    from cassieq_spark.errors import StreamError as StreamError
    from cassieq_spark.errors import UsageError as UsageError
    from cassieq_spark.options import QueueSettings as QueueSettings
    from cassieq_spark.queue.consumer import Consumer as Consumer
    from cassieq_spark.queue.find import QueueInfo as QueueInfo
    from cassieq_spark.queue.handle import Queue as Queue
    from cassieq_spark.queue.inspect.stats import QueueStats as QueueStats
    from cassieq_spark.queue.inspect.stats import ScheduledHour as ScheduledHour
    from cassieq_spark.queue.message import Message as Message
    from cassieq_spark.queue.put.results import PutResult as PutResult
    from cassieq_spark.queue.settle.batches import Settled as Settled
    from cassieq_spark.queue.settle.settle import AckResult as AckResult
    from cassieq_spark.repair.report import Progress as Progress
    from cassieq_spark.repair.report import Redriven as Redriven
    from cassieq_spark.repair.report import RepairReport as RepairReport
    from cassieq_spark.repair.report import VerifyReport as VerifyReport
    from cassieq_spark.spark.connector.config import spark_config as spark_config
    from cassieq_spark.spark.connector.writer import foreach_batch as foreach_batch
    from cassieq_spark.spark.data_source import register as register
    from cassieq_spark.spark.jobs.settle_frame import settle as settle
    from cassieq_spark.spark.listener import CassieqListener as CassieqListener

__version__: str

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
    "queue.settle.settle": ("AckResult",),
    "repair.report": ("Progress", "Redriven", "RepairReport", "VerifyReport"),
    "spark.connector.config": ("spark_config",),
    "spark.connector.writer": ("foreach_batch",),
    "spark.data_source": ("register",),
    "spark.jobs.settle_frame": ("settle",),
    "spark.listener": ("CassieqListener",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = list(_HOME_OF)


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
        if name == "__version__":
            globals()[name] = found = import_module(f"{__name__}.version").find()
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, and none that only this module uses."""
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})
