"""Table ``bucket`` holds the state of each bucket. LWT only (G1, G2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from cassandra.query import UNSET_VALUE

from cassieq_spark.errors import CassieqError, RowCorrupt, StoreError
from cassieq_spark.model.bucket import Bucket, SinkRef, Status
from cassieq_spark.model.ids import EMPTY, BucketNo, LaneId, Runs
from cassieq_spark.model.outcome import Applied, Outcome, Stored, Tags, Version
from cassieq_spark.model.rows.events import Answer
from cassieq_spark.model.rows.intents import Intent
from cassieq_spark.store import statements
from cassieq_spark.store.rows import KEPT_BYTES, Port, Rows
from cassieq_spark.store.statements import Statement
from cassieq_spark.store.tables import claims
from cassieq_spark.store.tables.pointers import Hints
from cassieq_spark.store.tables.table import Base, LaneTable

Some = tuple[dict[BucketNo, Stored[Bucket] | None], dict[BucketNo, StoreError]]
"""Rows, and the errors of those that stayed unanswered."""


class Buckets(LaneTable):
    """The bucket rows of one lane."""

    def __init__(self, store: Base, lane: LaneId, rows: Rows, hints: Hints) -> None:
        super().__init__(store, lane)
        self._rows = rows
        self._hints = hints

    def as_left(self, bucket: BucketNo) -> Stored[Bucket] | None:
        """Return the row as this client's last CAS left it, to save a read before the next one.

        None if that is unknown, or if others have changed the row lately: a CAS would probably
        fail.
        """
        return self._rows.left((self._lane, bucket))

    async def apply(
        self, bucket: BucketNo, intent: Intent, *, known: Stored[Bucket] | None = None
    ) -> tuple[Answer, CassieqError | None]:
        """Change a row: claim, settle, cancel, purge; see `Rows.apply`."""
        return await self._rows.apply((self._lane, bucket), self._port(bucket), intent, known)

    async def read(self, bucket: BucketNo) -> Stored[Bucket] | None:
        """Read the row by quorum; None means nothing until the repair pointer is read after (G5).

        Raises:
            RowCorrupt: The row cannot be decoded; the error names the bucket.
        """
        row = await self._session.one(statements.READ_BUCKET, (self._lane, bucket))
        return None if row is None or row.writer is None else _stored(self._lane, bucket, row)

    async def read_many(self, buckets: Iterable[BucketNo]) -> Some:
        """Read several rows at once as `read` does; an unreadable row has status ``corrupt`` [T21].

        A caller that wants to change that row gets the error from `read`; the others are not
        affected.

        Returns:
            Rows, and the errors of those that stayed unanswered until a read's deadline. They are
            read side by side, so that one delays no other [T5].
        """
        found, unread = await self.read_some(buckets)
        again = await self._session.each(self._look_at, unread)
        for bucket, row in zip(list(unread), again, strict=True):
            if isinstance(row, StoreError):
                unread[bucket] = row
            elif isinstance(row, CassieqError):
                raise row
            else:
                found[bucket] = row
                del unread[bucket]
        return found, unread

    async def read_some(self, buckets: Iterable[BucketNo]) -> Some:
        """Read as `read_many` does, but only once: rows, and the errors of those not answered [T5].

        It is for callers that can do without a row for now: nobody waits for it.
        """
        return await self.begin_read_some(buckets)()

    def begin_read_some(self, buckets: Iterable[BucketNo]) -> Callable[[], Awaitable[Some]]:
        """Send the reads of `read_some`, without waiting; call the returned function, once."""
        wanted = list(buckets)
        sent = [
            self._session.start(statements.READ_BUCKET, (self._lane, bucket)) for bucket in wanted
        ]

        async def answered() -> Some:
            some: Some = ({}, {})
            found, unread = some
            for bucket, one in zip(wanted, sent, strict=True):
                rows = await self._session.answer(one)
                if isinstance(rows, StoreError):
                    unread[bucket] = rows
                else:
                    is_there = rows and rows[0].writer is not None
                    found[bucket] = _as_seen(self._lane, bucket, rows[0]) if is_there else None
            return some

        return answered

    async def _look_at(self, bucket: BucketNo) -> Stored[Bucket] | None:
        row = await self._session.one(statements.READ_BUCKET, (self._lane, bucket))
        return None if row is None or row.writer is None else _as_seen(self._lane, bucket, row)

    async def insert(self, bucket: BucketNo, row: Bucket) -> Outcome[Bucket]:
        """Insert a row by CAS, if there is none: ``sealing``, ``writing`` or an unused ``void``."""
        sink = row.sink
        # Unset, not null: a null is a tombstone (I9).
        of_sink = 3 * (UNSET_VALUE,) if sink is None else (sink.sink_id, sink.epoch, sink.block_end)
        send = partial(self._send, statements.INSERT_BUCKET, bucket, None, row, of_sink)
        return await self._in_turn(bucket, row, send)

    async def fill(self, bucket: BucketNo, old: Stored[Bucket], row: Bucket) -> Outcome[Bucket]:
        """Run the one CAS that writes a manifest: ``sealed`` or ``prepared`` (I5)."""
        encoded = claims.encode(row)
        manifest = (row.manifest.encode(), row.size_bytes)
        values = (*manifest, encoded)
        fill = partial(self._send, statements.FILL_BUCKET, bucket, old.version, row, values)
        return await self._in_turn(bucket, row, fill, keeps=len(encoded) <= KEPT_BYTES)

    async def update(self, bucket: BucketNo, old: Stored[Bucket], row: Bucket) -> Outcome[Bucket]:
        """Write a change that is not a function of the row alone, such as a publish after L."""
        values = (claims.encode(row),)
        update = partial(self._send, statements.UPDATE_BUCKET, bucket, old.version, row, values)
        return await self._in_turn(bucket, row, update)

    async def delete(self, bucket: BucketNo) -> None:
        """Remove the row of a bucket below the repair pointer, or its ghost."""
        async with self._rows.turn((self._lane, bucket), self._port(bucket)):
            await self._sender.delete(statements.DELETE_BUCKET, (self._lane, bucket))

    async def _in_turn(
        self,
        bucket: BucketNo,
        row: Bucket,
        send: Callable[[], Awaitable[Outcome[Bucket]]],
        *,
        keeps: bool = False,
    ) -> Outcome[Bucket]:
        async with self._rows.turn((self._lane, bucket), self._port(bucket)) as leave:
            outcome = await send()
            if keeps and isinstance(outcome, Applied) and outcome.now.value is row:
                leave(outcome.now)  # otherwise others have changed it since
        return outcome

    def _port(self, bucket: BucketNo) -> Port:
        async def send(before: Version, row: Bucket, mark: UUID) -> tuple[Outcome[Bucket], int]:
            encoded = claims.encode(row)
            outcome = await self._send(
                statements.UPDATE_BUCKET, bucket, before, row, (encoded,), mark=mark
            )
            return outcome, len(encoded)

        async def hint(times_us: Iterable[int], now_us: int) -> None:
            due = [(bucket, time_us) for time_us in times_us]
            await self._hints.write(due, now_us=now_us, is_sure=False)

        return Port(partial(self.read, bucket), send, hint, self._hints.passed)

    async def _send(
        self,
        statement: Statement,
        bucket: BucketNo,
        before: Version | None,
        row: Bucket,
        values: tuple[Any, ...],
        *,
        mark: UUID | None = None,
    ) -> Outcome[Bucket]:
        columns = (row.status.value, row.changed_us, *values)
        key, read = (self._lane, bucket), partial(self.read, bucket)
        return await self._sender.send(
            statement, key, row, columns, before=before, read=read, mark=mark
        )


def size_of(row: Bucket) -> int:
    """Return about how many bytes a CAS on this row carries: see `model.row_limits`."""
    return len(claims.encode(row))


def _stored(lane: LaneId, bucket: BucketNo, row: Any) -> Stored[Bucket]:
    try:
        return Stored(value=_decode(row), version=Version.of_row(row))
    except RowCorrupt as error:
        raise RowCorrupt(
            f"bucket {bucket} of lane {lane}: {error.message} Until its row is restored, its "
            "messages are neither delivered nor dropped"
        ) from error


def _as_seen(lane: LaneId, bucket: BucketNo, row: Any) -> Stored[Bucket]:
    try:
        return _stored(lane, bucket, row)
    except RowCorrupt:
        value = Bucket(status=Status.CORRUPT, changed_us=row.changed_us or 0)
        return Stored(value=value, version=Version(writer=row.writer, tags=Tags(), row_version=0))


def _decode(row: Any) -> Bucket:
    try:
        return Bucket(
            status=Status(row.status),
            changed_us=row.changed_us,
            manifest=EMPTY if row.manifest is None else Runs.decode(row.manifest),
            size_bytes=row.size_bytes or 0,
            sink=(
                None
                if row.sink_id is None
                else SinkRef(
                    sink_id=row.sink_id, epoch=row.epoch, block_end=BucketNo(row.block_end)
                )
            ),
            **({} if row.claims is None else claims.decode(row.claims)),
        )
    except claims.CORRUPT as error:
        raise RowCorrupt(
            f"a bucket row cannot be read ({error}); was it written by hand or by a newer release?"
        ) from error
