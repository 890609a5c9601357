"""The queues that a streaming query reads: found by name or pattern, lost when they are deleted.

Open this to see what a query does when a queue appears, is deleted, or is re-created.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar
from uuid import UUID

from cassieq_spark.errors import CassieqError, DataLoss, QueueDeleted, QueueNotFound, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import LaneId, QueueName
from cassieq_spark.model.offset import SourceOffset
from cassieq_spark.options import QueueSettings, SourceOptions, arguments
from cassieq_spark.queue.find import find_row, lane_of, lanes_of, open_lane, rows_at_home
from cassieq_spark.queue.lane import Lane
from cassieq_spark.spark.source.one_queue import OneQueue
from cassieq_spark.spark.source.renewal import Renewal
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.queues import QueueRow, QueueStatus

T = TypeVar("T")

LOOK_EVERY_S: Final = 30.0
"""The time between two looks of a query for queues that have come or gone."""

TOLD: Final = 1_000
"""The number of queues whose end was told that are remembered. Then all are forgotten: offsets of
long ago, which named them, do not come back."""

GO_ON: Final = "set failOnDataLoss to false to go on"

_logger = get_logger("spark")


class Subscription:
    """The queues of one run of a query.

    With option ``queue`` it is that queue, and its deletion is the query's end. With ``queues`` or
    ``queuePattern``, a queue that was deleted drops out, if ``failOnDataLoss`` is false.

    Attributes:
        is_one: Whether it is about one queue, by option ``queue``.
    """

    def __init__(
        self, store: Store, options: SourceOptions, renewal: Renewal, *, run: UUID
    ) -> None:
        self._store = store
        self._options = options
        self._selection = options.queues
        self._renewal = renewal
        self._run = run
        self._queues: dict[QueueName, OneQueue] = {}
        self._unsubscribed: dict[QueueName, OneQueue] = {}
        self._told: set[LaneId] = set()
        self.is_one = self._selection.is_one
        self._is_fixed = self.is_one
        self._due = 0.0

    async def begin(self) -> None:
        """Find the queues.

        Raises:
            QueueNotFound: A named queue does not exist.
            OptionInvalid: A named queue does not have the priority ``minPriority``.
        """
        for lane in await lanes_of(self._store, list(self._selection.names) or None):
            if self._is_to_read(lane.queue, lane.settings):
                self._add(lane)
        self._due = self._store.clock.monotonic() + LOOK_EVERY_S

    @property
    def queues(self) -> list[OneQueue]:
        """The queues as they were found last, by name."""
        # A copy at once: an ack beside a claim may drop one meanwhile.
        return sorted(self._queues.values(), key=lambda queue: queue.name)

    async def aim_at_now(self) -> None:
        """Read only what is in the queues of this moment (``Trigger.AvailableNow``).

        Raises:
            QueueDeleted, DataLoss: See `drop`.
        """
        self._is_fixed = True
        for _, error in await self.each(OneQueue.aim_at_now, self.queues):
            if error is not None:
                raise error

    async def look_again(self) -> None:
        """Find queues that have come or gone, every `LOOK_EVERY_S`.

        Raises:
            DataLoss: One was deleted, and ``failOnDataLoss`` is true.
        """
        now = self._store.clock.monotonic()
        if self._is_fixed or now < self._due:
            return
        self._due = now + LOOK_EVERY_S
        try:
            rows = {row.name: row for row in await self._matching()}
        except StoreError as error:
            # What is known goes on; the next look finds what came meanwhile.
            event(_logger, "queues_unknown", queues=str(self._selection), error=str(error))
            return
        for queue in self.queues:
            row = rows.get(queue.name)
            if row is None or row.lanes[0] != queue.lane.lane_id:
                self.drop(queue, queue.lane.deleted())
        for name, row in rows.items():
            if name not in self._queues:
                self._add(lane_of(self._store, row))
                event(_logger, "queue_joined", queue=name)

    async def each(
        self, work: Callable[[OneQueue], Awaitable[T]], queues: Iterable[OneQueue]
    ) -> list[tuple[OneQueue, T | CassieqError]]:
        """Do some work for each queue, side by side; one that was deleted drops out.

        Raises:
            QueueDeleted, DataLoss: See `drop`.
        """
        todo = list(queues)
        found: list[tuple[OneQueue, T | CassieqError]] = []
        for queue, one in zip(todo, await self._store.session.each(work, todo), strict=True):
            if isinstance(one, QueueDeleted):
                self.drop(queue, one)
            else:
                found.append((queue, one))
        return found

    def drop(self, queue: OneQueue, error: QueueDeleted) -> None:
        """Go on without a queue that was deleted.

        Raises:
            QueueDeleted: It is the query's only one.
            DataLoss: ``failOnDataLoss`` is true.
        """
        if self.is_one:
            raise error
        self._queues.pop(queue.name, None)
        self._unsubscribed.pop(queue.name, None)
        why = (
            f"queue {queue.name!r}, which this query reads, was deleted. Start the query again to "
            f"go on with the others, or {GO_ON} without it"
        )
        if self._is_news(queue.lane.lane_id, why):
            event(_logger, "queue_left", queue=queue.name)

    async def of(self, offset: SourceOffset) -> dict[QueueName, OneQueue]:
        """The queues of an offset that are still what they were when it was written.

        An offset's batch is read and acked whatever the options of this run say: it may name queues
        that this run no longer reads [U18].

        Raises:
            DataLoss: One was deleted or re-created since, and ``failOnDataLoss`` is true.
        """
        by_queue = offset.by_queue()
        found: dict[QueueName, OneQueue] = {}
        for name, lane_id in offset.queues.items():
            queue = self._queues.get(name)
            if queue is None and not self._selection.has(name):
                if name not in by_queue:
                    continue
                queue = await self._former(name)
            if queue is not None and queue.lane.lane_id == lane_id:
                found[name] = queue
                continue
            again, whose, how = "", "its", "without it"
            if queue is not None:
                again, whose, how = " and created again", "its former", "with the new queue"
            why = await self._of_another_keyspace(name, lane_id) or (
                f"queue {name!r} was deleted{again} since this checkpoint was written, and {whose} "
                f"messages are gone. Start with a new checkpoint, or {GO_ON} {how}"
            )
            if not self._is_news(lane_id, why):
                continue
            if queue is None:
                event(_logger, "queue_left", queue=name)
            else:
                event(_logger, "queue_recreated", queue=name)
        return found

    async def _of_another_keyspace(self, name: QueueName, lane_id: LaneId) -> str | None:
        """Say so if a lane was never in this keyspace; a lane that was deleted leaves a mark."""
        lane, keyspace = self._store.lane(lane_id), self._store.session.keyspace
        if (await lane.pointers.read()).is_deleted or await lane.monotons.read() is not None:
            return None
        return (
            f"this checkpoint was written by a query on another keyspace or cluster: its queue "
            f"{name!r} was never in keyspace {keyspace!r} here. Start with the contact points and "
            f"the keyspace of that query, or with a new checkpoint"
        )

    async def _former(self, name: QueueName) -> OneQueue | None:
        """A queue that only a logged batch names."""
        if name not in self._unsubscribed:
            try:
                lane = await open_lane(self._store, name)
            except QueueNotFound:
                return None
            self._unsubscribed[name] = self._open(lane)
        return self._unsubscribed[name]

    async def _matching(self) -> list[QueueRow]:
        """The rows of the queues that exist now, of those that are to be read."""
        if self._selection.names:
            found = [await find_row(self._store, name) for name in self._selection.names]
            rows = [one.value for one in found if one is not None]
            return [row for row in rows if row.status is QueueStatus.ACTIVE]
        rows = await rows_at_home(self._store, QueueStatus.ACTIVE)
        return [row for row in rows if self._is_to_read(row.name, row.settings)]

    def _is_to_read(self, name: QueueName, settings: QueueSettings) -> bool:
        """Whether a queue that exists is one to read.

        A pattern finds queues of all kinds: one without such a priority has nothing to read. In a
        queue that is named, that is an error.
        """
        has_priority = settings.priorities > self._options.min_priority
        return self._selection.has(name) and (bool(self._selection.names) or has_priority)

    def _add(self, lane: Lane) -> None:
        least = self._options.min_priority
        arguments.priority("minPriority", least, lane.settings.priorities)
        self._queues[lane.queue] = self._open(lane, at_least=least)

    def _open(self, lane: Lane, *, at_least: int = 0) -> OneQueue:
        return OneQueue(lane, self._options, self._renewal, run=self._run, at_least=at_least)

    def _is_news(self, lane_id: LaneId, why: str) -> bool:
        """Whether the end of this queue was not told before; raise if it is an error."""
        if self._options.fail_on_data_loss:
            raise DataLoss(why)
        is_news = lane_id not in self._told
        if len(self._told) >= TOLD:
            self._told.clear()
        self._told.add(lane_id)
        return is_news
