"""Spark's processes that plan and commit writes keep what they imported from its collector."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from cassieq_spark.spark.data_source import CassieqDataSource
from cassieq_spark.spark.sink import BatchWriter

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from tests.fixtures.streams import Streams

WRITES = 4
NOTES = "notes"


def test_the_processes_that_plan_and_commit_a_write_freeze_what_they_have_imported(
    streams: Streams,
) -> None:
    notes = streams.directory / NOTES
    streams.spark.dataSource.register(_noting(str(notes)))

    for number in range(WRITES):
        frame = streams.numbered(number, number + 1, partitions=1)
        frame.write.format("cassieq_noting").options(**streams.options).mode("append").save()

    frozen: dict[tuple[str, int], list[int]] = {}
    for line in notes.read_text().splitlines():
        call, process, count = json.loads(line)
        frozen.setdefault((call, process), []).append(count)
    used_again = {call: counts for (call, _), counts in frozen.items() if len(counts) > 1}
    assert {"plan", "commit"} == used_again.keys()
    for counts in used_again.values():
        assert 0 == counts[0]
        assert 10_000 < counts[1]


def _noting(file: str) -> type:
    """Local classes: Spark's processes get them by value."""

    def note(call: str) -> None:
        with Path(file).open("a") as notes:
            notes.write(json.dumps([call, os.getpid(), gc.get_freeze_count()]) + "\n")

    class NotingWriter(BatchWriter):
        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            super().commit(messages)
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

    return Noting
