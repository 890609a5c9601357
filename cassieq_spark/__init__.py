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
    Schedules                   put messages again and again, by `Client.schedules`
    Consumer                    iterates over messages, with prefetch and grouped acks
    Delivery, Message           what a get returns, and what a look shows
    QueueSettings, QueueStats, RepairReport, ...    what calls return
    QueueArguments, Seconds, ...                    what they take, for annotations
    CassieqError and others     what they raise; each has a `code`, and says what to do
    cassieq_spark.errors        all errors
    cassieq_spark.spark         for Spark: ``spark.readStream.format("cassieq")``, register, settle
    cassieq_spark.testing       a Cassandra node and a clock, for tests of your programs
    cassieq_spark.metrics       counters of this process, by `snapshot`

``cassieq --help`` shows the commands, which do the same from a shell.

The names above, what these four modules export and the documented commands are public. Every other
module is private, whatever its name, and may change in any release. So is every name that begins
with an underscore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.lazy import offer as _offer

__version__: str

if TYPE_CHECKING:
    from cassieq_spark.api import *  # noqa: F403 - the table of names
else:  # a type checker would take any name for one of these
    __getattr__, __dir__, __all__ = _offer(__name__, __version__="cassieq_spark.version")
