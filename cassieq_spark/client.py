"""`connect` and `Client`: wires a session, its tables and its queues together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import QueueExists, QueueNotFound
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import LaneId, QueueName
from cassieq_spark.options import ConnectionOptions, QueueSettings, parse_connection, queue_name
from cassieq_spark.queue import transaction
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.lane import lane_of, open_lane
from cassieq_spark.store import schema
from cassieq_spark.store.cas import Applied
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.monotons import Monoton
from cassieq_spark.store.tables.queues import QueueRow, QueueStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cassieq_spark.store.cas import Stored

_logger = get_logger("client")


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
) -> Client:
    """A client on one keyspace. Close it, or use it as a context manager.

    Args:
        contact_points: ``"host:port,host:port"`` or a list of ``"host:port"``; the port is 9042 if
            it is left out.
        keyspace: Default ``cassieq``.
        datacenter: The local data centre; default: that of the contact points.
        connect_timeout: Seconds to wait for a node to answer, default 10.

    Raises:
        UsageError: An argument has a wrong form.
        StoreUnavailable: Nobody answers there; says host and port.
    """
    given: dict[str, Any] = {
        "contactPoints": contact_points,
        "keyspace": keyspace,
        "datacenter": datacenter,
        "connectTimeoutSeconds": connect_timeout,
    }
    options = parse_connection({key: value for key, value in given.items() if value is not None})
    return Client(options)


class Client:
    """Queues of one keyspace. Threads may share it; not picklable, not for use across a fork."""

    def __init__(self, options: ConnectionOptions) -> None:
        """Connect; see `connect`."""
        self._session = CqlSession(options)
        self._store = Store(self._session)

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
        self._check_dead_letter_queue(checked, wanted)
        found = self._store.queues.read(checked)
        if found is None:
            found = self._insert_queue(checked, wanted)
        different = wanted.differences(found.value.settings)
        if different:
            raise QueueExists(
                f"queue {name!r} exists with "
                + ", ".join(f"{key}={there!r}" for key, _, there in different)
                + ", asked for "
                + ", ".join(f"{key}={asked!r}" for key, asked, _ in different)
                + f". Open it with client.queue({name!r}), or choose another name",
                queue=name,
                differences=tuple(key for key, _, _ in different),
            )
        return Queue(lane_of(self._store, found.value))

    def queue(self, name: str) -> Queue:
        """Open a queue.

        Raises:
            QueueNotFound: There is none of that name.
        """
        schema.check(self._session)
        return Queue(open_lane(self._store, queue_name(name)))

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
        ]

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

    def _insert_queue(self, name: QueueName, settings: QueueSettings) -> Stored[QueueRow]:
        """The lane's monoton row first: a queue without one counts as deleted [P13]."""
        lane = LaneId(new_uuid())
        now_us = self._session.clock.now_us()
        self._store.monotons.insert(lane, Monoton(next_id=0, reserved_us=now_us))
        row = QueueRow(
            name=name,
            queue_id=new_uuid(),
            status=QueueStatus.ACTIVE,
            settings=settings,
            lanes=(lane,),
            home_datacenter=self._session.datacenter,
            created_us=now_us,
        )
        outcome = self._store.queues.insert(row)
        if isinstance(outcome, Applied):
            event(_logger, "queue_created", queue=name)
        if outcome.now is None:
            raise QueueNotFound(
                f"queue {name!r} was created and deleted by others just now. Try again"
            )
        return outcome.now

    def _check_dead_letter_queue(self, name: QueueName, settings: QueueSettings) -> None:
        """It must be there, and no chain of dead-letter queues may lead back here."""
        seen = [name]
        target = settings.dead_letter_queue
        while target is not None:
            if target in seen:
                raise QueueExists(
                    f"the dead-letter queues {' -> '.join([*seen, target])} form a cycle: a dead "
                    "message would never rest. Choose another dead_letter_queue",
                    queue=name,
                    differences=("dead_letter_queue",),
                )
            found = self._store.queues.read(queue_name(target))
            if found is None:
                raise QueueNotFound(
                    f"the dead-letter queue {target!r} of {name!r} is not there. Create it first"
                )
            seen.append(QueueName(target))
            target = found.value.settings.dead_letter_queue
