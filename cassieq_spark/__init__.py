"""A work queue on Apache Cassandra, for Python programs and for Apache Spark.

Each message goes to one worker, comes back if that worker dies, and is gone when it is acked:

    import cassieq_spark as cassieq

    with cassieq.connect("127.0.0.1:9042", keyspace="cassieq") as client:
        client.bootstrap()                      # once: creates the tables
        queue = client.create_queue("orders")   # or opens the one that is there
        queue.put(b"one order")
        for message in queue.get(10, wait=5):   # leased: nobody else gets them for a while
            print(message.body)
            queue.ack(message)

Where each part is:

    connect, connect_async      open a `Client`, or an `AsyncClient` with the same calls for asyncio
    Client                      makes, finds and deletes queues; repair, dead letters
    Queue                       put, get, ack, extend, release, reject, peek, stats
    Consumer                    iterates over messages, with prefetch and grouped acks
    Delivery, Message           what a get returns, and what a look shows
    QueueSettings, QueueStats, RepairReport, ...    what calls return
    CassieqError and others     what they raise; each has a `code`, and says what to do
    register, settle, ...       for Spark: ``spark.readStream.format("cassieq")``

``cassieq --help`` shows the commands, which do the same from a shell.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

__version__: str

if TYPE_CHECKING:
    from cassieq_spark.api import *  # noqa: F403 - the table of names
else:  # a type checker would take any name for one of these

    def _homes() -> dict[str, str]:
        """Return the module of each public name.

        The table's code runs with an ``import`` that takes notes, and imports nothing.
        """
        homes: dict[str, str] = {}

        def note(home: str, _globals: Any, _locals: Any, names: tuple[str, ...], *_: int) -> Any:
            homes.update(dict.fromkeys(names, home))
            return SimpleNamespace(**dict.fromkeys(names))

        table = find_spec(f"{__name__}.api")
        exec(table.loader.get_code(table.name), {"__builtins__": {"__import__": note}})  # noqa: S102 - our own
        return homes

    _HOMES = _homes()

    __all__ = list(_HOMES)

    def __getattr__(name: str) -> Any:
        """Import a name on first use: a process pays only for what it uses (PEP 562).

        Spark's Python workers import this package with every task's first module, and a program
        that only puts has no PySpark at all.
        """
        if name in _HOMES:
            found = getattr(import_module(_HOMES[name]), name)
        elif name == "__version__":
            found = import_module(f"{__name__}.version").find()
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        """The public names, and none that only this module uses."""
        return sorted(
            {*__all__, "__version__", *(name for name in globals() if name.startswith("__"))}
        )
