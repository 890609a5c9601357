"""Find a queue by its name: its row, its home and status, and its lanes (ADR 17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final

from cassieq_spark.errors import QueueNotFound, UsageError
from cassieq_spark.model.frozen import freeze, frozen
from cassieq_spark.model.ids import LaneId, QueueName
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.outcome import Stored
from cassieq_spark.options import QueueSettings
from cassieq_spark.options.option import did_you_mean
from cassieq_spark.queue.lane import Lane
from cassieq_spark.store.caller import in_a_thread
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.queues import QueueRow, QueueStatus

suggests: Final[ContextVar[bool]] = ContextVar("cassieq_suggests", default=True)
"""Whether an error for a queue that does not exist suggests a similar name. That costs a read of
many names, and reveals one: a gateway, whose callers are unknown, does without."""


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """A queue and its settings, as `Client.queues` lists it."""

    name: str
    settings: QueueSettings
    home_datacenter: str
    created_at: datetime
    labels: Mapping[str, str]

    def __post_init__(self) -> None:
        freeze(self, "labels")

    @classmethod
    def of(cls, row: QueueRow) -> QueueInfo:
        """Describe the queue of a row; not part of the API."""
        return cls(
            name=row.name,
            settings=row.settings,
            home_datacenter=row.home_datacenter,
            created_at=time_of(row.created_us),
            labels=row.labels,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpec:
    """A lane without its store, pickled into tasks so that they need not read the queue's row."""

    row: QueueRow = field(hash=False)  # it has a dict, and a lane's id names its queue
    lane_id: LaneId

    @classmethod
    def of(cls, lane: Lane) -> LaneSpec:
        """Describe a lane as it is open here."""
        return cls(row=lane.row, lane_id=lane.lane_id)

    def on(self, store: Store) -> Lane:
        """Return the lane in this process, as it was where the spec was made.

        Raises:
            UsageError: This process has connected to nodes of another data centre [P21].
        """
        return lane_of(store, self.row).sibling(self.lane_id)


async def open_lane(store: Store, name: QueueName) -> Lane:
    """Return the first lane of a queue that exists.

    Raises:
        QueueNotFound: No queue has that name.
        UsageError: Its home is another data centre: LOCAL_ quorums there and here do not see each
            other [P21].
    """
    found = await find_row(store, name)
    if found is None or found.value.status is not QueueStatus.ACTIVE:
        raise await missing(store, name)
    return lane_of(store, found.value)


async def missing(store: Store, name: str, advice: str = "") -> QueueNotFound:
    """Make the error for a queue that does not exist. It suggests a similar name.

    Args:
        advice: What to do instead.
    """
    near = ""
    if suggests.get():
        account = name.rpartition("/")[0]  # empty: a queue without one
        some = await store.queues.some_names()
        names = [one for one in some if one.rpartition("/")[0] == account]
        near = await in_a_thread(partial(did_you_mean, name, names))  # it compares up to a thousand
    return QueueNotFound(
        f"there is no queue {name!r} in keyspace {store.session.keyspace!r}.{near} "
        + (
            advice
            or f"Create it with client.create_queue({name!r}), or see client.queues() for all names"
        )
    )


async def find_row(store: Store, name: QueueName) -> Stored[QueueRow] | None:
    """Read the row of a queue, without any other data centre if the queue lives here (ADR 17).

    This data centre's quorum may be behind the decision of all data centres. It may show former
    settings, or a queue that was deleted since, which its repair pointer shows [R25].
    """
    found = await store.queues.find(name)
    if (
        found is not None
        and found.value.status is QueueStatus.ACTIVE
        and at_home(store, found.value)
        and not await _has_ended(store, found.value)
    ):
        return found
    return await read_row(store, name)


async def read_row(store: Store, name: QueueName) -> Stored[QueueRow] | None:
    """Read the row that all data centres have decided, with the status that counts.

    A row that is active over a dead lane counts as deleting: a copy of its INSERT has landed after
    its queue was deleted [T14]. The client that completes its deletion removes the row.
    """
    found = await store.queues.read(name)
    if found is not None and await _is_born_again(store, found.value):
        return replace(found, value=replace(found.value, status=QueueStatus.DELETING))
    return found


