"""A Python stream source that only looks at a file: what Spark itself takes to show a row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import LongType, StructField, StructType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def tick(file: Path, number: int) -> None:
    """There are rows up to this number: in one step, so that nobody reads half of it."""
    fresh = file.with_suffix(".new")
    fresh.write_text(str(number), encoding="ascii")
    fresh.replace(file)


class TickSource(DataSource):
    """One row for each number in option ``file``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "bench_tick"

    def schema(self) -> StructType:
        """One number."""
        return StructType([StructField("n", LongType())])

    def streamReader(self, schema: StructType) -> TickReader:  # noqa: ARG002, N802 - Spark's
        """The reader."""
        return TickReader(Path(self.options["file"]))


class TickReader(DataSourceStreamReader):
    """Offsets are the numbers."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Zero."""
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """None."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802 - Spark's name
        """What the file says."""
        return {"n": int(self._file.read_text(encoding="ascii"))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task a row."""
        return [InputPartition(at) for at in range(start["n"], end["n"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One row."""
        yield pa.RecordBatch.from_arrays([pa.array([partition.value])], names=["n"])

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing."""
