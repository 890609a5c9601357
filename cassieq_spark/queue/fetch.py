"""Read exactly the messages of known id runs: an executor's part. Holds I8.

See docs/design/source.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final
from uuid import UUID

from cassieq_spark.errors import DataLoss, LeaseLost, RowCorrupt
from cassieq_spark.model.ids import EMPTY, BucketNo, LaneId, QueueName, Runs
from cassieq_spark.model.lanes import Fixed
from cassieq_spark.store.store import LaneTables, Store
from cassieq_spark.store.tables.messages import ChunkRow

OFFSETS_PER_READ: Final = 10_000
"""The number of messages that one read asks for. The next reads run while these are processed."""

BODIES_AT_ONCE: Final = 16
"""The maximum number of updated bodies that are read side by side; fewer if they are large."""

BODIES_BYTES: Final = 8 << 20
"""The approximate number of bytes of updated bodies that are held before their messages go out.
Each body may have 16 MiB, and one read may name ten thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Messages of one bucket to read.

    Attributes:
        lane: The lane of the bucket.
        lease_id: The delivery they belong to; None for a read without a lease.
        revisions: (offset, revision) of the messages that have an updated body.
        is_look: Whether missing messages are skipped; otherwise they are an error.
    """

    lane: LaneId
    bucket: BucketNo
    runs: Runs
    delivery_count: int
    lease_id: UUID | None
    revisions: tuple[tuple[int, int], ...] = ()
    is_look: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A chunk that holds planned messages, or a part of it if there are many updated bodies.

    Attributes:
        keep: The planned ones of its offsets; None means all.
        bodies: Updated bodies of these, by offset.
    """

    planned: Planned
    chunk: ChunkRow
    keep: Runs | None
    bodies: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def positions(self) -> list[int] | None:
        """The positions of the planned messages in the chunk; None means all."""
        if self.keep is None:
            return None
        return [offset - self.chunk.first for offset in self.keep.offsets()]


async def fetch(
    store: Store,
    queue: QueueName,
    lanes: Fixed,
    plan: Sequence[Planned],
    *,
    goes_on: bool = False,
) -> AsyncIterator[Found]:
    """Yield the chunks that hold the planned messages, in order. A few buckets are read ahead.

    Args:
        goes_on: Whether the rest of their chunks will be asked for; see `Messages.read`.

    Raises:
        DataLoss: A planned message does not exist: exactly the planned ids, or the task fails.
        LeaseLost: A message got another body: its lease ran out, and another consumer updated it.
        RowCorrupt: An updated body is lost.
    """
    for lane_id, some in groupby(plan, key=lambda planned: planned.lane):
        tables, title = store.lane(lane_id), lanes.title(queue, lane_id)
        parts = [part for planned in some for part in _parts(planned)]
        wanted = [(part.bucket, part.runs) for part in parts]
        read = tables.messages.read(wanted, goes_on=goes_on)
        async for position, chunks in read:
            planned = parts[position]
            bodies = _Bodies(tables, title, planned)
            seen = EMPTY
            for chunk in chunks:
                span = Runs.span(chunk.first, chunk.last)
                wanted_here = span & planned.runs
                if not wanted_here:
                    continue
                seen |= wanted_here
                async for keep, updated in bodies.pieces(wanted_here):
                    yield Found(
                        planned=planned,
                        chunk=chunk,
                        keep=None if keep == span else keep,
                        bodies=updated,
                    )
            if not planned.is_look and seen != planned.runs:
                missing = planned.runs - seen
                raise DataLoss(
                    f"{missing.count} of {planned.runs.count} planned messages are not in bucket "
                    f"{planned.bucket} of {title} (first offset {missing.first}). Was the "
                    "queue purged, deleted or repaired by hand while the batch ran?"
                )


class _Bodies:
    """Reads the updated bodies of one read side by side, ahead of the chunks they belong to."""

    def __init__(self, tables: LaneTables, title: str, planned: Planned) -> None:
        self._tables = tables
        self._title = title
        self._planned = planned
        self._offsets = [offset for offset, _ in planned.revisions]
        self._ahead: dict[int, bytes | None] = {}
        self._at_once = 4

    async def pieces(self, wanted: Runs) -> AsyncIterator[tuple[Runs, dict[int, bytes]]]:
        """Yield these messages of one chunk, ascending, in pieces whose bodies fit into memory."""
        left, bodies, size = wanted, dict[int, bytes](), 0
        first = bisect_left(self._offsets, wanted.first)
        end = bisect_right(self._offsets, wanted.last)
        for at in range(first, end):
            offset = self._offsets[at]
            body = await self._body(at)
            if body is None:
                # In a look: the message was updated again, or acked and dropped.
                left -= Runs.span(offset, offset)
                continue
            bodies[offset] = body
            size += len(body)
            if size >= BODIES_BYTES and at + 1 < end:
                ready = left & Runs.span(wanted.first, offset)
                yield ready, bodies
                left, bodies, size = left - ready, {}, 0
        if left:
            yield left, bodies

    async def _body(self, at: int) -> bytes | None:
        offset = self._offsets[at]
        if offset not in self._ahead:
            some = self._planned.revisions[at : at + self._at_once]
            found = await self._tables.overlays.read(self._planned.bucket, some)
            gone = [entry for entry in some if entry[0] not in found]
            if gone and not self._planned.is_look:
                raise await self._lost(gone)
            self._ahead.update({offset: found.get(offset) for offset, _ in some})
            fitting = BODIES_BYTES * len(some) // max(1, sum(map(len, found.values())))
            self._at_once = max(1, min(2 * len(some), BODIES_AT_ONCE, fitting))
        return self._ahead.pop(offset)

    async def _lost(self, gone: Sequence[tuple[int, int]]) -> LeaseLost | RowCorrupt:
        """Make the error for a lease's missing bodies: a new body drops the one it replaces."""
        bucket = self._planned.bucket
        row = await self._tables.buckets.read(bucket)
        now = {} if row is None else dict(row.value.revisions)
        named = [offset for offset, revision in gone if now.get(offset) == revision]
        if named:
            return RowCorrupt(
                f"the updated body of message {named[0]} of bucket {bucket} of {self._title} is "
                "not complete. Was table overlay altered by hand?"
            )
        return LeaseLost(
            f"message {gone[0][0]} of bucket {bucket} of {self._title} was delivered to "
            "another consumer, and updated or acked, before it was read: its lease had run out. "
            "Use a longer visibility timeout"
        )


def _parts(planned: Planned) -> Iterator[Planned]:
    """Split by multiples of `OFFSETS_PER_READ`, so that no chunk of a bulk writer is cut in two."""
    if not planned.runs:
        return
    first = planned.runs.first // OFFSETS_PER_READ * OFFSETS_PER_READ
    for low in range(first, planned.runs.last + 1, OFFSETS_PER_READ):
        runs = planned.runs & Runs.span(low, low + OFFSETS_PER_READ - 1)
        if runs:
            revisions = tuple(entry for entry in planned.revisions if entry[0] in runs)
            yield replace(planned, runs=runs, revisions=revisions)
