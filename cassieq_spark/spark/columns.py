"""Build the source's columns without a Python loop."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cassieq_spark.model import receipt
from cassieq_spark.model.ids import BucketNo, LaneId, QueueName, Runs, derived_message_id
from cassieq_spark.spark import arrays, groups
from cassieq_spark.spark.schema import ALL
from cassieq_spark.store import chunk as chunks

if TYPE_CHECKING:  # a load's schema needs this module, and no store
    from cassieq_spark.queue.fetch import Found
    from cassieq_spark.queue.lane import Lane

_HEX: Final = np.frombuffer(bytes(range(256)).hex().encode("ascii"), dtype=np.uint16)
"""The two hex digits of each byte."""

_UUID_GROUPS: Final = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))
_DERIVED_SAME: Final = 10
"""The number of first bytes that all derived message ids of a lane have in common."""


def _crc_parts(low_bit: int) -> NDArray[np.uint32]:
    """Tabulate how 16 bits of an offset, written twice, change a CRC: CRCs are linear."""

    def change(bit: int) -> np.uint32:
        value = (1 << bit).to_bytes(4, "big")
        return np.uint32(zlib.crc32(value + value) ^ zlib.crc32(bytes(8)))

    parts = np.zeros(1, dtype=np.uint32)
    for bit in range(low_bit, low_bit + 16):
        parts = np.concatenate([parts, parts ^ change(bit)])
    return parts


_CRC_LOW: Final = _crc_parts(0)
_CRC_HIGH: Final = _crc_parts(16)


def arrow_schema(names: tuple[str, ...], has: StructType = ALL) -> pa.Schema:
    """The schema that Spark checks a source's record batches against, exactly (4.2, 4.3)."""
    return to_arrow_schema(StructType([has[name] for name in names]), timezone="UTC")


@dataclass(frozen=True)
class Builder:
    """Builds record batches of the requested columns from one lane's stored chunks."""

    names: tuple[str, ...]
    queue: QueueName
    lane: LaneId
    _: KW_ONLY
    bucket_size: int
    priority: int = 0

    @classmethod
    def of(cls, lane: Lane, names: tuple[str, ...]) -> Builder:
        """A builder of these columns of one lane's messages."""
        size, priority = lane.bucket_size, lane.priority
        return cls(names, lane.queue, lane.lane_id, bucket_size=size, priority=priority)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of what it builds."""
        return arrow_schema(self.names)

    def of_found(self, found: Found) -> pa.RecordBatch:
        """Build one record batch of what was fetched."""
        planned, row = found.planned, found.chunk
        return self.build(
            chunks.decode(row.payload),
            bucket=planned.bucket,
            first=row.first,
            keep=found.keep,
            lease=planned.lease_id,
            delivery_count=planned.delivery_count,
            enqueued_us=row.enqueued_us,
            bodies=found.bodies,
        )

    def build(
        self,
        chunk: pa.RecordBatch,
        *,
        bucket: BucketNo,
        first: int,
        keep: Runs | None,
        lease: UUID | None,
        delivery_count: int,
        enqueued_us: int,
        bodies: Mapping[int, bytes] | None = None,
    ) -> pa.RecordBatch:
        """Build one record batch with only the requested columns.

        Args:
            chunk: As `store.chunk.decode` returns it: up to about a thousand messages.
            first: Offset of its first message in the bucket.
            keep: The offsets wanted; None: all.
            lease: None for a read without a lease: then receipts are null.
            bodies: Updated bodies, by offset.
        """
        offsets = np.arange(first, first + chunk.num_rows, dtype=np.int64)
        if keep is not None:
            wanted = np.concatenate(
                [np.arange(low, high + 1, dtype=np.int64) for low, high in keep.pairs]
            )
            chunk = chunk.take(arrays.integers(wanted - first))
            offsets = wanted
        ids = offsets + bucket * self.bucket_size
        count = len(offsets)
        headers_and_group = cache(lambda: groups.split(chunk))
        builders: dict[str, Callable[[], pa.Array]] = {
            "message_id": lambda: self._message_ids(chunk, ids),
            "queue": lambda: arrays.repeated(self.queue, count, pa.string()),
            "body": lambda: _with_updates(chunk.column(chunks.BODY), offsets, bodies or {}),
            "tag": lambda: _tags(chunk),
            "headers": lambda: headers_and_group()[0],
            "id": lambda: arrays.integers(ids),
            "bucket": lambda: arrays.repeated(bucket, count, pa.int64()),
            "enqueued_at": lambda: arrays.repeated(
                enqueued_us, count, pa.timestamp("us", tz="UTC")
            ),
            "delivery_count": lambda: arrays.repeated(delivery_count, count, pa.int32()),
            "receipt": lambda: self._receipts(bucket, lease, offsets),
            "lane": lambda: arrays.repeated(str(self.lane), count, pa.string()),
            "priority": lambda: arrays.repeated(self.priority, count, pa.int32()),
            "group": lambda: headers_and_group()[1],
        }
        built = [
            _as_type(builders[name](), field.type)
            for name, field in zip(self.names, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(built, schema=self.schema)

    def _message_ids(self, chunk: pa.RecordBatch, ids: NDArray[np.int64]) -> pa.Array:
        """The ids that the writers chose; otherwise ids derived from lane and id."""
        if chunks.MESSAGE_ID not in chunk.schema.names:
            return _derived_texts(self.lane, ids)
        derived = _derived_uuids(self.lane, ids)
        column = chunk.column(chunks.MESSAGE_ID)
        width = column.type.byte_width
        raw = np.frombuffer(column.buffers()[1], dtype=np.uint8).reshape(-1, width)
        chosen = raw[column.offset : column.offset + len(column)]
        valid = arrays.is_valid(column)
        return _uuid_texts(np.where(valid[:, None], chosen, derived))

    def _receipts(
        self, bucket: BucketNo, lease: UUID | None, offsets: NDArray[np.int64]
    ) -> pa.Array:
        """Return a receipt for each message; null without a lease."""
        if lease is None:
            return pa.nulls(len(offsets), pa.string())
        return receipt_texts(receipt.prefix(self.lane, bucket, lease), offsets)


def receipt_texts(head: bytes, offsets: NDArray[np.int64]) -> pa.Array:
    """Receipts of one message each: the common part is hashed once, the rest column by column.

    Args:
        head: `model.receipt.prefix` of their delivery.
    """
    tail = np.empty((len(offsets), receipt.RAW_BYTES - len(head)), dtype=np.uint8)
    tail[:, :4] = tail[:, 4:8] = offsets.astype(">u4").view(np.uint8).reshape(-1, 4)
    crc = _CRC_LOW[offsets & 0xFFFF] ^ _CRC_HIGH[offsets >> 16]
    crc ^= np.uint32(zlib.crc32(head + bytes(8)))
    tail[:, 8:] = crc.astype(">u4").view(np.uint8).reshape(-1, 4)
    return _base64_texts(head, tail)


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast if the type differs: a chunk may have a few rows only, so a useless cast counts."""
    return array if array.type == kind else array.cast(kind)


