"""Set up the driver: policies, sizes, rows. `DriverTransport` is its `Transport`."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import ssl
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from struct import Struct
from typing import Any, ClassVar, Final
from weakref import WeakSet

from cassandra import AuthenticationFailed, DriverException, ProtocolVersion, policies, segment
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    Session,
    _discard_cluster_shutdown,
)
from cassandra.connection import (
    CrcMismatchException,
    EndPoint,
    ProtocolError,
    _Frame,
    defunct_on_error,
)
from cassandra.query import (
    BatchStatement,
    BatchType,
    PreparedStatement,
    SimpleStatement,
    named_tuple_factory,
)

from cassieq_spark import metrics
from cassieq_spark.clock import Clock
from cassieq_spark.errors import UsageError
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.store import tls
from cassieq_spark.store.caller import in_a_thread
from cassieq_spark.store.reactor import LoopConnection
from cassieq_spark.store.retries import fold
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.store.translate import (
    DRIVER_ERRORS,
    HandshakeFailed,
    LoginRefused,
    why_unconnected,
)
from cassieq_spark.store.transport import Node, Page, Request, Told

REQUEST_TIMEOUT_S: Final = 6.0
"""The timeout of one request. Cassandra's own timeouts (2-5 s by default) end first and say
more."""


clusters: Final[WeakSet[Cluster]] = WeakSet()
"""The clusters of this process's clients. A forked child must not shut them down when it ends:
the driver would wait for threads that do not exist."""

_preparing = threading.local()


def _is_news(record: logging.LogRecord) -> bool:
    return record.msg != "Error preparing query:" or not hasattr(_preparing, "timeout_s")


logging.getLogger("cassandra.cluster").addFilter(_is_news)


class Undecodable(DriverException):  # type: ignore[misc]
    """An answer came that the driver cannot read; of what was sent it says nothing."""


class Convicted(policies.ConvictionPolicy):  # type: ignore[misc]
    """Makes the driver reconnect to a node after every failure of a connection, with pauses.

    By default a timeout does not: a node whose first connection times out is left out for good, and
    one that stops answering is tried without a pause.
    """

    def add_failure(self, _: Exception) -> bool:
        """Convict the node."""
        return True

    def reset(self) -> None:
        """Do nothing: there is no state."""


class Segments(segment.SegmentCodec):  # type: ignore[misc]  # the driver has no types
    """The driver's uncompressed segments of protocol 5, with one copy for a long message.

    The driver (3.30) copies each part, copies it again into a growing buffer, and copies what it
    cuts from that to send it.
    """

    def encode(self, buffer: io.BytesIO, msg: bytes) -> None:
        """Write the segments of a message into a new buffer."""
        if len(msg) <= segment.Segment.MAX_PAYLOAD_LENGTH:
            super().encode(buffer, msg)
            return
        pieces: list[bytes | memoryview] = []
        for at in range(0, len(msg), segment.Segment.MAX_PAYLOAD_LENGTH):
            part = memoryview(msg)[at : at + segment.Segment.MAX_PAYLOAD_LENGTH]
            head = len(part)  # without the flag of a message in one segment
            pieces += [
                head.to_bytes(self.header_length, "little"),
                segment.compute_crc24(head, self.header_length).to_bytes(
                    segment.CRC24_LENGTH, "little"
                ),
                part,
                zlib.crc32(part, segment.CRC32_INITIAL).to_bytes(segment.CRC32_LENGTH, "little"),
            ]
        buffer.__init__(b"".join(pieces))  # type: ignore[misc]  # it keeps the bytes uncopied


class Connection(LoopConnection):
    """The driver's connection, but it moves 128 KiB (a segment of protocol 5) at a time, not 4 KiB.

    Reading 192 MB of chunks then takes 0.65 s of CPU, not 1.6; writing them 0.45, not 0.63 (median
    of 8 rounds, two cores, driver 3.30). With fewer copies of sent bytes, writing takes 0.42 s
    instead of 0.53 (3 runs of 8 to 12 rounds, on a faster machine). With fewer copies of received
    bytes, a client takes 0.8 s for 400 MB instead of 1.4 (2 runs of 3 rounds).
    """

    failures: ClassVar[dict[EndPoint, Exception]]
    """The error of the last connection attempt by node; each cluster object has its own."""

    in_buffer_size = 128 * 1024
    out_buffer_size = 128 * 1024

    @classmethod
    def factory(cls, endpoint: EndPoint, *args: Any, **options: Any) -> Any:
        """Connect, and note the error of a failure: the errors of statements do not hold it."""
        try:
            made = super().factory(endpoint, *args, **options)
        except Exception as error:
            cls.failures[endpoint] = error
            raise
        cls.failures.pop(endpoint, None)
        return made

    def defunct(self, error: Exception) -> Any:
        """End the connection, and let the driver reconnect whatever the reason."""
        if isinstance(error, AuthenticationFailed):
            error = LoginRefused(str(error), self.endpoint)
        return super().defunct(error)

    def _initiate_connection(self, address: Any) -> None:
        try:
            super()._initiate_connection(address)
        except ssl.SSLError as error:
            self._socket.close()
            raise HandshakeFailed(str(error), self.endpoint) from error

    def _enable_checksumming(self) -> None:
        super()._enable_checksumming()
        self._segment_codec = _SEGMENTS  # `cluster` switched compression off
        self._parts: list[bytes] = []
        self._missing = 0

    def process_io_buffer(self) -> None:
        """Pass on each complete message.

        For each segment the driver (3.30) copies all that was read behind it. And if a read ends
        within the header of a segment, it forgets the part that it has read, and the connection
        breaks with "CRC mismatch" at the next segment.
        """
        if not self._is_checksumming_enabled:
            super().process_io_buffer()
        if self._is_checksumming_enabled:
            self._process_segments()

    def _process_segment_buffer(self) -> None:
        """Rewind the buffer; the driver's loop comes here if segments follow the first answer."""
        self._iobuf.seek(0)

    @defunct_on_error  # type: ignore[untyped-decorator]
    def _process_segments(self) -> None:
        buffer, codec = self._iobuf, self._segment_codec
        size, at = buffer.tell(), 0
        while size - at >= codec.header_length_with_crc:
            buffer.seek(at)
            try:
                header = codec.decode_header(buffer)
                if size - at < header.segment_length:
                    break
                decoded = codec.decode(buffer, header)
            except segment.CrcException as error:
                raise CrcMismatchException(str(error), self.endpoint) from error
            at += header.segment_length
            if decoded.is_self_contained:
                self._process_messages(memoryview(decoded.payload))
            else:
                self._parts.append(decoded.payload)
                self._process_long_message()
        buffer.seek(at)
        self._io_buffer.reset_io_buffer()

    def _process_messages(self, payload: memoryview) -> None:
        """Process the messages of a self-contained segment."""
        while payload:
            header = _header(payload)
            self.process_msg(header, bytes(payload[_HEADER.size : header.end_pos]))
            payload = payload[header.end_pos :]

    def _process_long_message(self) -> None:
        """Process the message that the collected segments make, if it is complete."""
        if len(self._parts) == 1:
            self._missing = _header(self._parts[0]).end_pos
        self._missing -= len(self._parts[-1])
        if self._missing <= 0:
            (first, *others), self._parts = self._parts, []
            self.process_msg(_header(first), b"".join([memoryview(first)[_HEADER.size :], *others]))


