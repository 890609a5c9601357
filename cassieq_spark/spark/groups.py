"""Put group ids among the stored headers, and take them out again, a column at a time.

As `spark.arrays`, without what imports pandas.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cassieq_spark.model.group import ALLOWED, HEADER, MOST_CHARACTERS
from cassieq_spark.spark import arrays
from cassieq_spark.store.chunk import HEADERS, STORED_TYPES, may_have_groups

_NAME: Final = np.frombuffer(HEADER.encode(), dtype=np.uint8)
_TEXTS: Final = pa.string()
_PRINTABLE: Final = ("!", "~")


def split(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """The headers that a consumer sees, and the group ids.

    Args:
        batch: A decoded chunk, or rows of one.
    """
    count = batch.num_rows
    if HEADERS not in batch.schema.names:
        return pa.nulls(count, STORED_TYPES[HEADERS]), pa.nulls(count, _TEXTS)
    column = batch.column(HEADERS)
    rows, entries = _entries(batch)
    if not len(rows):
        return column, pa.nulls(count, _TEXTS)
    valid = np.zeros(count, dtype=np.bool_)
    at = np.zeros(count, dtype=np.int64)
    valid[rows], at[rows] = True, entries
    keep = np.ones(len(column.keys), dtype=np.bool_)
    keep[entries] = False
    ends = arrays.ends(keep)[arrays.offsets(column)]
    # A message that was put with a group only has no headers, not an empty map of them.
    has_any = arrays.is_valid(column) & ~(valid & (np.diff(ends) == 0))
    left = arrays.integers(np.flatnonzero(keep))
    headers = _map(ends, has_any, column.keys.take(left), column.items.take(left))
    return headers, column.items.take(arrays.integers(at, valid=valid))


def with_groups(headers: pa.Array | None, groups: pa.Array) -> pa.Array:
    """The headers to store.

    Args:
        headers: As the producer gives them; None: it gives none.
        groups: Checked group ids; null: the message has none.
    """
    if headers is None:
        headers = pa.nulls(len(groups), STORED_TYPES[HEADERS])
    if groups.null_count == len(groups):
        return headers
    has_group, has_headers = arrays.is_valid(groups), arrays.is_valid(headers)
    lengths = np.diff(arrays.offsets(headers)).astype(np.int64)
    ends = arrays.ends(lengths * has_headers + has_group)
    # Each row has its own headers first, which stay in their order, and then its group.
    is_group = np.zeros(ends[-1], dtype=np.bool_)
    is_group[ends[1:][has_group] - 1] = True
    keys, items = headers.keys, headers.items
    first = arrays.offsets(headers)[0]
    own = first + np.flatnonzero(np.repeat(has_headers, lengths))
    from_keys = np.full(ends[-1], len(keys), dtype=np.int64)
    from_items = np.empty(ends[-1], dtype=np.int64)
    from_keys[~is_group] = from_items[~is_group] = own
    from_items[is_group] = len(items) + np.flatnonzero(has_group)
    name = arrays.repeated(HEADER, 1, _TEXTS)
    return _map(
        ends,
        has_group | has_headers,
        pa.concat_arrays([keys, name]).take(arrays.integers(from_keys)),
        pa.concat_arrays([items, groups]).take(arrays.integers(from_items)),
    )


def checked(groups: pa.Array, position: int) -> pa.Array:
    """Check a column of group ids.

    Args:
        position: The position of its first row in the input partition, for errors.

    Raises:
        BodyInvalid: One is empty, too long, or has other characters; it names the row.
    """
    groups = groups.cast(_TEXTS)
    if groups.null_count == len(groups):
        return groups
    sizes = arrays.lengths(groups)
    wrong = arrays.is_valid(groups) & ((sizes < 1) | (sizes > MOST_CHARACTERS))
    ends = arrays.offsets(groups)
    data = _bytes(groups)[: ends[-1]]
    low, high = map(ord, _PRINTABLE)
    strange = np.flatnonzero((data < low) | (data > high))
    strange = strange[strange >= ends[0]]
    wrong[np.searchsorted(ends, strange, side="right") - 1] = True
    wrong &= arrays.is_valid(groups)
    arrays.refuse(
        wrong,
        position,
        lambda row: (
            f"has group {groups[row].as_py()[: MOST_CHARACTERS + 1]!r}, allowed: {ALLOWED}, or null"
        ),
    )
    return groups


def refuse_stored(batch: pa.RecordBatch, position: int) -> None:
    """Refuse a header of the name that group ids have when they are stored.

    Args:
        position: As for `checked`.

    Raises:
        BodyInvalid: A row has such a header; it names the row.
    """
    has_it = np.zeros(batch.num_rows, dtype=np.bool_)
    has_it[_entries(batch)[0]] = True
    arrays.refuse(
        has_it,
        position,
        lambda _: (
            f"has header {HEADER!r}, which is how a queue stores a group id. Give it as column "
            "'group' in its place"
        ),
    )


def _entries(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that have a group among their headers, and which of all entries it is."""
    none = np.zeros(0, dtype=np.int64)
    if not may_have_groups(batch):
        return none, none
    column = batch.column(HEADERS)
    keys, offsets = column.keys, arrays.offsets(column)
    starts = arrays.offsets(keys)
    found = np.flatnonzero(np.diff(starts) == len(_NAME))
    texts = _bytes(keys)[starts[found][:, None] + np.arange(len(_NAME))]
    found = found[(texts == _NAME).all(axis=1)]
    found = found[(found >= offsets[0]) & (found < offsets[-1])]
    rows = np.searchsorted(offsets, found, side="right") - 1
    is_there = arrays.is_valid(column)[rows]
    return rows[is_there], found[is_there]


def _bytes(texts: pa.Array) -> NDArray[np.uint8]:
    data = texts.buffers()[2]
    return np.frombuffer(b"" if data is None else data, dtype=np.uint8)


def _map(
    ends: NDArray[np.int64], valid: NDArray[np.bool_], keys: pa.Array, items: pa.Array
) -> pa.Array:
    """A column of headers."""
    kind = STORED_TYPES[HEADERS]
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    buffers = [arrays.bits(valid), pa.py_buffer(ends.astype(np.int32))]
    return pa.Array.from_buffers(kind, len(valid), buffers, children=[entries])
