"""`Lane` is one lane of one queue, with the store it is in. Every verb works on a lane."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from cassieq_spark import metrics
from cassieq_spark.clock import Clock
from cassieq_spark.errors import CasContention, CassieqError, QueueDeleted, StoreError
from cassieq_spark.model.bucket import Bucket, IllegalMove
from cassieq_spark.model.ids import BucketNo, LaneId, Place, QueueName
from cassieq_spark.model.lanes import DueLane, Fixed
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.pointer import Pointers
from cassieq_spark.model.rows.events import Answer, End
from cassieq_spark.model.rows.intents import Change, Intent
from cassieq_spark.model.rows.writer import MAX_REFUSALS
from cassieq_spark.options import QueueSettings
from cassieq_spark.store.rows import race_pause_s
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.buckets import Buckets
from cassieq_spark.store.tables.dedup import Kept
from cassieq_spark.store.tables.lanes import Monoton, Monotons
from cassieq_spark.store.tables.messages import Messages, Overlays
from cassieq_spark.store.tables.pointers import Hints, PointerTable
from cassieq_spark.store.tables.queues import QueueRow

TABLES: Final = ("monotons", "buckets", "messages", "overlays", "pointers", "hints", "kept")

LONGEST_REST_S = 10.0
"""The longest rest of a finished bucket before it is dropped, for producers that slept [R2]."""


class attempts:  # noqa: N801 - used like a function
    """Loop over tries of a CAS that others may win: `MAX_REFUSALS` times, with pauses [P28].

    It is not a generator: most loops end with the first try, and asyncio has work with an
    unfinished generator.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0

    def __aiter__(self) -> Self:
        """Begin."""
        return self

    async def __anext__(self) -> int:
        """Pause before each try except the first."""
        attempt = self._next
        if attempt >= MAX_REFUSALS:
            raise StopAsyncIteration
        if attempt:
            pause_s = race_pause_s(self._store.entropy, attempt - 1)  # longer each time [P28]
            await self._store.clock.sleep(pause_s)
        self._next += 1
        return attempt


class LanePaused(CassieqError):
    """The lane is paused. Nothing was claimed, or it was given back; no caller gets to see this."""

    def __init__(self) -> None:
        super().__init__("the lane is paused")


