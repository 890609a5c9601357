"""Format ``cassieq_storm``: as ``cassieq``, with the dials of a storm in each of its processes; its
source says which leases it has taken, and what it has acked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.spark.data_source import CassieqDataSource
from cassieq_spark.spark.sink import StreamWriter
from cassieq_spark.spark.source.reader import StreamReader
from tests.storm import dials
from tests.storm.history import Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

FORMAT: Final = "cassieq_storm"
DIRECTORY: Final = "stormDirectory"
"""An option of its own: where the history goes."""

SOURCE: Final = "source"
HOLD_S: Final = 4.0

# Here, so that each process that Spark unpickles a reader or a writer of ours in has them, too.
dials.install_by_variable()


class RecordingReader(StreamReader):
    """Tells of its leases: of each batch when this process has claimed it or taken it over."""

    _directory = ""
    _record: Recorder | None = None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        record = self._recorder()
        begun = record.now()
        end = super().latestOffset(start, limit)
        record.say("settled", stream=SOURCE, seq=start["seq"])
        if end != start:
            self._tell(begun, end)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun = self._recorder().now()
        planned = super().partitions(start, end)
        if end != start:
            self._tell(begun, end)
        return planned

    def _tell(self, begun: float, end: dict[str, Any]) -> None:
        """Once a process and batch: later calls repeat the answer, and extend nothing."""
        told: set[int] = self.__dict__.setdefault("_told", set())
        seq = end["seq"]
        if seq not in told:
            told.add(seq)
            self._recorder().say("leased", begun=begun, stream=SOURCE, seq=seq, hold=HOLD_S)

    def _recorder(self) -> Recorder:
        if self._record is None:
            self._record = Recorder(self._directory, "planner")
            logging.getLogger("cassieq_spark").addHandler(_Late(self._record))
        return self._record


class _Late(logging.Handler):
    """Tells of acks that found their leases gone."""

    def __init__(self, record: Recorder) -> None:
        super().__init__()
        self._record = record

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) == "acks_expired":
            fields: dict[str, Any] = record.__dict__["fields"]
            where = {name: fields[name] for name in ("queue", "lane", "bucket") if name in fields}
            self._record.say("late", stream=SOURCE, **where)


class DialledWriter(StreamWriter):
    """Of this module, so that it is imported where Spark unpickles it."""


class StormSource(CassieqDataSource):
    """Both sides."""

    def __init__(self, options: dict[str, str]) -> None:
        ours = {name: value for name, value in options.items() if name.lower() == DIRECTORY.lower()}
        super().__init__({name: value for name, value in options.items() if name not in ours})
        self._directory = next(iter(ours.values()), "")

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        plain = super().streamReader(schema)
        reader = RecordingReader(plain._options, plain._names, self._load)
        reader._directory = self._directory
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        writer = super().streamWriter(schema, overwrite)
        return DialledWriter(writer._options, schema, writer._checkpoint)
