"""Pack a micro-batch into chunk rows, before anybody knows which buckets they go into.

Nothing here connects to Cassandra: a packed row depends on the rows of its partition, on the
options and on the time that the driver has measured for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.bucket_plan import encode_due, split_parts
from cassieq_spark.spark import boundary
from cassieq_spark.spark.lane_packer import LanePacker, Sorting
from cassieq_spark.spark.packer import ChunkTaker
from cassieq_spark.spark.worker import partition_id

SCHEMA: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("number", pa.int32()),
        ("lane", pa.int32()),
        # The task attempt that packed this row. Where two attempts of a task have both kept their
        # blocks, a later job may read either: the driver's plan names the one it means [P8].
        ("attempt", pa.binary()),
        ("part", pa.int32()),
        ("parts", pa.int32()),
        ("count", pa.int32()),
        ("size_bytes", pa.int64()),
        ("due", pa.binary()),
        ("payload", pa.binary()),
    ]
)
"""A row for each part of a chunk; ``due`` is on the first part only. Each partition begins with a
head row that is no chunk, number `NO_CHUNK`: it names the attempt even where no chunk does."""

NO_CHUNK: Final = -1

SPARK_SCHEMA: Final = from_arrow_schema(SCHEMA)


def packing(
    sorting: Callable[[int], Sorting],
    *,
    bucket_size: int,
    chunk_messages: int,
    chunk_bytes: int,
    now_us: int,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow``: messages in, rows of `SCHEMA` out, a batch per chunk.

    Args:
        sorting: Says how the rows of an input partition are sorted.
        bucket_size: The most messages a chunk may hold.
        now_us: Cluster time that delays count from, the same in every attempt.
    """

    @boundary.crossing
    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack one partition. Runs in a task, once per attempt.

        Raises:
            BodyInvalid: See `Packer.add`.
        """
        partition = partition_id()
        rows = _Rows(partition, bucket_size)
        packer = LanePacker(
            rows.of_lane,
            sorting(partition),
            lambda: now_us,
            chunk_messages=chunk_messages,
            chunk_bytes=chunk_bytes,
        )
        for batch in batches:
            packer.add(batch)
            yield from rows.taken()
        packer.flush()
        yield from rows.taken()

    return pack


class _Rows:
    """Takes chunks and makes rows of them."""

    def __init__(self, partition: int, bucket_size: int) -> None:
        self._partition = partition
        self._bucket_size = bucket_size
        self._attempt = new_uuid().bytes
        self._number = NO_CHUNK
        self._ready: list[pa.RecordBatch] = []
        self._add(0, b"", 0, None)  # the head

    def of_lane(self, lane: int) -> ChunkTaker:
        """Return the taker of one lane's chunks: they are placed into buckets later, and whole."""
        return ChunkTaker(
            capacity=lambda: self._bucket_size,
            add=partial(self._add, lane),
            close=lambda: None,  # nothing is open
        )

    def _add(self, lane: int, payload: bytes, count: int, due_us: Sequence[int] | None) -> None:
        """Add one row for each part of a megabyte [R15]."""
        parts = [payload[start:end] for start, end in split_parts(len(payload))]
        same = {
            "partition": self._partition,
            "number": self._number,
            "lane": lane,
            "attempt": self._attempt,
            "parts": len(parts),
            "count": count,
            "size_bytes": len(payload),
        }
        rows = [{**same, "part": at, "payload": part} for at, part in enumerate(parts)]
        if due_us is not None and any(due_us):
            rows[0]["due"] = encode_due(due_us)
        self._ready.append(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
        self._number += 1

    def taken(self) -> list[pa.RecordBatch]:
        """Take what was added since the last call."""
        ready, self._ready = self._ready, []
        return ready
