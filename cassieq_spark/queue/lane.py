"""`Lane` is one lane of one queue, with the store it is in. Every verb works on a lane."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cassieq_spark.entropy import jitter
from cassieq_spark.errors import CasContention, QueueDeleted, QueueNotFound, UsageError
from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.store.cas import Applied, Evicted, Refused, Stored
from cassieq_spark.store.tables.queues import QueueStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cassieq_spark.clock import Clock
    from cassieq_spark.model.ids import LaneId, QueueName
    from cassieq_spark.model.pointer import Pointers
    from cassieq_spark.options import QueueSettings
    from cassieq_spark.store.store import LaneTables, Store
    from cassieq_spark.store.tables.buckets import Buckets
    from cassieq_spark.store.tables.hints import Hints
    from cassieq_spark.store.tables.messages import Messages
    from cassieq_spark.store.tables.monotons import Monotons
    from cassieq_spark.store.tables.overlays import Overlays
    from cassieq_spark.store.tables.pointers import PointerTable
    from cassieq_spark.store.tables.queues import QueueRow

MAX_LOST_RACES = 64
"""How many times in a row a CAS may lose to others before its caller gets an error."""

RACE_PAUSE_S = 0.002
RACE_DOUBLINGS = 5
"""The pause after a lost race is about the time of a CAS, then doubles up to 64 ms."""


LONGEST_REST_S = 10.0
"""The longest rest of a finished bucket before it is dropped, for producers that slept [R2]."""


def attempts(clock: Clock) -> Iterator[None]:
    """Loop over tries of a CAS that others may win: `MAX_LOST_RACES` times, with pauses [P28]."""
    for attempt in range(MAX_LOST_RACES):
        if attempt:
            stand_back(clock, attempt - 1)
        yield


def stand_back(clock: Clock, attempt: int) -> None:
    """Wait a random moment after a lost race, longer each time [P28]."""
    clock.wait(jitter(RACE_PAUSE_S, min(attempt, RACE_DOUBLINGS)))


@dataclass(frozen=True, slots=True)
class Lane:
    """One sequence of ids. As thread-safe as its store."""

    store: Store
    queue: QueueName
    lane_id: LaneId
    settings: QueueSettings
    created_us: int
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    _tables: LaneTables = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tables", self.store.lane(self.lane_id))

    @property
    def monotons(self) -> Monotons:
        """The lane's monoton row."""
        return self._tables.monotons

    @property
    def buckets(self) -> Buckets:
        """The lane's bucket rows."""
        return self._tables.buckets

    @property
    def messages(self) -> Messages:
        """The lane's stored messages."""
        return self._tables.messages

    @property
    def overlays(self) -> Overlays:
        """The lane's updated bodies."""
        return self._tables.overlays

    @property
    def pointers(self) -> PointerTable:
        """The lane's pointers."""
        return self._tables.pointers

    @property
    def hints(self) -> Hints:
        """The lane's expiry hints."""
        return self._tables.hints

    @property
    def clock(self) -> Clock:
        """The clock of cluster time (G6)."""
        return self.store.clock

    @property
    def bucket_size(self) -> int:
        """Ids per bucket."""
        return self.settings.bucket_size

    @property
    def rest_s(self) -> float:
        """How long repair leaves a finished bucket's row alone [R2]."""
        return min(LONGEST_REST_S, self.settings.repair_timeout_s)

    @property
    def max_deliveries(self) -> int | None:
        """Deliveries after which a message dies; None if messages never die [R22]."""
        settings = self.settings
        return settings.max_deliveries if settings.dead_letter_queue is not None else None

    def read_pointers(self) -> Pointers:
        """Read all pointers by one quorum read.

        Raises:
            QueueDeleted: The repair pointer says so [R25].
        """
        pointers = self.pointers.read()
        if pointers.is_deleted:
            raise self.deleted()
        return pointers

    def is_dropped(self, bucket: BucketNo) -> bool:
        """Whether L, read *after* a row, is above it: the row itself cannot say that (G5)."""
        return bucket < self.read_pointers().repair

    def change_bucket(
        self,
        bucket: BucketNo,
        change: Callable[[Bucket], Bucket | None],
        *,
        known: Stored[Bucket] | None = None,
    ) -> Stored[Bucket] | None:
        """CAS a bucket row from what ``change`` is given to what it returns, until one is settled.

        Args:
            change: Pure; may be called again with a newer row. None: leave the row as it is.
            known: The row as last seen, to save a read: a stale one only loses its CAS.

        Returns:
            The row as it is then; None if there is none.

        Raises:
            CasContention: It lost too many times in a row.
            CasAmbiguous: See `store.cas`.
        """
        row = known or self.buckets.read(bucket)
        for _ in self.attempts():
            if row is None:
                return None
            new = change(row.value)
            if new is None:
                return row
            match self.buckets.update(bucket, row, new):
                case Applied(now=now):
                    return now
                case Refused(now=now) | Evicted(now=now):
                    row = now
        raise self.contended(f"bucket {bucket}")

    def attempts(self) -> Iterator[None]:
        """See the function `attempts`; when it ends, raise `contended`."""
        return attempts(self.clock)

    def deleted(self) -> QueueDeleted:
        """The error of a lane that was deleted while it was in use."""
        return QueueDeleted(
            f"queue {self.queue!r} was deleted (lane {self.lane_id}). If it was created anew, "
            "open it again with client.queue(), or restart the query",
        )

    def contended(self, what: str) -> CasContention:
        """The error of too many lost races."""
        return CasContention(
            f"other clients changed {what} of queue {self.queue!r} {MAX_LOST_RACES} times in a "
            "row before our own change. Try again. If that fails too, use larger batches or "
            "fewer clients"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpec:
    """A lane without its store, pickled into tasks, which then need not read the queue's row."""

    queue: QueueName
    lane_id: LaneId
    settings: QueueSettings
    created_us: int
    datacenter: str

    @classmethod
    def of(cls, lane: Lane) -> LaneSpec:
        """Describe a lane as it is open here."""
        return cls(
            queue=lane.queue,
            lane_id=lane.lane_id,
            settings=lane.settings,
            created_us=lane.created_us,
            datacenter=lane.store.session.datacenter,
        )

    def on(self, store: Store) -> Lane:
        """The lane as it was where this was made.

        Raises:
            UsageError: This process has connected to nodes of another data centre [P21].
        """
        if self.datacenter != store.session.datacenter:
            raise _elsewhere(store, self.queue, self.datacenter)
        return Lane(
            store=store,
            queue=self.queue,
            lane_id=self.lane_id,
            settings=self.settings,
            created_us=self.created_us,
        )


def open_lane(store: Store, name: QueueName) -> Lane:
    """The lane of a queue that exists.

    Raises:
        QueueNotFound: No queue has that name.
        UsageError: Its home is another data centre: LOCAL_ quorums there and here do not see each
            other [P21].
    """
    found = find_row(store, name)
    if found is None or found.value.status is not QueueStatus.ACTIVE:
        raise missing(store, name)
    return lane_of(store, found.value)


def missing(store: Store, name: str) -> QueueNotFound:
    """The error for a queue that does not exist."""
    return QueueNotFound(
        f"there is no queue {name!r} in keyspace {store.session.keyspace!r}. Create it with "
        f"client.create_queue({name!r})"
    )


def find_row(store: Store, name: QueueName) -> Stored[QueueRow] | None:
    """The row of a queue, without any other data centre if it lives in this one (ADR 17).

    This data centre's quorum may be behind what all have decided: it may have former settings, or
    a queue that was deleted since, which its repair pointer shows [R25].
    """
    found = store.queues.find(name)
    if (
        found is not None
        and found.value.status is QueueStatus.ACTIVE
        and at_home(store, found.value)
        and not _has_ended(store, found.value)
    ):
        return found
    return read_row(store, name)


def read_row(store: Store, name: QueueName) -> Stored[QueueRow] | None:
    """The row that all data centres have decided, with the status that counts.

    A row that is active over a dead lane counts as deleting: a copy of its INSERT has landed after
    its queue was deleted [T14]. Whoever finishes its deletion removes it.
    """
    found = store.queues.read(name)
    if found is not None and _is_born_again(store, found.value):
        return replace(found, value=replace(found.value, status=QueueStatus.DELETING))
    return found


def _is_born_again(store: Store, row: QueueRow) -> bool:
    """A deletion changes the status before it raises L: a row that is still active is a ghost."""
    return row.status is QueueStatus.ACTIVE and at_home(store, row) and _has_ended(store, row)


def _has_ended(store: Store, row: QueueRow) -> bool:
    """Whether a queue that its home shows as active has ended: its repair pointer says so [R25]."""
    return store.lane(row.lanes[0]).pointers.read().is_deleted


def look_again(lane: Lane) -> Lane:
    """The lane with its queue's present settings.

    Raises:
        QueueDeleted: The queue is gone, or another one has its name.
    """
    found = find_row(lane.store, lane.queue)
    if (
        found is None
        or found.value.status is not QueueStatus.ACTIVE
        or lane.lane_id not in found.value.lanes
    ):
        raise lane.deleted()
    return lane_of(lane.store, found.value)


def lanes_of(store: Store, names: list[QueueName] | None) -> list[Lane]:
    """The lanes of these queues; None: of all that live in this client's data centre.

    Raises:
        QueueNotFound: A named queue does not exist.
    """
    if names is not None:
        return [open_lane(store, name) for name in names]
    return [lane_of(store, row) for row in rows_at_home(store, QueueStatus.ACTIVE)]


def rows_at_home(store: Store, status: QueueStatus) -> list[QueueRow]:
    """All queues of a status whose home is this client's data centre, as its quorum knows them."""
    return [row for row in every_row(store) if row.status is status and at_home(store, row)]


def every_row(store: Store) -> list[QueueRow]:
    """Every queue that a quorum of this data centre knows, by name, with the status that counts.

    One pointer read for each that lives here: its row may be outdated, or born again [T14].
    """

    def as_it_is(row: QueueRow) -> QueueRow | None:
        if not _is_born_again(store, row):
            return row
        now = read_row(store, row.name)
        return None if now is None else now.value

    return [row for row in store.session.map(as_it_is, store.queues.find_all()) if row is not None]


def at_home(store: Store, row: QueueRow) -> bool:
    """Whether a queue lives in this client's data centre."""
    return row.home_datacenter == store.session.datacenter


def check_home(store: Store, row: QueueRow) -> None:
    """Refuse any work on a queue's lane, also its deletion, outside its home [P21].

    Raises:
        UsageError: It lives in another data centre.
    """
    if not at_home(store, row):
        raise _elsewhere(store, row.name, row.home_datacenter)


def _elsewhere(store: Store, name: str, home: str) -> UsageError:
    return UsageError(
        f"queue {name!r} lives in data centre {home!r}, but this client is connected to "
        f"{store.session.datacenter!r}. Connect to {home!r}: the quorums of that data centre "
        "decide"
    )


def lane_of(store: Store, row: QueueRow) -> Lane:
    """The lane of a queue row.

    Raises:
        UsageError: See `check_home`.
    """
    check_home(store, row)
    return Lane(
        store=store,
        queue=row.name,
        lane_id=row.lanes[0],
        settings=row.settings,
        created_us=row.created_us,
        labels=row.labels,
    )


def live_buckets(lane: Lane) -> range:
    """All buckets that may have a row: from the repair pointer to the monoton id.

    Raises:
        QueueDeleted: The lane is dead.
    """
    monoton = lane.monotons.read()
    if monoton is None:
        raise lane.deleted()
    return range(lane.read_pointers().repair, -(-monoton.value.next_id // lane.bucket_size))


def windows(buckets: range, size: int) -> Iterator[list[BucketNo]]:
    """Split buckets into lists of at most ``size``."""
    for start in range(buckets.start, buckets.stop, size):
        yield [BucketNo(number) for number in range(start, min(start + size, buckets.stop))]