def _with_updates(
    column: pa.Array, offsets: NDArray[np.int64], bodies: Mapping[int, bytes]
) -> pa.Array:
    """Replace updated bodies. Few messages are ever updated: the others are not copied for it."""
    if not bodies:
        return column
    mask = np.isin(offsets, list(bodies))
    if not mask.any():
        return column
    updates = pa.array([bodies[offset] for offset in offsets[mask]], column.type)
    return pc.replace_with_mask(column, pa.array(mask), updates)


def _tags(chunk: pa.RecordBatch) -> pa.Array:
    has_tags = chunks.TAG in chunk.schema.names
    return chunk.column(chunks.TAG) if has_tags else pa.nulls(chunk.num_rows, pa.string())


def _derived_uuids(lane: LaneId, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    """`model.ids.derived_message_id` for many ids, as (n, 16) bytes."""
    raw = np.empty((len(ids), 16), dtype=np.uint8)
    raw[:] = np.frombuffer(derived_message_id(lane, 0).bytes, dtype=np.uint8)
    raw[:, _DERIVED_SAME:] = ids.astype(">u8").view(np.uint8).reshape(-1, 8)[:, _DERIVED_SAME - 8 :]
    return raw


def _derived_texts(lane: LaneId, ids: NDArray[np.int64]) -> pa.Array:
    """`_uuid_texts` of `_derived_uuids`: the digits that they share are written once."""
    text = np.empty((len(ids), arrays.UUID_TEXT), dtype=np.uint8)
    text[:] = np.frombuffer(str(derived_message_id(lane, 0)).encode("ascii"), dtype=np.uint8)
    own = ids.astype(">u8").view(np.uint8).reshape(-1, 8)[:, _DERIVED_SAME - 8 :]
    text[:, -2 * own.shape[1] :] = _HEX[own].view(np.uint8)
    return _texts(text)


def _uuid_texts(raw: NDArray[np.uint8]) -> pa.Array:
    """Turn (n, 16) bytes into canonical UUID text."""
    text = np.full((len(raw), arrays.UUID_TEXT), ord("-"), dtype=np.uint8)
    digits = _HEX[raw].view(np.uint8)
    for at, (low, high) in enumerate(_UUID_GROUPS):
        text[:, low:high] = digits[:, low - at : high - at]
    return _texts(text)


def _base64_texts(head: bytes, tail: NDArray[np.uint8]) -> pa.Array:
    """Encode a common head and (n, m) bytes of their own as base64url text without padding.

    Three bytes make four characters: the head up to its last whole three bytes is encoded only
    once.
    """
    whole = len(head) // 3 * 3
    rest = len(head) - whole
    own = np.zeros((len(tail), -(-(rest + tail.shape[1]) // 3) * 3), dtype=np.uint8)
    own[:, :rest] = np.frombuffer(head[whole:], dtype=np.uint8)
    own[:, rest : rest + tail.shape[1]] = tail
    start = base64.urlsafe_b64encode(head[:whole])
    ends = np.frombuffer(base64.urlsafe_b64encode(own.tobytes()), dtype=np.uint8)
    text = np.empty((len(own), receipt.TEXT_LENGTH), dtype=np.uint8)
    text[:, : len(start)] = np.frombuffer(start, dtype=np.uint8)
    text[:, len(start) :] = ends.reshape(len(own), -1)[:, : receipt.TEXT_LENGTH - len(start)]
    return _texts(text)


def _texts(characters: NDArray[np.uint8]) -> pa.Array:
    """Wrap (n, m) ASCII codes as a string array over the same memory."""
    count, width = characters.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(characters))
    )
