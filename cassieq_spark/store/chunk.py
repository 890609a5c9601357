"""Encode and decode stored chunks: an Arrow IPC stream of one record batch.

The columns of a stored chunk are ``body`` binary and, only if any message has one, ``message_id``
fixed_size_binary(16), ``tag`` string, ``headers`` map<string, string>. A group id is a header.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from cassieq_spark.errors import RowCorrupt
from cassieq_spark.model import group as groups
from cassieq_spark.model.frozen import FrozenDict

BODY: Final = "body"
MESSAGE_ID: Final = "message_id"
TAG: Final = "tag"
HEADERS: Final = "headers"

_GROUP: Final = groups.HEADER.encode()

STORED_TYPES: Final[dict[str, pa.DataType]] = {
    BODY: pa.binary(),
    MESSAGE_ID: pa.binary(16),
    TAG: pa.string(),
    HEADERS: pa.map_(pa.string(), pa.string()),
}

# A chunk has one or two buffers. To hand them to Arrow's threads, and to wait for those while all
# cores are busy, takes twice as long as to (de)compress them here, and more CPU (measured).
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
_PLAIN: Final = pa.ipc.IpcWriteOptions(use_threads=False)
_READING: Final = pa.ipc.IpcReadOptions(use_threads=False)

WORTHWHILE: Final = 0.9
"""A chunk is stored compressed only if it is at most this share of the plain one."""

TRIED_EVERY: Final = 16
"""The number of chunks after one that was not worth it until the next is compressed to see."""


class Encoder:
    """Encodes one writer's chunks, compressed if that pays.

    Compressing bodies that are compressed or encrypted already would only cost both sides time.
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
        RowCorrupt: The payload is not a chunk.
    """
    try:
        with pa.ipc.open_stream(payload, options=_READING) as reader:
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
    """A message of a chunk, as Python values.

    Attributes:
        message_id: 16 bytes; None if its writer chose none.
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


def may_have_groups(batch: pa.RecordBatch) -> bool:
    """Whether any message of a decoded chunk may have a group id, by one look at all names.

    So a chunk without group ids costs its readers nothing per message.
    """
    if HEADERS not in batch.schema.names:
        return False
    names = batch.column(HEADERS).keys.buffers()[2]
    return names is not None and _GROUP in names.to_pybytes()


_NO_HEADERS: Final = FrozenDict[str, str]()
"""The headers of all messages without any: `Message` would make a dict for each."""


def rows(
    batch: pa.RecordBatch, positions: Sequence[int] | None = None
) -> Iterator[tuple[int, Row]]:
    """Yield (position, message) of a decoded chunk.

    Args:
        positions: The positions to yield, ascending; None: all.
    """
    wanted: Sequence[int] = range(batch.num_rows) if positions is None else positions
    some = batch if positions is None else _take(batch, positions)
    columns = {
        name: _values(some.column(name)) if name in some.schema.names else [None] * len(wanted)
        for name in STORED_TYPES
    }
    for at, body, message_id, tag, headers in zip(
        wanted, columns[BODY], columns[MESSAGE_ID], columns[TAG], columns[HEADERS], strict=True
    ):
        yield at, Row(body=body, message_id=message_id, tag=tag, headers=_headers(headers))


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column; bytes that are not UTF-8 are replaced in texts.

    Sinks of older releases took such text, and headers without a value.
    """
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        kind = pa.binary() if column.type == pa.string() else pa.map_(pa.binary(), pa.binary())
        return [_readable(value) for value in column.cast(kind).to_pylist()]


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return [tuple(map(_readable, pair)) for pair in value] if isinstance(value, list) else value


def _headers(pairs: list[tuple[str, str | None]] | None) -> dict[str, str]:
    return {name: text or "" for name, text in pairs} if pairs else _NO_HEADERS


def _take(batch: pa.RecordBatch, positions: Sequence[int]) -> pa.RecordBatch:
    """Take rows without pa.array of a list, whose first call imports pandas: half a second."""
    if positions and len(positions) == positions[-1] - positions[0] + 1:
        return batch.slice(positions[0], len(positions))
    at = array("i", positions)
    return batch.take(pa.Array.from_buffers(pa.int32(), len(at), [None, pa.py_buffer(at)]))


def _binary(values: Sequence[bytes]) -> pa.Array:
    """A binary array, without pa.array: see `_take`; no value is null."""
    ends = array("i", accumulate(map(len, values), initial=0))
    data = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), data)
