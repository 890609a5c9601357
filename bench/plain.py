"""Spark's tasks pack and write with the plain driver: a sink without a queue."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from bench.raw import IN_FLIGHT, connected
from cassieq_spark.model.sizes import CHUNK_BYTES, CHUNK_MESSAGES
from cassieq_spark.spark.packer import Packer

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator, Sequence

BUCKET_MESSAGES = 50_000
BUCKETS_A_TASK = 100_000


def writing(
    *, port: int, keyspace: str, lane: uuid.UUID
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``: messages in, how many were written out."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        rows = PlainRows(port=port, keyspace=keyspace, lane=lane, first=task * BUCKETS_A_TASK)
        packer = Packer(rows, lambda: 0, chunk_messages=CHUNK_MESSAGES, chunk_bytes=CHUNK_BYTES)
        written = 0
        for batch in batches:
            packer.add(batch)
            written += batch.num_rows
        packer.flush()
        rows.flush()
        yield pa.RecordBatch.from_arrays([pa.array([written])], names=["written"])

    return write


class PlainRows:
    """Takes chunks and writes them as the raw side does: what a sink without a queue would do."""

    def __init__(self, *, port: int, keyspace: str, lane: uuid.UUID, first: int) -> None:
        self._session, statements = connected(port, keyspace)
        self._write = statements["write"]
        self._lane = lane
        self._bucket = first
        self._at = 0
        self._sent: deque[Any] = deque()

    def room(self) -> int:
        """As a bulk writer's."""
        return BUCKET_MESSAGES - self._at

    def add(self, payload: bytes, count: int, due_us: Sequence[int] | None = None) -> None:  # noqa: ARG002 - as a bulk writer's
        """Write one row."""
        if len(self._sent) >= IN_FLIGHT:
            self._sent.popleft().result()
        params = (self._lane, self._bucket, self._at, count, payload, 1)
        self._sent.append(self._session.execute_async(self._write, params))
        self._at += count
        if self._at >= BUCKET_MESSAGES:
            self._bucket, self._at = self._bucket + 1, 0

    def flush(self) -> None:
        """Wait for all."""
        while self._sent:
            self._sent.popleft().result()