class LaneEnded(Exception):
    """A due lane takes no more messages. Nothing was written, and an ordinary lane takes them."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A sequence of ids.

    The first lane of a queue stands for the queue: transactions name it, and it dies first.

    Attributes:
        lanes: All fixed lanes of the queue, by priority and shard, this one among them.
        row: The queue's row, as it was read.
        monotons, buckets, messages, pointers, hints: Its rows of these tables.
        overlays: Its updated bodies.
        kept: The records that outlive its dropped buckets.
    """

    store: Store
    queue: QueueName
    lane_id: LaneId
    settings: QueueSettings
    created_us: int
    lanes: tuple[LaneId, ...]
    row: QueueRow = field(repr=False, compare=False)
    monotons: Monotons = field(init=False, repr=False, compare=False)
    buckets: Buckets = field(init=False, repr=False, compare=False)
    messages: Messages = field(init=False, repr=False, compare=False)
    overlays: Overlays = field(init=False, repr=False, compare=False)
    pointers: PointerTable = field(init=False, repr=False, compare=False)
    hints: Hints = field(init=False, repr=False, compare=False)
    kept: Kept = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tables = self.store.lane(self.lane_id)
        for name in TABLES:
            object.__setattr__(self, name, getattr(tables, name))

    @property
    def fixed(self) -> Fixed:
        """The purposes of the queue's fixed lanes."""
        settings = self.settings
        return Fixed(ids=self.lanes, priorities=settings.priorities, shards=settings.shards)

    @property
    def first(self) -> Lane:
        """The lane that stands for the queue."""
        return self.sibling(self.lanes[0])

    @property
    def is_first(self) -> bool:
        """Whether this lane stands for the queue."""
        return self.lane_id == self.lanes[0]

    @property
    def all(self) -> list[Lane]:
        """All fixed lanes of the queue, by priority and shard."""
        return [self.sibling(lane_id) for lane_id in self.lanes]

    @property
    def due(self) -> DueLane | None:
        """The period and priority of this lane, if it is a due lane."""
        return self.fixed.due(self.lane_id)

    @property
    def priority(self) -> int:
        """The priority of its messages."""
        return self.fixed.priority_of(self.lane_id)

    @property
    def shard(self) -> int | None:
        """The shard of its messages; None for a due lane, which has no shard."""
        is_due = self.due is not None
        return None if is_due else self.fixed.class_and_shard(self.lane_id)[1]

    @property
    def begins_us(self) -> int:
        """A time before this lane's hints: the queue's creation, or before its period [U16]."""
        due = self.due
        return self.created_us if due is None else due.created_us(self.settings.period_us)

    def sibling(self, lane_id: LaneId) -> Lane:
        """Return another lane of the same queue, or this one."""
        return self if lane_id == self.lane_id else replace(self, lane_id=lane_id)

    def due_lane(self, due: DueLane) -> Lane:
        """Return the due lane of this queue for that period and priority."""
        return self.sibling(due.lane_id(self.lanes[0]))

    @property
    def gate(self) -> Lane:
        """The fixed lane whose register says whether this one is paused (`queue.pause`)."""
        return self if self.due is None else self.gate_of(self.priority)

    def gate_of(self, priority: int) -> Lane:
        """Return the fixed lane whose register stands for a priority (`queue.pause`)."""
        return self.sibling(self.fixed.lane(priority, 0))

    def place(self, bucket: BucketNo) -> Place:
        """Return the place, among all of the queue, of one of this lane's buckets."""
        return Place(self.lane_id, bucket)

    @property
    def title(self) -> str:
        """The lane's name in errors: the queue alone if it has no other lane."""
        return self.fixed.title(self.queue, self.lane_id)

    def bucket_title(self, bucket: BucketNo) -> str:
        """Return the name of a bucket of this lane for errors."""
        return f"bucket {bucket} of {self.title}"

    def as_fields(self, bucket: BucketNo | None = None) -> dict[str, object]:
        """Return the log fields that name the lane, or one of its buckets, as `title` does."""
        fields: dict[str, object] = {"queue": self.queue}
        if self.fixed.has_others(self.lane_id):
            fields["lane"] = str(self.lane_id)
        if bucket is not None:
            fields["bucket"] = bucket
        return fields

    @property
    def clock(self) -> Clock:
        """The clock of cluster time (G6)."""
        return self.store.clock

    @property
    def bucket_size(self) -> int:
        """The number of ids per bucket."""
        return self.settings.bucket_size

    @property
    def rest_s(self) -> float:
        """The time that repair leaves a finished bucket's row alone [R2]."""
        return min(LONGEST_REST_S, self.settings.repair_timeout_s)

    @property
    def max_deliveries(self) -> int | None:
        """The number of deliveries after which a message dies; None if messages never die [R22]."""
        settings = self.settings
        return settings.max_deliveries if settings.dead_letter_queue is not None else None

    @property
    def retention_us(self) -> int | None:
        """The time for which unconsumed messages are kept; None means for ever."""
        kept_s = self.settings.retention_s
        return None if kept_s is None else round(kept_s * 1e6)

    @property
    def expired_die(self) -> bool:
        """Whether expired messages go to the dead-letter queue."""
        settings = self.settings
        return settings.dead_letter_expired and settings.dead_letter_queue is not None

    async def read_pointers(self) -> Pointers:
        """Read all pointers by one quorum read.

        In a due lane of a queue that exists, L = 2^62 means that all of it is acked [U12].

        Raises:
            QueueDeleted: The repair pointer says so [R25].
        """
        return await self.begin_pointers()()

    def begin_pointers(self) -> Callable[[], Awaitable[Pointers]]:
        """Send the read of `read_pointers` without waiting. Call the returned function once."""
        read = self.pointers.begin_read()

        async def found() -> Pointers:
            pointers = await read()
            if pointers.is_deleted:
                if self.due is None:
                    raise self.deleted()
                await self.first.read_pointers()
            return pointers

        return found

    async def read_monoton(self) -> Monoton:
        """Read which ids the lane has handed out.

        A due lane that is closed or finished still says so.

        Raises:
            QueueDeleted: It is no due lane, and has no monoton row.
        """
        found = await self.monotons.find()
        if found is not None and (self.due is not None or not found.value.is_closed):
            return found.value
        if self.due is None:
            raise self.deleted()
        return Monoton(next_id=0, reserved_us=self.clock.now_us(), is_closed=True)

    async def is_dropped(self, bucket: BucketNo) -> bool:
        """Whether L, read *after* a row, is above its bucket: the row itself cannot say it (G5)."""
        return bucket < (await self.read_pointers()).repair

    async def apply(
        self, bucket: BucketNo, intent: Intent, *, known: Stored[Bucket] | None = None
    ) -> Answer:
        """Change a bucket row, together with all other changes of this client to it (ADR 39).

        Args:
            known: The row as last seen, to save a read. A stale row only loses its CAS.

        Returns:
            The result. A claim may have lost its race; any other intent was carried out or judged.

        Raises:
            CasContention: It lost too many times in a row.
            CasAmbiguous: See `store.cas`.
            StoreTimeout, StoreUnavailable: Nothing was sent.
        """
        answer, why = await self.buckets.apply(bucket, intent, known=known)
        if answer.end is End.CONTENDED:
            raise self.contended(self.bucket_title(bucket))
        if why is not None:
            raise why
        if isinstance(answer.result, IllegalMove):
            raise answer.result
        return answer

    async def change_bucket(
        self,
        bucket: BucketNo,
        change: Callable[[Bucket, int, Callable[[], UUID]], Bucket | None],
        *,
        known: Stored[Bucket] | None = None,
    ) -> Stored[Bucket] | None:
        """Change a bucket row with the caller's own function. See `Change` and `apply`.

        Returns:
            The row after that; None if there is none.
        """
        row: Any = (await self.apply(bucket, Change(change=change), known=known)).row
        return row  # type: ignore[no-any-return]  # rows come out as they were read

    def attempts(self) -> AsyncIterator[int]:
        """Return the loop of the function `attempts`; when it ends, raise `contended`."""
        return attempts(self.store)

    def deleted(self) -> QueueDeleted:
        """Make the error for a lane that was deleted while it was in use."""
        metrics.forget_queue(self.queue)  # here a process learns that another one has deleted it
        return QueueDeleted(
            f"queue {self.queue!r} was deleted (lane {self.lane_id}). If it was created anew, "
            "open it again with client.queue(), or restart the query",
        )

    async def ended(self) -> QueueDeleted | LaneEnded:
        """Make the error for a lane that hands out no ids: the queue ended, or only a due lane."""
        if self.due is None or (await self.first.pointers.read()).is_deleted:
            return self.deleted()
        return LaneEnded()

    def contended(self, what: str) -> CasContention:
        """Make the error for too many lost races for ``what``, which names the queue or lane."""
        return CasContention(
            f"other clients changed {what} {MAX_REFUSALS} times in a row before our own change. "
            "Try again. If that fails too, use larger batches or fewer clients"
        )


