"""List the partitions of the large tables, of all lanes: for a full repair and a full verify pass.

A ``SELECT DISTINCT`` is a scan of the whole table; what its read repair writes back is whole rows
(tests/fault/test_replicas.py) [T10].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.store import statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.store.session import CqlSession


class Everything:
    """All lanes and buckets that hold anything, whether or not a queue names them."""

    def __init__(self, session: CqlSession) -> None:
        self._session = session

    def buckets(self) -> Iterator[tuple[LaneId, BucketNo]]:
        """The buckets that have a row."""
        for row in self._session.run(statements.LIST_BUCKETS, ()):
            yield LaneId(row.lane), BucketNo(row.bucket)

    def messages(self) -> Iterator[tuple[LaneId, BucketNo]]:
        """The buckets in which messages are stored."""
        for row in self._session.run(statements.LIST_MESSAGES, ()):
            yield LaneId(row.lane), BucketNo(row.bucket)

    def schedules(self) -> Iterator[tuple[LaneId, int]]:
        """The parts of schedules that name a due lane: by a queue's first lane, and year."""
        for row in self._session.run(statements.LIST_SCHEDULES, ()):
            yield LaneId(row.lane), row.year

    def monotons(self) -> Iterator[LaneId]:
        """The lanes that have a monoton row."""
        for row in self._session.run(statements.LIST_MONOTONS, ()):
            yield LaneId(row.lane)
