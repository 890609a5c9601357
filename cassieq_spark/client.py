"""`connect` and `Client`, the entry points of the API, join a session, tables and queues."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Self, Unpack

from cassieq_spark.doors import blocking
from cassieq_spark.errors import UsageError
from cassieq_spark.model.ids import LaneId
from cassieq_spark.options import (
    ConnectionOptions,
    QueueArguments,
    arguments,
    queue_name,
)
from cassieq_spark.queue import admin
from cassieq_spark.queue.find import QueueInfo, every_row, lane_of, lanes_of, open_lane
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.inspect.facts import Spot, browse
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Message
from cassieq_spark.queue.sink import transaction
from cassieq_spark.queue.waiting import QUEUES, Work
from cassieq_spark.recent import Recent
from cassieq_spark.repair.dry_run import heal_dry_run
from cassieq_spark.repair.heal import heal
from cassieq_spark.repair.lead import leading
from cassieq_spark.repair.redrive import RedriveRequest, by_place, listed, redrive
from cassieq_spark.repair.report import OnProgress, Redriven, RepairReport, VerifyReport
from cassieq_spark.repair.verify import verify
from cassieq_spark.schedules import Schedules
from cassieq_spark.store import portal, schema
from cassieq_spark.store.process import OfOneProcess
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.queues import QueueStatus


class Client(OfOneProcess):
    """The queues of one keyspace. Threads may share it; it does not pickle or survive a fork."""

    def __init__(self, options: ConnectionOptions, *, session: CqlSession | None = None) -> None:
        """Connect; see `connect`. A session that is given is connected already."""
        self._session = session or CqlSession(ConnectionOptions.needed(options))
        self._store = Store(self._session)
        self._works: Recent[LaneId, Work] = Recent(QUEUES)
        self._schedules = Schedules(self._store)

    @property
    def datacenter(self) -> str:
        """The local data centre. Queues with another home cannot be read from here."""
        return self._session.datacenter

    @property
    def schedules(self) -> Schedules:
        """The schedules, which put messages again and again."""
        return self._schedules

    @property
    def store(self) -> Store:
        """The tables of the keyspace, for other packages of the project; not part of the API."""
        return self._store

    @property
    def keyspace(self) -> str:
        """The keyspace that the client works in."""
        return self._session.keyspace

    def now_us(self) -> int:
        """The time of the Cassandra nodes, in microseconds: leases and delays follow it."""
        return self._store.clock.now_us()

    @blocking
    async def check(self) -> None:
        """Check that Cassandra answers and that the keyspace has the tables of this release.

        Raises:
            SchemaMissing, SchemaMismatch: The tables are missing, or belong to another release.
            StoreUnavailable, StoreTimeout: Cassandra does not answer.
        """
        await schema.check(self._session)

    @blocking
    async def bootstrap(self, replication: Mapping[str, object] | None = None) -> None:
        """Create the keyspace and its tables if they are missing, and check that the cluster fits.

        Idempotent. A keyspace that exists keeps its replication.

        Args:
            replication: A map as in CQL. Default: an existing keyspace keeps its own; a new one
                gets ``{"class": "NetworkTopologyStrategy", <this data centre>: 1}``, one copy,
                which is only good enough to try things out.

        Raises:
            UsageError: The replication is malformed, names a data centre that does not exist, or
                asks for more copies than the nodes can form a quorum of.
            ReplicationDiffers: The keyspace exists with another replication.
            SchemaMismatch: The tables have another version, or the cluster limits write timestamps,
                which pointers need.
        """
        await schema.apply(self._session, replication)

    @blocking
    async def create_queue(
        self,
        /,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        **settings: Unpack[QueueArguments],
    ) -> Queue:
        """Create a queue, or return the existing one if it has the given settings.

        Args:
            name: Letters, digits, ``. - _``, 1 to 200 characters, but not ``.`` or ``..``. A queue
                of an account is ``account/name``.
            labels: The labels of a new queue, see `label_queue`. An existing queue keeps its own.
            settings: See `QueueSettings`; times are seconds or timedelta. None is as good as left
                out: a new queue gets the default, and an existing one keeps its value, whatever it
                is.

        Raises:
            UsageError: A name or setting has a wrong form; the queue, or its dead-letter queue,
                lives in another data centre; or dead-letter queues would form a cycle.
            QueueExists: It exists with other values of some given settings; the error names each.
            QueueNotFound: The dead-letter queue does not exist.
        """
        return (await self._find_or_create(name, labels, settings))[0]

    @blocking
    async def find_or_create_queue(
        self,
        /,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        **settings: Unpack[QueueArguments],
    ) -> tuple[Queue, bool]:
        """Do as `create_queue` does, and also return whether this call has created the queue."""
        return await self._find_or_create(name, labels, settings)

    async def _find_or_create(
        self, name: str, labels: Mapping[str, str] | None, settings: Mapping[str, Any]
    ) -> tuple[Queue, bool]:
        checked = queue_name(name)
        given = arguments.labels(labels or {})
        texts = {key: text for key, text in given.items() if text is not None}
        arguments.check_labels(texts)
        await schema.check(self._session)
        row, is_new = await admin.create(self._store, checked, settings, texts)
        return self._open(lane_of(self._store, row)), is_new

    @blocking
    async def alter_queue(self, /, name: str, **settings: Unpack[QueueArguments]) -> Queue:
        """Change settings of a queue; clients that have it open see them within ten seconds.

        Args:
            settings: As for `create_queue`. None resets one to its default, while `create_queue`
                leaves it as it is. ``bucket_size``, ``priorities``, ``shards`` and
                ``schedule_period`` cannot change.

        Raises:
            QueueNotFound: The queue, or the dead-letter queue, does not exist.
            UsageError: A setting has a wrong form; or the queue, or its dead-letter queue, lives in
                another data centre. ``errors.SettingFixed``: A setting cannot change.
                ``errors.DeadLetterCycle``: Dead-letter queues would form a cycle.
        """
        checked = queue_name(name)
        await schema.check(self._session)
        return self._open(
            lane_of(self._store, await admin.alter(self._store, checked, dict(settings)))
        )

    @blocking
    async def label_queue(self, name: str, labels: Mapping[str, str | None]) -> Queue:
        """Set labels of a queue: texts that programs keep with it, such as its owner.

        No rule of the queue depends on labels. Labels that are left out of the call stay as they
        are.

        Args:
            labels: Text by name, 64 KiB for all labels of the queue; None removes a label.

        Raises:
            QueueNotFound: No queue has that name.
            OptionInvalid: A label is not text, or the labels would be too large together.
            UsageError: The queue lives in another data centre.
        """
        checked, changes = queue_name(name), arguments.labels(labels)
        await schema.check(self._session)
        row = await admin.label(self._store, checked, changes)
        return self._open(lane_of(self._store, row))

    @blocking
    async def queue(self, name: str) -> Queue:
        """Open a queue.

        Raises:
            QueueNotFound: No queue has that name.
            UsageError: It lives in another data centre.
        """
        return self._open(await self._lane(name))

    @blocking
    async def delete_queue(
        self, name: str, *, force: bool = False, if_empty: bool = False, if_unused: bool = False
    ) -> None:
        """Delete a queue with everything in it. This also completes an interrupted deletion.

        The arguments and errors are those of `Queue.delete`.
        """
        await schema.check(self._session)
        lane = await admin.delete(
            self._store, queue_name(name), force=force, if_empty=if_empty, if_unused=if_unused
        )
        self._works.forget(lane)

    @blocking
    async def queues(self) -> list[QueueInfo]:
        """List every queue of the keyspace that this data centre knows, by name.

        With several data centres, each one learns of a created or deleted queue a moment later.
        """
        await schema.check(self._session)
        rows = await every_row(self._store)
        return [QueueInfo.of(row) for row in rows if row.status is QueueStatus.ACTIVE]

    @blocking
    async def repair(
        self,
        queue: str | None = None,
        *,
        full: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> RepairReport:
        """Run one repair pass in this process, over one queue or over all of this data centre.

        A pass finishes what other clients left half-way, ends abandoned work, moves dead messages
        to their dead-letter queues and drops finished buckets. Any number of passes may run at
        once.

        Args:
            full: Also search the whole keyspace for rows that landed late, below what was dropped.
                Such rows only take space: once a week is enough.
            dry_run: Change nothing, and report what would be done. The report leaves out steps that
                follow only from another step.
            on_progress: Called after each group of buckets with a `Progress`.

        Raises:
            UsageError: ``full`` and ``dry_run`` were both given: only a real pass looks for late
                rows.
            QueueNotFound: The queue does not exist.
            StoreError: Nothing could be read at all. The report names failures of single queues.
        """
        if full and dry_run:
            raise UsageError(
                "full and dry_run exclude each other: a dry run does not look below the repair "
                "pointers. Leave one out"
            )
        await schema.check(self._session)
        names = None if queue is None else [queue_name(queue)]
        if dry_run:
            return await heal_dry_run(self._store, names, on_progress=on_progress)
        return await heal(self._store, names, is_full=full, on_progress=on_progress)

    @blocking
    async def repair_as_leader(self) -> RepairReport | None:
        """Run a repair pass over all queues; return None if another process runs one as leader.

        Programs that all repair in the background call this one: one pass at a time is enough.
        """
        await schema.check(self._session)
        async with leading(self._store) as is_leader:
            return await heal(self._store, None, is_full=False) if is_leader else None

    @blocking
    async def verify(
        self, queue: str | None = None, *, on_progress: OnProgress | None = None
    ) -> VerifyReport:
        """Read one queue, or all of this data centre, and report what is broken; change nothing.

        It reads every stored message that is not dropped. Each finding is a broken invariant. The
        report's problems name the parts that did not answer: nothing is known about those parts.
        ``on_progress`` is called after each bucket with a `Progress`.

        Raises:
            QueueNotFound: The queue does not exist.
        """
        await schema.check(self._session)
        lanes = await lanes_of(self._store, None if queue is None else [queue_name(queue)])
        return await verify(self._store, lanes, has_all=queue is None, on_progress=on_progress)

    @blocking
    async def redrive(
        self,
        queue: str,
        messages: Iterable[Message | Spot | int] | None = None,
        *,
        where: Callable[[Message], bool] | None = None,
        to: str | None = None,
        max_messages: int | None = None,
        may: Callable[[str], bool] | None = None,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Redriven:
        """Send dead letters back to where they came from, or to another queue, each exactly once.

        No message is lost or doubled, whatever dies in between: the next repair carries over what
        this call has taken and not carried over. It takes visible messages. Leased messages stay
        where they are, and are counted. Body, tag, headers, group and message id go along, with one
        more entry in the history. The delivery count starts again.

        Args:
            queue: The queue that holds them: a dead-letter queue, or with ``to`` any queue.
            messages: Redrive only these: messages as `peek` returns them, or the lane and id of
                each, or their ids if the queue has one lane. Default: all.
            where: Redrive only messages for which this is true. It gets each as `peek` shows it.
            to: The target. Default: the queue that the header ``cassieq-source-queue`` names.
            max_messages: The maximum number of messages; the lowest ids go first.
            may: Called with each queue that headers name. If it returns false, the messages stay.
                It is for programs that redrive for others, as a header may name any queue. Default:
                every queue is allowed.
            dry_run: Change nothing, and count what would go where.
            on_progress: Called after each bucket with a `Progress`.

        Raises:
            OptionInvalid: An argument has a wrong form, ``to`` is the queue itself, or there is no
                ``to`` and no queue names this one as its dead-letter queue.
            QueueNotFound: The queue, or the one that ``to`` names, does not exist.
            StoreError: Nothing was taken; or it is unknown (`CasAmbiguous`), and then the next
                repair carries over what was taken. Later failures are among the report's problems.
        """
        chosen = None if messages is None else listed(messages)
        arguments.check_where(where)
        limit = None if max_messages is None else arguments.count("max_messages", max_messages)
        target = None if to is None else queue_name(to)
        lane = await self._lane(queue)
        ids = None if chosen is None else by_place(chosen, lane)
        wanted = RedriveRequest(ids=ids, where=where, to=target, at_most=limit, may=may)
        return await redrive(lane, wanted, is_dry_run=dry_run, on_progress=on_progress)

    def browse(self, queue: str) -> Iterator[Message]:
        """Iterate over all visible messages of a queue, each as `Queue.peek` shows it.

        The iterator gives the messages that were visible when the first one was asked for, except
        those that were dropped since.

        Raises:
            QueueNotFound: The queue does not exist.
            StoreError: A part of it did not answer; raised after the messages of all other parts.
        """
        return portal.iterate(portal.run(self._browsing(queue)))

    @blocking
    async def forget_sink(self, queue: str, sink_id: str) -> None:
        """Let a new checkpoint write under a sink id that an old one has used.

        What the old checkpoint has committed stays; what it has not committed is dropped. If the
        old query ran again, it would write its next batch twice: use this only when the old query
        is gone for good.

        Raises:
            OptionInvalid: The queue name or sink id has a wrong form.
            QueueNotFound: The queue does not exist.
        """
        checked = arguments.sink_id(sink_id)
        await transaction.forget(await self._lane(queue), checked)

    async def _browsing(self, queue: str) -> AsyncIterator[Message]:
        """Return the iterator of `browse`; runs in the event loop."""
        return browse(await self._lane(queue))

    def close(self) -> None:
        """Disconnect. Calls that wait for messages return none. Idempotent."""
        try:
            if self._session.home.is_here and not self._session.is_closed and not portal.is_here():
                portal.run(self._drain())
        finally:  # a Ctrl-C may have ended the wait
            self._session.close()

    async def _drain(self) -> None:
        """Answer all calls that wait for messages; runs in the event loop."""
        await asyncio.gather(*(work.waiting.drain() for work in self._works.values()))

    def __enter__(self) -> Self:
        """Return the client, which closes at the end of the block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Disconnect."""
        self.close()

    def __del__(self) -> None:
        """Warn of a client that was never closed and is now garbage: its connections stay open."""
        session = getattr(self, "_session", None)  # it has no session if it could not connect
        if session is not None and session.home.is_here and not session.is_closed:
            text = f"unclosed {self!r}. Use it in a with block, or call its close()"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        """Show where it is connected to."""
        return f"Client({self._session.options})"

    async def _lane(self, name: str) -> Lane:
        await schema.check(self._session)
        return await open_lane(self._store, queue_name(name))

    def _open(self, lane: Lane) -> Queue:
        return Queue(lane, self._works)
