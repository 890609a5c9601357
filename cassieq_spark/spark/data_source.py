"""Define the data source ``cassieq``, which Spark asks for its readers and writers.

Spark gives a copy of it to the Python process of each, so nothing is kept here but the load's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError, UsageError
from cassieq_spark.options import parse_read, parse_sink, parse_source, parse_view
from cassieq_spark.options.parse import check_load, refuse_path
from cassieq_spark.spark import boundary, environment, tables
from cassieq_spark.spark.schema import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    from cassieq_spark.spark.sink import BatchWriter, StreamWriter

T = TypeVar("T")


@boundary.spark_facing
class CassieqDataSource(DataSource):
    """``format("cassieq")`` for readStream, writeStream, read and write."""

    def __init__(self, options: dict[str, str]) -> None:
        """Called once for each ``load()``; all that reads it gets this object (4.2, 4.3)."""
        super().__init__(options)
        self._load = new_uuid()

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "cassieq"

    def schema(self) -> StructType:
        """Return all columns of the view; a user schema may name some of them instead.

        Spark calls it in ``load()``, and nothing else of ours before a query runs (4.2, 4.3).
        """
        environment.check_here()
        from cassieq_spark.spark.views.columns import VIEWS  # noqa: PLC0415 - after the check: needs pyarrow

        if tables.is_created_by(self.options):
            tables.refuse_options(self.options)
        else:
            check_load(self.options)
        return VIEWS[parse_view(self.options)].schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of visible messages, or of another view, without a lease."""
        _begin()
        from cassieq_spark.spark.views import reader  # noqa: PLC0415 - after the check: needs pyarrow

        return reader.reader(_parsed(parse_read, self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a consumer that leases messages and acks them when their micro-batch is done.

        The reader raises what is wrong: an error from here would be hidden by Spark's own
        ``UnboundLocalError`` (4.2, 4.3).
        """
        try:
            environment.check_here()
            from cassieq_spark.spark.source.reader import StreamReader  # noqa: PLC0415 - after the check

            parsed = _parsed(parse_source, self.options)
            return StreamReader(parsed, resolve(schema), self._load)
        except CassieqError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return a writer that puts a whole DataFrame as one transaction."""
        _begin()
        from cassieq_spark.spark.sink import BatchWriter  # noqa: PLC0415 - as above

        _refuse_overwrite(overwrite)
        return BatchWriter(_parsed(parse_sink, self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return a writer that makes one transaction per micro-batch."""
        _begin()
        from cassieq_spark.spark.sink import StreamWriter  # noqa: PLC0415 - as above

        _refuse_overwrite(overwrite)
        checkpoint = self.options.get("checkpointLocation")
        return StreamWriter(_parsed(parse_sink, self.options), schema, checkpoint)


@boundary.spark_facing
class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises what is wrong with its options as soon as Spark asks it something.

    Spark 4.2 and 4.3 stop the reader after an error, also after one for which there is no reader
    yet, and then report that there is none (``python_streaming_source_runner.py``).
    """

    def __init__(self, error: CassieqError) -> None:
        self._error = error

    def prepareForTriggerAvailableNow(self, *_: object, **__: object) -> NoReturn:
        """Spark's first call with ``availableNow``."""
        raise self._error

    getDefaultReadLimit = prepareForTriggerAvailableNow  # noqa: N815 - Spark's name
    """Spark's first call with any other trigger."""

    # Not called: one of the two above is.
    initialOffset = latestOffset = partitions = read = prepareForTriggerAvailableNow  # noqa: N815 - as above


@boundary.crossing
def register(spark: SparkSession) -> None:
    """Register ``format("cassieq")`` with this session, and check its Python workers.

    Spark 4.2 and later find the format by themselves wherever module ``pyspark_cassieq`` can be
    imported, but only in a thread whose active session is this one. A thread of your own has no
    active session: call this there (measured with 4.3.0: otherwise ``df.write`` to any Python data
    source fails because Spark does not find it). The session may be one of Spark Connect.

    Raises:
        WorkerEnvironment: The workers' Python lacks something; the error says what to do.
    """
    environment.prefer_this_python(spark)
    environment.check_workers(spark)
    spark.dataSource.register(CassieqDataSource)
    if environment.is_connect(spark):
        return
    # This public call makes a session active in its thread.
    spark.createDataFrame([], StructType())


def _begin() -> None:
    """Check this process, and settle in: Spark uses those that plan a read or a write again."""
    environment.check_here()
    from cassieq_spark.spark.worker import settle_in  # noqa: PLC0415 - after the check: needs pyarrow

    settle_in()


def _parsed(parse: Callable[[Mapping[str, Any]], T], options: Mapping[str, Any]) -> T:
    """Parse the options of a reader or writer, which Spark may have left out: `tables`."""
    refuse_path(options)
    with tables.explained(options):
        return parse(options)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise UsageError(
            "a queue cannot be overwritten: output mode 'complete' and mode('overwrite') have no "
            "meaning here. Use append"
        )
