"""Tables ``sink`` and ``sink_list`` hold each sink's commits. ``sink`` is LWT only (G1, G2)."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgpack

from cassieq_spark.errors import CassieqError, RowCorrupt, UsageError
from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.model.outcome import Applied, Outcome, Refused, Stored, Version
from cassieq_spark.model.sink_txn import BucketList, Listed, SinkRow
from cassieq_spark.store import statements
from cassieq_spark.store.statements import Statement
from cassieq_spark.store.tables.table import CasTable

FIRST_TOKEN: Final = -(2**63)
ALL: Final = 2**31 - 1
"""A number above the rows of any table of sinks."""

LIST_IN_ROW_BYTES: Final = 64 * 1024
"""The size above which a list goes into rows of its own: Paxos would carry it twice per CAS
[R24]."""


class _ListRef(NamedTuple):
    """The place of a bucket list: in the row, or in ``parts`` rows under ``list_id``.

    The id is new with each attempt, and not the epoch: two committers of one epoch may write
    different lists, and the one that loses the CAS must not overwrite the winner's.
    """

    inline: bytes | None
    list_id: UUID | None
    parts: int
    digest: bytes | None


class Glimpse(NamedTuple):
    """A row as one replica has it, by the columns of `LIST_SINKS`: it decides nothing."""

    sink_id: str
    lane: LaneId
    is_once: bool
    epoch: int
    changed_us: int


class Sinks(CasTable[SinkRow]):
    """The sink rows."""

    async def read(self, sink_id: str) -> Stored[SinkRow] | None:
        """Read the row by quorum."""
        return await self._read(statements.READ_SINK, sink_id)

    async def read_serial(self, sink_id: str) -> Stored[SinkRow] | None:
        """Read the row after every commit that was under way has ended."""
        return await self._read(statements.READ_SINK_SERIAL, sink_id)

    async def once(self, *, start: int = FIRST_TOKEN, at_most: int = ALL) -> list[Glimpse]:
        """Read rows of one transaction among the next ``at_most`` from a token on, around the ring.

        A table with fewer rows is read whole, from any start.
        """
        rows = await self._session.run(statements.LIST_SINKS, (start, at_most))
        if start > FIRST_TOKEN and len(rows) < at_most:
            rows += await self._session.run(
                statements.LIST_SINKS, (FIRST_TOKEN, at_most - len(rows))
            )
        return list({row.sink_id: Glimpse._make(row) for row in rows if row.is_once}.values())

    async def every(self) -> list[tuple[str, LaneId]]:
        """Return (sink id, lane) of all sinks that one replica knows, by a scan of the table."""
        rows = await self._session.run(statements.GLANCE_SINKS, ())
        return [(row.sink_id, LaneId(row.lane)) for row in rows if row.lane is not None]

    async def insert(self, sink_id: str, row: SinkRow) -> Outcome[SinkRow]:
        """Insert a row by CAS, if there is none; it comes before any bucket names the sink."""
        ref = await self._store_list(sink_id, row.listed)
        return await self._send(statements.INSERT_SINK, (sink_id,), row, _columns(row, ref))

    async def update(self, sink_id: str, old: Stored[SinkRow], row: SinkRow) -> Outcome[SinkRow]:
        """Write the commit point, an abort or a registration by CAS (I7).

        It deletes the list that nothing names afterwards: the old row's list, or the new list if
        the CAS was refused and so cannot happen any more [T19].
        """
        former = await self._list_id(sink_id, old)
        ref = await self._store_list(sink_id, row.listed)
        columns = _columns(row, ref)
        outcome = await self._send(statements.UPDATE_SINK, (sink_id,), row, columns, old=old)
        if isinstance(outcome, Applied):
            await self._drop_list(sink_id, former)
        elif isinstance(outcome, Refused):
            await self._drop_list(sink_id, ref.list_id)
        return outcome

    async def delete(self, sink_id: str, old: Stored[SinkRow]) -> None:
        """Remove the row of a sink for one transaction, as it was read."""
        former = await self._list_id(sink_id, old)
        if await self._sender.delete(statements.DELETE_SINK, (sink_id,), before=old.version):
            await self._drop_list(sink_id, former)

    async def lists(self) -> dict[str, set[UUID]]:
        """Return the ids of all lists that have rows of their own, by sink: a scan of the table."""
        found: dict[str, set[UUID]] = defaultdict(set)
        for row in await self._session.run(statements.LIST_SINK_LISTS, ()):
            found[row.sink_id].add(row.list_id)
        return found

    async def drop_lists(
        self, sink_id: str, stored: Stored[SinkRow] | None, ids: Iterable[UUID]
    ) -> int:
        """Delete the lists among these that the row does not name; return how many.

        A client that stored one of them may be about to name it, by a CAS on the row as it was
        then. So the row is changed first, and that CAS is dead [T19].

        Args:
            stored: The row, read by SERIAL after the lists were seen; None: it does not exist.
        """
        unnamed: set[UUID | None] = set(ids)
        if stored is not None:
            former = await self._list_id(sink_id, stored)
            if unnamed <= {former}:
                return 0
            if not isinstance(await self.update(sink_id, stored, stored.value), Applied):
                return 0
            unnamed.discard(former)
        for list_id in unnamed:
            await self._drop_list(sink_id, list_id)
        return len(unnamed)

    async def _read(self, statement: Statement, sink_id: str) -> Stored[SinkRow] | None:
        row = await self._session.one(statement, (sink_id,))
        while row is not None and row.writer is not None:
            try:
                return Stored(value=await self._row_of(row, sink_id), version=Version.of_row(row))
            except RowCorrupt:
                # The row has moved on since it was read, so its long list was deleted. The list of
                # a row that still exists is never taken for an empty one (I7) [T19].
                again = await self._session.one(statement, (sink_id,))
                if again is not None and again.writer == row.writer:
                    raise
                row = again
        return None

    async def _list_id(self, sink_id: str, stored: Stored[SinkRow]) -> UUID | None:
        """Return the id of a row's list, if the list has rows of its own; such lists are rare."""
        if len(_encode_list(stored.value.listed)) <= LIST_IN_ROW_BYTES:
            return None
        row = await self._session.one(statements.READ_SINK, (sink_id,))
        is_same = row is not None and row.writer == stored.version.writer
        return row.list_id if row is not None and is_same else None

    async def _drop_list(self, sink_id: str, list_id: UUID | None) -> None:
        """Delete a list once, ignoring failures: the row has decided, and a full repair sweeps."""
        with suppress(CassieqError):
            if list_id is None:
                return
            await self._session.attempt(statements.DROP_SINK_LIST, (sink_id, list_id))

    async def _store_list(self, sink_id: str, listed: BucketList) -> _ListRef:
        encoded = _encode_list(listed)
        if len(encoded) <= LIST_IN_ROW_BYTES:
            return _ListRef(encoded, None, 0, None)
        list_id = self._session.entropy.new_uuid()
        parts = [
            encoded[at : at + LIST_IN_ROW_BYTES] for at in range(0, len(encoded), LIST_IN_ROW_BYTES)
        ]
        for number, part in enumerate(parts):
            await self._session.run(statements.WRITE_SINK_LIST, (sink_id, list_id, number, part))
        return _ListRef(None, list_id, len(parts), hashlib.sha256(encoded).digest())

    async def _load_list(self, row: Any, sink_id: str) -> BucketList:
        if row.list_id is None:
            return BucketList() if row.list is None else _decode_list(row.list)
        rows = await self._session.run(statements.READ_SINK_LIST, (sink_id, row.list_id))
        encoded = b"".join(part.data for part in rows)
        if len(rows) != row.list_parts or hashlib.sha256(encoded).digest() != row.list_hash:
            raise RowCorrupt(
                f"the bucket list of sink {sink_id!r} has {len(rows)} of {row.list_parts} parts, "
                "or other bytes than were committed. Restore table sink_list from a backup"
            )
        return _decode_list(encoded)

    async def _row_of(self, row: Any, sink_id: str) -> SinkRow:
        try:
            return SinkRow(
                lane=LaneId(row.lane),
                changed_us=row.changed_us,
                epoch=row.epoch,
                last=row.last_batch,
                listed=await self._load_list(row, sink_id),
                query_id=row.query_id,
                checkpoint=row.checkpoint,
                run=row.run,
                past=tuple(msgpack.unpackb(row.past)),
                aborts=row.aborts,
                is_once=row.is_once,
            )
        except UsageError:  # a refused read of the list is no corrupt row; it is a ValueError too
            raise
        except (ValueError, TypeError, IndexError) as error:
            raise RowCorrupt(f"the row of sink {sink_id!r} cannot be read ({error})") from error


def _columns(row: SinkRow, ref: _ListRef) -> tuple[Any, ...]:
    return (
        row.lane,
        row.changed_us,
        row.epoch,
        row.last,
        *ref,
        row.query_id,
        row.checkpoint,
        row.run,
        msgpack.packb(row.past),
        row.aborts,
        row.is_once,
    )


def _encode_list(listed: BucketList) -> bytes:
    """Encode the lanes' ids, then ``[index of lane, first, last, count]`` for each run."""
    lanes = list(dict.fromkeys(run.lane for run in listed.runs))
    at = {lane: number for number, lane in enumerate(lanes)}
    runs = [[at[run.lane], run.first, run.last, run.count] for run in listed.runs]
    return bytes(msgpack.packb([[lane.bytes for lane in lanes], runs]))


def _decode_list(encoded: bytes) -> BucketList:
    ids, runs = msgpack.unpackb(encoded)
    lanes = [LaneId(UUID(bytes=lane)) for lane in ids]
    return BucketList(
        runs=tuple(
            Listed(lane=lanes[at], first=BucketNo(first), last=BucketNo(last), count=count)
            for at, first, last, count in runs
        )
    )
