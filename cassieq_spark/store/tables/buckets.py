"""Table ``bucket``: the state of each bucket. LWT only (G1, G2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cassandra.query import UNSET_VALUE

from cassieq_spark.errors import RowCorrupt
from cassieq_spark.model.bucket import Bucket, SinkRef, Status
from cassieq_spark.model.ids import EMPTY, BucketNo, LaneId, Runs
from cassieq_spark.store import statements
from cassieq_spark.store.cas import CasSender, Outcome, Stored, Version
from cassieq_spark.store.tables import claims

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cassieq_spark.store.session import CqlSession


class Buckets:
    """The bucket rows of all lanes."""

    def __init__(self, session: CqlSession, sender: CasSender) -> None:
        self._session = session
        self._sender = sender

    def read(self, lane: LaneId, bucket: BucketNo) -> Stored[Bucket] | None:
        """The row by quorum; None means nothing until the repair pointer was read after it (G5)."""
        row = self._session.one(statements.READ_BUCKET, (lane, bucket))
        return None if row is None or row.writer is None else _stored(row)

    def read_many(
        self, lane: LaneId, buckets: Iterable[BucketNo]
    ) -> dict[BucketNo, Stored[Bucket] | None]:
        """As `read`, for several at once."""
        wanted = list(buckets)
        sent = []
        for bucket in wanted:
            params = (lane, bucket)
            sent.append((params, self._session.start(statements.READ_BUCKET, params)))
        found: dict[BucketNo, Stored[Bucket] | None] = {}
        for bucket, (params, future) in zip(wanted, sent, strict=True):
            rows = self._session.finish(future, statements.READ_BUCKET, params)
            found[bucket] = _stored(rows[0]) if rows and rows[0].writer is not None else None
        return found

    def every(self) -> Iterator[tuple[LaneId, BucketNo]]:
        """Of all lanes: a scan of the whole table."""
        for row in self._session.run(statements.LIST_BUCKETS, ()):
            yield LaneId(row.lane), BucketNo(row.bucket)

    def insert(self, lane: LaneId, bucket: BucketNo, row: Bucket) -> Outcome[Bucket]:
        """CAS from no row: ``sealing``, ``writing`` or an unused bucket's ``void``."""
        sink = row.sink

        def bind(version: Version) -> tuple[Any, ...]:
            return (
                lane,
                bucket,
                row.status.value,
                row.changed_us,
                # Unset, not null: a null is a tombstone (I9).
                UNSET_VALUE if sink is None else sink.sink_id,
                UNSET_VALUE if sink is None else sink.epoch,
                UNSET_VALUE if sink is None else sink.block_end,
                *version.columns,
            )

        return self._sender.send(
            statements.INSERT_BUCKET,
            (lane, bucket),
            row,
            before=None,
            bind=bind,
            read=lambda: self.read(lane, bucket),
        )

    def fill(
        self, lane: LaneId, bucket: BucketNo, old: Stored[Bucket], row: Bucket
    ) -> Outcome[Bucket]:
        """The one CAS that writes a manifest: ``sealed`` or ``prepared`` (I5)."""

        def bind(version: Version) -> tuple[Any, ...]:
            return (
                row.status.value,
                row.changed_us,
                row.manifest.encode(),
                row.size_bytes,
                claims.encode(row),
                *version.columns,
                lane,
                bucket,
                old.version.writer,
            )

        return self._sender.send(
            statements.FILL_BUCKET,
            (lane, bucket),
            row,
            before=old.version,
            bind=bind,
            read=lambda: self.read(lane, bucket),
        )

    def update(
        self, lane: LaneId, bucket: BucketNo, old: Stored[Bucket], row: Bucket
    ) -> Outcome[Bucket]:
        """Every other CAS: claims, acks, roll forward, void."""

        def bind(version: Version) -> tuple[Any, ...]:
            return (
                row.status.value,
                row.changed_us,
                claims.encode(row),
                *version.columns,
                lane,
                bucket,
                old.version.writer,
            )

        return self._sender.send(
            statements.UPDATE_BUCKET,
            (lane, bucket),
            row,
            before=old.version,
            bind=bind,
            read=lambda: self.read(lane, bucket),
        )

    def delete(self, lane: LaneId, bucket: BucketNo) -> None:
        """Remove the row of a bucket below the repair pointer, a ghost's too."""
        self._sender.delete(statements.DELETE_BUCKET, (lane, bucket))


def size_of(row: Bucket) -> int:
    """About how many bytes a CAS on this row carries: see `model.row_limits`."""
    return len(claims.encode(row))


def _stored(row: Any) -> Stored[Bucket]:
    return Stored(value=_decode(row), version=Version.of_row(row))


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