async def live_buckets(lane: Lane) -> range:
    """Return all buckets that may have a row: from the repair pointer to the monoton id.

    Raises:
        QueueDeleted: The lane is dead.
    """
    next_id = (await lane.read_monoton()).next_id
    return range((await lane.read_pointers()).repair, -(-next_id // lane.bucket_size))


def windows(buckets: range, size: int) -> Iterator[list[BucketNo]]:
    """Split buckets into lists of at most ``size``."""
    for start in range(buckets.start, buckets.stop, size):
        yield [BucketNo(number) for number in range(start, min(start + size, buckets.stop))]


R = TypeVar("R")
K = TypeVar("K", BucketNo, Place)

LATER_S: Final = 1.0
"""A look waits this long for each bucket after it has waited for one in vain."""


async def each_bucket(
    lane: Lane, work: Callable[[K], Awaitable[R]], buckets: Iterable[K]
) -> dict[K, R]:
    """Run ``work`` for every bucket, side by side. Raise an error when all others are done [T5].

    Args:
        buckets: Numbers of buckets of this lane, or places in any lanes of its queue.

    Raises:
        CassieqError: The error of the first bucket that failed, with its number. An error about the
            whole queue comes first.
    """
    done, failed = await per_bucket(lane, work, buckets)
    if failed:
        raise first_of(failed)
    return done


async def per_bucket(
    lane: Lane, work: Callable[[K], Awaitable[R]], buckets: Iterable[K]
) -> tuple[dict[K, R], dict[K, CassieqError]]:
    """Return the result of ``work`` for each bucket, and the errors of failed ones."""
    todo = list(buckets)
    done: dict[K, R] = {}
    failed: dict[K, CassieqError] = {}
    for bucket, result in zip(todo, await lane.store.session.each(work, todo), strict=True):
        if isinstance(result, CassieqError):
            failed[bucket] = named(result, lane, bucket)
        else:
            done[bucket] = result
    return done, failed


async def read_rows(
    lane: Lane, buckets: Iterable[BucketNo], away: dict[BucketNo, CassieqError]
) -> dict[BucketNo, Stored[Bucket] | None]:
    """Read rows, for a look at many buckets. Add those that do not answer to ``away``, with errors.

    Once a bucket did not answer, the wait for the next ones is short: there may be one in every
    window [T5].
    """
    with lane.store.session.within(each_s=LATER_S if away else inf):
        rows, unread = await lane.buckets.read_many(buckets)
    away |= {bucket: named(error, lane, bucket) for bucket, error in unread.items()}
    return rows


def first_of(failed: Mapping[K, CassieqError]) -> CassieqError:
    """Choose the error to raise for all: a deleted queue says more than a missing answer."""
    errors = sorted(failed.values(), key=lambda error: isinstance(error, StoreError))
    if len(errors) > 1:
        others = f" ({len(errors) - 1} more buckets failed)"
        if not errors[0].message.endswith(others):
            errors[0].message += others
    return errors[0]


def named(error: CassieqError, lane: Lane, at: BucketNo | Place) -> CassieqError:
    """Add the bucket to the text of an error."""
    if isinstance(at, Place):
        lane, at = lane.sibling(at.lane), at.bucket
    if isinstance(error, StoreError) and f"bucket {at} of " not in error.message:
        error.message = f"{lane.bucket_title(at)}: {error.message}"
    return error


def by_lane(found: Iterable[tuple[LaneId, BucketNo]]) -> defaultdict[LaneId, list[BucketNo]]:
    """Group buckets by their lanes."""
    grouped: defaultdict[LaneId, list[BucketNo]] = defaultdict(list)
    for lane_id, bucket in found:
        grouped[lane_id].append(bucket)
    return grouped
