"""`AsyncQueue` is a queue for asyncio: its calls are those of `Queue`, as coroutines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from math import inf
from typing import Any
from weakref import WeakSet

from cassieq_spark.aio.consumer import AsyncConsumer
from cassieq_spark.aio.crew import Caller, Crew, CrewSettings
from cassieq_spark.doors import awaited, documented
from cassieq_spark.model.backoff import DEFAULT_BACKOFF, Backoff
from cassieq_spark.options import QueueSettings, Seconds, arguments
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.keeping import Kept
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
    _fail = awaited(Queue._fail)  # noqa: SLF001 - the other door to the same queue

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
        ways = self._sync._ways(*asked)  # noqa: SLF001 - as above
        idle_s = None if idle_timeout is None else arguments.wait_s(idle_timeout, "idle_timeout")
        made = AsyncConsumer(ways, idle_timeout_s=idle_s)
        self._consumers.add(made)
        return made

    async def work(
        self,
        function: Callable[[Delivery], object],
        *,
        concurrency: int = 10,
        prefetch: int | None = None,
        visibility_timeout: Seconds | None = None,
        idle_timeout: Seconds | None = None,
        grace: Seconds = 30,
        min_priority: int = 0,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        """Call a coroutine function for each message, for several side by side in this event loop.

        A message is acked when the function has returned, and given back with the delay of the
        backoff when it raises an error; `Retry` and `Reject` are carried out. Its lease is renewed
        meanwhile.

        A cancel begins the stop: nothing more is claimed, and what waits is given back. Functions
        have the grace time to end; then, or at a second cancel, they are cancelled and waited for,
        and their messages are given back.

        Args:
            function: An ``async def`` of one message, or a `Worker`.
            concurrency: The number of messages that are worked on at once.
            prefetch: How many messages wait here, hidden from others. Default: twice that number.
            visibility_timeout: The length of a lease. Default: the queue's.
            idle_timeout: Return when no message came for this long. Default: never.
            grace: Seconds or timedelta for which functions may go on after a cancel.
            min_priority: As for `get`.

        Raises:
            OptionInvalid: An argument has a wrong form.
            QueueDeleted: The queue is gone.
            StoreError: At the end: acks could not be stored, so their messages come again.
        """
        many = arguments.count("concurrency", concurrency)
        given_us = (
            None if visibility_timeout is None else arguments.visibility_us(visibility_timeout)
        )
        settings = CrewSettings(
            prefetch=2 * many if prefetch is None else prefetch,
            visibility_s=None if given_us is None else given_us / 1e6,
            grace_s=arguments.wait_s(grace, "grace"),
            idle_s=inf if idle_timeout is None else arguments.wait_s(idle_timeout, "idle_timeout"),
            min_priority=min_priority,
            backoff=backoff,
        )
        await Crew(self, [Caller(function)] * many, settings).run()

    @documented(Queue.process)
    def process(
        self, message: Delivery, *, backoff: Backoff = DEFAULT_BACKOFF
    ) -> AbstractAsyncContextManager[object]:
        made: Any = self._sync.process(message, backoff=backoff)  # a block of both kinds
        return made  # type: ignore[no-any-return]  # as above

    def _kept(self, message: Delivery, visibility_s: float) -> Kept:
        return Kept(self._sync._lane, message, visibility_s)  # noqa: SLF001 - as above

    def __repr__(self) -> str:
        """Show the queue's name."""
        return f"AsyncQueue({self.name!r})"