def _header(message: bytes | memoryview) -> _Frame:
    """Return the header of a message, in the form of `process_msg`.

    Raises:
        ProtocolError: It cannot be a header.
    """
    version, flags, stream, opcode, length = _HEADER.unpack_from(message)
    if length < 0:
        raise ProtocolError(f"a message of {length} bytes")
    return _Frame(version & 0x7F, flags, stream, opcode, _HEADER.size, _HEADER.size + length)


_HEADER: Final = Struct(">BBhBi")
_SEGMENTS: Final = Segments()


def cluster(
    options: ConnectionOptions, local: policies.DCAwareRoundRobinPolicy, files: tls.Files | None
) -> Cluster:
    """Make the driver's cluster object; it is not connected yet."""
    fold()
    profile = ExecutionProfile(
        load_balancing_policy=policies.TokenAwarePolicy(local),
        # The driver never decides to retry: a CAS must not be retried by it, and we retry all other
        # statements ourselves.
        retry_policy=policies.FallthroughRetryPolicy(),
        speculative_execution_policy=None,
        row_factory=rows_of,
        request_timeout=REQUEST_TIMEOUT_S,
    )
    login = options.login
    ports = {port for _, port in options.contact_points}
    made = Cluster(
        contact_points=(
            [host for host, _ in options.contact_points]
            if len(ports) == 1
            else list(options.contact_points)
        ),
        port=next(iter(ports)),
        # SASL PLAIN, which PasswordAuthenticator and LDAP authenticators take.
        auth_provider=login and PlainTextAuthProvider(login.username, login.password.reveal()),
        ssl_context=files,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connect_timeout=options.connect_timeout_s,
        control_connection_timeout=options.connect_timeout_s,
        # By default the driver gives a node up after 64 attempts, five minutes.
        reconnection_policy=policies.ExponentialReconnectionPolicy(0.2, 5.0, max_attempts=None),
        conviction_policy_factory=Convicted,
        # This needs Cassandra 4.0 or later. Without it each connect tries higher versions and logs
        # two warnings.
        protocol_version=ProtocolVersion.V5,
        connection_class=type("Connection", (Connection,), {"failures": {}}),
        # Large values are compressed already. The driver would compress them again wherever a
        # package named lz4 happens to be installed.
        compression=False,
        application_name="cassieq_spark",
        # The driver prepares our statements on each node that it meets.
        reprepare_on_up=True,
        executor_threads=2,
    )
    clusters.add(made)
    return made


