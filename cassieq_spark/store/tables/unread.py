"""`Unread` keeps chunks that one client has read and not handed out yet, to save a second read.

A seal reads its whole bucket, and a chunk of a bulk writer holds thousands of messages, while a
program gets a hundred at a time. A stored row never changes, so a read chunk stays true. Only a
message's lease decides whether it may be handed out (I2).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cassieq_spark.clock import Clock
    from cassieq_spark.model.ids import Place, Runs
    from cassieq_spark.store.tables.messages import ChunkRow

UNREAD_BYTES: Final = 40 << 20
"""The most bytes that one client keeps, of all its queues: enough for a bucket that programs
have filled, unless its messages are very small."""

ROW_BYTES: Final = 300
"""The approximate memory of a chunk besides its payload."""

UNREAD_FOR_S: Final = 60.0
"""The time after which kept chunks are forgotten at the next read: other clients may have taken
their messages long since."""


@dataclass(slots=True, kw_only=True)
class _Bucket:
    """The kept chunks of one bucket, by their first offset, and those offsets in order."""

    kept_at: float = 0.0
    firsts: list[int] = field(default_factory=list)
    chunks: dict[int, ChunkRow] = field(default_factory=dict)

    def add(self, chunk: ChunkRow) -> int:
        """Add a chunk; return how many bytes more are kept."""
        if chunk.first in self.chunks:
            return 0
        insort(self.firsts, chunk.first)
        self.chunks[chunk.first] = chunk
        return _size_of(chunk)

    def remove(self, at: int) -> int:
        """Remove one by its position; return how many bytes less are kept."""
        return _size_of(self.chunks.pop(self.firsts.pop(at)))

    def of(self, runs: Runs) -> list[ChunkRow] | None:
        """Return the chunks that hold these offsets, in order; None if one of them is not here."""
        found: dict[int, ChunkRow] = {}
        for first, last in runs.pairs:
            position = bisect_right(self.firsts, first) - 1
            at = first
            while at <= last:
                if not 0 <= position < len(self.firsts):
                    return None
                chunk = self.chunks[self.firsts[position]]
                if not chunk.first <= at <= chunk.last:
                    return None
                found[chunk.first] = chunk
                at, position = chunk.last + 1, position + 1
        return list(found.values())

    def forget(self, runs: Runs) -> int:
        """Remove chunks whose last message is one of these; return how many bytes less are kept."""
        size = 0
        for first, last in runs.pairs:
            position = max(0, bisect_right(self.firsts, first) - 1)
            while position < len(self.firsts) and self.firsts[position] <= last:
                chunk = self.chunks[self.firsts[position]]
                if first <= chunk.last <= last:
                    size += self.remove(position)
                else:
                    position += 1
        return size


class Unread:
    """The chunks that one client keeps, of the buckets of all its lanes."""

    def __init__(self, *, clock: Callable[[], Clock]) -> None:
        self._clock = clock
        self._size = 0
        self._buckets: OrderedDict[Place, _Bucket] = OrderedDict()

    def keep(self, place: Place, chunks: Iterable[ChunkRow]) -> None:
        """Keep these chunks if there is room: the oldest bucket's go first, from its end."""
        now = self._clock().monotonic()
        for chunk in chunks:
            bucket = self._buckets.setdefault(place, _Bucket())
            bucket.kept_at = now
            self._size += bucket.add(chunk)
        if place in self._buckets:
            self._buckets.move_to_end(place)
        while self._buckets:
            oldest, bucket = next(iter(self._buckets.items()))
            if self._size <= UNREAD_BYTES and now - bucket.kept_at < UNREAD_FOR_S:
                break
            self._size -= bucket.remove(-1)
            self._drop_if_empty(oldest)

    def take(self, place: Place, runs: Runs) -> list[ChunkRow] | None:
        """Return the chunks that hold these messages; None unless all of them are here.

        A chunk whose last message is asked for is forgotten: ids are handed out in ascending order.
        """
        bucket = self._buckets.get(place)
        found = None if bucket is None else bucket.of(runs)
        self.forget(place, runs)
        return found

    def forget(self, place: Place, runs: Runs) -> None:
        """Forget chunks whose last message is among these, which were read."""
        if place in self._buckets:
            self._size -= self._buckets[place].forget(runs)
            self._drop_if_empty(place)

    def _drop_if_empty(self, place: Place) -> None:
        if not self._buckets[place].firsts:
            del self._buckets[place]


def _size_of(chunk: ChunkRow) -> int:
    return ROW_BYTES + len(chunk.payload)
