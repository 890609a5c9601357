"""Tables ``sink`` and ``sink_list``: what was committed. ``sink`` is LWT only (G1, G2)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgpack

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import RowCorrupt, UsageError
from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.model.sink_txn import BucketList, Listed, SinkRow
from cassieq_spark.store import statements
from cassieq_spark.store.cas import CasSender, Outcome, Stored, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cassieq_spark.store.session import CqlSession
    from cassieq_spark.store.statements import Statement

LIST_IN_ROW_BYTES: Final = 64 * 1024
"""A longer list goes into rows of its own: Paxos would carry it twice per CAS [R24]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListRef:
    """Where a bucket list is: in the row, or in ``parts`` rows under ``list_id``.

    The id is fresh with each attempt, not the epoch: two committers of one epoch may write
    different lists, and the one that loses the CAS must not have overwritten the winner's.
    """

    inline: bytes | None
    list_id: UUID | None
    parts: int
    digest: bytes | None


class Sinks:
    """The sink rows."""

    def __init__(self, session: CqlSession, sender: CasSender) -> None:
        self._session = session
        self._sender = sender

    def read(self, sink_id: str) -> Stored[SinkRow] | None:
        """The row by quorum."""
        return self._read(statements.READ_SINK, sink_id)

    def read_serial(self, sink_id: str) -> Stored[SinkRow] | None:
        """The row after every commit that was under way has ended."""
        return self._read(statements.READ_SINK_SERIAL, sink_id)

    def once(self) -> Iterator[tuple[str, LaneId]]:
        """(sink id, lane) of every sink that has one transaction: a scan of the whole table."""
        for row in self._session.run(statements.LIST_SINKS, ()):
            if row.is_once and row.writer is not None:
                yield row.sink_id, LaneId(row.lane)

    def every(self) -> Iterator[tuple[str, LaneId]]:
        """(sink id, lane) of all sinks that one replica knows, for a look: a scan of the table."""
        for row in self._session.run(statements.GLANCE_SINKS, ()):
            if row.lane is not None:
                yield row.sink_id, LaneId(row.lane)

    def with_lists(self) -> Iterator[str]:
        """The ids under which bucket lists are stored in rows of their own, for a look."""
        for row in self._session.run(statements.GLANCE_SINK_LISTS, ()):
            yield row.sink_id

    def insert(self, sink_id: str, row: SinkRow) -> Outcome[SinkRow]:
        """CAS from no row; it comes before any bucket names the sink (design 8)."""
        ref = self._store_list(sink_id, row.listed)
        return self._sender.send(
            statements.INSERT_SINK,
            (sink_id,),
            row,
            before=None,
            bind=lambda version: (sink_id, *_columns(row, ref), *version.columns),
            read=lambda: self.read(sink_id),
        )

    def update(self, sink_id: str, old: Stored[SinkRow], row: SinkRow) -> Outcome[SinkRow]:
        """The commit point, an abort, a registration (I7)."""
        ref = self._store_list(sink_id, row.listed)
        return self._sender.send(
            statements.UPDATE_SINK,
            (sink_id,),
            row,
            before=old.version,
            bind=_bind_update(sink_id, row, ref, old.version.writer),
            read=lambda: self.read(sink_id),
        )

    def delete(self, sink_id: str, old: Stored[SinkRow]) -> None:
        """Remove the row of a sink for one transaction, as it was read."""
        self._sender.delete(statements.DELETE_SINK, (sink_id,), before=old.version)

    def _read(self, statement: Statement, sink_id: str) -> Stored[SinkRow] | None:
        row = self._session.one(statement, (sink_id,))
        if row is None or row.writer is None:
            return None
        try:
            value = self._decode(row, sink_id)
        except RowCorrupt:
            # Its long list may have been cleaned away because the row moved on since we read it.
            again = self._session.one(statement, (sink_id,))
            if again is None or again.writer == row.writer:
                raise
            row, value = again, self._decode(again, sink_id)
        return Stored(value=value, version=Version.of_row(row))

    def _store_list(self, sink_id: str, listed: BucketList) -> _ListRef:
        encoded = _encode_list(listed)
        if len(encoded) <= LIST_IN_ROW_BYTES:
            return _ListRef(inline=encoded, list_id=None, parts=0, digest=None)
        list_id = new_uuid()
        parts = [
            encoded[at : at + LIST_IN_ROW_BYTES] for at in range(0, len(encoded), LIST_IN_ROW_BYTES)
        ]
        for number, part in enumerate(parts):
            self._session.run(statements.WRITE_SINK_LIST, (sink_id, list_id, number, part))
        return _ListRef(
            inline=None,
            list_id=list_id,
            parts=len(parts),
            digest=hashlib.sha256(encoded).digest(),
        )

    def _load_list(self, row: Any, sink_id: str) -> BucketList:
        if row.list_id is None:
            return BucketList() if row.list is None else _decode_list(row.list)
        rows = self._session.run(statements.READ_SINK_LIST, (sink_id, row.list_id))
        encoded = b"".join(part.data for part in rows)
        if len(rows) != row.list_parts or hashlib.sha256(encoded).digest() != row.list_hash:
            raise RowCorrupt(
                f"the bucket list of sink {sink_id!r} has {len(rows)} of {row.list_parts} parts, "
                "or other bytes than were committed. Restore table sink_list"
            )
        return _decode_list(encoded)

    def _decode(self, row: Any, sink_id: str) -> SinkRow:
        try:
            return SinkRow(
                lane=LaneId(row.lane),
                changed_us=row.changed_us,
                epoch=row.epoch,
                last=row.last_batch,
                listed=self._load_list(row, sink_id),
                query_id=row.query_id,
                checkpoint=row.checkpoint,
                run=row.run,
                past=tuple(msgpack.unpackb(row.past)),
                aborts=row.aborts,
                is_once=row.is_once,
            )
        except UsageError:  # a refused read of its list is no corrupt row; it is a ValueError too
            raise
        except (ValueError, TypeError) as error:
            raise RowCorrupt(f"the row of sink {sink_id!r} cannot be read ({error})") from error


def _columns(row: SinkRow, ref: _ListRef) -> tuple[Any, ...]:
    return (
        row.lane,
        row.changed_us,
        row.epoch,
        row.last,
        ref.inline,
        ref.list_id,
        ref.parts,
        ref.digest,
        row.query_id,
        row.checkpoint,
        row.run,
        msgpack.packb(row.past),
        row.aborts,
        row.is_once,
    )


def _bind_update(
    sink_id: str, row: SinkRow, ref: _ListRef, writer: UUID
) -> Callable[[Version], tuple[Any, ...]]:
    return lambda version: (*_columns(row, ref), *version.columns, sink_id, writer)


def _encode_list(listed: BucketList) -> bytes:
    return bytes(msgpack.packb([[run.first, run.last, run.count] for run in listed.runs]))


def _decode_list(encoded: bytes) -> BucketList:
    return BucketList(
        runs=tuple(
            Listed(first=BucketNo(first), last=BucketNo(last), count=count)
            for first, last, count in msgpack.unpackb(encoded)
        )
    )
