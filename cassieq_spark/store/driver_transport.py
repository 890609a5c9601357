"""`DriverTransport` is the `Transport` of the Cassandra driver."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from cassandra.cluster import NoHostAvailable
from cassandra.policies import DCAwareRoundRobinPolicy

from cassieq_spark import metrics
from cassieq_spark.errors import UsageError
from cassieq_spark.store import driver, tls
from cassieq_spark.store.caller import in_a_thread
from cassieq_spark.store.statements import Kind
from cassieq_spark.store.translate import DRIVER_ERRORS, why_unconnected
from cassieq_spark.store.transport import Node, Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cassandra.query import PreparedStatement, SimpleStatement

    from cassieq_spark.clock import Clock
    from cassieq_spark.options import ConnectionOptions
    from cassieq_spark.store.statements import Statement
    from cassieq_spark.store.transport import Request, Told


class DriverTransport:
    """The driver's connections to one cluster; a `Transport`.

    Attributes:
        cluster, session: The driver's.
        datacenter, counts, failures: See `Transport`.
    """

    def __init__(self, options: ConnectionOptions, clock: Clock) -> None:
        """Connect.

        Raises:
            CassieqError: See `store.session.CqlSession`.
        """
        self._options = options
        self._local = DCAwareRoundRobinPolicy(options.datacenter or "")
        context = None if options.tls is None else tls.Files(options.tls)
        made, began_s = None, clock.monotonic()
        try:
            # This looks host names up, too, and fails if none of them has an address.
            self.cluster = made = driver.cluster(options, self._local, context)
            self.session = driver.with_limits(made.connect())
        except DRIVER_ERRORS as error:
            waited_s = clock.monotonic() - began_s
            if made is not None:
                made.shutdown()
                # With a wrong data centre the driver finds nodes, but none that it may talk to.
                self._check_datacenter()
            raise why_unconnected(error, options, context, waited_s) from error
        # The server's clock orders plain writes: a client's clock could be minutes off [R9].
        # Pointers carry their value as the timestamp (G4).
        self.session.use_client_timestamp = False
        self.failures = self.cluster.connection_class.failures
        self.datacenter = self._check_datacenter()
        self.counts: Counter[str] = Counter()
        self._ready: dict[str, PreparedStatement | SimpleStatement] = {}
        self._preparing: dict[str, asyncio.Task[None]] = {}

    @property
    def is_connected(self) -> bool:
        """See `Transport`."""
        return any(pool.open_count for pool in self.session.get_pools())

    def is_ready(self, statement: Statement) -> bool:
        """See `Transport`."""
        return statement.name in self._ready

    async def prepare(self, statement: Statement, timeout_s: float) -> None:
        """See `Transport`. A thread does it, because the driver blocks."""
        name = statement.name
        if name in self._ready:
            return
        if statement.kind is Kind.SYSTEM:
            self._ready[name] = driver.as_text(statement, self._options.keyspace)
            return
        if name not in self._preparing:
            prepare = partial(
                driver.prepare, self.session, statement, self._options.keyspace, timeout_s
            )

            async def kept() -> None:
                try:
                    self._ready[name] = await in_a_thread(prepare)
                finally:
                    del self._preparing[name]

            self._preparing[name] = asyncio.get_running_loop().create_task(kept())
        await self._preparing[name]

    def send(self, request: Request, told: Told) -> None:
        """See `Transport`."""
        statement, rows, node = request.statement, request.rows, request.node
        name = statement.name
        if request.page is None and statement.kind is not Kind.SYSTEM:
            self.counts[name] += len(rows)
            metrics.STATEMENTS.inc(name, len(rows))

        # This runs in the driver's thread, or here if the request has failed already.
        def note(found: Sequence[Any] | None) -> None:
            told(Page(found or (), response._paging_state))  # noqa: SLF001 - it has no other name

        try:
            response = self.session.execute_async(
                *driver.query_of(self._ready[name], rows),
                timeout=request.timeout_s,
                paging_state=request.page,
                host=None if node is None else self._host(node),
            )
        except DRIVER_ERRORS as error:
            told(error)
        else:
            response.add_callbacks(note, told)

    async def define(self, ddl: str, timeout_s: float) -> None:
        """See `Transport`."""
        await in_a_thread(partial(self.session.execute, ddl, timeout=timeout_s))

    def nodes(self) -> list[Node]:
        """See `Transport`."""
        return [
            Node(host.host_id, str(host.address), host.datacenter, host.is_up)
            for host in self.cluster.metadata.all_hosts()
        ]

    def close(self) -> None:
        """See `Transport`."""
        self.cluster.shutdown()

    def _host(self, node: Node) -> Any:
        known = self.cluster.metadata.all_hosts()
        host = next((one for one in known if one.host_id == node.host_id), None)
        if host is None:
            raise NoHostAvailable(f"node {node.address} has left the cluster", {})
        return host

    def _check_datacenter(self) -> str:
        """Return the local data centre; disconnect, and raise UsageError, if it does not exist."""
        wanted = self._options.datacenter or self._local.local_dc
        known = sorted({node.datacenter for node in self.nodes() if node.datacenter})
        if known and wanted not in known:
            self.cluster.shutdown()
            raise UsageError(
                f"the cluster at {self._options.addresses} has no data centre {wanted!r}; it has "
                f"{', '.join(map(repr, known))}. Set option 'datacenter' to one of them"
            )
        return str(wanted)
