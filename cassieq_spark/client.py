"""`connect` and `Client` are the API's entry point; they wire a session to tables and queues."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, Unpack

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import UsageError
from cassieq_spark.model.ids import LaneId
from cassieq_spark.options import (
    ConnectionArguments,
    ConnectionOptions,
    arguments,
    by_option,
    parse_connection,
    queue_name,
)
from cassieq_spark.queue import admin, guards
from cassieq_spark.queue import labels as queue_labels
from cassieq_spark.queue.find import QueueInfo, every_row, lane_of, lanes_of, open_lane
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.inspect.pages import Spot
from cassieq_spark.queue.inspect.visible import browse
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Message
from cassieq_spark.queue.sink import transaction
from cassieq_spark.queue.work import QUEUES, Work
from cassieq_spark.recent import Recent
from cassieq_spark.repair.dry_run import heal_dry_run
from cassieq_spark.repair.findings import VerifyReport
from cassieq_spark.repair.heal import heal
from cassieq_spark.repair.lead import leading
from cassieq_spark.repair.progress import OnProgress
from cassieq_spark.repair.redrivable import by_place, listed
from cassieq_spark.repair.redrive import RedriveRequest, redrive
from cassieq_spark.repair.report import Redriven, RepairReport
from cassieq_spark.repair.verify import verify
from cassieq_spark.store import portal, schema
from cassieq_spark.store.process import OfOneProcess
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.queues import QueueStatus


def connect(
    contact_points: str | Sequence[str] | None = None, **connection: Unpack[ConnectionArguments]
) -> Client:
    """Connect to a keyspace. Close the client, or use it as a context manager.

    Args:
        contact_points: ``"host:port,host:port"`` or a list of ``"host:port"``; the port is 9042 if
            it is left out. Default: variable ``CASSIEQ_CONTACT_POINTS``.
        connection: See `ConnectionArguments`: keyspace, data centre, timeout, login, TLS.

    Raises:
        UsageError: An argument is unknown or has a wrong form, or a file has the wrong content.
        AuthenticationRefused: The nodes ask for a login, or refuse the one that was given.
        TlsFailed: Nodes and this client do not accept each other's certificates.
        StoreUnavailable: No node answers; the error names host and port.
    """
    own = {"contact_points": contact_points}
    return Client(parse_connection(by_option(connection, own, of="connect")))


class Client(OfOneProcess):
    """The queues of one keyspace. Threads may share it; it does not pickle or survive a fork."""

    def __init__(self, options: ConnectionOptions) -> None:
        """Connect; see `connect`."""
        self._session = CqlSession(options)
        self._store = Store(self._session)
        self._works: Recent[LaneId, Work] = Recent(QUEUES)

    @property
    def datacenter(self) -> str:
        """The local data centre. Queues whose home is another one cannot be read from here."""
        return self._session.datacenter

    @property
    def store(self) -> Store:
        """The tables of the keyspace, for the rooms above; not part of the API."""
        return self._store

    @property
    def keyspace(self) -> str:
        """The keyspace whose queues these are."""
        return self._session.keyspace

    def now_us(self) -> int:
        """The time of the Cassandra nodes, in microseconds: leases and delays follow it."""
        return self._store.clock.now_us()

    def check(self) -> None:
        """Check that Cassandra answers, and that the keyspace has the tables of this release.

        Raises:
            SchemaMissing, SchemaMismatch: It has none, or those of another release.
            StoreUnavailable, StoreTimeout: Cassandra does not answer.
        """
        portal.run(schema.check(self._session))

    def bootstrap(self, replication: Mapping[str, object] | None = None) -> None:
        """Create the keyspace and its tables where missing, and check that the cluster fits.

        Idempotent. A keyspace that exists keeps its replication.

        Args:
            replication: A map as in CQL. Default: an existing keyspace keeps its own; a new one
                gets ``{"class": "NetworkTopologyStrategy", <this data centre>: 1}``, one copy,
                which is good enough to try things out only.

        Raises:
            UsageError: The replication is malformed, names a data centre that does not exist, or
                asks for more copies than the nodes can form a quorum of.
            ReplicationDiffers: The keyspace exists with another replication.
            SchemaMismatch: The tables have another version, or the cluster limits write timestamps,
                which pointers need.
        """
        portal.run(schema.apply(self._session, replication, new_uuid=new_uuid))

    def create_queue(
        self, name: str, *, labels: Mapping[str, str] | None = None, **settings: Any
    ) -> Queue:
        """Create a queue, or return the existing one if it has the settings that are named.

        Args:
            name: Letters, digits, ``. - _``, 1 to 200 characters, but not ``.`` or ``..``. A queue
                of an account is ``account/name``.
            labels: The labels of a new queue, see `label_queue`. An existing queue keeps its own.
            settings: See `options.QueueSettings`; times are seconds or timedelta. A new queue gets
                the defaults of all that are not named, or None; an existing one keeps its own.

        Raises:
            UsageError: A name or setting has a wrong form; or the queue, or its dead-letter queue,
                lives in another data centre.
            QueueExists: It exists with other values of some that are named; the error names each.
            QueueNotFound: The dead-letter queue does not exist.
        """
        return self.find_or_create_queue(name, labels=labels, **settings)[0]

    def find_or_create_queue(
        self, name: str, *, labels: Mapping[str, str] | None = None, **settings: Any
    ) -> tuple[Queue, bool]:
        """As `create_queue`; also return whether this call has created the queue."""
        checked = queue_name(name)
        given = arguments.labels(labels or {})
        texts = {key: text for key, text in given.items() if text is not None}
        arguments.check_labels(texts)
        portal.run(schema.check(self._session))
        row, is_new = portal.run(admin.create(self._store, checked, settings, texts))
        return self._open(lane_of(self._store, row)), is_new

    def alter_queue(self, name: str, **settings: Any) -> Queue:
        """Change settings of a queue; clients that have it open see them within ten seconds.

        Args:
            settings: As for `create_queue`, without ``bucket_size``; None resets one to its
                default.

        Raises:
            QueueNotFound: The queue, or the dead-letter queue, does not exist.
            UsageError: A setting has a wrong form; or the queue, or its dead-letter queue, lives in
                another data centre.
            QueueExists: A setting cannot be changed, or dead-letter queues would form a cycle.
        """
        checked = queue_name(name)
        portal.run(schema.check(self._session))
        return self._open(
            lane_of(self._store, portal.run(admin.alter(self._store, checked, settings)))
        )

    def label_queue(self, name: str, labels: Mapping[str, str | None]) -> Queue:
        """Set labels of a queue: texts that programs keep with it, such as its owner.

        No rule of the queue depends on them. Labels that are not named stay as they are.

        Args:
            labels: Text by name, 64 KiB for all labels of the queue; None removes a label.

        Raises:
            QueueNotFound: No queue has that name.
            OptionInvalid: A label is not text, or the labels would be too large together.
            UsageError: The queue lives in another data centre.
        """
        checked, changes = queue_name(name), arguments.labels(labels)
        portal.run(schema.check(self._session))
        return self._open(
            lane_of(self._store, portal.run(queue_labels.label(self._store, checked, changes)))
        )

    def queue(self, name: str) -> Queue:
        """Open a queue.

        Raises:
            QueueNotFound: No queue has that name.
            UsageError: It lives in another data centre.
        """
        portal.run(schema.check(self._session))
        return self._open(portal.run(open_lane(self._store, queue_name(name))))

    def delete_queue(
        self, name: str, *, force: bool = False, if_empty: bool = False, if_unused: bool = False
    ) -> None:
        """Delete a queue with everything in it; this also completes an interrupted deletion.

        Arguments and errors are those of `Queue.delete`.
        """
        portal.run(schema.check(self._session))
        lane = portal.run(
            guards.delete(
                self._store, queue_name(name), force=force, if_empty=if_empty, if_unused=if_unused
            )
        )
        self._works.forget(lane)

    def queues(self) -> list[QueueInfo]:
        """List every queue of the keyspace that this data centre knows, by name.

        With several data centres, each learns of a created or deleted queue a moment later.
        """
        portal.run(schema.check(self._session))
        active = (
            row for row in portal.run(every_row(self._store)) if row.status is QueueStatus.ACTIVE
        )
        return [QueueInfo.of(row) for row in active]

    def repair(
        self,
        queue: str | None = None,
        *,
        full: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> RepairReport:
        """Run one repair pass in this process, over one queue or over all of this data centre.

        It finishes what others left half-way, ends abandoned work, moves dead messages to their
        dead-letter queues and drops finished buckets. Any number of passes may run at once.

        Args:
            full: Also search the whole keyspace for rows that landed late, below what was dropped.
                They only take space: once a week is enough.
            dry_run: Change nothing, and report what would be done. Steps that only follow from
                another step are not in the report.
            on_progress: Called after each group of buckets with a `Progress`.

        Raises:
            UsageError: ``full`` and ``dry_run`` were both given: only a real pass looks for late
                rows.
            QueueNotFound: The queue does not exist.
            StoreError: Nothing could be read at all. What fails for one queue is in the report.
        """
        if full and dry_run:
            raise UsageError(
                "full and dry_run exclude each other: a dry run does not look below the repair "
                "pointers. Leave one out"
            )
        portal.run(schema.check(self._session))
        names = None if queue is None else [queue_name(queue)]
        if dry_run:
            return portal.run(heal_dry_run(self._store, names, on_progress=on_progress))
        return portal.run(heal(self._store, names, is_full=full, on_progress=on_progress))

    def repair_as_leader(self) -> RepairReport | None:
        """Run a repair pass over all queues; None if another process runs one as leader.

        Programs that all repair in the background call this one: one pass at a time is enough.
        """
        portal.run(schema.check(self._session))
        with leading(self._store) as is_leader:
            return portal.run(heal(self._store, None, is_full=False)) if is_leader else None

    def verify(
        self, queue: str | None = None, *, on_progress: OnProgress | None = None
    ) -> VerifyReport:
        """Read one queue, or all of this data centre, and report what is broken; change nothing.

        It reads every stored message that is not dropped. Each finding is a broken invariant. The
        report's problems name what did not answer: nothing is known about that part.
        ``on_progress`` is called after each bucket with a `Progress`.

        Raises:
            QueueNotFound: The queue does not exist.
        """
        portal.run(schema.check(self._session))
        lanes = portal.run(lanes_of(self._store, None if queue is None else [queue_name(queue)]))
        return portal.run(
            verify(self._store, lanes, has_all=queue is None, on_progress=on_progress)
        )

    def redrive(
        self,
        queue: str,
        messages: Iterable[Message | Spot | int] | None = None,
        *,
        where: Callable[[Message], bool] | None = None,
        to: str | None = None,
        at_most: int | None = None,
        may: Callable[[str], bool] | None = None,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Redriven:
        """Send dead letters back to where they came from, or to another queue, each exactly once.

        No message is lost or doubled, whatever dies in between: the next repair carries over what
        this call has taken and not carried over. It takes visible messages; leased ones stay, and
        are counted. Body, tag, headers, group and message id go along, with one more entry in the
        history; the delivery count starts again.

        Args:
            queue: The queue that holds them: a dead-letter queue, or with ``to`` any queue.
            messages: Only these, as `peek` returns them, or lane and id of each, or their ids if
                the queue has one lane; default: all.
            where: Redrive only messages for which this is true. It gets each as `peek` shows it.
            to: The target. Default: the queue that the header ``cassieq-source-queue`` names.
            at_most: The limit on their number; the lowest ids go first.
            may: Called with each queue that headers name; messages stay if it is not true. For
                programs that redrive for others: a header may name any queue. Default: all may.
            dry_run: Change nothing, and count what would go where.
            on_progress: Called after each bucket with a `Progress`.

        Raises:
            OptionInvalid: An argument has a wrong form, ``to`` is the queue itself, or there is no
                ``to`` and no queue names this one as its dead-letter queue.
            QueueNotFound: The queue, or the one that ``to`` names, does not exist.
            StoreError: Nothing was taken; or it is unknown (`CasAmbiguous`) and the next repair
                carries over what was. Later failures are among the report's problems.
        """
        chosen = None if messages is None else listed(messages)
        arguments.check_where(where)
        wanted_count = None if at_most is None else arguments.count("at_most", at_most)
        target = None if to is None else queue_name(to)
        portal.run(schema.check(self._session))
        lane = portal.run(open_lane(self._store, queue_name(queue)))
        wanted = RedriveRequest(
            ids=None if chosen is None else by_place(chosen, lane),
            where=where,
            to=target,
            at_most=wanted_count,
            may=may,
        )
        return portal.run(redrive(lane, wanted, is_dry_run=dry_run, on_progress=on_progress))

    def browse(self, queue: str) -> Iterator[Message]:
        """Look at all visible messages of a queue, as `Queue.peek` does, one after the other.

        The iterator gives what was visible when its first message was asked for, without what was
        dropped since.

        Raises:
            QueueNotFound: The queue does not exist.
            StoreError: A part of it did not answer; raised after the messages of all other parts.
        """
        portal.run(schema.check(self._session))
        return portal.iterate(browse(portal.run(open_lane(self._store, queue_name(queue)))))

    def forget_sink(self, queue: str, sink_id: str) -> None:
        """Let a new checkpoint write under a sink id that an old one has used.

        What the old checkpoint has committed stays; what it has not committed is dropped. If the
        old query ran again, it would write its next batch twice: use this only when it is gone
        for good.

        Raises:
            OptionInvalid: The queue name or sink id has a wrong form.
            QueueNotFound: The queue does not exist.
        """
        checked = arguments.sink_id(sink_id)
        portal.run(
            transaction.forget(portal.run(open_lane(self._store, queue_name(queue))), checked)
        )

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._session.close()

    def __enter__(self) -> Self:
        """Return the client, which closes at the end of the block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Disconnect."""
        self.close()

    def __del__(self) -> None:
        """Warn of a client that nobody can close any more: its connections stay open."""
        session = getattr(self, "_session", None)  # none if it could not connect
        if session is not None and session.home.is_here and not session.is_closed:
            text = f"unclosed {self!r}. Use it in a with block, or call its close()"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        """Show what it is connected to."""
        return f"Client({self._session.options})"

    def _open(self, lane: Lane) -> Queue:
        return Queue(lane, self._works)
