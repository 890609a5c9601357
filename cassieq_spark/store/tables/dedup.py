"""Tables ``dedup`` and ``kept``: the put of each key, and which puts happened.

``dedup`` is LWT only. ``kept`` holds manifests of dropped buckets, never LWT. Rows of both end by
their time to live; nobody deletes them. See docs/design/deduplication.md.
"""

from __future__ import annotations

from typing import Any

from cassieq_spark.model.dedup import KEPT_S, Entry
from cassieq_spark.model.ids import BucketNo, LaneId, Runs
from cassieq_spark.model.outcome import Outcome, Stored
from cassieq_spark.store import statements
from cassieq_spark.store.tables.table import CasTable, LaneTable


class Dedup(CasTable[Entry]):
    """The entries of all queues; each is found by its queue's first lane and its key."""

    READ = statements.READ_KEY

    async def take(
        self, queue: LaneId, key: bytes, old: Stored[Entry] | None, entry: Entry, *, ttl_s: int
    ) -> Outcome[Entry]:
        """Take a key by CAS, from an entry or from none."""
        columns = (ttl_s, *entry.place, entry.message_id, entry.put_us)
        return await self._send(statements.TAKE_KEY, (queue, key), entry, columns, old=old)

    def _decode(self, row: Any) -> Entry:
        return Entry(
            lane=LaneId(row.at_lane),
            bucket=BucketNo(row.bucket),
            offset=row.first,
            message_id=row.message_id,
            put_us=row.put_us,
        )


class Kept(LaneTable):
    """The kept manifests of one lane's dropped buckets that had messages with keys."""

    async def read(self, bucket: BucketNo) -> Runs | None:
        """Read the manifest of a dropped bucket; None: no message in it had a key."""
        row = await self._session.one(statements.READ_KEPT, (self._lane, bucket))
        return None if row is None else Runs.decode(row.manifest)

    async def write(self, bucket: BucketNo, manifest: Runs) -> None:
        """Keep the manifest, answered at quorum."""
        params = (self._lane, bucket, manifest.encode(), KEPT_S)
        await self._session.run(statements.KEEP, params)
