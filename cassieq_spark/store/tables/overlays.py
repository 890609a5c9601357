"""Table ``overlay`` holds updated bodies, as immutable rows beside the messages. Never LWT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.model.bucket_plan import split_parts
from cassieq_spark.store import statements

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cassieq_spark.model.ids import BucketNo, LaneId
    from cassieq_spark.store.sent import Sent
    from cassieq_spark.store.session import CqlSession

DROP_AHEAD_US = 86_400_000_000
"""The time by which a drop is written ahead: writes that were sent before it and land after it
stay shadowed [P14]."""


class Overlays:
    """The updated bodies of one lane.

    A revision is a number that nobody else draws. So two updates of one message never share a row,
    and one that lands late cannot change what the other has stored (I5).
    """

    def __init__(self, session: CqlSession, lane: LaneId) -> None:
        self._session = session
        self._lane = lane

    async def write(self, bucket: BucketNo, offset: int, revision: int, body: bytes) -> None:
        """Store one body, before the CAS that names its revision."""
        cuts = split_parts(len(body))
        for number, (start, end) in enumerate(cuts):
            await self._session.run(
                statements.WRITE_OVERLAY,
                (self._lane, bucket, offset, revision, number, len(cuts), body[start:end]),
            )

    async def read(
        self,
        bucket: BucketNo,
        revisions: Iterable[tuple[int, int]],
    ) -> dict[int, bytes]:
        """Read bodies by offset, for (offset, revision) of a bucket row.

        All are read at once; `fetch` limits their number.

        Returns:
            The bodies that exist. A missing one was replaced or dropped since, or is lost: only its
                row can tell.
        """
        sent: list[tuple[int, Sent]] = []
        for offset, revision in revisions:
            params = (self._lane, bucket, offset, revision)
            sent.append((offset, self._session.start(statements.READ_OVERLAY, params)))
        found: dict[int, bytes] = {}
        for offset, one in sent:
            rows = await self._session.finish(one)
            if rows and len(rows) == rows[0].parts:
                found[offset] = b"".join(row.payload or b"" for row in rows)
        return found

    async def drop_one(self, bucket: BucketNo, offset: int, revision: int) -> None:
        """Drop one body that no row will ever name again: its revision was replaced or refused."""
        stamp = self._session.clock.now_us() + DROP_AHEAD_US
        await self._session.run(
            statements.DROP_OVERLAY, (stamp, self._lane, bucket, offset, revision)
        )

    async def drop(self, bucket: BucketNo) -> None:
        """Drop all bodies of one bucket, by partition."""
        stamp = self._session.clock.now_us() + DROP_AHEAD_US
        await self._session.run(statements.DROP_OVERLAYS, (stamp, self._lane, bucket))
