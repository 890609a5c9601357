"""Spark hands its own options to a source and a sink with ours; the list of them is pinned here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.options import OPTIONS, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_spark_adds_only_the_options_that_the_table_knows(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    spark.dataSource.register(_noting_source(str(seen)))
    rows = spark.range(1)

    spark.read.format("noting").load("a").collect()
    spark.read.format("noting").load(["a", "b"]).collect()
    rows.write.format("noting").mode("append").save("a")
    query = (
        spark.readStream.format("noting")
        .load("a")
        .writeStream.format("noting")
        .outputMode("append")
        .start("a", queryName="named", checkpointLocation=str(tmp_path / "checkpoint"))
    )
    query.processAllAvailable()
    query.stop()

    known = {option.name.lower() for option in OPTIONS if Scope.SPARK in option.scopes}
    assert known == set(seen.read_text(encoding="utf-8").split())


# Classes are local, so that Spark pickles their code: its workers cannot import this module.


def _noting_source(seen: str) -> type:
    """A data source that notes the names of its options, and else does nothing."""
    from pyspark.sql import datasource  # noqa: PLC0415 - only this test defines a source

    batch, stream = _readers()
    writer, stream_writer = _writers()

    class Noting(datasource.DataSource):
        @classmethod
        def name(cls) -> str:
            return "noting"

        def schema(self) -> str:
            return "id long"

        def reader(self, schema: object) -> object:  # noqa: ARG002 - Spark's signature
            return self._noted(batch)

        def simpleStreamReader(self, schema: object) -> object:  # noqa: ARG002, N802 - Spark's
            return self._noted(stream)

        def writer(self, schema: object, overwrite: bool) -> object:  # noqa: ARG002 - Spark's
            return self._noted(writer)

        def streamWriter(self, schema: object, overwrite: bool) -> object:  # noqa: ARG002, N802 - Spark's
            return self._noted(stream_writer)

        def _noted(self, kind: type) -> object:
            with open(seen, "a", encoding="utf-8") as file:  # noqa: PTH123 - runs in a worker
                file.write("\n".join(self.options) + "\n")
            return kind()

    return Noting


def _readers() -> tuple[type, type]:
    from pyspark.sql import datasource  # noqa: PLC0415 - only this test defines a source

    class Batch(datasource.DataSourceReader):
        def read(self, partition: object) -> Iterator[tuple[int]]:  # noqa: ARG002 - Spark's
            yield (1,)

    class Stream(datasource.SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"at": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
            return iter([(1,)][start["at"] :]), {"at": 1}

    return Batch, Stream


def _writers() -> tuple[type, type]:
    from pyspark.sql import datasource  # noqa: PLC0415 - only this test defines a source

    class Drains:
        def write(self, iterator: Iterator[object]) -> datasource.WriterCommitMessage:
            list(iterator)
            return datasource.WriterCommitMessage()

    class Writer(Drains, datasource.DataSourceWriter):
        pass

    class StreamWriter(Drains, datasource.DataSourceStreamWriter):
        pass

    return Writer, StreamWriter
