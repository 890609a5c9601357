"""`Backend` calls the client in a bounded pool of threads, so that nothing blocks the event loop.

It connects when Cassandra answers, so a gateway may start first. It keeps a handle for each queue.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cassieq_spark.aio.pool import CALLS_WAITING, Pool
from cassieq_spark.errors import (
    AuthenticationRefused,
    CasAmbiguous,
    CasContention,
    CassieqError,
    PutAmbiguous,
    QueueDeleted,
    QueueNotFound,
    SchemaMismatch,
    SchemaMissing,
    StoreTimeout,
    StoreUnavailable,
    TlsFailed,
)
from cassieq_spark.log import event, get_logger
from cassieq_spark.queue.find import suggests
from cassieq_spark.recent import Recent
from cassieq_spark.server.large import Answers
from cassieq_spark.server.turns import FairPool
from cassieq_spark.store.call import asked_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from cassieq_spark.client import Client
    from cassieq_spark.queue.handle import Queue

T = TypeVar("T")

POOL_PREFIX: Final = "cassieq-gateway"
"""The names of the pool's threads begin with this."""

AGAIN_S: Final = 1.0
"""The pause between two tries to connect."""

TIME_EVERY_S: Final = 60.0
"""How often the time of the cluster is measured; between two it is counted forward."""

HANDLES: Final = 10_000
"""The most open queue handles. What was used least recently is forgotten first, and opened again
when it is needed."""

COME_AGAIN: Final = (
    CasAmbiguous,
    CasContention,
    PutAmbiguous,
    SchemaMismatch,
    SchemaMissing,
    StoreTimeout,
    StoreUnavailable,
)
"""Errors of the cluster, not of the request: the same request may succeed later."""

_logger = get_logger("server")


class Backend:
    """The client of one gateway process.

    Attributes:
        answers: Makes large answers.
    """

    def __init__(self, open_client: Callable[[], Client], *, threads: int) -> None:
        self._open_client = open_client
        self._pool = FairPool(threads, POOL_PREFIX)
        self.answers = Answers(f"{POOL_PREFIX}-answers")
        self._client: Client | None = None
        self._is_closed = False
        self._handles: Recent[str, Queue] = Recent(HANDLES)
        # A thread each, so that a check that waits for Cassandra holds up no one who asks the time.
        self._timing = Pool(2, "cassieq-time", most_calls=CALLS_WAITING)
        self._time: tuple[float, int] | None = None

    @property
    def client(self) -> Client:
        """The connected client.

        Raises:
            StoreUnavailable: Cassandra has not answered yet.
        """
        if self._client is None:
            raise StoreUnavailable(
                "the gateway has not reached Cassandra yet. It tries again every second: send the "
                "request again later"
            )
        return self._client

    @property
    def refusal(self) -> CassieqError | None:
        """Why Cassandra refuses the client that was connected; it needs no thread and no answer."""
        return None if self._client is None else self._client.store.session.refusal

    @property
    def calls(self) -> int:
        """How many calls run or wait for a thread; any thread may ask."""
        return self._pool.calls

    @property
    def threads(self) -> int:
        """How many calls may run at once."""
        return self._pool.threads

    async def connect(self) -> None:
        """Return when the client is connected, however long that takes.

        Raises:
            CassieqError: Trying again would not help: a wrong login, TLS or option.
        """
        while True:
            try:
                await self._connect_once()
            except (AuthenticationRefused, TlsFailed):
                raise
            except (StoreUnavailable, StoreTimeout) as error:
                event(_logger, "gateway_waits", error=str(error))
                await asyncio.sleep(AGAIN_S)
            else:
                event(_logger, "gateway_connected", keyspace=self.client.keyspace)
                return

    async def run(
        self,
        work: Callable[[], T],
        context: Context | None = None,
        *,
        account: str | None = None,
    ) -> T:
        """Run a blocking call in a thread of the gateway's pool, when it is its account's turn.

        Args:
            context: What it sees of its caller; default: as it is now.
            account: Whose call it is; default: of whoever sent the request of the context.

        Raises:
            Busy: Too many calls of the account wait already.
            StoreTimeout: No thread was free for it in time. Nothing was done.
        """
        context = asked_now() if context is None else context
        context.run(suggests.set, False)
        return await self._pool.run(work, context, account=account)

    async def check(self) -> None:
        """Check that Cassandra answers, with the tables of this release.

        Anybody may ask for it: all who ask at the same time share one call, which takes no thread
        from the queues.

        Raises:
            StoreError: It does not.
        """
        await self._timing.once("check", partial(self._timing.run, self.client.check))

    async def now_us(self) -> int:
        """The time of the cluster, to within the drift of a minute: it is measured that often.

        Raises:
            StoreError: No node answers.
        """
        loop = asyncio.get_running_loop()
        known = self._time
        if known is None or loop.time() - known[0] > TIME_EVERY_S:

            def measure() -> tuple[float, int]:
                measured = self.client.now_us()
                return loop.time(), measured

            # In a thread of its own, so that it waits for no call on a queue.
            known = self._time = await self._timing.once("time", partial(self._timing.run, measure))
        at_s, at_us = known
        return at_us + round((loop.time() - at_s) * 1e6)

    async def opened(self, name: str) -> Queue:
        """The open handle of a queue; a thread is needed only to open it.

        Raises:
            QueueNotFound: No queue has that name.
        """
        found = self._handles.get(name)
        if found is not None:
            return found
        return await self.run(lambda: self.handle(name), account=_account_of(name))

    async def on_queue(
        self, name: str, work: Callable[[Queue], T], context: Context | None = None
    ) -> T:
        """Run a blocking call on a queue, whose handle is kept.

        A queue that was deleted and created anew is opened once more: nothing was done before.

        Raises:
            QueueNotFound: No queue has that name.
        """

        def attempt() -> T:
            try:
                return work(self.handle(name))
            except QueueDeleted:
                self.forget(name)
            try:
                return work(self.handle(name))
            except QueueDeleted as error:
                self.forget(name)
                raise QueueNotFound(error.message) from error

        # Long polls look for many requests, and have the context of none.
        return await self.run(attempt, context, account=_account_of(name))

    def handle(self, name: str) -> Queue:
        """The open handle of a queue. It blocks while the queue is opened."""
        found = self._handles.get(name)
        if found is None:
            found = self.keep(self.client.queue(name))
        return found

    def keep(self, handle: Queue) -> Queue:
        """Keep a handle that somebody has just got from the client: it has the newest settings."""
        return self._handles.keep(handle.name, handle)

    def forget(self, name: str) -> None:
        """Forget the handle of a queue."""
        self._handles.forget(name)

    def close(self) -> None:
        """End the pool and disconnect; calls under way end by themselves."""
        self._is_closed = True
        self._pool.close()
        self.answers.close()
        self._timing.close()
        if self._client is not None:
            self._client.close()

    async def _connect_once(self) -> None:
        """Connect in a thread of its own: nobody waits for that one when the process ends."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Client] = loop.create_future()

        def tell(client: Client | None, error: Exception | None) -> None:
            if done.cancelled() and client is not None:
                client.close()
            elif not done.done() and client is not None:
                done.set_result(client)
            elif not done.done() and error is not None:
                done.set_exception(error)

        def connect() -> None:
            client, failure = None, None
            try:
                client = self._open_client()
            except CassieqError as error:
                failure = error
            if not self._is_closed:
                loop.call_soon_threadsafe(tell, client, failure)

        threading.Thread(target=connect, name="cassieq-connect", daemon=True).start()
        self._client = await done


def _account_of(queue: str) -> str | None:
    return queue.rpartition("/")[0] or None
