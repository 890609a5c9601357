"""Run statements on one Cassandra session: prepared, with their consistency, bounded retries.

Every statement of the package goes through `CqlSession`. No raw result or error of the driver
leaves it except for `store/cas.py`, which settles them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import ref

from cassandra.policies import DCAwareRoundRobinPolicy

from cassieq_spark import metrics
from cassieq_spark.clock import ClusterClock
from cassieq_spark.entropy import Entropy
from cassieq_spark.errors import StoreError, StoreTimeout, StoreUnavailable, UsageError
from cassieq_spark.store import caller, driver, portal, retries, side_by_side, tls
from cassieq_spark.store.bridge import Bridge, spawn
from cassieq_spark.store.call import AFTERWARDS_S, DEADLINE_S
from cassieq_spark.store.node_clocks import NodeClocks, keep_time, warn_of
from cassieq_spark.store.process import Home
from cassieq_spark.store.sent import Sent
from cassieq_spark.store.side_by_side import SideBySide
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.store.translate import (
    DRIVER_ERRORS,
    translate,
    why_shut_out,
    why_unconnected,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from uuid import UUID

    from cassandra.query import PreparedStatement

    from cassieq_spark.errors import CassieqError
    from cassieq_spark.options import ConnectionOptions
    from cassieq_spark.store.call import Call

T = TypeVar("T")
R = TypeVar("R")


class CqlSession:
    """A connected session on one keyspace, for the coroutines of one event loop.

    It does not pickle or survive a fork.

    Attributes:
        home: The process that connected.
        client_id: Names this session in the tags of its CASes (G2); new with each session.
        node_clocks: Asks the nodes for their time.
        clock: Cluster time, measured by the nodes' clocks (G6).
        entropy: Draws all random values of the client.
        counts: Statements sent, by name.
        looks: The scans of programs' gets, with places of their own: each needs some of `map`'s.
        is_closed: Whether `close` was called.
        patience_s: How much longer than `DEADLINE_S` a statement is retried (`store.shared`),
            unless `within` says otherwise.
    """

    def __init__(self, options: ConnectionOptions, *, entropy: Entropy | None = None) -> None:
        """Connect.

        Args:
            entropy: Default: the operating system's.

        Raises:
            OptionInvalid: A certificate or key file cannot be used; the error names it.
            StoreUnavailable: No node answers at the contact points; the error names them, and host
                names without an address.
            AuthenticationRefused: The nodes ask for a login, or refuse the given one.
            TlsFailed: This client refuses a node's certificate, or a node refuses the client's.
            UsageError: The cluster has no data centre of that name; the error lists its own.
        """
        self.options = options
        self.keyspace = options.keyspace
        self.entropy = entropy or Entropy()
        self.client_id: UUID = self.entropy.new_uuid()
        self.patience_s = 0.0
        self.is_closed = False
        self._local = DCAwareRoundRobinPolicy(options.datacenter or "")
        context = None if options.tls is None else tls.Files(options.tls)
        self.home = clock = Home()
        made, began_s = None, clock.monotonic()
        try:
            # This looks host names up, too, and fails if none of them has an address.
            self._cluster = made = driver.cluster(options, self._local, context)
            self._session = driver.with_limits(made.connect(), self._request_s)
        except DRIVER_ERRORS as error:
            waited_s = clock.monotonic() - began_s
            if made is not None:
                made.shutdown()
                # With a wrong data centre the driver finds nodes, but none that it may talk to.
                self._check_datacenter()
            raise why_unconnected(error, options, context, waited_s) from error
        # The server's clock orders plain writes: a client's clock could be minutes off [R9].
        # Pointers carry their value as the timestamp (G4).
        self._session.use_client_timestamp = False
        self._failures = self._cluster.connection_class.failures
        self.datacenter = self._check_datacenter()
        self._side_by_side = SideBySide(clock)
        self.looks = SideBySide(clock)
        self.node_clocks = NodeClocks(self._session, self.datacenter, self.check_open)
        self.clock = ClusterClock(
            clock,
            self.node_clocks,
            tell=warn_of,
            left_s=self.left_s,
            spawn=spawn,
            may_wait=lambda: not portal.is_here(),
        )
        spawn(self.clock.begin)
        self._bridge = Bridge(
            self._session,
            self.keyspace,
            request_s=self._request_s,
            check_open=self.check_open,
            clock=self.clock,
        )
        self.counts = self._bridge.counts
        try:
            self.clock.settle()  # the event loop must not wait for it
            portal.start(keep_time(ref(self.clock), ref(self), clock))
        except BaseException:
            self._cluster.shutdown()
            raise

    async def run(self, statement: Statement, params: Sequence[Any] = ()) -> list[Any]:
        """Run a read or an idempotent write; retry it until the deadline if it was not answered.

        Raises:
            StoreTimeout: Not answered in time; a write may have been stored.
            StoreUnavailable: No node answers, or too few replicas do.
            SchemaMissing: The keyspace or its tables do not exist.
        """
        if statement.kind is Kind.CAS:
            raise ValueError(f"{statement.name} is a CAS: only store/cas.py may send it")
        return await self._until_answered(self._sent(statement, params), times=0)

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

    async def run_once(self, statement: Statement, params: Sequence[Any]) -> list[Any]:
        """Send a statement once and raise the driver's own error: for `store/cas.py` alone."""
        answer = await self._bridge.send(statement, [tuple(params)])
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def refusal(self) -> CassieqError | None:
        """The reason why nodes refuse this client; None: one is connected, or none answers."""
        is_connected = any(pool.open_count for pool in self._session.get_pools())
        return None if is_connected else why_shut_out(self._failures, self.options)

    def translated(
        self, error: BaseException, name: str, waited: retries.Waited | None = None
    ) -> CassieqError:
        """Return the error that a caller sees."""
        return translate(error, name, self.options, self._failures, waited)

    def start(self, statement: Statement, params: Sequence[Any]) -> Sent:
        """Send without waiting, within this block's limits; `finish` or `answer` takes it, once."""
        return self.start_together(statement, [params])[0]

    def start_together(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> Sequence[Sent]:
        """Send writes into one partition in one request: all of them are stored, or none.

        Each is finished by itself, and retried by itself if the request was not answered.
        """
        if self._bridge.interceptor is not None and len(rows) > 1:
            return [self.start(statement, params) for params in rows]
        together = [self._sent(statement, params) for params in rows]
        answer = self._bridge.send(statement, [sent.params for sent in together])

        def note(answer: asyncio.Future[list[Any] | BaseException]) -> None:
            if answer.exception() is not None or isinstance(answer.result(), BaseException):
                for sent in together:
                    sent.note_failure(self.clock.monotonic())

        answer.add_done_callback(note)
        for sent in together:
            sent.answer = answer
        return together

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
        now = self.clock.monotonic()
        sent.wait_again(now)
        if (left_s := sent.ends_s(self._most_s(), now) - now) <= 0:
            raise rows
        retries.tell(sent.statement, rows.__cause__, sent=1, pause_s=0.0, left_s=left_s)
        return await self._until_answered(sent, times=1)

    async def answer(self, sent: Sent) -> list[Any] | StoreError:
        """Wait for a statement that `start` sent; return the error if it was not answered.

        Raises:
            SchemaMissing: The keyspace or its tables do not exist.
        """
        with sent.limits.waiting():
            answer = await sent.answer
        if isinstance(answer, BaseException):
            problem = self._problem(answer, sent, times=1)
            if isinstance(problem, StoreTimeout | StoreUnavailable):
                problem.__cause__ = answer.with_traceback(None)  # else a cycle keeps what was sent
                return problem
            raise problem from answer
        sent.limits.heard()
        return list(answer)

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
        with side_by_side.limited(self.clock.monotonic() + seconds, each_s):
            yield

    def call(self) -> AbstractContextManager[Call]:
        """Work as one call of the client: it ends in time, whatever it has to wait for."""
        return side_by_side.one_call(self._most_s() + AFTERWARDS_S, self.clock)

    def left_s(self, at_most_s: float | None = None) -> float:
        """Return for how long a statement that begins now is retried, in seconds.

        Args:
            at_most_s: The limit without the session's patience; default: `DEADLINE_S`.
        """
        return min(self._most_s(at_most_s), side_by_side.present().left_s(self.clock.monotonic()))

    async def define(self, ddl: str) -> None:
        """Run one schema statement and wait until all nodes agree.

        Raises:
            StoreUnavailable: No node answered in time.
            UsageError: The cluster refuses it.
        """
        await self._executed("define", ddl, timeout=DEADLINE_S)

    async def raw_one(self, cql: str) -> Any | None:
        """Return the first row of a plain read of the cluster's own tables."""
        return (await self._executed("raw_one", cql)).one()

    async def _executed(self, name: str, cql: str, **more: float) -> Any:
        try:
            return await caller.in_a_thread(partial(self._session.execute, cql, **more))
        except DRIVER_ERRORS as error:
            raise self.translated(error, name) from error

    def nodes(self) -> Counter[str]:
        """Return how many nodes each data centre of the cluster has, up or not."""
        known = (host.datacenter for host in self._cluster.metadata.all_hosts())
        return Counter(name for name in known if name)

    async def prepare(self, statement: Statement) -> PreparedStatement:
        """Return the prepared form, which carries both consistencies (G1) [P20]."""
        return await self._bridge.prepare(statement)

    interceptor = property(
        lambda self: self._bridge.interceptor,
        lambda self, one: setattr(self._bridge, "interceptor", one),
        doc="See `Interceptor`; None in production.",
    )

    def close(self) -> None:
        """Disconnect. Idempotent; does nothing in a forked child."""
        if not self.home.is_here:
            return
        if portal.is_here():
            portal.apart(self.close)
            return
        try:
            portal.wait_for_what_was_left()
            self.is_closed = True
            portal.run(self._side_by_side.close())
            portal.run(self.looks.close())
        finally:
            self.is_closed = True
            self._cluster.shutdown()

    def __enter__(self) -> Self:
        """Return the session, which closes at the end of the block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Disconnect."""
        self.close()

    def check_open(self) -> None:
        """Raise an error if no statement may be sent any more.

        Raises:
            UsageError: The client is closed, or belongs to the parent of this process.
        """
        self.home.check()
        if self.is_closed:
            raise UsageError(
                "the client is closed: its block has ended, or close() was called. Connect again"
            )

    def _most_s(self, at_most_s: float | None = None) -> float:
        return (DEADLINE_S if at_most_s is None else at_most_s) + self.patience_s

    def _sent(self, statement: Statement, params: Sequence[Any]) -> Sent:
        return Sent(
            statement=statement,
            params=tuple(params),
            began_s=self.clock.monotonic(),
            limits=side_by_side.present(),
        )

    async def _until_answered(self, sent: Sent, *, times: int) -> list[Any]:
        """Send until it is answered, or its time is over.

        Args:
            times: How often it was sent already.
        """
        statement, now = sent.statement, self.clock.monotonic()
        ends_s = sent.ends_s(self._most_s(), now)
        longest_s = (ends_s - now) / 4
        before = times
        with sent.limits.waiting():
            while True:
                times += 1
                metrics.RETRIES.inc(times > 1)
                # The limit is for all sendings together: the last one may take the rest of it.
                with side_by_side.limited(ends_s, inf):
                    answer = await self._bridge.send(statement, [sent.params])
                if not isinstance(answer, BaseException):
                    break
                problem = self._problem(answer, sent, times=times)
                left_s = ends_s - self.clock.monotonic()
                if left_s <= 0 or not isinstance(problem, StoreTimeout | StoreUnavailable):
                    raise problem from answer
                pause_s = min(retries.pause_s(times - before, self.entropy), longest_s)
                retries.tell(statement, answer, sent=times, pause_s=pause_s, left_s=left_s)
                await self.clock.sleep(pause_s)
        sent.limits.heard()
        return answer

    def _problem(self, error: BaseException, sent: Sent, *, times: int) -> CassieqError:
        waited = retries.Waited(seconds=self.clock.monotonic() - sent.began_s, sent=times)
        return self.translated(error, sent.statement.name, waited)

    def _request_s(self) -> float:
        """Return the timeout of one request."""
        return min(driver.REQUEST_TIMEOUT_S, side_by_side.present().left_s(self.clock.monotonic()))

    def _check_datacenter(self) -> str:
        wanted = self.options.datacenter or self._local.local_dc
        return driver.checked(self._cluster, wanted, self.nodes(), self.options)
