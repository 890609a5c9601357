"""A Python stream source that does nothing: what Spark itself takes for a micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import LongType, StructField, StructType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class EmptySource(DataSource):
    """``batches`` micro-batches of one row."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "bench_empty"

    def schema(self) -> StructType:
        """One number."""
        return StructType([StructField("n", LongType())])

    def streamReader(self, schema: StructType) -> EmptyReader:  # noqa: ARG002, N802 - Spark's
        """The reader."""
        return EmptyReader(int(self.options["batches"]))


class EmptyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets 1 to ``batches``."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Zero."""
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """None."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """The target is fixed."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802 - Spark's name
        """One further."""
        return {"n": min(start["n"] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task a batch."""
        return [InputPartition(at) for at in range(start["n"], end["n"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One row."""
        yield pa.RecordBatch.from_arrays([pa.array([partition.value])], names=["n"])

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing."""
