"""`AsyncClient` has the calls of `Client` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Self
from weakref import WeakSet

from cassieq_spark.aio.calls import Calls
from cassieq_spark.aio.mirror import documented, in_thread
from cassieq_spark.aio.queue import AsyncQueue, OnHandle
from cassieq_spark.aio.waiting import Waiting
from cassieq_spark.client import Client
from cassieq_spark.errors import CassieqError, UsageError
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.options.arguments import MOST_MESSAGES
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.message import Message
from cassieq_spark.store.process import OfOneProcess

BROWSED_AT_ONCE: Final = 100


class AsyncClient(OfOneProcess):
    """The queues of one keyspace, for the tasks of one event loop. Each call is that of `Client`.

    It is the same engine in threads. Any number of tasks may share it; see `AsyncQueue` for what a
    cancelled call does.
    """

    def __init__(self, options: ConnectionOptions, *, threads: int) -> None:
        """See `connect_async`."""
        self._options = options
        self._calls = Calls(threads)
        self._client: Client | None = None
        self._polls: WeakSet[Waiting] = WeakSet()

    @property
    def datacenter(self) -> str:
        """The local data centre. Queues whose home is another one cannot be read from here."""
        return self._sync.datacenter

    @property
    def keyspace(self) -> str:
        """The keyspace whose queues these are."""
        return self._sync.keyspace

    bootstrap = in_thread(Client.bootstrap)
    check = in_thread(Client.check)
    delete_queue = in_thread(Client.delete_queue)
    forget_sink = in_thread(Client.forget_sink)
    now_us = in_thread(Client.now_us)
    queues = in_thread(Client.queues)
    redrive = in_thread(Client.redrive)
    repair = in_thread(Client.repair)
    repair_as_leader = in_thread(Client.repair_as_leader)
    verify = in_thread(Client.verify)

    @documented(Client.alter_queue)
    async def alter_queue(self, name: str, **settings: Any) -> AsyncQueue:
        return self._queue(
            await self._calls.run("alter_queue", lambda: self._sync.alter_queue(name, **settings))
        )

    @documented(Client.create_queue)
    async def create_queue(
        self, name: str, *, labels: Mapping[str, str] | None = None, **settings: Any
    ) -> AsyncQueue:
        return (await self.find_or_create_queue(name, labels=labels, **settings))[0]

    @documented(Client.find_or_create_queue)
    async def find_or_create_queue(
        self, name: str, *, labels: Mapping[str, str] | None = None, **settings: Any
    ) -> tuple[AsyncQueue, bool]:
        queue, is_new = await self._calls.run(
            "create_queue",
            lambda: self._sync.find_or_create_queue(name, labels=labels, **settings),
        )
        return self._queue(queue), is_new

    @documented(Client.label_queue)
    async def label_queue(self, name: str, labels: Mapping[str, str | None]) -> AsyncQueue:
        return self._queue(
            await self._calls.run("label_queue", lambda: self._sync.label_queue(name, labels))
        )

    @documented(Client.queue)
    async def queue(self, name: str) -> AsyncQueue:
        return self._queue(await self._calls.run("queue", lambda: self._sync.queue(name)))

    @documented(Client.browse)
    async def browse(self, queue: str) -> AsyncIterator[Message]:
        found = await self._calls.run("browse", lambda: self._sync.browse(queue))
        while page := await self._calls.run("browse", lambda: list(islice(found, BROWSED_AT_ONCE))):
            for message in page:
                yield message

    async def close(self) -> None:
        """Wait for the calls under way, give back what nobody will see, and disconnect. Idempotent.

        Whoever waits for messages gets none. Acks of consumers are stored.
        """
        if self._calls.is_closing or self._client is None or not self._calls.home.is_here:
            return
        self._calls.check_place()
        self._calls.is_closing = True
        polls = list(self._polls)
        for waiting in polls:
            waiting.drain()
        for consumer in list(self._calls.consumers):
            with suppress(CassieqError):  # logged; its block, which is still open, raises it, too
                await consumer.close()
        for waiting in polls:
            await waiting.close()
        try:
            await asyncio.to_thread(self._client.close)
        finally:
            await self._calls.pool.join()

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            AuthenticationRefused, TlsFailed, StoreUnavailable: As `connect`.
            UsageError: It was entered before.
        """
        if self._client is not None or self._calls.is_closing:
            raise UsageError(
                "a client works in one block only. Make another one with connect_async()"
            )
        try:
            self._client = await self._calls.run(
                "connect_async", lambda: Client(self._options), undo=Client.close
            )
        except BaseException:
            self._calls.is_closing = True
            self._calls.pool.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close; see `close`."""
        await self.close()

    def __repr__(self) -> str:
        """Show what it connects to."""
        return f"AsyncClient({self._options})"

    @property
    def _sync(self) -> Client:
        if self._client is None:
            raise UsageError(
                "a client for asyncio works inside its block. Write: async with "
                "cassieq.connect_async(...) as client: ..."
            )
        return self._client

    def _queue(self, opened: Queue) -> AsyncQueue:
        """Handles of one queue share their long polls."""
        work = opened._work  # noqa: SLF001 - what its handles share
        waiting = work.polls
        if not isinstance(waiting, Waiting):
            waiting = work.polls = Waiting(
                OnHandle(self._calls, opened), consumer=None, most_at_once=MOST_MESSAGES
            )
            self._polls.add(waiting)
        return AsyncQueue(self._calls, opened, waiting)
