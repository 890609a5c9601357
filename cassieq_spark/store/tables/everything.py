"""List the partitions of the large tables, of all lanes: for a full repair and a full verify pass.

A ``SELECT DISTINCT`` scans the whole table; its read repair writes back whole rows
(tests/fault/test_replicas.py) [T10].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.store import statements

if TYPE_CHECKING:
    from cassieq_spark.store.session import CqlSession


class Everything:
    """All lanes and buckets with any rows, whether or not a queue names them."""

    def __init__(self, session: CqlSession) -> None:
        self._session = session

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
