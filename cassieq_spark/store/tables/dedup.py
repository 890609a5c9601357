"""Tables ``dedup`` and ``kept``: the put of each key, and which puts happened.

``dedup`` is LWT only. ``kept`` holds manifests of dropped buckets, never LWT. Rows of both end by
their time to live; nobody deletes them. See docs/design/deduplication.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.model.dedup import KEPT_S, Entry
from cassieq_spark.model.ids import BucketNo, LaneId, Runs
from cassieq_spark.store import statements
from cassieq_spark.store.cas import CasTable, Outcome, Stored, Version

if TYPE_CHECKING:
    from cassieq_spark.store.session import CqlSession


class Dedup(CasTable[Entry]):
    """The entries of all queues; each is found by its queue's first lane and its key."""

    async def read(self, queue: LaneId, key: bytes) -> Stored[Entry] | None:
        """Read the entry of a key by quorum; None if there is none any more."""
        row = await self._session.one(statements.READ_KEY, (queue, key))
        if row is None or row.writer is None:
            return None
        entry = Entry(
            lane=LaneId(row.at_lane),
            bucket=BucketNo(row.bucket),
            offset=row.first,
            message_id=row.message_id,
            put_us=row.put_us,
        )
        return Stored(value=entry, version=Version.of_row(row))

    async def take(
        self, queue: LaneId, key: bytes, old: Stored[Entry] | None, entry: Entry, *, ttl_s: int
    ) -> Outcome[Entry]:
        """Take a key by CAS, from an entry or from none."""
        columns = (ttl_s, *entry.place, entry.message_id, entry.put_us)
        return await self._send(statements.TAKE_KEY, (queue, key), entry, columns, old=old)


class Kept:
    """The kept manifests of one lane's dropped buckets that had messages with keys."""

    def __init__(self, session: CqlSession, lane: LaneId) -> None:
        self._session = session
        self._lane = lane

    async def read(self, bucket: BucketNo) -> Runs | None:
        """Read the manifest of a dropped bucket; None: no message in it had a key."""
        row = await self._session.one(statements.READ_KEPT, (self._lane, bucket))
        return None if row is None else Runs.decode(row.manifest)

    async def write(self, bucket: BucketNo, manifest: Runs) -> None:
        """Keep the manifest, answered at quorum."""
        params = (self._lane, bucket, manifest.encode(), KEPT_S)
        await self._session.run(statements.KEEP, params)
