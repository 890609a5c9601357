"""A stream reader that says what is wrong with its options as soon as Spark asks it something.

Spark 4.2 and 4.3 stop the reader after an error, also after one for which there is no reader yet,
and then report that there is none (``python_streaming_source_runner.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from cassieq_spark.spark import boundary

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from cassieq_spark.errors import CassieqError


@boundary.spark_facing
class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises one error, before Spark has planned a batch."""

    def __init__(self, error: CassieqError) -> None:
        self._error = error

    def prepareForTriggerAvailableNow(self) -> NoReturn:
        """Spark's first call with ``availableNow``."""
        raise self._error

    def getDefaultReadLimit(self) -> NoReturn:
        """Spark's first call with any other trigger."""
        raise self._error

    def initialOffset(self) -> NoReturn:
        """Not called: one of the two above is."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: Any) -> NoReturn:  # noqa: ARG002 - Spark's signature
        """As `initialOffset`."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:  # noqa: ARG002 - Spark's signature
        """As `initialOffset`."""
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:  # noqa: ARG002 - Spark's signature
        """As `initialOffset`."""
        raise self._error
