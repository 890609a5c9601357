"""Tables ``monoton`` and ``schedule`` hold the next id of each lane, and each queue's due lanes.

``monoton`` is LWT only (G1, G2); holds I6. The writes of ``schedule`` are plain quorum writes. A
client that adds a due lane reads afterwards whether its period is closed, and a client that closes
a period reads afterwards which lanes it has [U2].
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.model.lanes import DueLane, years
from cassieq_spark.model.outcome import Outcome, Stored, Version
from cassieq_spark.store import statements
from cassieq_spark.store.statements import Statement
from cassieq_spark.store.tables.table import LaneTable, Table

ANY = 1 << 62
"""A number above any period."""

CLOSED: Final = -1
"""The stored next id of a lane that was closed at 0. In general a closed lane has -1 less its
next id: a due lane has handed out ids before it is closed, but a lane that its creator gave up
has not [T14]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Monoton:
    """The ids that a lane has handed out.

    Attributes:
        next_id: The first id that nobody has reserved.
        reserved_us: Cluster time of the last reservation: no bucket below the next id is younger
            [R11].
        is_closed: Whether no further id of this lane will ever be handed out.
    """

    next_id: int
    reserved_us: int
    is_closed: bool = False

    @property
    def stored(self) -> int:
        """The next id in the form of the row."""
        return CLOSED - self.next_id if self.is_closed else self.next_id

    @classmethod
    def of(cls, stored: int, reserved_us: int) -> Monoton:
        """Decode the next id of a row."""
        is_closed = stored < 0
        next_id = CLOSED - stored if is_closed else stored
        return cls(next_id=next_id, reserved_us=reserved_us, is_closed=is_closed)


class Monotons(LaneTable):
    """The monoton row of one lane."""

    async def read(self) -> Stored[Monoton] | None:
        """Read the row by quorum; None if the queue was deleted [P13], or never existed [T14]."""
        return await self.begin_read()()

    def begin_read(self) -> Callable[[], Awaitable[Stored[Monoton] | None]]:
        """Send the read of `read` without waiting; call the returned function, once, to wait."""

        def unless_closed(rows: list[Any]) -> Stored[Monoton] | None:
            found = _found(rows)
            return None if found is None or found.value.is_closed else found

        return self._session.ask(statements.READ_MONOTON, (self._lane,), unless_closed)

    async def find(self) -> Stored[Monoton] | None:
        """Read the row as `read` does, even if the lane is closed."""
        return _found(await self._session.run(statements.READ_MONOTON, (self._lane,)))

    async def insert(self, row: Monoton) -> Outcome[Monoton]:
        """Insert the row by CAS: when a queue is created, or a due lane is created or closed."""
        return await self._send(statements.INSERT_MONOTON, row)

    async def update(self, old: Stored[Monoton], row: Monoton) -> Outcome[Monoton]:
        """Write a reservation, or the end of a lane, by CAS."""
        return await self._send(statements.RESERVE, row, before=old.version)

    async def delete(self, old: Stored[Monoton]) -> None:
        """Remove this row for ever: no id of that lane is handed out again [P13].

        The row stays if ids were reserved since it was read: its remover must know how far the
        lane's data goes [T15]. Read again to see whether it is gone.
        """
        await self._sender.delete(statements.DELETE_MONOTON, (self._lane,), before=old.version)

    async def _send(
        self, statement: Statement, row: Monoton, before: Version | None = None
    ) -> Outcome[Monoton]:
        columns = (row.stored, row.reserved_us)
        return await self._sender.send(
            statement, (self._lane,), row, columns, before=before, read=self.find
        )


def _found(rows: list[Any]) -> Stored[Monoton] | None:
    if not rows or rows[0].writer is None:
        return None
    row = rows[0]
    return Stored(value=Monoton.of(row.next_id, row.reserved_us), version=Version.of_row(row))


class Schedules(Table):
    """The schedules of all queues; each is found by its queue's first lane."""

    async def add(self, queue: LaneId, due: DueLane, *, period_us: int) -> None:
        """Add a due lane to the schedule, answered at quorum."""
        where = (queue, due.year(period_us), due.period, due.priority)
        await self._session.run(statements.ADD_TO_SCHEDULE, where)

    async def remove(self, queue: LaneId, due: DueLane, *, period_us: int) -> None:
        """Remove a due lane from the schedule."""
        await self._remove(queue, due.year(period_us), due)

    async def read(self, queue: LaneId, first: int, end: int, *, period_us: int) -> list[DueLane]:
        """Return the due lanes of the periods from ``first`` to before ``end``: one read a year."""
        return [
            due
            for some in await self._session.map(
                lambda year: self._read(queue, year, first, end), years(first, end, period_us)
            )
            for due in some
        ]

    async def of_year(self, queue: LaneId, year: int) -> list[DueLane]:
        """Return all due lanes of one partition."""
        return await self._read(queue, year, 0, ANY)

    async def drop(self, queue: LaneId, year: int) -> list[DueLane]:
        """Remove all due lanes of a partition; return them."""
        found = await self.of_year(queue, year)
        await self._session.map(lambda due: self._remove(queue, year, due), found)
        return found

    async def _read(self, queue: LaneId, year: int, first: int, end: int) -> list[DueLane]:
        rows = await self._session.run(statements.READ_SCHEDULE, (queue, year, first, end))
        return [DueLane(row.period, row.priority) for row in rows]

    async def _remove(self, queue: LaneId, year: int, due: DueLane) -> None:
        where = (queue, year, due.period, due.priority)
        await self._session.run(statements.REMOVE_FROM_SCHEDULE, where)


class Everything(Table):
    """All lanes and buckets with any rows, whether or not a queue names them.

    A full repair and a full verify pass list the partitions of the large tables. A ``SELECT
    DISTINCT`` scans the whole table; its read repair writes back whole rows
    (tests/fault/test_replicas.py) [T10].
    """

    async def buckets(self) -> list[tuple[LaneId, BucketNo]]:
        """Return the buckets that have a row."""
        rows = await self._session.run(statements.LIST_BUCKETS, ())
        return [(LaneId(row.lane), BucketNo(row.bucket)) for row in rows]

    async def messages(self) -> list[tuple[LaneId, BucketNo]]:
        """Return the buckets in which messages are stored."""
        rows = await self._session.run(statements.LIST_MESSAGES, ())
        return [(LaneId(row.lane), BucketNo(row.bucket)) for row in rows]

    async def schedules(self) -> list[tuple[LaneId, int]]:
        """Return the parts of schedules that name a due lane: by a queue's first lane, and year."""
        rows = await self._session.run(statements.LIST_SCHEDULES, ())
        return [(LaneId(row.lane), row.year) for row in rows]

    async def monotons(self) -> list[LaneId]:
        """Return the lanes that have a monoton row."""
        rows = await self._session.run(statements.LIST_MONOTONS, ())
        return [LaneId(row.lane) for row in rows]
