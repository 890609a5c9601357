"""Run statements on one Cassandra session: prepared, with their consistency, bounded retries.

Every statement of the package goes through `CqlSession`; nothing raw of the driver leaves it except
what `store/cas.py` settles.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Self, TypeVar

import tenacity
from cassandra.policies import DCAwareRoundRobinPolicy

from cassieq_spark import metrics
from cassieq_spark.clock import ClusterClock
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import StoreError, StoreTimeout, StoreUnavailable, UsageError
from cassieq_spark.store import driver, retries, side_by_side, tls
from cassieq_spark.store.call import AFTERWARDS_S, DEADLINE_S
from cassieq_spark.store.node_clocks import NodeClocks, warn_of
from cassieq_spark.store.process import Home
from cassieq_spark.store.sent import Done, Sent, note_failure, raising
from cassieq_spark.store.side_by_side import SideBySide
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.store.translate import (
    DRIVER_ERRORS,
    translate,
    why_shut_out,
    why_unconnected,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from uuid import UUID

    from cassandra.query import PreparedStatement

    from cassieq_spark.errors import CassieqError
    from cassieq_spark.options import ConnectionOptions
    from cassieq_spark.store.call import Call
    from cassieq_spark.store.sent import Interceptor

T = TypeVar("T")
R = TypeVar("R")


class CqlSession:
    """A connected session on one keyspace. Thread-safe; it does not pickle or survive a fork.

    Attributes:
        home: The process that has connected.
        client_id: Names this session in the tags of its CASes (G2); fresh with each session.
        node_clocks: Asks the nodes for their time.
        clock: Cluster time, measured by the nodes' clocks (G6).
        counts: Statements sent, by name.
        is_closed: Whether `close` was called.
        patience_s: How much longer than `DEADLINE_S` a statement is sent again (`store.shared`),
            unless `within` says otherwise.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        """Connect.

        Raises:
            OptionInvalid: A certificate or key file cannot be used; it says which.
            StoreUnavailable: Nothing answers at the contact points; it names them, and the host
                names without an address.
            AuthenticationRefused: The nodes ask for a login, or refuse the one that was given.
            TlsFailed: We refuse a node's certificate, or it refuses ours.
            UsageError: The cluster has no data centre of that name; it says which it has.
        """
        self.options = options
        self.keyspace = options.keyspace
        self.client_id: UUID = new_uuid()
        self.counts: Counter[str] = Counter()
        self.patience_s = 0.0
        self.interceptor: Interceptor | None = None
        self._prepared: dict[str, PreparedStatement] = {}
        self.is_closed = False
        self._lock = threading.Lock()
        self._local = DCAwareRoundRobinPolicy(options.datacenter or "")
        context = None if options.tls is None else tls.Files(options.tls)
        self.home = clock = Home()
        made, began_s = None, clock.monotonic()
        try:
            # It looks host names up, too, and fails if none of them has an address.
            self._cluster = made = driver.cluster(options, self._local, context)
            self._session = driver.with_limits(made.connect(), self._request_s)
        except DRIVER_ERRORS as error:
            waited_s = clock.monotonic() - began_s
            if made is not None:
                made.shutdown()
                # With a wrong data centre the driver finds nodes, but none that it may talk to.
                self._check_datacenter()
            raise why_unconnected(error, options, context, waited_s) from error
        # The server's clock orders plain writes: a client's could be minutes off [R9]. Pointers
        # carry their value as timestamp by hand (G4).
        self._session.use_client_timestamp = False
        self._failures = self._cluster.connection_class.failures
        self.datacenter = self._check_datacenter()
        self._side_by_side = SideBySide()
        self.node_clocks = NodeClocks(self._session, self.datacenter, self._check_open)
        self.clock = ClusterClock(clock, self.node_clocks, tell=warn_of, left_s=self.left_s)

    def run(self, statement: Statement, params: Sequence[Any] = ()) -> list[Any]:
        """Run a read or an idempotent write, again if it was not answered, until the deadline.

        Raises:
            StoreTimeout: Not answered in time; a write may have been stored.
            StoreUnavailable: No node answers, or too few replicas do.
            SchemaMissing: The keyspace or its tables do not exist.
        """
        if statement.kind is Kind.CAS:
            raise ValueError(f"{statement.name} is a CAS: only store/cas.py may send it")
        return self._until_answered(self._sent(statement, params), times=0)

    def one(self, statement: Statement, params: Sequence[Any] = ()) -> Any | None:
        """The first row of `run`, None if there is none."""
        return next(iter(self.run(statement, params)), None)

    def attempt(self, statement: Statement, params: Sequence[Any] = ()) -> list[Any] | None:
        """Run a read once; None if it was not answered: the caller can ask elsewhere instead.

        Raises:
            SchemaMissing: The keyspace or its tables do not exist.
        """
        rows = self.answer(self.start(statement, params))
        return None if isinstance(rows, StoreError) else rows

    def run_once(self, statement: Statement, params: Sequence[Any]) -> list[Any]:
        """Send a statement once and let the driver's own error out: for `store/cas.py` alone."""
        return list(self._execute(statement, tuple(params)))

    @property
    def refusal(self) -> CassieqError | None:
        """Why nodes refuse this client's login or its TLS; None: a node is connected, or silent."""
        is_connected = any(pool.open_count for pool in self._session.get_pools())
        return None if is_connected else why_shut_out(self._failures, self.options)

    def translated(
        self, error: BaseException, name: str, waited: retries.Waited | None = None
    ) -> CassieqError:
        """The error that a caller sees."""
        return translate(error, name, self.options, self._failures, waited)

    def start(self, statement: Statement, params: Sequence[Any]) -> Sent:
        """Send without waiting, within this block's limits; `finish` or `answer` takes it, once."""
        return self.start_together(statement, [params])[0]

    def start_together(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> Sequence[Sent]:
        """As `start`, of writes into one partition, in one request: all of them are stored or none.

        Each is finished by itself, and sent again by itself if that was not answered.
        """
        intercepts = self.interceptor is not None  # read once: another thread may set it
        if intercepts and len(rows) > 1:
            return [self.start(statement, params) for params in rows]
        together = [self._sent(statement, params) for params in rows]
        try:
            if intercepts:
                found = self._execute(statement, together[0].params)
                future: Any = Done(lambda: found)
            else:
                prepared = self.prepare(statement)
                self._count(statement, len(together))
                request = driver.request(prepared, [sent.params for sent in together])
                future = self._session.execute_async(*request, timeout=self._request_s())
                future.add_errback(lambda _: note_failure(together, self.clock.monotonic()))
        except DRIVER_ERRORS as error:
            future = Done(raising(error))
            note_failure(together, self.clock.monotonic())
        for sent in together:
            sent.future = future
        return together

    def finish(self, sent: Sent) -> list[Any]:
        """Wait for what `start` sent; if it was not answered, go on as `run` does.

        What the first sending took is part of its limits, but not for how long nobody waited: a
        caller may have been at work for minutes.

        Raises:
            StoreTimeout, StoreUnavailable, SchemaMissing: See `run`.
        """
        rows = self.answer(sent)
        if not isinstance(rows, StoreError):
            return rows
        now = self.clock.monotonic()
        sent.wait_again(now)
        if (left_s := sent.ends_s(self._most_s(), now) - now) <= 0:
            raise rows
        retries.tell(sent.statement, rows.__cause__, sent=1, pause_s=0.0, left_s=left_s)
        return self._until_answered(sent, times=1)

    def answer(self, sent: Sent) -> list[Any] | StoreError:
        """Wait for what `start` sent; return the error if it was not answered.

        Raises:
            SchemaMissing: The keyspace or its tables do not exist.
        """
        try:
            with sent.limits.waiting():
                rows = list(sent.future.result())
        except DRIVER_ERRORS as error:
            problem = self._problem(error, sent, times=1)
            if isinstance(problem, StoreTimeout | StoreUnavailable):
                problem.__cause__ = error.with_traceback(None)  # else a cycle keeps what was sent
                return problem
            raise problem from error
        sent.limits.heard()
        return rows

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Run ``work`` for every item, up to 16 at once; results in order.

        An item that waits for more than half a second no longer counts among the 16. After the
        first error nothing more is begun; it is raised when what was under way has ended, so that
        none goes on unseen and no caller waits for more than one deadline.
        """
        self._check_open()
        return self._side_by_side.map(work, items)

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R | CassieqError]:
        """As `map`, but an error is the result of its own item: all others are carried out [T5]."""
        self._check_open()
        return self._side_by_side.each(work, items)

    def begin(self, work: Callable[[T], R], item: T) -> Future[R]:
        """Begin one item in a thread of the session; nobody needs to wait for it [T5]."""
        self._check_open()
        return self._side_by_side.begin(work, item)

    @contextmanager
    def within(self, seconds: float = inf, *, each_s: float = inf) -> Iterator[None]:
        """Send nothing again after so many seconds, in this block and in what it begins (ADR 21).

        A statement that is not answered by then raises what it raises at its deadline: a CAS is
        ambiguous.

        Args:
            each_s: The limit of each statement, from its first sending.
        """
        with side_by_side.limited(self.clock.monotonic() + seconds, each_s):
            yield

    def call(self) -> AbstractContextManager[Call]:
        """Work as one call of the client: it ends in time, whoever it has to wait for."""
        return side_by_side.one_call(self._most_s() + AFTERWARDS_S)

    def left_s(self, at_most_s: float | None = None) -> float:
        """How long a statement that begins now is sent again, in seconds.

        Args:
            at_most_s: The limit without the session's patience; default: `DEADLINE_S`.
        """
        return min(self._most_s(at_most_s), side_by_side.present().left_s(self.clock.monotonic()))

    def define(self, ddl: str) -> None:
        """Run one schema statement and wait until all nodes agree.

        Raises:
            StoreUnavailable: Nobody answered in time.
            UsageError: The cluster refuses it.
        """
        try:
            self._session.execute(ddl, timeout=DEADLINE_S)
        except DRIVER_ERRORS as error:
            raise self.translated(error, "define") from error

    def raw_one(self, cql: str) -> Any | None:
        """The first row of a plain read of the cluster's own tables."""
        try:
            return self._session.execute(cql).one()
        except DRIVER_ERRORS as error:
            raise self.translated(error, "raw_one") from error

    def nodes(self) -> Counter[str]:
        """How many nodes each data centre of the cluster has, up or not."""
        known = (host.datacenter for host in self._cluster.metadata.all_hosts())
        return Counter(name for name in known if name)

    def prepare(self, statement: Statement) -> PreparedStatement:
        """The prepared form, which carries both consistencies (G1) [P20]."""
        self._check_open()
        if (prepared := self._prepared.get(statement.name)) is not None:
            return prepared
        # Without a lock: where nobody answers, one call would wait for all before it. What two
        # prepare at the same time is the same.
        prepared = driver.prepare(self._session, statement, self.keyspace)
        return self._prepared.setdefault(statement.name, prepared)

    def close(self) -> None:
        """Disconnect. Idempotent; nothing happens in a forked child."""
        if not self.home.is_here:
            return
        self.is_closed = True
        self._side_by_side.close()
        self._cluster.shutdown()

    def __enter__(self) -> Self:
        """Return the session, which closes at the end of the block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Disconnect."""
        self.close()

    def _check_open(self) -> None:
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

    def _until_answered(self, sent: Sent, *, times: int) -> list[Any]:
        """Send until it is answered, or its time is over.

        Args:
            times: How often it was sent already.
        """
        statement, now = sent.statement, self.clock.monotonic()
        ends_s = sent.ends_s(self._most_s(), now)

        def send() -> list[Any]:
            nonlocal times
            times += 1
            metrics.RETRIES.inc(times > 1)
            try:
                # The limit is for all sendings together: the last one has the rest of it.
                with side_by_side.limited(ends_s, inf):
                    return list(self._execute(statement, sent.params))
            except DRIVER_ERRORS as error:
                raise self._problem(error, sent, times=times) from error

        def tell(state: tenacity.RetryCallState) -> None:
            problem = None if state.outcome is None else state.outcome.exception()
            retries.tell(
                statement,
                None if problem is None else problem.__cause__,
                sent=times,
                pause_s=state.upcoming_sleep,
                left_s=ends_s - self.clock.monotonic(),
            )

        with sent.limits.waiting():
            rows = retries.retrying(ends_s - now, tell)(send)
        sent.limits.heard()
        return rows

    def _problem(self, error: BaseException, sent: Sent, *, times: int) -> CassieqError:
        waited = retries.Waited(seconds=self.clock.monotonic() - sent.began_s, sent=times)
        return self.translated(error, sent.statement.name, waited)

    def _count(self, statement: Statement, times: int = 1) -> None:
        with self._lock:
            self.counts[statement.name] += times
        metrics.STATEMENTS.inc(statement.name, times)

    def _execute(self, statement: Statement, params: tuple[Any, ...]) -> Any:
        prepared = self.prepare(statement)

        def proceed() -> Any:
            self._count(statement)
            return self._session.execute(prepared, params, timeout=self._request_s())

        interceptor = self.interceptor
        return proceed() if interceptor is None else interceptor.around(statement, params, proceed)

    def _request_s(self) -> float:
        """The timeout of one request."""
        return min(driver.REQUEST_TIMEOUT_S, side_by_side.present().left_s(self.clock.monotonic()))

    def _check_datacenter(self) -> str:
        known = sorted(self.nodes())
        wanted = self.options.datacenter or self._local.local_dc
        if known and wanted not in known:
            self._cluster.shutdown()
            raise UsageError(
                f"the cluster at {self.options.addresses} has no data centre {wanted!r}; it has "
                f"{', '.join(map(repr, known))}. Set option 'datacenter' to one of them"
            )
        return str(wanted)
