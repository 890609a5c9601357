"""Run statements on one Cassandra session: prepared, with their consistency, bounded retries.

Every statement of the package goes through `CqlSession`. No raw result or error of the driver
leaves it except for `store/cas.py`, which settles them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any, Self, TypeVar
from uuid import UUID
from weakref import ref

from cassandra import OperationTimedOut

from cassieq_spark import metrics
from cassieq_spark.clock import Clock, ClusterClock, SystemClock
from cassieq_spark.entropy import Entropy
from cassieq_spark.errors import (
    CassieqError,
    ClientClosed,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    UsageError,
)
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.store import portal, retries
from cassieq_spark.store.call import (
    AFTERWARDS_S,
    DEADLINE_S,
    LEAST_S,
    Call,
    Sent,
    limited,
    one_call,
    present,
)
from cassieq_spark.store.driver import REQUEST_TIMEOUT_S, DriverTransport
from cassieq_spark.store.node_clocks import NodeClocks, keep_time, warn_of
from cassieq_spark.store.process import Home
from cassieq_spark.store.side_by_side import SideBySide
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.store.translate import DRIVER_ERRORS, translate, why_shut_out
from cassieq_spark.store.transport import Page, Request, Transport, soon

T = TypeVar("T")
R = TypeVar("R")

Answer = asyncio.Future["list[Any] | BaseException"]
"""The rows of all pages, or the driver's error: as a value, since not every answer is awaited."""


class _Asked:
    """A request under way, with those for the pages that follow: all have one limit together.

    Its answer is a value, whatever it is, and may come in any thread.
    """

    def __init__(self, transport: Transport, request: Request, until: float, clock: Clock) -> None:
        self._transport = transport
        self._request = request
        self._until = until
        self._clock = clock
        self._found: list[Any] = []
        self.answer: Answer = asyncio.get_running_loop().create_future()
        transport.send(request, self._note)

    def _note(self, told: Page | BaseException) -> None:
        if isinstance(told, BaseException):
            self._tell(told)
            return
        self._found.extend(told.rows)
        if told.following is None:
            self._tell(self._found)
        elif (left_s := self._until - self._clock.monotonic()) <= 0:
            self._tell(OperationTimedOut("its first pages took all of its time"))
        else:
            request = replace(
                self._request, page=told.following, timeout_s=min(REQUEST_TIMEOUT_S, left_s)
            )
            self._transport.send(request, self._note)

    def _tell(self, found: list[Any] | BaseException) -> None:
        soon(self.answer.get_loop(), _set, self.answer, found)


def _set(answer: Answer, found: list[Any] | BaseException) -> None:
    if answer.done():
        return
    if isinstance(found, BaseException) and not isinstance(found, DRIVER_ERRORS):
        answer.set_exception(found)  # a mistake of ours, or of a test
    else:
        answer.set_result(found)


