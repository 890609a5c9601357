"""Spark's processes that plan and commit writes keep what they imported from its collector."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from cassieq_spark.spark.data_source import CassieqDataSource
from cassieq_spark.spark.sink import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from tests.fixtures.streams import Streams

WRITES = 4


def test_the_processes_that_plan_and_commit_a_write_freeze_what_they_have_imported(
    streams: Streams,
) -> None:
    notes = streams.directory / "notes"
    streams.spark.dataSource.register(_noting(str(notes)))

    for number in range(WRITES):
        frame = streams.numbered(number, number + 1, partitions=1)
        frame.write.format("cassieq_noting").options(**streams.options).mode("append").save()

    _check(notes)


def test_so_do_those_of_a_stream(streams: Streams) -> None:
    notes, rows = streams.directory / "notes", streams.directory / "rows"
    streams.spark.dataSource.register(_noting(str(notes)))
    frame = streams.numbered(0, WRITES, partitions=WRITES)
    frame.write.parquet(str(rows))

    files = streams.spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1)
    writer = files.parquet(str(rows)).writeStream.format("cassieq_noting")
    writer = writer.options(**streams.options, checkpointLocation=str(streams.checkpoint()))
    writer.trigger(availableNow=True).start().awaitTermination()

    _check(notes)


def _check(notes: Path) -> None:
    """Earlier writes of this session may have used its processes, so the first may be settled."""
    frozen: dict[tuple[str, int], list[int]] = {}
    for line in notes.read_text().splitlines():
        call, process, count = json.loads(line)
        frozen.setdefault((call, process), []).append(count)
    used_again = {(call, tuple(counts[1:])) for (call, _), counts in frozen.items() if counts[1:]}
    assert {"plan", "commit"} == {call for call, _ in used_again}
    for _, counts in used_again:
        assert 10_000 < min(counts)


def _noting(file: str) -> type:
    """Local classes: Spark's processes get them by value."""

    def note(call: str) -> None:
        with Path(file).open("a") as notes:
            notes.write(json.dumps([call, os.getpid(), gc.get_freeze_count()]) + "\n")

    class NotingWriter(BatchWriter):
        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            super().commit(messages)
            note("commit")

    class NotingStreamWriter(StreamWriter):
        def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
            super().commit(messages, batchId)
            note("commit")

    class Noting(CassieqDataSource):
        @classmethod
        def name(cls) -> str:
            return "cassieq_noting"

        def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
            made = super().writer(schema, overwrite)
            made.__class__ = NotingWriter
            note("plan")
            return made

        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
            made = super().streamWriter(schema, overwrite)
            made.__class__ = NotingStreamWriter
            note("plan")
            return made

    return Noting
