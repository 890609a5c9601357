"""Define the data source ``cassieq``, which Spark asks for its readers and writers.

Spark gives a copy of it to the Python process of each, so nothing is kept here but the load's id.

A table of the session catalog knows its options, but Spark hands only those of a statement to a
Python data source, ``SELECT * FROM t WITH (...)`` (`V2SessionCatalog.loadTable`,
`PythonDataSourceV2.getTable`; Spark 4.2 and 4.3). A temporary view keeps its options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError, OptionInvalid, UsageError
from cassieq_spark.options import OPTIONS, parse_read, parse_sink, parse_source, parse_view
from cassieq_spark.options.parse import check_load, refuse_path
from cassieq_spark.spark import boundary, environment
from cassieq_spark.spark.schema import resolve

if TYPE_CHECKING:
    from cassieq_spark.spark.sink import BatchWriter, StreamWriter

T = TypeVar("T")

_OF_TABLE: Final = "option."
"""Spark stores each option of CREATE TABLE under this prefix, too."""

VIEW: Final = (
    "CREATE TEMPORARY VIEW v (body BINARY, tag STRING) USING cassieq OPTIONS (contactPoints '...', "
    "queue '...')"
)
"""A view by which SQL can read a queue and write to it."""

STATEMENT: Final = "SELECT * FROM t WITH (contactPoints = '...', queue = '...')"
"""An example of options in a statement about a table."""


@boundary.spark_facing
class CassieqDataSource(DataSource):
    """``format("cassieq")`` for readStream, writeStream, read and write."""

    def __init__(self, options: dict[str, str]) -> None:
        """Keep the options. Spark makes one source for each ``load()`` (4.2, 4.3)."""
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

        options = self.options
        if "provider" in options or any(name.lower().startswith(_OF_TABLE) for name in options):
            _refuse_table_options(options)
        else:
            check_load(options)
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
        """Raise at Spark's first call with ``availableNow``."""
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
    """Parse the options of a reader or writer, which Spark may have left out."""
    refuse_path(options)
    try:
        return parse(options)
    except OptionInvalid as error:
        if options:
            raise
        # Why a missing option may be one of none at all.
        stop = "" if error.message.endswith(("?", ".")) else "."
        raise OptionInvalid(
            f"{error.message}{stop} Spark has given no options. If this is a table that was made "
            "with CREATE TABLE, Spark does not give its OPTIONS to the statements that use it. "
            f"Give them in the statement: {STATEMENT}. Or use a temporary view: {VIEW}"
        ) from error


def _refuse_table_options(properties: Mapping[str, Any]) -> None:
    """Refuse a ``CREATE TABLE`` whose options no statement would get.

    Raises:
        OptionInvalid: The table has options.
    """
    own = {one.name.lower(): one.name for one in OPTIONS}
    keys = [name[len(_OF_TABLE) :] for name in properties if name.lower().startswith(_OF_TABLE)]
    if keys:
        names = ", ".join(sorted(own.get(key.lower(), key) for key in keys))
        raise OptionInvalid(
            f"this CREATE TABLE has OPTIONS ({names}), but Spark does not give "
            f"them to the statements that use the table. Use a temporary view instead: {VIEW}. Or "
            f"create the table without OPTIONS, and give them in each statement: {STATEMENT}"
        )


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise UsageError(
            "a queue cannot be overwritten: output mode 'complete' and mode('overwrite') have no "
            "meaning here. Use append"
        )
