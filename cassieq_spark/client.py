"""`connect` and `Client`: wires a session, its tables and its queues together."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import OptionInvalid, UsageError
from cassieq_spark.model.ids import Runs, bucket_of, first_id
from cassieq_spark.options import (
    ConnectionOptions,
    QueueSettings,
    arguments,
    parse_connection,
    queue_name,
)
from cassieq_spark.queue import admin
from cassieq_spark.queue.handle import Queue, Work
from cassieq_spark.queue.inspect import stats
from cassieq_spark.queue.lane import every_row, lane_of, lanes_of, open_lane
from cassieq_spark.queue.message import Message
from cassieq_spark.queue.sink import transaction
from cassieq_spark.repair.dry_run import heal_dry_run
from cassieq_spark.repair.heal import heal
from cassieq_spark.repair.redrive import RedriveRequest, redrive
from cassieq_spark.repair.report import Redriven
from cassieq_spark.repair.verify import verify
from cassieq_spark.store import schema
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.queues import QueueStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from cassieq_spark.model.ids import BucketNo, LaneId
    from cassieq_spark.options.values import Secret
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.repair.report import RepairReport
    from cassieq_spark.repair.verify import VerifyReport


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

    @property
    def datacenter(self) -> str:
        """Where this client is: queues that live in another one cannot be read from here."""
        return self._session.datacenter

    def bootstrap(self, replication: Mapping[str, object] | None = None) -> None:
        """Create the keyspace and its tables, where they are missing, and prove the cluster fit.

        Idempotent. A keyspace that is there keeps its replication.

        Args:
            replication: As CQL has it. Default: a keyspace that is there keeps its own; else
                ``{"class": "NetworkTopologyStrategy", <this data centre>: 1}``: one copy, fit for
                trying out only.

        Raises:
            UsageError: The replication is none, or names a data centre that is not there, or more
                copies than nodes can bring a quorum of together.
            ReplicationDiffers: The keyspace is there with another replication than was asked for.
            SchemaMismatch: There are tables of another version, or the cluster limits write
                timestamps, which pointers need.
        """
        schema.apply(self._session, replication, new_uuid=new_uuid)

    def create_queue(self, name: str, **settings: Any) -> Queue:
        """Create a queue, or return the one that is there with the same settings.

        Args:
            name: Letters, digits, ``. - _``, 1 to 200 characters.
            settings: See `options.QueueSettings`; times are seconds or timedelta.

        Raises:
            UsageError: A name or setting of a wrong form; or the queue, or its dead-letter queue,
                lives in another data centre.
            QueueExists: It is there with other settings; names each.
            QueueNotFound: The dead-letter queue is not there.
        """
        checked = queue_name(name)
        wanted = QueueSettings.parse(**settings)
        schema.check(self._session)
        return self._open(lane_of(self._store, admin.create(self._store, checked, wanted)))

    def alter_queue(self, name: str, **settings: Any) -> Queue:
        """Change settings of a queue; who has it open sees them within ten seconds.

        Args:
            settings: As of `create_queue`, but ``bucket_size``; None puts one back to its default.

        Raises:
            QueueNotFound: There is none of that name, or no such dead-letter queue.
            UsageError: A setting of a wrong form; or the queue, or its dead-letter queue, lives in
                another data centre.
            QueueExists: A setting that cannot change, or a cycle of dead-letter queues.
        """
        checked = queue_name(name)
        schema.check(self._session)
        return self._open(lane_of(self._store, admin.alter(self._store, checked, settings)))

    def queue(self, name: str) -> Queue:
        """Open a queue.

        Raises:
            QueueNotFound: There is none of that name.
            UsageError: It lives in another data centre.
        """
        schema.check(self._session)
        return self._open(open_lane(self._store, queue_name(name)))

    def delete_queue(self, name: str) -> None:
        """End a queue with all it holds; also one whose deletion was interrupted.

        Raises:
            QueueNotFound: There is none of that name.
            UsageError: It lives in another data centre.
        """
        schema.check(self._session)
        admin.delete(self._store, queue_name(name))

    def queues(self) -> list[QueueInfo]:
        """Every queue of the keyspace that this data centre knows, by name.

        Of several, each knows a queue that was created or deleted a moment ago a little later.
        """
        schema.check(self._session)
        return [
            QueueInfo(
                name=row.name,
                settings=row.settings,
                home_datacenter=row.home_datacenter,
                created_us=row.created_us,
            )
            for row in every_row(self._store)
            if row.status is QueueStatus.ACTIVE
        ]

    def repair(
        self, queue: str | None = None, *, full: bool = False, dry_run: bool = False
    ) -> RepairReport:
        """One repair pass in this process, over one queue or all of this data centre.

        Finishes what others left half-way, ends what nobody ends, moves the dead to their
        dead-letter queues, drops what is done. Any number may run at once.

        Args:
            full: Also look through all of the keyspace for what landed late below what was
                dropped. It only takes space: once a week is enough.
            dry_run: Change nothing, and say what would be done, but for what each step leads to.

        Raises:
            UsageError: ``full`` and ``dry_run``: what landed late is not looked for without a pass.
            QueueNotFound: There is no such queue.
            StoreError: Nothing could be read at all; what fails for one queue is in the report.
        """
        if full and dry_run:
            raise UsageError(
                "full and dry_run exclude each other: a dry run does not look below the repair "
                "pointers. Leave one out"
            )
        schema.check(self._session)
        names = None if queue is None else [queue_name(queue)]
        if dry_run:
            lanes = lanes_of(self._store, names)
            return heal_dry_run(self._store, lanes, finishes_deletions=names is None)
        return heal(self._store, names, is_full=full)

    def verify(self, queue: str | None = None) -> VerifyReport:
        """Read one queue or all of this data centre, change nothing, and say what is broken.

        Reads every stored message that is not dropped. A finding is a broken invariant; of what is
        among the problems nothing is known, it did not answer.

        Raises:
            QueueNotFound: There is no such queue.
        """
        schema.check(self._session)
        names = None if queue is None else [queue_name(queue)]
        return verify(self._store, lanes_of(self._store, names), has_all=queue is None)

    def redrive(
        self,
        queue: str,
        messages: Iterable[Message | int] | None = None,
        *,
        where: Callable[[Message], bool] | None = None,
        to: str | None = None,
        at_most: int | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Send dead letters back to where they came from, or on to another queue: each once.

        Whatever dies in between, no message is lost or doubled: what this call has taken and not
        carried over, the next repair carries over. Takes what is visible; what somebody holds
        stays, and is counted. Body, tag, headers and message id go along, with one more entry in
        the history; deliveries are counted anew.

        Args:
            queue: Where they are: any queue.
            messages: These only, as `peek` returns them, or their ids; default: all.
            where: Of those, the ones for which it is true. It sees each as `peek` would show it.
            to: Default: each to the queue that its header ``cassieq-source-queue`` names.
            at_most: So many, the lowest ids first.
            dry_run: Change nothing, and count what would go where.

        Raises:
            OptionInvalid: An argument has a wrong form, or ``to`` is the queue itself.
            QueueNotFound: There is no such queue, or none that ``to`` names.
            StoreError: Nothing was taken, or nobody knows (`CasAmbiguous`): what was, the next
                repair carries over. Later than that it is among the report's problems.
        """
        ids = None if messages is None else _listed(messages)
        if where is not None and not callable(where):
            raise OptionInvalid(
                f"where is {type(where).__name__}, allowed: a function of a message that says "
                "whether to redrive it"
            )
        wanted_count = None if at_most is None else arguments.count("at_most", at_most)
        target = None if to is None else queue_name(to)
        schema.check(self._session)
        lane = open_lane(self._store, queue_name(queue))
        wanted = RedriveRequest(
            ids=None if ids is None else _by_bucket(ids, lane),
            where=where,
            to=target,
            at_most=wanted_count,
        )
        return redrive(lane, wanted, is_dry_run=dry_run)

    def browse(self, queue: str) -> Iterator[Message]:
        """Look at all visible messages of a queue, as `Queue.peek` does, one after the other.

        Those that were visible when the first was asked for, less what was dropped since.

        Raises:
            QueueNotFound: There is no such queue.
            StoreError: A part of it did not answer: after the messages of all others.
        """
        schema.check(self._session)
        return stats.browse(open_lane(self._store, queue_name(queue)))

    def forget_sink(self, queue: str, sink_id: str) -> None:
        """Let a new checkpoint write under a sink id that an old one has used.

        What the old one has committed stays; what it has not is dropped. Its next batch would be
        written again: only for a query that is gone for good.

        Raises:
            OptionInvalid: A name or sink id of a wrong form.
            QueueNotFound: There is no such queue.
        """
        checked = arguments.sink_id(sink_id)
        transaction.forget(open_lane(self._store, queue_name(queue)), checked)

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


def _listed(messages: Iterable[Message | int]) -> list[Message | int]:
    found = arguments.listed(messages)
    if found is None:
        raise OptionInvalid(
            f"messages is {type(messages).__name__}, allowed: a list of messages or of their ids, "
            "or None for all; nothing was redriven"
        )
    return found


def _by_bucket(messages: Iterable[Message | int], lane: Lane) -> dict[BucketNo, Runs]:
    """Offsets of messages, or of ids."""
    offsets: dict[BucketNo, list[int]] = {}
    for one in messages:
        if isinstance(one, Message) and one.lane != lane.lane_id:
            raise OptionInvalid(
                f"message {one.message_id} is not of queue {lane.queue!r}: its id {one.id} is that "
                "of another message there. Pass what that queue's get or peek returned"
            )
        number = arguments.id_of(one.id if isinstance(one, Message) else one)
        bucket = bucket_of(number, lane.bucket_size)
        offsets.setdefault(bucket, []).append(number - first_id(bucket, lane.bucket_size))
    return {bucket: Runs.from_offsets(some) for bucket, some in offsets.items()}