class _Session(Session):  # type: ignore[misc]  # the driver has no types
    """The driver's session, but it prepares a statement within its caller's limits.

    The driver (3.30) gives that request ten seconds, whatever the caller's limits are.
    """

    @property
    def default_timeout(self) -> float:
        """The timeout of a request without a timeout of its own."""
        return getattr(_preparing, "timeout_s", REQUEST_TIMEOUT_S)


def prepare(
    session: Session, statement: Statement, keyspace: str, timeout_s: float
) -> PreparedStatement:
    """Prepare a statement, with its consistency.

    A failure is only raised: the driver would also log it as an error with a traceback. For
    `schema.apply` it is not an error if the keyspace does not exist yet.
    """
    _preparing.timeout_s = timeout_s
    try:
        prepared = session.prepare(statement.cql.format(ks=keyspace))
    finally:
        del _preparing.timeout_s
    prepared.consistency_level = statement.consistency
    if statement.kind is Kind.CAS:
        prepared.serial_consistency_level = statement.serial_consistency
    prepared.is_idempotent = statement.kind is not Kind.CAS
    if statement.rows_per_page is not None:
        prepared.fetch_size = statement.rows_per_page
    return prepared


def query_of(
    ready: PreparedStatement | SimpleStatement, rows: Sequence[tuple[Any, ...]]
) -> tuple[Any] | tuple[Any, tuple[Any, ...]]:
    """Return the first arguments of ``execute_async`` for a write of rows of one partition.

    Several rows are a batch. It is one mutation, since all rows are in one partition, so it needs
    no batch log, and Cassandra applies no batch size limit to it (CASSANDRA-10876; probed).
    """
    if len(rows) == 1:
        return ready, rows[0]
    batch = BatchStatement(BatchType.UNLOGGED, consistency_level=ready.consistency_level)
    batch.is_idempotent = ready.is_idempotent
    for row in rows:
        batch.add(ready, row)
    return (batch,)


def rows_of(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[Any]:
    """Make rows like the driver's ``named_tuple_factory``, with one class per set of columns.

    The driver makes a class for each result, which takes as long as the rows of a small read.
    """
    make = _row_type(tuple(names))._make
    return [make(row) for row in rows]


@lru_cache(maxsize=256)
def _row_type(names: tuple[str, ...]) -> Any:
    """Make a row class; the driver cleans names that Python refuses, such as ``system.now()``."""
    return type(named_tuple_factory(names, [(None,) * len(names)])[0])


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
        self._local = policies.DCAwareRoundRobinPolicy(options.datacenter or "")
        context = None if options.tls is None else tls.Files(options.tls)
        made, began_s = None, clock.monotonic()
        try:
            # This looks host names up, too, and fails if none of them has an address.
            self.cluster = made = cluster(options, self._local, context)
            self.session = made.connect()
            self.session.__class__ = _Session  # the driver offers no option for the class
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
            self._ready[name] = SimpleStatement(
                statement.cql.format(ks=self._options.keyspace),
                consistency_level=statement.consistency,
                is_idempotent=True,
            )
            return
        if name not in self._preparing:
            blocking = partial(prepare, self.session, statement, self._options.keyspace, timeout_s)

            async def kept() -> None:
                try:
                    self._ready[name] = await in_a_thread(blocking)
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

        # This runs in the event loop, or in another thread of the driver's. The response forgets
        # who is told: else it would be in a cycle, and wait for a collection with all its rows.
        def note(found: Sequence[Any] | None) -> None:
            response.clear_callbacks()
            told(Page(found or (), response._paging_state))  # noqa: SLF001 - it has no other name

        def fail(error: Exception) -> None:
            response.clear_callbacks()
            told(error if isinstance(error, DRIVER_ERRORS) else Undecodable(repr(error)))

        try:
            response = self.session.execute_async(
                *query_of(self._ready[name], rows),
                timeout=request.timeout_s,
                paging_state=request.page,
                host=None if node is None else self._host(node),
            )
        except DRIVER_ERRORS as error:
            told(error)
        else:
            response.add_callbacks(note, fail)

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
            named = self._options.spelling.named("datacenter")
            raise UsageError(
                f"the cluster at {self._options.addresses} has no data centre {wanted!r}; it has "
                f"{', '.join(map(repr, known))}. Set {named} to one of them"
            )
        return str(wanted)


def _forget_after_fork() -> None:
    for cluster in clusters:
        _discard_cluster_shutdown(cluster)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
