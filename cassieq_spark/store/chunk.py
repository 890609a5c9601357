"""Encode stored chunks, an Arrow IPC stream of one record batch, and check what goes in.

Columns of a stored chunk: ``body`` binary; and, only where any message has one, ``message_id``
fixed_size_binary(16), ``tag`` string, ``headers`` map<string, string>.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cassieq_spark.errors import BodyInvalid, OptionInvalid, RowCorrupt
from cassieq_spark.model.sizes import MAX_BODY_BYTES, MAX_EXTRA_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

BODY: Final = "body"
MESSAGE_ID: Final = "message_id"
TAG: Final = "tag"
HEADERS: Final = "headers"
DELAY: Final = "delay"

STORED_TYPES: Final[dict[str, pa.DataType]] = {
    BODY: pa.binary(),
    MESSAGE_ID: pa.binary(16),
    TAG: pa.string(),
    HEADERS: pa.map_(pa.string(), pa.string()),
}

_UUID_TEXT: Final = 36
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))
_PLAIN: Final = pa.ipc.IpcWriteOptions()

WORTHWHILE: Final = 0.9
"""A chunk is stored compressed only if it is at most this share of the plain one."""

TRIED_EVERY: Final = 16
"""After a chunk that was not worth it, every 16th is compressed again to see."""


class Encoder:
    """Encodes one writer's chunks, compressed where that pays.

    To compress bodies that are compressed or encrypted already would only cost both sides time.
    """

    def __init__(self) -> None:
        self._plain_left = 0

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Encode a chunk; see the function `encode`."""
        if self._plain_left:
            self._plain_left -= 1
            return _stream(batch, _PLAIN)
        payload = _stream(batch, _COMPRESSED)
        if len(payload) > WORTHWHILE * batch.nbytes:
            self._plain_left = TRIED_EVERY - 1
        return payload


def encode(batch: pa.RecordBatch) -> bytes:
    """Encode one chunk as the payload of a message row: zstd level 1.

    Args:
        batch: As `from_input` returns it, or a slice of it.
    """
    return _stream(batch, _COMPRESSED)


