"""Define the data source ``cassieq``, which Spark asks for its readers and writers.

Spark makes a fresh object in a Python process of its own for each, so nothing is kept here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from cassieq_spark.errors import UsageError
from cassieq_spark.options import parse_read, parse_sink, parse_source, parse_view
from cassieq_spark.spark import boundary, environment
from cassieq_spark.spark.schema import resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader

    from cassieq_spark.spark.sink import BatchWriter, StreamWriter
    from cassieq_spark.spark.source.reader import StreamReader


@boundary.spark_facing
class CassieqDataSource(DataSource):
    """``format("cassieq")`` for readStream, writeStream, read and write."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "cassieq"

    def schema(self) -> StructType:
        """Return all columns of the view; a user schema may name some of them instead."""
        environment.check_here()
        from cassieq_spark.spark.views.columns import VIEWS  # noqa: PLC0415 - after the check: needs pyarrow

        return VIEWS[parse_view(self.options)].schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of visible messages, or of another view, without a lease."""
        environment.check_here()
        from cassieq_spark.spark.views import reader  # noqa: PLC0415 - after the check: needs pyarrow

        return reader.reader(parse_read(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return a consumer that leases messages and acks them when their micro-batch is done."""
        environment.check_here()
        from cassieq_spark.spark.source.reader import StreamReader  # noqa: PLC0415 - after the check

        return StreamReader(parse_source(self.options), resolve(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return a writer that puts a whole DataFrame as one transaction."""
        environment.check_here()
        from cassieq_spark.spark.sink import BatchWriter  # noqa: PLC0415 - as above

        _refuse_overwrite(overwrite)
        return BatchWriter(parse_sink(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return a writer that makes one transaction per micro-batch."""
        environment.check_here()
        from cassieq_spark.spark.sink import StreamWriter  # noqa: PLC0415 - as above

        _refuse_overwrite(overwrite)
        checkpoint = self.options.get("checkpointLocation")
        return StreamWriter(parse_sink(self.options), schema, checkpoint)


@boundary.crossing
def register(spark: SparkSession) -> None:
    """Register ``format("cassieq")`` with this session, and check its Python workers.

    Spark 4.2 and later find the format by themselves wherever module ``pyspark_cassieq`` can be
    imported, but only in a thread whose active session is this one. A thread of your own has no
    active session: call this there (measured with 4.3.0: otherwise ``df.write`` to any Python data
    source fails because Spark does not find it).

    Raises:
        WorkerEnvironment: The workers' Python lacks something; the error says what to do.
    """
    environment.prefer_this_python(spark)
    environment.check_workers(spark)
    spark.dataSource.register(CassieqDataSource)
    # This public call makes a session active in its thread.
    spark.createDataFrame([], StructType())


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise UsageError(
            "a queue cannot be overwritten: output mode 'complete' and mode('overwrite') have no "
            "meaning here. Use append"
        )
