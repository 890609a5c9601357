"""`AsyncConsumer` is the asyncio counterpart of `Consumer`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Self

from cassieq_spark.doors import documented
from cassieq_spark.errors import UsageError
from cassieq_spark.options import arguments
from cassieq_spark.queue.consumer import Ahead, Consumer, ConsumerContext
from cassieq_spark.queue.message import Delivery
from cassieq_spark.store import portal
from cassieq_spark.store.process import OfOneProcess


class AsyncConsumer(OfOneProcess):
    """Messages of one queue, prefetched and acked in groups. Tasks of any event loop may share it.

    Use it in an ``async with`` block, as `Consumer` in a ``with`` block, and iterate over it with
    ``async for``. Several tasks that iterate over it get different messages. A `get` that is
    cancelled keeps no message.
    """

    def __init__(self, ways: ConsumerContext, *, idle_timeout_s: float | None) -> None:
        self._ways = ways
        self._idle_timeout_s = idle_timeout_s
        self._ahead: Ahead | None = None

    @property
    def stale(self) -> int:
        """The number of acks that changed nothing: they came too late, or named no real message."""
        return self._begun.acks.stale

    @documented(Consumer.get)
    async def get(self, wait: float | timedelta | None = None) -> Delivery | None:
        return await self._get(None if wait is None else arguments.wait_s(wait))

    def __aiter__(self) -> Self:
        """Yield messages until none came for ``idle_timeout``, or the consumer was closed."""
        return self

    async def __anext__(self) -> Delivery:
        """Return the next message."""
        message = await self._get(self._idle_timeout_s)
        if message is None:
            raise StopAsyncIteration
        return message

    @documented(Consumer.ack)
    async def ack(self, messages: Delivery | str | Iterable[Delivery | str]) -> None:
        self._begun.acks.add(self._ways.receipts(messages))  # does not block

    @documented(Consumer.flush)
    async def flush(self) -> None:
        await portal.asked(self._begun.acks.flush())

    async def close(self) -> None:
        """Store the acks, and give back messages that were not handed out. Idempotent.

        Raises:
            StoreError: Acks or releases failed. The messages come back when their leases run out.
        """
        if self._ahead is not None and self._ahead.home.is_here:
            await portal.asked(self._ahead.close())

    async def __aenter__(self) -> Self:
        """Start to get messages.

        Raises:
            OptionInvalid: An argument of `AsyncQueue.consumer` has a wrong form.
            QueueDeleted: The queue is gone.
            UsageError: The consumer was entered before.
        """
        if self._ahead is not None:
            raise UsageError(
                "a consumer works in one block only. Make another one with queue.consumer()"
            )
        self._ahead = Ahead(self._ways, await portal.asked(self._ways.lane()))
        self._ahead.begin()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close; see `close`."""
        await self.close()

    def __repr__(self) -> str:
        """Show the queue that it gets from."""
        return f"AsyncConsumer({self._ways.queue!r})"

    @property
    def _is_closed(self) -> bool:
        return self._begun.shelf.is_closed

    @property
    def _begun(self) -> Ahead:
        if self._ahead is None:
            raise UsageError(
                "a consumer works only inside its block. Write: async with queue.consumer() as "
                "consumer: ..."
            )
        self._ahead.home.check()
        return self._ahead

    async def _get(self, wait_s: float | None) -> Delivery | None:
        ahead = self._begun
        # Without this, a task whose messages are all here at once would hold up the other tasks of
        # its event loop.
        await asyncio.sleep(0)
        deadline = ahead.deadline(wait_s)
        while True:
            held = ahead.shelf.take() or await portal.asked(ahead.next(deadline))
            if held is None or ahead.shelf.taken(held):
                return None if held is None else held.message