async def _is_born_again(store: Store, row: QueueRow) -> bool:
    """Whether an active row is a ghost: a deletion changes the status before it raises L."""
    return row.status is QueueStatus.ACTIVE and at_home(store, row) and await _has_ended(store, row)


async def _has_ended(store: Store, row: QueueRow) -> bool:
    """Whether a queue that its home shows as active has ended, by its repair pointer [R25]."""
    return (await store.lane(row.lanes[0]).pointers.read()).is_deleted


async def refreshed(lane: Lane) -> Lane:
    """Return the lane with its queue's present settings.

    Raises:
        QueueDeleted: The queue is gone, or another one has its name.
    """
    found = await find_row(lane.store, lane.queue)
    if (
        found is None
        or found.value.status is not QueueStatus.ACTIVE
        or lane.lane_id not in found.value.lanes
    ):
        raise lane.deleted()
    return lane_of(lane.store, found.value).sibling(lane.lane_id)


async def lanes_of(store: Store, names: list[QueueName] | None) -> list[Lane]:
    """Return the first lanes of these queues; None: of all that live in this client's data centre.

    Raises:
        QueueNotFound: A named queue does not exist.
    """
    if names is not None:
        return [await open_lane(store, name) for name in names]
    return [lane_of(store, row) for row in await rows_at_home(store, QueueStatus.ACTIVE)]


async def rows_at_home(store: Store, status: QueueStatus) -> list[QueueRow]:
    """Return all queues of a status that live in this data centre, as its quorum knows them."""
    return [row for row in await every_row(store) if row.status is status and at_home(store, row)]


async def sources_of(store: Store, name: str, *, is_decided: bool = False) -> list[QueueName]:
    """Return the queues whose dead letters go to this one.

    Args:
        is_decided: Read what all data centres have decided, and not what this one knows.
    """

    def has_it(row: QueueRow) -> bool:
        return row.status is QueueStatus.ACTIVE and row.settings.dead_letter_queue == name

    return [
        row.name for row in await every_row(store, has_it, is_decided=is_decided) if has_it(row)
    ]


async def every_row(
    store: Store,
    is_wanted: Callable[[QueueRow], bool] = lambda _: True,
    *,
    is_decided: bool = False,
) -> list[QueueRow]:
    """Return all queues that this data centre's quorum knows, by name, with the status that counts.

    It costs one pointer read for each queue that lives here: its row may be outdated, or born again
    [T14].

    Args:
        is_wanted: Return only queues for which this is true, by a row that may be outdated.
        is_decided: Read with a quorum of all data centres: no row is outdated.
    """

    async def as_it_is(row: QueueRow) -> QueueRow | None:
        if not await _is_born_again(store, row):
            return row
        now = await read_row(store, row.name)
        return None if now is None else now.value

    rows = await store.queues.read_all() if is_decided else await store.queues.find_all()
    found = filter(is_wanted, rows)
    return [row for row in await store.session.map(as_it_is, found) if row is not None]


def at_home(store: Store, row: QueueRow) -> bool:
    """Whether a queue lives in this client's data centre."""
    return row.home_datacenter == store.session.datacenter


def check_home(store: Store, row: QueueRow) -> None:
    """Refuse any work on a queue's lane outside its home, also its deletion [P21].

    Raises:
        UsageError: The queue lives in another data centre.
    """
    if not at_home(store, row):
        raise UsageError(
            f"queue {row.name!r} lives in data centre {row.home_datacenter!r}, but this client is "
            f"connected to {store.session.datacenter!r}. Connect to {row.home_datacenter!r}: the "
            "quorums of that data centre decide"
        )


def lane_of(store: Store, row: QueueRow) -> Lane:
    """Return the first lane of a queue row.

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
        lanes=row.lanes,
        row=row,
    )
