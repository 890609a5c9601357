"""Pack the rows of a writing task into chunks, by rows and bytes, whole buckets and due times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from cassieq_spark.model import packing
from cassieq_spark.store import chunk as chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ChunkTaker(Protocol):
    """A receiver of chunks: a bulk writer, or rows for the connector to write."""

    def capacity(self) -> int:
        """How many messages the next chunk may have: 1 or more."""

    def add(self, payload: bytes, count: int, due_us: Sequence[int] | None = None) -> None:
        """Take one chunk; see `queue.sink.writer.BulkWriter.add`."""


class Packer:
    """Cuts rows into chunks for a taker. Rows that do not fill a chunk wait for the next batch."""

    def __init__(
        self,
        writer: ChunkTaker,
        now_us: Callable[[], int],
        *,
        chunk_messages: int,
        chunk_bytes: int,
    ) -> None:
        self._writer = writer
        self._now_us = now_us
        self._messages = chunk_messages
        self._bytes = chunk_bytes
        self._encoder = chunks.Encoder()
        self._waiting: pa.RecordBatch | None = None
        self._position = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a record batch as it comes from Spark.

        Raises:
            BodyInvalid: A body is null or too large; names the row's position in the partition.
        """
        checked = chunks.from_input(batch, position=self._position)
        self._position += batch.num_rows
        if self._waiting is not None:
            checked = pa.concat_batches([self._waiting, checked])
            self._waiting = None
        self._write_chunks(checked, keep_rest=True)

    def flush(self) -> None:
        """Write the rows that wait."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._write_chunks(waiting, keep_rest=False)

    def _write_chunks(self, batch: pa.RecordBatch, *, keep_rest: bool) -> None:
        sizes = chunks.row_sizes(batch)
        at = 0
        while at < batch.num_rows:
            end = packing.chunk_end(
                sizes,
                at,
                at_most=min(self._messages, self._writer.capacity()),
                limit_bytes=self._bytes,
            )
            is_last = end == batch.num_rows
            if is_last and keep_rest and end - at < min(self._messages, self._writer.capacity()):
                self._waiting = batch.slice(at)
                return
            self._write(batch.slice(at, end - at))
            at = end

    def _write(self, part: pa.RecordBatch) -> None:
        delays = chunks.delays_us(part)
        due_us: list[int] | None = None
        if delays is not None:
            now_us = self._now_us()
            due_us = np.where(delays > 0, delays + now_us, 0).tolist()
        self._writer.add(self._encoder.encode(part), part.num_rows, due_us)
