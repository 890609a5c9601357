"""Cut messages into chunks and parts, and assign the chunks to buckets and offsets. Pure."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from cassieq_spark.model.sizes import PART_BYTES

_RUN_BYTES: Final = 12
"""The bytes of a run of equal due times: its start (int32) and the time (int64)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedChunk:
    """A packed chunk as a driver knows it: everything but the payload.

    Attributes:
        partition: The partition of the packed batch.
        number: The chunk's position in that partition, from 0.
        count: Messages in it, 1 or more.
        size_bytes: The size of its payload, all parts together.
        due: Due times as `encode_due` encodes them; None if no message has a delay.
        lane: The index of its lane among the queue's lanes.
    """

    partition: int
    number: int
    count: int
    size_bytes: int
    due: bytes | None = None
    lane: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlan:
    """The planned content of one bucket: offsets 0 to ``count - 1`` without holes."""

    chunks: tuple[PackedChunk, ...]
    count: int
    size_bytes: int

    @property
    def lane(self) -> int:
        """The index of its lane among the queue's lanes."""
        return self.chunks[0].lane

    def placed(self) -> Iterator[tuple[PackedChunk, int]]:
        """Yield each chunk with the offset of its first message."""
        first = 0
        for chunk in self.chunks:
            yield chunk, first
            first += chunk.count

    def due_us(self) -> dict[int, int]:
        """Return offset to due time, for the delayed messages only."""
        return {
            first + at: due
            for chunk, first in self.placed()
            if chunk.due is not None
            for at, due in decode_due(chunk.due, chunk.count)
        }


def assign(
    chunks: Iterable[PackedChunk], *, bucket_size: int, bucket_bytes: int
) -> list[BucketPlan]:
    """Fill buckets of each lane with its chunks, in order, up to their ids or their bytes [R15].

    A chunk is never cut. A chunk larger than ``bucket_bytes`` gets a bucket of its own.

    Raises:
        ValueError: A chunk holds more messages than a bucket; the packer did not limit it.
    """
    plans: list[BucketPlan] = []
    taken: list[PackedChunk] = []
    count = size = 0
    for chunk in sorted(chunks, key=lambda chunk: chunk.lane):
        if chunk.count > bucket_size:
            raise ValueError(
                f"a chunk of {chunk.count} messages does not fit into a bucket of {bucket_size} ids"
            )
        is_full = count + chunk.count > bucket_size or size + chunk.size_bytes > bucket_bytes
        is_full |= bool(taken) and taken[-1].lane != chunk.lane
        if taken and is_full:
            plans.append(BucketPlan(chunks=tuple(taken), count=count, size_bytes=size))
            taken, count, size = [], 0, 0
        taken.append(chunk)
        count += chunk.count
        size += chunk.size_bytes
    if taken:
        plans.append(BucketPlan(chunks=tuple(taken), count=count, size_bytes=size))
    return plans


def encode_due(due_us: Sequence[int]) -> bytes:
    """Encode due times of a chunk's messages, 0 for none: 12 bytes for each run of equal ones.

    A chunk with a single delay takes 12 bytes; one with all different delays, 12 bytes a message.
    """
    starts: list[int] = []
    times: list[int] = []
    for at, due in enumerate(due_us):
        if not times or due != times[-1]:
            starts.append(at)
            times.append(due)
    return struct.pack(f"<{len(starts)}i{len(times)}q", *starts, *times)


def decode_due(encoded: bytes, count: int) -> Iterator[tuple[int, int]]:
    """Yield (index in the chunk, due time in cluster µs) of each message that has one."""
    runs = len(encoded) // _RUN_BYTES
    numbers = struct.unpack(f"<{runs}i{runs}q", encoded)
    starts, times = numbers[:runs], numbers[runs:]
    for start, end, due in zip(starts, [*starts[1:], count], times, strict=True):
        if due > 0:
            for at in range(start, end):
                yield at, due


def chunk_end(ends: Any, start: int, *, at_most: int, limit_bytes: int) -> int:
    """Return where the chunk that begins at ``start`` ends (exclusive).

    Args:
        ends: The end of each message in bytes, if all were concatenated, after a 0: a list or an
            array of int64.
        at_most: Messages in a chunk, 1 or more.
        limit_bytes: Bytes in a chunk; a larger message gets a chunk of its own.
    """
    last = min(start + at_most, len(ends) - 1)
    fitting = bisect_right(ends, ends[start] + limit_bytes, start + 1, last + 1) - 1
    return max(start + 1, fitting)


def split_parts(length: int) -> list[tuple[int, int]]:
    """Return (start, end) of each part of a payload of ``length`` bytes; at least one part."""
    return [
        (start, min(start + PART_BYTES, length)) for start in range(0, max(length, 1), PART_BYTES)
    ]


def cut(sizes: Iterable[int], *, at_most: int, limit_bytes: int) -> list[tuple[int, int]]:
    """Cut a sequence of message sizes into chunks; return each as (start, end)."""
    ends = list(accumulate(sizes, initial=0))
    chunks: list[tuple[int, int]] = []
    start = 0
    while start < len(ends) - 1:
        end = chunk_end(ends, start, at_most=at_most, limit_bytes=limit_bytes)
        chunks.append((start, end))
        start = end
    return chunks
