"""`AsyncQueue` is a queue for asyncio: its calls are those of `Queue`, as coroutines."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from weakref import WeakSet

from cassieq_spark.aio.consumer import AsyncConsumer
from cassieq_spark.doors import awaited, documented
from cassieq_spark.model.backoff import DEFAULT_BACKOFF, Backoff
from cassieq_spark.options import QueueSettings, Seconds, arguments
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.message import Delivery
from cassieq_spark.store.process import OfOneProcess


class AsyncQueue(OfOneProcess):
    """Handle to a queue, for tasks of any event loop. It has the calls of `Queue`, as coroutines.

    A call that is cancelled goes on to its end: a put may be stored, and an ack may have taken
    effect. The `asyncio.CancelledError` then has a note that says so. A `get` that is cancelled
    keeps no message.
    """

    def __init__(self, queue: Queue, consumers: WeakSet[AsyncConsumer]) -> None:
        self._sync = queue
        self._consumers = consumers

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._sync.name

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings, at most a few seconds old while the queue is used."""
        return self._sync.settings

    @property
    def labels(self) -> Mapping[str, str]:
        """The queue's labels. They are as old as its settings."""
        return self._sync.labels

    @property
    def created_at(self) -> datetime:
        """The time when the queue was created, UTC."""
        return self._sync.created_at

    ack = awaited(Queue.ack)
    ack_each = awaited(Queue.ack_each)
    cancel = awaited(Queue.cancel)
    delete = awaited(Queue.delete)
    extend = awaited(Queue.extend)
    pause = awaited(Queue.pause)
    paused = awaited(Queue.paused)
    peek = awaited(Queue.peek)
    purge = awaited(Queue.purge)
    reject = awaited(Queue.reject)
    release = awaited(Queue.release)
    resume = awaited(Queue.resume)
    scheduled = awaited(Queue.scheduled)
    stats = awaited(Queue.stats)
    update = awaited(Queue.update)
    put = awaited(Queue.put)
    get = awaited(Queue.get)
    put_many = awaited(Queue.put_many)

    @documented(Queue.consumer)
    def consumer(
        self,
        *,
        prefetch: int = 100,
        visibility_timeout: Seconds | None = None,
        idle_timeout: Seconds | None = None,
        name: str | None = None,
        min_priority: int = 0,
    ) -> AsyncConsumer:
        asked = prefetch, visibility_timeout, name, min_priority
        ways = self._sync._ways(*asked)  # noqa: SLF001 - the other door to the same queue
        idle_s = None if idle_timeout is None else arguments.wait_s(idle_timeout, "idle_timeout")
        made = AsyncConsumer(ways, idle_timeout_s=idle_s)
        self._consumers.add(made)
        return made

    @documented(Queue.process)
    def process(
        self, message: Delivery, *, backoff: Backoff = DEFAULT_BACKOFF
    ) -> AbstractAsyncContextManager[object]:
        return self._sync._processing(message, backoff)  # noqa: SLF001 - as above

    def __repr__(self) -> str:
        """Show the queue's name."""
        return f"AsyncQueue({self.name!r})"