def _stream(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> bytes:
    names = [
        name
        for name in STORED_TYPES
        if name in batch.schema.names
        and (name == BODY or batch.column(name).null_count < batch.num_rows)
    ]
    stored = batch.select(names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, stored.schema, options=options) as writer:
        writer.write_batch(stored)
    return bytes(sink.getvalue())


def decode(payload: bytes) -> pa.RecordBatch:
    """Read what `encode` wrote.

    Raises:
        RowCorrupt: The payload is something else.
    """
    try:
        with pa.ipc.open_stream(payload) as reader:
            batch = reader.read_next_batch()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise RowCorrupt(f"a chunk cannot be read ({error}); was the row altered?") from error
    for column in batch.schema:
        if STORED_TYPES.get(column.name) != column.type:
            raise RowCorrupt(
                f"a chunk has column {column.name!r} of type {column.type}; was it written by "
                "a newer release?"
            )
    if BODY not in batch.schema.names:
        raise RowCorrupt("a chunk has no column 'body'; was the row altered?")
    return batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One message of a chunk, as Python values.

    Attributes:
        message_id: 16 bytes; None: its writer chose none.
    """

    body: bytes
    message_id: bytes | None = None
    tag: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def from_rows(rows: Sequence[Row]) -> pa.RecordBatch:
    """Turn messages into the record batch that `encode` takes."""
    columns: dict[str, list[Any]] = {
        BODY: [row.body for row in rows],
        MESSAGE_ID: [row.message_id for row in rows],
        TAG: [row.tag for row in rows],
        HEADERS: [list(row.headers.items()) or None for row in rows],
    }
    given = {
        name: values
        for name, values in columns.items()
        if name == BODY or any(value is not None for value in values)
    }
    return pa.RecordBatch.from_arrays(
        [
            _binary(values) if name == BODY else pa.array(values, STORED_TYPES[name])
            for name, values in given.items()
        ],
        names=list(given),
    )


def rows(
    batch: pa.RecordBatch, positions: Sequence[int] | None = None
) -> Iterator[tuple[int, Row]]:
    """Yield (position, message) of a decoded chunk.

    Args:
        positions: The positions wanted, ascending; None: all.
    """
    wanted: Sequence[int] = range(batch.num_rows) if positions is None else positions
    some = batch if positions is None else _take(batch, positions)
    columns = {
        name: some.column(name).to_pylist() if name in some.schema.names else [None] * len(wanted)
        for name in STORED_TYPES
    }
    for at, body, message_id, tag, headers in zip(
        wanted, columns[BODY], columns[MESSAGE_ID], columns[TAG], columns[HEADERS], strict=True
    ):
        yield at, Row(body=body, message_id=message_id, tag=tag, headers=dict(headers or ()))


def _take(batch: pa.RecordBatch, positions: Sequence[int]) -> pa.RecordBatch:
    """Take rows without pa.array of a list, whose first call imports pandas: half a second."""
    if positions and len(positions) == positions[-1] - positions[0] + 1:
        return batch.slice(positions[0], len(positions))
    at = np.asarray(positions, np.int32)
    return batch.take(pa.Array.from_buffers(pa.int32(), len(at), [None, pa.py_buffer(at)]))


def _binary(values: Sequence[bytes]) -> pa.Array:
    """A binary array, without pa.array: see `_take`; no value is null."""
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=ends[1:])
    data = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), data)


def check_schema(columns: Iterable[tuple[str, pa.DataType]]) -> None:
    """Refuse a DataFrame that cannot be put, before any of its rows is read.

    Raises:
        OptionInvalid: It names the column, its type, and what is allowed.
    """
    found = dict(columns)
    if BODY not in found:
        raise OptionInvalid(
            f"column 'body' (binary) is missing; the DataFrame has {', '.join(found) or 'none'}. "
            "Select the content of a message as 'body', cast to binary"
        )
    for name, kind in found.items():
        if name not in _ALLOWED:
            raise OptionInvalid(
                f"unknown column {name!r}. A queue stores body, tag, headers, delay and "
                "message_id: drop this column, or put it into the body or the headers"
            )
        allows, says = _ALLOWED[name]
        if not allows(kind):
            hint = (
                " Cast it: F.col('body').cast('binary')" if name == BODY and _is_text(kind) else ""
            )
            raise OptionInvalid(f"column {name!r} is {kind}, allowed: {says}.{hint}")


def from_input(batch: pa.RecordBatch, *, position: int) -> pa.RecordBatch:
    """Check one record batch of messages and give it the stored types.

    Args:
        batch: Columns as `check_schema` allows; ``delay`` in seconds.
        position: The position of its first row, for error messages.

    Returns:
        The stored columns it has, and ``delay`` as int64 µs.

    Raises:
        BodyInvalid: A body is null or too large, a delay negative, or a message id is not a UUID;
            it names the row.
    """
    check_schema((field.name, field.type) for field in batch.schema)
    columns: dict[str, pa.Array] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if name == DELAY:
            columns[name] = _delays(column, position)
        elif name == MESSAGE_ID:
            columns[name] = _message_ids(column, position)
        else:
            columns[name] = column.cast(STORED_TYPES[name])
    _check_bodies(columns[BODY], position)
    checked = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    _check_extras(checked, position)
    return checked


def row_sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of each message in all stored columns: any of them may be the large one [T20].

    Args:
        batch: As `from_input` returns it, or a slice of it.
    """
    sizes = _extra_sizes(batch) + _lengths(batch.column(BODY))
    if MESSAGE_ID in batch.schema.names:
        column = batch.column(MESSAGE_ID)
        sizes += column.type.byte_width * np.asarray(column.is_valid())
    return sizes


def _extra_sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of each message's tag and headers."""
    sizes = np.zeros(batch.num_rows, dtype=np.int64)
    if TAG in batch.schema.names:
        sizes += _lengths(batch.column(TAG))
    if HEADERS in batch.schema.names:
        column = batch.column(HEADERS)
        # For a slice, too, these are all keys and items, and the offsets are the slice's.
        both = _lengths(column.keys) + _lengths(column.items)
        before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(both)])
        sizes += np.diff(before[np.asarray(column.offsets)]) * np.asarray(column.is_valid())
    return sizes


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    """Bytes of each text or binary; 0 for null."""
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, dtype=np.int64)


