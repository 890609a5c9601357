"""Spark's tasks pack and write with the plain driver: a sink without a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from bench.raw import RawRows, connected
from cassieq_spark.model.sizes import CHUNK_BYTES, CHUNK_MESSAGES
from cassieq_spark.spark.packer import Packer, from_input, stored

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator

BUCKET_MESSAGES = 100_000
BUCKETS_A_TASK = 100_000


def writing(
    *, port: int, keyspace: str, lane: uuid.UUID
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``: messages in, how many were written out."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        session, statements = connected(port, keyspace)
        rows = RawRows(
            session,
            statements["write"],
            lane,
            first=task * BUCKETS_A_TASK,
            bucket_messages=BUCKET_MESSAGES,
        )
        packer = Packer(rows, chunk_messages=CHUNK_MESSAGES, chunk_bytes=CHUNK_BYTES)
        written = 0
        for batch in batches:
            packer.add(stored(from_input(batch, position=written), None))
            written += batch.num_rows
        packer.flush()
        rows.flush()
        yield pa.RecordBatch.from_arrays([pa.array([written])], names=["written"])

    return write
