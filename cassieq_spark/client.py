"""`connect` and `Client`: wires a session, its tables and its queues together."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from cassieq_spark.entropy import new_uuid
from cassieq_spark.options import ConnectionOptions, QueueSettings, parse_connection, queue_name
from cassieq_spark.queue import life, transaction
from cassieq_spark.queue.handle import Queue, Work
from cassieq_spark.queue.lane import lane_of, open_lane
from cassieq_spark.repair.heal import heal
from cassieq_spark.store import schema
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.queues import QueueStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.options.values import Secret
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.repair.report import RepairReport


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """One line of `Client.queues`."""

    name: str
    settings: QueueSettings
    home_datacenter: str
    created_us: int


def connect(
    contact_points: str | Sequence[str],
    *,
    keyspace: str | None = None,
    datacenter: str | None = None,
    connect_timeout: float | None = None,
    username: str | None = None,
    password: str | Secret | None = None,
    ssl_ca_file: str | PathLike[str] | None = None,
    ssl_cert_file: str | PathLike[str] | None = None,
    ssl_key_file: str | PathLike[str] | None = None,
    ssl_key_password: str | Secret | None = None,
    ssl_verify_hostname: bool | None = None,
) -> Client:
    """A client on one keyspace. Close it, or use it as a context manager.

    Args:
        contact_points: ``"host:port,host:port"`` or a list of ``"host:port"``; the port is 9042 if
            it is left out.
        keyspace: Default ``cassieq``.
        datacenter: The local data centre; default: that of the contact points.
        connect_timeout: Seconds to wait for a node to answer, default 10.
        username: The role to log in as, with its ``password``; default: no login.
        ssl_ca_file: PEM file of the CA that signed the nodes' certificates; with it, TLS.
        ssl_cert_file: PEM file of this client's own certificate; its key is in ``ssl_key_file``,
            or in the same file, encrypted by ``ssl_key_password`` or not at all.
        ssl_verify_hostname: Whether a node's certificate must name its address; default true.

    Raises:
        UsageError: An argument has a wrong form, or a file is not what it should be.
        AuthenticationRefused: Nodes want a login, or another one.
        TlsFailed: Nodes and this client do not accept each other's certificates.
        StoreUnavailable: Nobody answers there; says host and port.
    """
    given: dict[str, Any] = {
        "contactPoints": contact_points,
        "keyspace": keyspace,
        "datacenter": datacenter,
        "connectTimeoutSeconds": connect_timeout,
        "username": username,
        "password": password,
        "sslCaFile": ssl_ca_file,
        "sslCertFile": ssl_cert_file,
        "sslKeyFile": ssl_key_file,
        "sslKeyPassword": ssl_key_password,
        "sslVerifyHostname": ssl_verify_hostname,
    }
    options = parse_connection({key: value for key, value in given.items() if value is not None})
    return Client(options)


class Client:
    """Queues of one keyspace. Threads may share it; not picklable, not for use across a fork."""

    def __init__(self, options: ConnectionOptions) -> None:
        """Connect; see `connect`."""
        self._session = CqlSession(options)
        self._store = Store(self._session)
        self._lock = threading.Lock()
        self._work: dict[LaneId, Work] = {}

    def bootstrap(self, replication: Mapping[str, object] | None = None) -> None:
        """Create the keyspace and its tables, where they are missing, and prove the cluster fit.

        Idempotent. A keyspace that is there keeps its replication.

        Args:
            replication: As CQL has it, default ``{"class": "NetworkTopologyStrategy",
                <this data centre>: 1}``: one copy, fit for trying out only.

        Raises:
            SchemaMismatch: There are tables of another version, or the cluster limits write
                timestamps, which pointers need.
        """
        default = {"class": "NetworkTopologyStrategy", self._session.datacenter: 1}
        schema.apply(self._session, replication or default, new_uuid=new_uuid)

    def create_queue(self, name: str, **settings: Any) -> Queue:
        """Create a queue, or return the one that is there with the same settings.

        Args:
            name: Letters, digits, ``. - _``, 1 to 200 characters.
            settings: See `options.QueueSettings`; times are seconds or timedelta.

        Raises:
            UsageError: A name or setting of a wrong form.
            QueueExists: It is there with other settings; names each.
            QueueNotFound: The dead-letter queue is not there.
        """
        checked = queue_name(name)
        wanted = QueueSettings.parse(**settings)
        schema.check(self._session)
        return self._open(lane_of(self._store, life.create(self._store, checked, wanted)))

    def alter_queue(self, name: str, **settings: Any) -> Queue:
        """Change settings of a queue; who has it open sees them within ten seconds.

        Args:
            settings: As of `create_queue`, but ``bucket_size``; None puts one back to its default.

        Raises:
            QueueNotFound: There is none of that name, or no such dead-letter queue.
            UsageError: A setting of a wrong form.
            QueueExists: A setting that cannot change, or a cycle of dead-letter queues.
        """
        checked = queue_name(name)
        schema.check(self._session)
        return self._open(lane_of(self._store, life.alter(self._store, checked, settings)))

    def queue(self, name: str) -> Queue:
        """Open a queue.

        Raises:
            QueueNotFound: There is none of that name.
        """
        schema.check(self._session)
        return self._open(open_lane(self._store, queue_name(name)))

    def delete_queue(self, name: str) -> None:
        """End a queue with all it holds; also one whose deletion was interrupted.

        Raises:
            QueueNotFound: There is none of that name.
        """
        schema.check(self._session)
        life.delete(self._store, queue_name(name))

    def queues(self) -> list[QueueInfo]:
        """Every queue of the keyspace, by name."""
        schema.check(self._session)
        return [
            QueueInfo(
                name=row.name,
                settings=row.settings,
                home_datacenter=row.home_datacenter,
                created_us=row.created_us,
            )
            for row in self._store.queues.read_all()
            if row.status is QueueStatus.ACTIVE
        ]

    def repair(self, queue: str | None = None, *, full: bool = False) -> RepairReport:
        """One repair pass in this process, over one queue or all of this data centre.

        Finishes what others left half-way, ends what nobody ends, moves the dead to their
        dead-letter queues, drops what is done. Any number may run at once.

        Args:
            full: Also look through all of the keyspace for what landed late below what was
                dropped. It only takes space: once a week is enough.

        Raises:
            QueueNotFound: There is no such queue.
            StoreError: Nothing could be read at all; what fails for one queue is in the report.
        """
        schema.check(self._session)
        return heal(self._store, None if queue is None else [queue_name(queue)], is_full=full)

    def forget_sink(self, queue: str, sink_id: str) -> None:
        """Let a new checkpoint write under a sink id that an old one has used.

        What the old one has committed stays; what it has not is dropped. Its next batch would be
        written again: only for a query that is gone for good.

        Raises:
            QueueNotFound: There is no such queue.
        """
        transaction.forget(open_lane(self._store, queue_name(queue)), sink_id)

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._session.close()

    def __enter__(self) -> Self:
        """Close at the end of the block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Disconnect."""
        self.close()

    def _open(self, lane: Lane) -> Queue:
        """All handles of one lane share its producer: each has a bucket of its own [P15]."""
        with self._lock:
            work = self._work.setdefault(lane.lane_id, Work())
        return Queue(lane, work)
