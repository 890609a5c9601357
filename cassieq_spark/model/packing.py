"""Decide how many messages go into one chunk, and cut a payload into parts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cassieq_spark.model.sizes import PART_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray


def chunk_end(sizes: NDArray[np.int64], start: int, *, at_most: int, limit_bytes: int) -> int:
    """Where the chunk that begins at ``start`` ends (exclusive).

    Args:
        sizes: Bytes of each message, int64.
        at_most: Messages in a chunk, 1 or more.
        limit_bytes: Bytes in a chunk; a larger message is alone in its chunk.
    """
    window = sizes[start : start + at_most]
    fitting = int(np.searchsorted(np.cumsum(window), limit_bytes, side="right"))
    return start + max(1, min(fitting, len(window)))


def split_parts(length: int) -> list[tuple[int, int]]:
    """(start, end) of each part of a payload of ``length`` bytes; at least one part."""
    return [
        (start, min(start + PART_BYTES, length)) for start in range(0, max(length, 1), PART_BYTES)
    ]


def cut(sizes: Any, *, at_most: int, limit_bytes: int) -> list[tuple[int, int]]:
    """All chunks of a sequence of message sizes, as (start, end)."""
    array = np.asarray(sizes, dtype=np.int64)
    chunks: list[tuple[int, int]] = []
    start = 0
    while start < len(array):
        end = chunk_end(array, start, at_most=at_most, limit_bytes=limit_bytes)
        chunks.append((start, end))
        start = end
    return chunks
