"""`Backend` awaits a limited number of client calls at once, and accounts have their turns.

It connects when Cassandra answers, so a gateway may start first. It keeps a handle for each queue.

`Turns` gives places to accounts in turn, so that none costs another more than its share. Calls of
one account stand in a line of their own (`Lines`). A place that becomes free goes to the account
whose turn is longest ago, if that account may have another one. Nobody may hold more places than
stay free (`Shares`): an account that holds none gets the next one. Calls that belong to no account
are the gateway's own, or of a gateway without accounts: they may hold all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar, cast

from cassieq_spark import errors
from cassieq_spark.aio.client import AsyncClient, connected, for_tasks
from cassieq_spark.aio.queue import AsyncQueue
from cassieq_spark.client import Client
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import StoreTimeout
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.shares import Lines, Shares
from cassieq_spark.queue.find import suggests
from cassieq_spark.queue.message import Delivery
from cassieq_spark.recent import Recent
from cassieq_spark.store import caller, portal
from cassieq_spark.store.call import LONGEST_S, acting, one_call
from cassieq_spark.store.store import Store

T = TypeVar("T")

# --- turns ----------------------------------------------------------------------------------------

MOST_WAITING: Final = 2_048
"""The number of calls of an account that may wait. Beyond that, an answer would come too late to be
used, so the caller is told to come again."""

_clock: Final = SystemClock()


class Busy(Exception):
    """Too many calls of the account wait already."""


class Turns:
    """Places for calls of one event loop.

    Args:
        places: How many there are.
        most_waiting: The most calls of one account that wait.
    """

    def __init__(self, places: int, *, most_waiting: int = MOST_WAITING) -> None:
        self.places = places
        self._shares = Shares(places)
        self._most_waiting = most_waiting
        self._lines: Lines[asyncio.Future[None]] = Lines()

    @property
    def calls(self) -> int:
        """The number of calls that have a place or wait for one; any thread may ask."""
        return self._shares.used + len(self._lines)

    async def run(self, work: Callable[[], Awaitable[T]], account: str | None = None) -> T:
        """Await some work when it is its account's turn.

        It has its place until it ends, also if whoever waits for it has gone. Its time without an
        answer begins now (`store.call`).

        Args:
            account: Whose call it is; default: of whoever sent the request.

        Raises:
            Busy: Too many calls of the account wait already.
            StoreTimeout: No place was free for it in time. Nothing was done.
        """
        account = acting.get() if account is None else account
        loop, asked_s = asyncio.get_running_loop(), _clock.monotonic()
        try:
            await self.take(account, loop.time() + LONGEST_S)
        except TimeoutError:
            raise StoreTimeout(
                f"{self.places} calls, as many as may be under way, took {LONGEST_S:.0f} s. "
                "Nothing was done. Try again, later or with more calls at once"
            ) from None

        async def call() -> T:
            acting.set(account)
            with one_call(LONGEST_S, _clock, waited_s=_clock.monotonic() - asked_s):
                return await work()

        task = loop.create_task(call())
        task.add_done_callback(partial(self._ended, account))
        return await asyncio.shield(task)

    async def take(self, account: str | None, until_s: float) -> None:
        """Wait for a place; `leave` gives it back.

        Args:
            until_s: How long at most, by the event loop's clock.

        Raises:
            Busy: Too many calls of the account wait already.
            TimeoutError: None was free for it in time.
        """
        waits = self._lines.waits(account)
        if not waits and self._shares.admits(account):
            self._shares.change(account, 1)
            return
        if waits >= self._most_waiting:
            raise Busy
        mine = asyncio.get_running_loop().create_future()
        self._lines.add(account, mine)
        try:
            async with asyncio.timeout_at(until_s):
                await mine
        except BaseException:
            if mine.cancelled():
                self._lines.forget(account, mine)
            else:  # it had its turn at the same moment
                self.leave(account)
            raise

    def leave(self, account: str | None) -> None:
        """Give a place back: others have their turn."""
        self._shares.change(account, -1)
        while found := self._lines.next(self._shares.admits):
            who, one = found
            if not one.done():  # else it has given up just now
                self._shares.change(who, 1)
                one.set_result(None)

    def close(self) -> None:
        """Cancel all who wait."""
        for one in self._lines:
            one.cancel()

    def _ended(self, account: str | None, task: asyncio.Task[Any]) -> None:
        self.leave(account)
        _seen(task)


class Shared:
    """Calls that are made once for all who ask for the same at the same time."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[Any]] = {}

    async def once(self, name: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the call of that name; it begins if none is under way."""
        task = self._under_way.get(name)
        if task is None:
            task = self._under_way[name] = asyncio.get_running_loop().create_task(ask())
            task.add_done_callback(lambda _: self._under_way.pop(name))
            task.add_done_callback(_seen)
        # A client that goes away does not take the answer from the others.
        return cast("T", await asyncio.shield(task))


def _seen(task: asyncio.Task[Any]) -> None:
    """Take note of an error of which nobody may be left to be told."""
    if not task.cancelled():
        task.exception()


# --- the client -----------------------------------------------------------------------------------

AGAIN_S: Final = 1.0
"""The pause between two tries to connect."""

CLOSE_S: Final = 2.0
"""The time that the end waits for what is under way."""

TIME_EVERY_S: Final = 60.0
"""The time between two measurements of the cluster's time; between two it is counted forward."""

READS: Final = 32
"""The number of calls that may read messages at once without leasing them: all of these are in
memory before `Call.made` counts them."""

HANDLES: Final = 10_000
"""The most open queue handles. What was used least recently is forgotten first, and opened again
when it is needed."""

_logger = get_logger("server")


class Backend:
    """The client of one gateway process.

    Attributes:
        turns: The places of calls of the client; a get that waits takes none.
        large: The place of what makes a large answer.
    """

    def __init__(self, open_client: Callable[[], Client], *, calls: int) -> None:
        """Prepare.

        Args:
            calls: The most calls under way at once; a get that waits does not count.
        """
        self._open_client = open_client
        self.turns = Turns(calls)
        self._reads = Turns(READS)
        self._shared = Shared()
        self.large = Turns(1)
        self._client: AsyncClient | None = None
        self._is_draining = False
        self._handles: Recent[str, AsyncQueue] = Recent(HANDLES)
        self._time: tuple[float, int] | None = None

    @property
    def client(self) -> AsyncClient:
        """The connected client.

        Raises:
            StoreUnavailable: Cassandra has not answered yet.
        """
        if self._client is None:
            raise errors.StoreUnavailable(
                "the gateway has not reached Cassandra yet. It tries again every second: send the "
                "request again later"
            )
        return self._client

    @property
    def store(self) -> Store:
        """The tables of the client, for what is no call of it.

        Raises:
            StoreUnavailable: Cassandra has not answered yet.
        """
        return self.client._sync.store  # noqa: SLF001 - it is no part of the API

    @property
    def refusal(self) -> errors.CassieqError | None:
        """The reason why Cassandra refuses the client that was connected; asks no node."""
        return None if self._client is None else self.store.session.refusal

    @property
    def waiting(self) -> int:
        """The number of gets that wait for messages; any thread may ask."""
        if self._opened is None:
            return 0
        return sum(one.waiting.count for one in self._opened._works.values())  # noqa: SLF001 - as above

    async def connect(self) -> None:
        """Return when the client is connected, however long that takes.

        Raises:
            CassieqError: Trying again would not help: a wrong login, TLS or option.
        """
        while self._client is None:
            try:
                opened = await portal.asked(connected(self._open_client))
            except (errors.CassandraLoginFailed, errors.TlsFailed):
                raise
            except (errors.StoreUnavailable, errors.StoreTimeout) as error:
                event(_logger, "gateway_waits", error=str(error))
                await asyncio.sleep(AGAIN_S)
            else:
                self._client = for_tasks(opened)
                event(_logger, "gateway_connected", keyspace=self.client.keyspace)

    async def run(self, work: Callable[[], Awaitable[T]], account: str | None = None) -> T:
        """Await calls of the client when it is their account's turn.

        Args:
            account: Whose calls they are; default: of whoever sent the request.

        Raises:
            Busy: Too many calls of the account wait already.
            StoreTimeout: It was not their turn in time. Nothing was done.
        """
        suggests.set(False)
        return await self.turns.run(work, account)

    async def asked(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine of the engine when it is the turn of whoever sent the request.

        Raises:
            Busy, StoreTimeout: As `run`.
        """
        return await self.run(lambda: portal.asked(work()))

    async def reading(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Await `run` or `on_queue` for calls that read messages without leasing them.

        Raises:
            Busy, StoreTimeout: As `run`; also if too many others read.
        """
        return await self._reads.run(ask)

    async def check(self) -> None:
        """Check that Cassandra answers, with the tables of this release.

        Anybody may ask for it: all who ask at the same time share one call, which takes no turn
        from the queues.

        Raises:
            StoreError: It does not.
        """
        await self._shared.once("check", self.client.check)

    async def now_us(self) -> int:
        """The time of the cluster, to within the drift of a minute: it is asked that often.

        Raises:
            StoreError: No node answers.
        """
        loop = asyncio.get_running_loop()
        known = self._time
        if known is None or loop.time() - known[0] > TIME_EVERY_S:

            async def ask() -> tuple[float, int]:
                found_us = await self.client.now_us()
                return loop.time(), found_us

            known = self._time = await self._shared.once("time", ask)
        at_s, at_us = known
        return at_us + round((loop.time() - at_s) * 1e6)

    async def opened(self, name: str) -> AsyncQueue:
        """The open handle of a queue; a turn is needed only to open it.

        Raises:
            QueueNotFound: No queue has that name.
        """
        found = self._handles.get(name)
        if found is not None:
            return found
        return await self.run(partial(self.handle, name), _account_of(name))

    async def on_queue(self, name: str, work: Callable[[AsyncQueue], Awaitable[T]]) -> T:
        """Await calls on a queue, whose handle is kept.

        A queue that was deleted and created anew is opened once more: nothing was done before.

        Raises:
            QueueNotFound: No queue has that name.
        """
        return await self.run(partial(self._on_handle, name, work), _account_of(name))

    async def receive(
        self, name: str, at_most: int, *, wait: float, **wanted: Any
    ) -> list[Delivery]:
        """Lease messages, as `Queue.get` does. Whoever waits for them takes no turn.

        Raises:
            QueueNotFound: No queue has that name.
        """
        await self.opened(name)
        acting.set(_account_of(name))
        wait = 0 if self._is_draining else wait
        return await self._on_handle(
            name, lambda queue: queue.get(at_most, wait=wait, consumer="gateway", **wanted)
        )

    def give_back(self, name: str, messages: list[Delivery]) -> None:
        """Release, uncounted, what nobody will see; it happens in the background."""
        queue = self._handles.get(name)  # else they come back when their leases run out
        if messages and queue is not None:
            give_back = queue._sync._hand_back(messages)  # noqa: SLF001 - as above
            portal.start(give_back, is_last=True)

    async def handle(self, name: str) -> AsyncQueue:
        """The open handle of a queue."""
        found = self._handles.get(name)
        return self.keep(await self.client.queue(name)) if found is None else found

    def keep(self, handle: AsyncQueue) -> AsyncQueue:
        """Keep a handle that somebody has just got from the client: it has the newest settings."""
        return self._handles.keep(handle.name, handle)

    def forget(self, name: str) -> None:
        """Forget the handle of a queue."""
        self._handles.forget(name)

    def drain(self) -> None:
        """Answer all who wait for messages; from now on nobody waits."""
        self._is_draining = True
        if self._opened is not None:
            portal.start(self._opened._drain())  # noqa: SLF001 - as above

    async def close(self) -> None:
        """Disconnect; what is not answered in `CLOSE_S` ends with the process."""
        self.turns.close()
        self._reads.close()
        self.large.close()
        if self._opened is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await portal.asked(caller.in_a_thread(self._opened.close))

    @property
    def _opened(self) -> Client | None:
        """The blocking client that the connected one mirrors."""
        return None if self._client is None else self._client._sync  # noqa: SLF001 - of one package

    async def _on_handle(self, name: str, work: Callable[[AsyncQueue], Awaitable[T]]) -> T:
        try:
            return await work(await self.handle(name))
        except errors.QueueDeleted:
            self.forget(name)
        try:
            return await work(await self.handle(name))
        except errors.QueueDeleted as error:
            self.forget(name)
            raise errors.QueueNotFound(error.message) from error


def _account_of(queue: str) -> str | None:
    return queue.rpartition("/")[0] or None
