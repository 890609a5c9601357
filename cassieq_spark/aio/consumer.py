"""`AsyncConsumer` hands out the messages of a `Consumer` to tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Final, Self

from cassieq_spark.aio.calls import Calls
from cassieq_spark.aio.mirror import documented
from cassieq_spark.aio.pool import Pool
from cassieq_spark.errors import CassieqError, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.options import arguments
from cassieq_spark.queue.consumer import Consumer
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.message import Message
from cassieq_spark.store.process import OfOneProcess

LOOK_S: Final = 1.0
"""How long a thread waits for a message before it looks whether somebody still wants one."""

_logger = get_logger("aio")


@dataclass(eq=False, slots=True)
class _Getter:
    answer: asyncio.Future[Message | None]
    deadline: float


class AsyncConsumer(OfOneProcess):
    """Messages of one queue, got ahead and acked in groups. Tasks of one event loop may share it.

    Use it in an ``async with`` block, as `Consumer` in a ``with`` block, and iterate over it with
    ``async for``: each of several tasks gets other messages. A `get` that is cancelled keeps no
    message.
    """

    def __init__(
        self, calls: Calls, queue: Queue, make: Callable[[], Consumer], idle_s: float | None
    ) -> None:
        self._calls = calls
        self._queue = queue
        self._make = make
        self._idle_s = idle_s
        self._consumer: Consumer | None = None
        self._is_closed = False
        self._getters: deque[_Getter] = deque()
        self._puller: asyncio.Task[None] | None = None
        self._giving_back: set[asyncio.Task[None]] = set()
        # It waits for messages: other calls of the client need not wait for that.
        self._thread = Pool(1, "cassieq-consumer-get")

    @property
    def stale(self) -> int:
        """How many acks came too late: their receipts had expired, so they changed nothing."""
        return self._started.stale

    @documented(Consumer.get)
    async def get(self, wait: float | timedelta | None = None) -> Message | None:
        return await self._get(None if wait is None else arguments.wait_s(wait))

    def __aiter__(self) -> Self:
        """Yield messages until none came for ``idle_timeout``, or the consumer was closed."""
        return self

    async def __anext__(self) -> Message:
        """Return the next message."""
        message = await self._get(self._idle_s)
        if message is None:
            raise StopAsyncIteration
        return message

    @documented(Consumer.ack)
    async def ack(self, messages: Message | str | Iterable[Message | str]) -> None:
        self._calls.check_place()
        self._started.ack(messages)  # waits for nothing

    @documented(Consumer.flush)
    async def flush(self) -> None:
        await self._calls.run("flush", self._started.flush)

    async def close(self) -> None:
        """Store the acks, give back what was not handed out. Idempotent.

        Raises:
            StoreError: That failed: the messages come back when their leases run out.
        """
        if self._consumer is None or self._is_closed or not self._calls.home.is_here:
            return
        self._calls.check_place()
        self._is_closed = True
        for getter in self._getters:
            if not getter.answer.done():
                getter.answer.set_result(None)
        try:
            await asyncio.to_thread(self._consumer.close)
        finally:
            if self._puller is not None:
                await asyncio.wait({self._puller})
            if self._giving_back:
                await asyncio.wait(self._giving_back)
            await self._thread.join()

    async def __aenter__(self) -> Self:
        """Start to get messages.

        Raises:
            OptionInvalid: An argument of `AsyncQueue.consumer` has a wrong form.
            QueueDeleted: The queue is gone.
            UsageError: It was entered before.
        """
        if self._consumer is not None:
            raise UsageError(
                "a consumer works in one block only. Make another one with queue.consumer()"
            )
        made = await self._calls.run("consumer", self._make)
        self._consumer = made.__enter__()  # starts its threads; nothing is leased before this
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close; see `close`."""
        await self.close()

    def __repr__(self) -> str:
        """Show whose messages it gets."""
        return f"AsyncConsumer({self._queue.name!r})"

    @property
    def _started(self) -> Consumer:
        if self._consumer is None:
            raise UsageError(
                "a consumer works only inside its block. Write: async with queue.consumer() as "
                "consumer: ..."
            )
        return self._consumer

    async def _get(self, wait_s: float | None) -> Message | None:
        consumer = self._started
        self._calls.check_place()
        if self._is_closed:
            return None
        loop = asyncio.get_running_loop()
        deadline = inf if wait_s is None else loop.time() + wait_s
        getter = _Getter(loop.create_future(), deadline)
        self._getters.append(getter)
        if self._puller is None:
            # It gets for everybody, so its spans belong to no task.
            self._puller = loop.create_task(self._pull(consumer), context=Context())
        try:
            return await getter.answer
        except asyncio.CancelledError:
            # It may have been answered in the same turn of the loop.
            if getter.answer.done() and not getter.answer.cancelled():
                self._give_back(None if getter.answer.exception() else getter.answer.result())
            raise

    async def _pull(self, consumer: Consumer) -> None:
        """Get one message after the other, as long as somebody waits for one."""
        try:
            while self._waiting():
                await self._pull_one(consumer)
        finally:
            self._puller = None

    async def _pull_one(self, consumer: Consumer) -> None:
        loop = asyncio.get_running_loop()
        asked = list(self._getters)
        left_s = min(one.deadline for one in asked) - loop.time()
        wait_s = max(0.0, min(LOOK_S, left_s))
        try:
            message = await self._thread.run(lambda: consumer.get(wait_s))
        except Exception as error:  # noqa: BLE001 - it is raised where the tasks wait
            # In all: each would wait for a failure of its own, one after the other.
            while first := self._waiting():
                first.answer.set_exception(error)
            return
        first = self._waiting()
        if message is not None and first is not None:
            first.answer.set_result(message)
        elif message is not None:
            self._give_back(message)
        else:
            # The look that has just ended began after these had asked.
            for one in asked:
                if one.deadline <= loop.time() and not one.answer.done():
                    one.answer.set_result(None)

    def _waiting(self) -> _Getter | None:
        """The getter that has waited longest."""
        while self._getters and self._getters[0].answer.done():
            self._getters.popleft()
        self._getters = deque(one for one in self._getters if not one.answer.done())
        return self._getters[0] if self._getters else None

    def _give_back(self, message: Message | None) -> None:
        """Release a message that nobody has seen; it happens in the background."""
        if message is not None:
            task = asyncio.get_running_loop().create_task(self._release(message))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _release(self, message: Message) -> None:
        def release() -> None:
            self._queue.release(message, is_counted=False)

        try:
            await self._calls.pool.run(release)
        except CassieqError as error:
            # It comes back when its lease runs out.
            name = self._queue.name
            event(_logger, "give_back_unanswered", queue=name, error=str(error))