class CqlSession:
    """A connected session on one keyspace, for the coroutines of one event loop.

    It does not pickle or survive a fork.

    Attributes:
        home: This machine's clock, in the process that connected.
        client_id: Names this session in the tags of its CASes (G2); new with each session.
        transport: Sends what the session is asked for. A test may put another one around it.
        node_clocks: Asks the nodes for their time.
        clock: Cluster time, measured by the nodes' clocks (G6).
        entropy: Draws all random values of the client.
        looks: The scans of programs' gets, with places of their own: each needs some of `map`'s.
        is_closed: Whether `close` was called, or it could not connect.
        patience_s: How much longer than `DEADLINE_S` a statement is retried (`store.shared`),
            unless `within` says otherwise.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        transport: Transport | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        """Connect.

        Args:
            transport: Default: the driver's, which connects here.
            clock: This machine's time, from which cluster time is carried on.
            entropy: Default: the operating system's.

        Raises:
            OptionInvalid: A certificate or key file cannot be used; the error names it.
            StoreUnavailable: No node answers at the contact points; the error names them, and host
                names without an address.
            CassandraLoginFailed: The nodes ask for a login, or refuse the given one.
            TlsFailed: This client refuses a node's certificate, or a node refuses the client's.
            UsageError: The cluster has no data centre of that name; the error lists its own.
        """
        self.options = options
        self.keyspace = options.keyspace
        self.entropy = entropy or Entropy()
        self.client_id: UUID = self.entropy.new_uuid()
        self.patience_s = 0.0
        self.is_closed = False
        self.home = base = Home(clock or SystemClock())
        self.transport = transport or DriverTransport(options, base)
        self.datacenter = self.transport.datacenter
        self._side_by_side = SideBySide(base)
        self.looks = SideBySide(base)
        self.node_clocks = NodeClocks(self.transport, self.check_open)
        self.clock = self._measured = ClusterClock(
            base, self.node_clocks, tell=warn_of, spawn=portal.start
        )
        self._keeper: asyncio.Task[None] | None = None
        try:
            portal.run(self._begin())
        except BaseException:
            self._cut()
            raise

    async def _begin(self) -> None:
        """Measure the time; begin to measure it each minute."""
        await self._measured.settle()
        if not self.is_closed:  # a caller may have left meanwhile
            work = keep_time(ref(self._measured), self.home)
            self._keeper = asyncio.get_running_loop().create_task(work)

    async def run(self, statement: Statement, params: Sequence[Any] = ()) -> list[Any]:
        """Run a read or an idempotent write; retry it until the deadline if it was not answered.

        Raises:
            StoreTimeout: Not answered in time; a write may have been stored.
            StoreUnavailable: No node answers, or too few replicas do.
            SchemaMissing: The keyspace or its tables do not exist.
        """
        if statement.kind is Kind.CAS:
            raise ValueError(f"{statement.name} is a CAS: only store/cas.py may send it")
        return await self.finish(self.start(statement, params))

    async def one(self, statement: Statement, params: Sequence[Any] = ()) -> Any | None:
        """Return the first row of `run`, or None if there is none."""
        return next(iter(await self.run(statement, params)), None)

    async def attempt(self, statement: Statement, params: Sequence[Any] = ()) -> list[Any] | None:
        """Run a read once; return None if it was not answered: the caller can ask elsewhere.

        Raises:
            SchemaMissing: The keyspace or its tables do not exist.
        """
        rows = await self.answer(self.start(statement, params))
        return None if isinstance(rows, StoreError) else rows

    async def run_once(
        self, statement: Statement, params: Sequence[Any], *, until: float = inf
    ) -> list[Any]:
        """Send a statement once and raise the driver's own error: for `store/cas.py` alone.

        Args:
            until: The monotonic time by which it is answered, or counts as unanswered.
        """
        answer = await self._send(statement, [tuple(params)], until)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def counts(self) -> Counter[str]:
        """The statements sent, by name."""
        return self.transport.counts

    @property
    def refusal(self) -> CassieqError | None:
        """The reason why nodes refuse this client; None: one is connected, or none answers."""
        transport = self.transport
        return None if transport.is_connected else why_shut_out(transport.failures, self.options)

    def translated(
        self, error: BaseException, name: str, waited: str | None = None
    ) -> CassieqError:
        """Return the error that a caller sees."""
        return translate(error, name, self.options, self.transport.failures, waited)

    def start(self, statement: Statement, params: Sequence[Any]) -> Sent:
        """Send without waiting, within this block's limits; `finish` or `answer` takes it, once."""
        return self.start_together(statement, [params])[0]

    def start_together(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> Sequence[Sent]:
        """Send writes into one partition in one request: all of them are stored, or none.

        Each is finished by itself, and retried by itself if the request was not answered.
        """
        now, limits = self.clock.monotonic(), present()
        ends_s = limits.ends_s(now, self._most_s(), now)
        answer = self._send(statement, [tuple(params) for params in rows], ends_s)
        together = [Sent(statement, tuple(params), now, limits, answer) for params in rows]

        def note(answer: Answer) -> None:
            if answer.cancelled():
                return
            if answer.exception() is not None or isinstance(answer.result(), BaseException):
                for sent in together:
                    sent.failed_s = self.clock.monotonic()

        answer.add_done_callback(note)
        return together

    def ask(
        self, statement: Statement, params: Sequence[Any], decode: Callable[[list[Any]], R]
    ) -> Callable[[], Awaitable[R]]:
        """Send without waiting; call the returned function, once, for what the rows say."""
        sent = self.start(statement, params)

        async def decoded() -> R:
            return decode(await self.finish(sent))

        return decoded

    async def finish(self, sent: Sent) -> list[Any]:
        """Wait for a statement that `start` sent; if it was not answered, retry as `run` does.

        The first sending counts towards its limits, but not the time while nobody waited: a caller
        may have been at work for minutes.

        Raises:
            StoreTimeout, StoreUnavailable, SchemaMissing: See `run`.
        """
        rows = await self.answer(sent)
        if not isinstance(rows, StoreError):
            return rows
        statement, clock = sent.statement, self.clock
        now = clock.monotonic()
        rested_s = sent.rest(now)
        # The limit is for all sendings together: the last one may take the rest of it.
        ends_s = sent.limits.ends_s(sent.began_s, self._most_s(), now)
        longest_s = (ends_s - now) / 4
        while (left_s := ends_s - clock.monotonic()) > 0:
            pause_s = min(retries.pause_s(sent.times, self.entropy), longest_s)
            pause_s, rested_s = max(0.0, pause_s - rested_s), 0.0
            retries.tell(statement, rows.__cause__, sent=sent.times, pause_s=pause_s, left_s=left_s)
            with sent.limits.waiting():
                await clock.sleep(pause_s)
            metrics.RETRIES.inc()
            sent.times += 1
            sent.answer = self._send(statement, [sent.params], ends_s)
            rows = await self.answer(sent)
            if not isinstance(rows, StoreError):
                return rows
        raise rows

    async def answer(self, sent: Sent) -> list[Any] | StoreError:
        """Wait for a statement that `start` sent; return the error if it was not answered.

        Raises:
            SchemaMissing: The keyspace or its tables do not exist.
        """
        with sent.limits.waiting():
            answer = await sent.answer
        if not isinstance(answer, BaseException):
            sent.limits.heard()
            return answer
        waited = retries.waited(self.clock.monotonic() - sent.began_s, sent.times)
        problem = self.translated(answer, sent.statement.name, waited)
        if isinstance(problem, StoreTimeout | StoreUnavailable):
            problem.__cause__ = answer.with_traceback(None)  # else a cycle keeps what was sent
            return problem
        raise problem from answer

    async def map(self, work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """Run ``work`` for every item, up to 16 at once; return the results in order.

        An item that waits for more than half a second no longer counts among the 16. After the
        first error no more items begin. It is raised when all items under way have ended, so that
        none goes on unseen and no caller waits for more than one deadline.
        """
        self.check_open()
        return await self._side_by_side.map(work, items)

    async def each(
        self, work: Callable[[T], Awaitable[R]], items: Iterable[T]
    ) -> list[R | CassieqError]:
        """Run ``work`` as `map` does; an item's error is its result, and all others run [T5]."""
        self.check_open()
        return await self._side_by_side.each(work, items)

    def begin(self, work: Callable[[T], Awaitable[R]], item: T) -> asyncio.Task[R]:
        """Begin one item as a task of the session; nobody needs to wait for it [T5]."""
        self.check_open()
        return self._side_by_side.begin(work, item)

    @contextmanager
    def within(self, seconds: float = inf, *, each_s: float = inf) -> Iterator[None]:
        """Retry nothing after ``seconds``, in this block and in all that it begins (ADR 21).

        A statement that is not answered by then raises the error of its deadline: a CAS is
        ambiguous.

        Args:
            each_s: The limit of each statement, from its first sending.
        """
        with limited(self.clock.monotonic() + seconds, each_s):
            yield

    def call(self) -> AbstractContextManager[Call]:
        """Work as one call of the client: it ends in time, whatever it has to wait for."""
        return one_call(self._most_s() + AFTERWARDS_S, self.clock)

    def left_s(self, at_most_s: float | None = None) -> float:
        """Return for how long a statement that begins now is retried, in seconds.

        Args:
            at_most_s: The limit without the session's patience; default: `DEADLINE_S`.
        """
        return min(self._most_s(at_most_s), present().left_s(self.clock.monotonic()))

    async def define(self, ddl: str) -> None:
        """Run one schema statement and wait until all nodes agree.

        Raises:
            StoreUnavailable: No node answered in time.
            UsageError: The cluster refuses it.
        """
        try:
            await self.transport.define(ddl, DEADLINE_S)
        except DRIVER_ERRORS as error:
            raise self.translated(error, "define") from error

    def nodes(self) -> Counter[str]:
        """Return how many nodes each data centre of the cluster has, up or not."""
        return Counter(node.datacenter for node in self.transport.nodes() if node.datacenter)

    def close(self) -> None:
        """Disconnect. Idempotent; does nothing in a forked child."""
        if not self.home.is_here:
            return
        if portal.is_here():
            portal.apart(self.close)
            return
        try:
            portal.run(self._ended())
        finally:
            self._cut()

    def _cut(self) -> None:
        """Send nothing any more. What should come before may have been interrupted, or not begun.

        `_begin` may still run, so only the event loop knows the keeper.
        """
        self.is_closed = True
        try:
            with suppress(UsageError):  # the interpreter ends
                portal.start(self._without_keeper())
        finally:
            self.transport.close()

    async def _without_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()

    async def _ended(self) -> None:
        """Return when all work that was begun has ended; what was left is handed back before."""
        await portal.handed_back()
        self.is_closed = True
        await self._side_by_side.close()
        await self.looks.close()

    def __enter__(self) -> Self:
        """Return the session, which closes at the end of the block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Disconnect."""
        self.close()

    def check_open(self) -> None:
        """Raise an error if no statement may be sent any more.

        Raises:
            ClientClosed: The client is closed.
            UsageError: It belongs to the parent of this process.
        """
        self.home.check()
        if self.is_closed:
            raise ClientClosed(
                "the client is closed: its block has ended, or close() was called. Connect again"
            )

    def _most_s(self, at_most_s: float | None = None) -> float:
        return (DEADLINE_S if at_most_s is None else at_most_s) + self.patience_s

    def _send(
        self, statement: Statement, rows: Sequence[tuple[Any, ...]], until: float = inf
    ) -> Answer:
        """Send rows of one partition in one request; at once if the statement is prepared.

        Nobody cancels a statement that was sent: its outcome would be unknown.

        Args:
            until: The monotonic time by which all pages of the answer are there. Those of a scan
                have only their block's limit: it may be as long as its table.
        """
        if self._measured.is_in_doubt or not self.transport.is_ready(statement):
            return asyncio.get_running_loop().create_task(self._sent_later(statement, rows, until))
        self.check_open()
        request = Request(statement=statement, rows=rows, timeout_s=self._request_s(until))
        until = present().until if statement.is_scan else until
        return _Asked(self.transport, request, until, self.clock).answer

    async def _sent_later(
        self, statement: Statement, rows: Sequence[tuple[Any, ...]], until: float
    ) -> list[Any] | BaseException:
        """Send after what has to be done first; see `_send`."""
        if self._measured.is_in_doubt:
            # The statement may be a claim, by the time after this (I2) [T13].
            await self._measured.settle()
        self.check_open()
        try:
            await self.transport.prepare(statement, self._request_s(until))
        except DRIVER_ERRORS as error:
            return error
        return await self._send(statement, rows, until)

    def _request_s(self, until: float) -> float:
        """Return the timeout of one request: no limit makes it shorter than `LEAST_S`."""
        now = self.clock.monotonic()
        return min(REQUEST_TIMEOUT_S, max(LEAST_S, until - now), present().left_s(now))
