"""`AsyncQueue` is a queue for asyncio: the calls of `Queue`, each to be awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from cassieq_spark.aio.calls import Calls
from cassieq_spark.aio.consumer import AsyncConsumer
from cassieq_spark.aio.mirror import documented, in_thread, in_thread_then
from cassieq_spark.aio.waiting import Waiting
from cassieq_spark.options import QueueSettings, arguments
from cassieq_spark.queue.consumer import Consumer
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.message import Message
from cassieq_spark.queue.put.results import PutResult
from cassieq_spark.store.process import OfOneProcess

Seconds = float | timedelta

T = TypeVar("T")


class OnHandle:
    """Makes the calls of `Waiting` with one handle, also while the client closes."""

    def __init__(self, calls: Calls, queue: Queue) -> None:
        self._calls = calls
        self._queue = queue

    async def on_queue(self, name: str, work: Callable[[Queue], T]) -> T:  # noqa: ARG002 - protocol
        """Run it in a thread."""
        return await self._calls.pool.run(lambda: work(self._queue))


def _was_put(queue: AsyncQueue, found: T) -> T:
    """Whoever waits for messages here need not wait for the next look."""
    queue._waiting.put(queue.name)  # noqa: SLF001 - its own
    return found


class AsyncQueue(OfOneProcess):
    """One queue, for the tasks of one event loop. Each call is that of `Queue`, to be awaited.

    A call that is cancelled before a thread has begun with it does nothing. One that has begun goes
    on: a put may be stored, an ack may have taken effect; the `asyncio.CancelledError` then has a
    note that says so. A `get` that is cancelled keeps no message.
    """

    def __init__(self, calls: Calls, queue: Queue, waiting: Waiting) -> None:
        self._calls = calls
        self._sync = queue
        self._waiting = waiting

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
        """The queue's labels, as old as its settings."""
        return self._sync.labels

    @property
    def created_at(self) -> datetime:
        """When the queue was created, UTC."""
        return self._sync.created_at

    ack = in_thread(Queue.ack)
    ack_each = in_thread(Queue.ack_each)
    cancel = in_thread(Queue.cancel)
    delete = in_thread(Queue.delete)
    extend = in_thread(Queue.extend)
    peek = in_thread(Queue.peek)
    purge = in_thread(Queue.purge)
    reject = in_thread(Queue.reject)
    release = in_thread(Queue.release)
    scheduled = in_thread(Queue.scheduled)
    stats = in_thread(Queue.stats)
    update = in_thread(Queue.update)
    put = in_thread_then(Queue.put, _was_put)

    if TYPE_CHECKING:  # a decorator keeps the first of two overloads only

        @overload
        async def put_many(
            self,
            bodies: Iterable[bytes],
            *,
            priority: int | Sequence[int] = 0,
            key: str | None = None,
            delay: Seconds | Sequence[Seconds] = 0,
            due_at: datetime | None = None,
            ttl: Seconds | None = None,
            tag: str | None = None,
            headers: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = None,
            group: str | Sequence[str | None] | None = None,
            message_ids: Sequence[UUID | str | None] | None = None,
            dedup_keys: None = None,
        ) -> list[str]: ...

        @overload
        async def put_many(
            self,
            bodies: Iterable[bytes],
            *,
            priority: int | Sequence[int] = 0,
            key: str | None = None,
            delay: Seconds | Sequence[Seconds] = 0,
            due_at: datetime | None = None,
            ttl: Seconds | None = None,
            tag: str | None = None,
            headers: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = None,
            group: str | Sequence[str | None] | None = None,
            message_ids: Sequence[UUID | str | None] | None = None,
            dedup_keys: Sequence[str | None],
        ) -> list[PutResult]: ...

        async def put_many(self, bodies: Iterable[bytes], **more: Any) -> Any: ...

    else:
        put_many = in_thread_then(Queue.put_many, _was_put)

    @documented(Queue.get)
    async def get(
        self,
        max_messages: int = 10,
        *,
        visibility_timeout: Seconds | None = None,
        wait: Seconds = 0,
        consumer: str | None = None,
        priority_at_least: int = 0,
    ) -> list[Message]:
        self._calls.check()
        visibility_us = (
            None if visibility_timeout is None else arguments.visibility_us(visibility_timeout)
        )
        return await self._waiting.receive(
            self.name,
            at_most=arguments.count("max_messages", max_messages),
            visibility_s=None if visibility_us is None else visibility_us / 1e6,
            wait_s=arguments.wait_s(wait),
            consumer=None if consumer is None else arguments.consumer(consumer),
            priority_at_least=arguments.priority(
                "priority_at_least", priority_at_least, self.settings.priorities
            ),
        )

    @documented(Queue.consumer)
    def consumer(
        self,
        *,
        prefetch: int = 100,
        visibility_timeout: Seconds | None = None,
        idle_timeout: Seconds | None = None,
        consumer: str | None = None,
        priority_at_least: int = 0,
    ) -> AsyncConsumer:
        def make() -> Consumer:
            return self._sync.consumer(
                prefetch=prefetch,
                visibility_timeout=visibility_timeout,
                idle_timeout=idle_timeout,
                consumer=consumer,
                priority_at_least=priority_at_least,
            )

        idle_s = None if idle_timeout is None else arguments.wait_s(idle_timeout, "idle_timeout")
        made = AsyncConsumer(self._calls, self._sync, make, idle_s)
        self._calls.consumers.add(made)
        return made

    def __repr__(self) -> str:
        """Show the queue's name."""
        return f"AsyncQueue({self.name!r})"