def delays_us(batch: pa.RecordBatch) -> NDArray[np.int64] | None:
    """Each message's delay in µs, 0 if it has none; None if no message has one."""
    if DELAY not in batch.schema.names:
        return None
    delays = batch.column(DELAY).to_numpy(zero_copy_only=False)
    return delays if delays.any() else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_headers(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


_ALLOWED: Final[dict[str, tuple[Any, str]]] = {
    BODY: (_is_binary, "binary"),
    TAG: (_is_text, "string"),
    HEADERS: (_is_headers, "map<string, string>"),
    DELAY: (_is_number, "a number of seconds"),
    MESSAGE_ID: (
        lambda kind: _is_text(kind) or _is_binary(kind) or kind == pa.binary(16),
        "string (a UUID) or binary (16 bytes)",
    ),
}


def _check_bodies(bodies: pa.Array, position: int) -> None:
    if bodies.null_count:
        row = int(np.argmax(np.asarray(bodies.is_null())))
        raise BodyInvalid(
            f"row {position + row} of its input partition has a null body. Filter such rows out, "
            "or give them an empty body"
        )
    if len(bodies):
        longest = pc.max(pc.binary_length(bodies)).as_py()
        if longest > MAX_BODY_BYTES:
            row = int(np.argmax(np.asarray(pc.binary_length(bodies))))
            raise BodyInvalid(
                f"row {position + row} of its input partition has a body of {longest} bytes, but "
                f"the limit is {MAX_BODY_BYTES}. Store it elsewhere and put a reference to it"
            )


def _check_extras(batch: pa.RecordBatch, position: int) -> None:
    sizes = _extra_sizes(batch)
    if len(sizes) and sizes.max() > MAX_EXTRA_BYTES:
        row = int(np.argmax(sizes))
        raise BodyInvalid(
            f"row {position + row} of its input partition has a tag and headers of {sizes[row]} "
            f"bytes, but the limit is {MAX_EXTRA_BYTES}. Put the rest into the body"
        )


def _delays(column: pa.Array, position: int) -> pa.Array:
    seconds = np.asarray(
        pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    )
    wrong = ~np.isfinite(seconds) | (seconds < 0) | (seconds > MAX_DELAY_S)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BodyInvalid(
            f"row {position + row} of its input partition has a delay of {seconds[row]} s, "
            f"allowed: 0 to {MAX_DELAY_S} s (30 days)"
        )
    return pa.array((seconds * 1e6).astype(np.int64))


MAX_DELAY_S: Final = 30 * 86_400


def _message_ids(column: pa.Array, position: int) -> pa.Array:
    """Convert message ids to 16 bytes each; null stays null."""
    is_text = _is_text(column.type)
    lengths = pc.utf8_length(column) if is_text else pc.binary_length(column)
    wanted = _UUID_TEXT if is_text else STORED_TYPES[MESSAGE_ID].byte_width
    wrong = np.asarray(pc.fill_null(pc.not_equal(lengths, wanted), False))
    if not wrong.any() and is_text:
        wrong = np.asarray(
            pc.fill_null(pc.invert(pc.match_substring_regex(column, _UUID_PATTERN)), False)
        )
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BodyInvalid(
            f"row {position + row} of its input partition has message_id {column[row].as_py()!r}, "
            "which is not a UUID"
        )
    if not is_text:
        return column.cast(STORED_TYPES[MESSAGE_ID])
    return _from_hex(column)


_UUID_PATTERN: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_NIBBLES: Final = np.zeros(256, dtype=np.uint8)
for _at, _digit in enumerate("0123456789abcdef"):
    _NIBBLES[ord(_digit)] = _NIBBLES[ord(_digit.upper())] = _at
_DIGITS: Final = np.array([at for at in range(_UUID_TEXT) if at not in (8, 13, 18, 23)])


def _from_hex(column: pa.Array) -> pa.Array:
    """Convert checked UUID texts to bytes, all at once."""
    filled = pc.fill_null(column.cast(pa.string()), "0" * _UUID_TEXT)
    text = np.frombuffer("".join(filled.to_pylist()).encode("ascii"), dtype=np.uint8)
    nibbles = _NIBBLES[text.reshape(-1, _UUID_TEXT)[:, _DIGITS]]
    raw = np.ascontiguousarray((nibbles[:, 0::2] << 4) | nibbles[:, 1::2])
    values = pa.FixedSizeBinaryArray.from_buffers(
        STORED_TYPES[MESSAGE_ID], len(column), [None, pa.py_buffer(raw)]
    )
    return pc.if_else(column.is_valid(), values, pa.scalar(None, STORED_TYPES[MESSAGE_ID]))
