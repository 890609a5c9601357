"""Table ``schedule`` names the due lanes of each queue, so that readers and repair find them.

Its writes are plain quorum writes. A client that adds a lane reads afterwards whether its period is
closed, and a client that closes a period reads afterwards which lanes it has [U2].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.model.lanes import DueLane, years
from cassieq_spark.store import statements

if TYPE_CHECKING:
    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.store.session import CqlSession

ANY = 1 << 62
"""A number above any period."""


class Schedules:
    """The schedules of all queues; each is found by its queue's first lane."""

    def __init__(self, session: CqlSession) -> None:
        self._session = session

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
