"""Format ``cassieq_blocking``: as ``cassieq``, but it stops for ever at a named point."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cassieq_spark.spark.data_source import CassieqDataSource
from cassieq_spark.spark.sink import StreamWriter
from cassieq_spark.spark.source.reader import StreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition, WriterCommitMessage
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

#: The environment variable that names the file ``<directory>/<point>.<batch>``: which point, in
#: which batch (0: the first), and where to announce it.
VARIABLE = "TEST_BLOCK_AT"


def stop_at(point: str, batch: int) -> None:
    """If this is the point: announce it, and never return while the parent lives."""
    file = Path(os.environ[VARIABLE])
    if file.name != f"{point}.{batch}":
        return
    file.touch()
    parent = os.getppid()
    while os.getppid() == parent:
        threading.Event().wait(0.1)
    os._exit(1)


class BlockingReader(StreamReader):
    """Stops in the planner, or in a reading task."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        end = super().latestOffset(start, limit)
        if end != start:
            stop_at("claimed", end["seq"] - 1)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = super().partitions(start, end)
        stop_at("planned", end["seq"] - 1)
        return planned


class BlockingWriter(StreamWriter):
    """Stops in a writing task, before the commit point, or behind it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(self._stopping(iterator))

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        stop_at("prepared", batchId)
        super().commit(messages, batchId)
        stop_at("committed", batchId)

    @staticmethod
    def _stopping(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - runs in a worker

        context = TaskContext.get()
        batch = -1 if context is None else int(context.getLocalProperty("streaming.sql.batchId"))
        for rows in iterator:
            yield rows
            if context is not None and context.partitionId() == 0:
                stop_at("in_a_task", batch)


class BlockingSource(CassieqDataSource):
    """Both sides."""

    @classmethod
    def name(cls) -> str:
        return "cassieq_blocking"

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        reader = super().streamReader(schema)
        return BlockingReader(reader._options, reader._names, self._load)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        writer = super().streamWriter(schema, overwrite)
        return BlockingWriter(writer._options, schema, writer._checkpoint)
