"""Convert between Arrow and NumPy without what pyarrow has for that, and refuse rows by number.

Its conversions, and `pa.scalar`, import pandas at their first use, where it is installed: half a
second of CPU in each of Spark's Python workers (pyarrow 26). These look at the buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cassieq_spark.errors import BodyInvalid
from cassieq_spark.model.ids import Runs


def is_valid(column: pa.Array) -> NDArray[np.bool_]:
    """Return for each value whether it is not null."""
    bits = column.buffers()[0]
    if bits is None or not column.null_count:
        return np.ones(len(column), dtype=np.bool_)
    every = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")
    return every[column.offset : column.offset + len(column)].astype(np.bool_)


def numbers(column: pa.Array, null: float = 0) -> NDArray[Any]:
    """The values of an array of integers, floats or times, with ``null`` where there is none."""
    is_unsigned = pa.types.is_unsigned_integer(column.type)
    kind = "f" if pa.types.is_floating(column.type) else "u" if is_unsigned else "i"
    dtype = np.dtype(f"{kind}{column.type.bit_width // 8}")
    every = np.frombuffer(column.buffers()[1], dtype=dtype)
    values = every[column.offset : column.offset + len(column)]
    if not column.null_count:
        return values
    return np.where(is_valid(column), values, dtype.type(null))


def lengths(column: pa.Array) -> NDArray[np.int64]:
    """Bytes of each text or binary; 0 for null."""
    if not len(column):
        return np.zeros(0, dtype=np.int64)
    sizes = np.diff(offsets(column)).astype(np.int64)
    return sizes * is_valid(column) if column.null_count else sizes


def offsets(column: pa.Array) -> NDArray[Any]:
    """Return where each text, binary or map begins, then where the last one ends."""
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    every = np.frombuffer(column.buffers()[1], dtype=np.int64 if is_large else np.int32)
    return every[column.offset : column.offset + len(column) + 1]


def ends(sizes: NDArray[Any]) -> NDArray[np.int64]:
    """Return 0, and the ends of values of these sizes in a row: one more than sizes."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def runs(numbers: NDArray[np.int64]) -> Runs:
    """`Runs.from_offsets` for many offsets, ascending, at least one."""
    cuts = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.concatenate([[0], cuts + 1])]
    lasts = numbers[np.concatenate([cuts, [len(numbers) - 1]])]
    return Runs(tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)))


def refuse(wrong: NDArray[np.bool_], position: int, says: Callable[[int], str]) -> None:
    """Refuse the first row of a record batch that is wrong, if there is one.

    Args:
        position: The position of the batch's first row in its input partition.
        says: What is wrong with a row of the batch, and what to do.

    Raises:
        BodyInvalid: It names the row.
    """
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BodyInvalid(f"row {position + row} of its input partition {says(row)}")


def bits(valid: NDArray[np.bool_]) -> pa.Buffer:
    """Return the bits that say which values are not null, as Arrow writes them."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def integers(
    values: NDArray[Any],
    kind: pa.DataType | None = None,
    *,
    valid: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Wrap integers as an array over the same memory.

    Args:
        kind: Another type of the same width, such as a timestamp; default: signed integers.
        valid: Which of them are not null; None: all.
    """
    width = {4: pa.int32(), 8: pa.int64()}[values.dtype.itemsize]
    data = [None if valid is None else bits(valid), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind or width, len(values), data)


def repeated(value: str | int, count: int, kind: pa.DataType) -> pa.Array:
    """Return an array that repeats one text or integer."""
    if isinstance(value, int):
        return integers(np.full(count, value, dtype=f"i{kind.bit_width // 8}"), kind)
    text = value.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(
        kind, count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)]
    )


UUID_TEXT: Final = 36
UUIDS: Final = pa.binary(16)
_NIL: Final = "00000000-0000-0000-0000-000000000000"


def uuids(column: pa.Array) -> pa.Array:
    """Convert checked UUID texts to bytes, all at once."""
    filled = pc.fill_null(column.cast(pa.string()), _NIL)
    raw = bytes.fromhex("".join(filled.to_pylist()).replace("-", ""))
    values = pa.FixedSizeBinaryArray.from_buffers(UUIDS, len(column), [None, pa.py_buffer(raw)])
    return pc.if_else(column.is_valid(), values, pa.scalar(None, UUIDS))
