"""`AsyncClient` has the calls of `Client` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Self, Unpack
from weakref import WeakSet

from cassieq_spark.aio.consumer import AsyncConsumer
from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.aio.schedules import AsyncSchedules
from cassieq_spark.client import Client
from cassieq_spark.clock import SystemClock
from cassieq_spark.doors import awaited, documented
from cassieq_spark.errors import CassieqError, UsageError
from cassieq_spark.options import ConnectionOptions, QueueArguments
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.message import Message
from cassieq_spark.store import caller, portal
from cassieq_spark.store.process import Home, OfOneProcess


class AsyncClient(OfOneProcess):
    """The queues of one keyspace, for tasks of any event loop. Its calls are those of `Client`.

    Any number of tasks may share it. `AsyncQueue` describes what a cancelled call does.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        """Keep the options; `__aenter__` connects. See `connect_async`."""
        self._options = ConnectionOptions.needed(options)
        self._home = Home(SystemClock())
        self._client: Client | None = None
        self._was_entered = False
        self._is_shared = False
        self._consumers: WeakSet[AsyncConsumer] = WeakSet()

    @property
    def datacenter(self) -> str:
        """The local data centre. Queues with another home cannot be read from here."""
        return self._sync.datacenter

    @property
    def keyspace(self) -> str:
        """The keyspace that the client works in."""
        return self._sync.keyspace

    @property
    def schedules(self) -> AsyncSchedules:
        """The schedules, which put messages again and again."""
        return AsyncSchedules(self._sync.schedules)

    bootstrap = awaited(Client.bootstrap)
    check = awaited(Client.check)
    delete_queue = awaited(Client.delete_queue)
    forget_sink = awaited(Client.forget_sink)
    queues = awaited(Client.queues)
    redrive = awaited(Client.redrive)
    repair = awaited(Client.repair)
    repair_as_leader = awaited(Client.repair_as_leader)
    verify = awaited(Client.verify)
    _alter_queue = awaited(Client.alter_queue)
    _find_or_create_queue = awaited(Client.find_or_create_queue)
    _label_queue = awaited(Client.label_queue)
    _find_queue = awaited(Client.queue)

    @documented(Client.alter_queue)
    async def alter_queue(self, /, name: str, **settings: Unpack[QueueArguments]) -> AsyncQueue:
        return self._opened(await self._alter_queue(name, **settings))

    @documented(Client.create_queue)
    async def create_queue(
        self,
        /,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        **settings: Unpack[QueueArguments],
    ) -> AsyncQueue:
        return (await self.find_or_create_queue(name, labels=labels, **settings))[0]

    @documented(Client.find_or_create_queue)
    async def find_or_create_queue(
        self,
        /,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        **settings: Unpack[QueueArguments],
    ) -> tuple[AsyncQueue, bool]:
        queue, is_new = await self._find_or_create_queue(name, labels=labels, **settings)
        return self._opened(queue), is_new

    @documented(Client.label_queue)
    async def label_queue(self, name: str, labels: Mapping[str, str | None]) -> AsyncQueue:
        return self._opened(await self._label_queue(name, labels))

    @documented(Client.queue)
    async def queue(self, name: str) -> AsyncQueue:
        return self._opened(await self._find_queue(name))

    @documented(Client.now_us)
    async def now_us(self) -> int:
        return await asyncio.to_thread(self._sync.now_us)

    @documented(Client.browse)
    async def browse(self, queue: str) -> AsyncIterator[Message]:
        found = await portal.asked(self._sync._browsing(queue))  # noqa: SLF001 - its own
        async for message in portal.iterate_asked(found):
            yield message

    async def close(self) -> None:
        """Wait for running calls, give back messages that nobody gets, and disconnect. Idempotent.

        Calls that wait for messages return none. The acks of consumers are stored.
        """
        client = self._client
        if client is None or not self._home.is_here:
            return
        for consumer in list(self._consumers):
            with suppress(CassieqError):  # logged; the consumer's own block also raises it
                await consumer.close()
        if not self._is_shared:
            await asyncio.to_thread(client.close)

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            CassandraLoginFailed, TlsFailed, StoreUnavailable: As `connect`.
            UsageError: The client was entered before.
        """
        if self._was_entered:
            raise UsageError(
                "a client works in one block only. Make another one with connect_async()"
            )
        self._was_entered = True
        if self._client is None:
            self._client = await portal.asked(connected(partial(Client, self._options)))
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close; see `close`."""
        await self.close()

    def __repr__(self) -> str:
        """Show where it connects to."""
        return f"AsyncClient({self._options})"

    @property
    def _sync(self) -> Client:
        if self._client is None:
            raise UsageError(
                "a client for asyncio works inside its block. Write: async with "
                "cassieq.connect_async(...) as client: ..."
            )
        return self._client

    def _opened(self, queue: Queue) -> AsyncQueue:
        return AsyncQueue(queue, self._consumers)


def for_tasks(client: Client) -> AsyncClient:
    """Return an asyncio client that shares the connection of a connected client, and ends with it.

    Its own close, or the end of its block, ends its consumers.
    """
    made = AsyncClient(client._session.options)  # noqa: SLF001 - of one package
    made._client, made._is_shared = client, True  # noqa: SLF001 - of the instance made above
    return made


async def connected(connect: Callable[[], Client]) -> Client:
    """Connect in a thread, because the driver blocks. Disconnect again if the caller has left."""

    async def disconnect(client: Client) -> None:
        await caller.in_a_thread(client.close)

    caller.if_left(disconnect)
    return await caller.in_a_thread(connect)
