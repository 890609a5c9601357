"""Bodies of messages that tell which one they are, so that what came out can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cassieq_spark.entropy import generator

if TYPE_CHECKING:
    from array import array

_NUMBER_BYTES = 8
_DISTINCT_BYTES = 1024**2
_LEAST_DISTINCT = 100


class Bodies:
    """The body of each number: the number itself, then random bytes that belong to it.

    Random bytes are repeated after about a megabyte, and not within a hundred messages: what is
    put together does not compress.
    """

    def __init__(self, size: int, seed: int) -> None:
        chance = generator(seed)
        distinct = max(_LEAST_DISTINCT, _DISTINCT_BYTES // size)
        self._tails = [chance.randbytes(size - _NUMBER_BYTES) for _ in range(distinct)]

    def __getitem__(self, number: int) -> bytes:
        """The whole body."""
        tail = self._tails[number % len(self._tails)]
        return number.to_bytes(_NUMBER_BYTES, "big") + tail

    def number(self, body: bytes) -> int:
        """Which one it is; every byte is compared.

        Raises:
            ValueError: No such body was put.
        """
        number = int.from_bytes(body[:_NUMBER_BYTES], "big")
        if body != self[number]:
            raise ValueError(f"a body of {len(body)} bytes came out that was never put")
        return number


def difference(put: array[int], got: array[int]) -> str | None:
    """How what came out differs from what went in; None if each came out exactly once."""
    went_in, came_out = np.sort(np.asarray(put)), np.sort(np.asarray(got))
    if np.array_equal(went_in, came_out):
        return None
    lost = len(np.setdiff1d(went_in, came_out))
    unknown = len(np.setdiff1d(came_out, went_in))
    twice = len(came_out) - len(np.unique(came_out))
    return f"{len(went_in)} went in: {lost} did not come out, {twice} did twice, {unknown} others"
