"""Table ``expiry``: which buckets have something coming back in which minute (design 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import hint_ttl_s, hour_of, minute_of, slices
from cassieq_spark.store import statements

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.store.session import CqlSession


class Hints:
    """The expiry hints of all lanes: they save a look at every row, the bucket row is the truth."""

    def __init__(self, session: CqlSession) -> None:
        self._session = session

    def write(self, lane: LaneId, hints: Iterable[tuple[BucketNo, int]], *, now_us: int) -> None:
        """One hint per bucket and minute, for (bucket, time something comes back, in µs).

        None behind ``now_us``: the time pointer may be past it, and then nobody reads it [T4].
        """
        sent = []
        for bucket, minute, until_us in {
            (bucket, minute_of(until_us)): (bucket, minute_of(until_us), until_us)
            for bucket, until_us in ((bucket, max(until_us, now_us)) for bucket, until_us in hints)
        }.values():
            params = (lane, hour_of(minute), minute, bucket, hint_ttl_s(until_us, now_us=now_us))
            sent.append((params, self._session.start(statements.WRITE_HINT, params)))
        for params, future in sent:
            self._session.finish(future, statements.WRITE_HINT, params)

    def read(self, lane: LaneId, first: int, last: int) -> list[tuple[int, BucketNo]]:
        """(minute, bucket) hinted in these minutes, both included, oldest first."""
        found: list[tuple[int, BucketNo]] = []
        for part in slices(first, last):
            rows = self._session.run(
                statements.READ_HINTS, (lane, part.hour, part.first, part.last)
            )
            found += [(row.minute, BucketNo(row.bucket)) for row in rows]
        return found
