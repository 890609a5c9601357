"""Format ``cassieq_stopping_sink``: writes as ``cassieq``, until it comes to a given statement.

Spark's workers get these classes by value: they need not find this module.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from cassieq_spark.spark.data_source import CassieqDataSource
from cassieq_spark.spark.sink import StreamWriter
from cassieq_spark.store import store
from tests.fixtures.transports import intercept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from cassieq_spark.store.statements import Statement

OPTION = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStop:
    """Where a run of a query ends: at the nth statement of a name, in a task or in a commit.

    Attributes:
        notes: Where it is noted that it was reached, just before.
        step: ``write`` (a task) or ``commit``; empty: nowhere.
        number: Counted from 0, in each task and each commit anew.
        is_sent: Whether that statement still reaches Cassandra: its answer is lost then.
        dies: By SIGKILL of that Python process; else by an error.
    """

    notes: str
    step: str = ""
    statement: str = ""
    number: int = 0
    is_sent: bool = False
    dies: bool = True

    def to_option(self) -> str:
        return json.dumps(asdict(self))

    @property
    def is_reached(self) -> bool:
        return Path(self.notes).exists()


class Countdown:
    """Around every statement of one task or commit."""

    def __init__(self, stop: SinkStop, step: str) -> None:
        self._stop = stop
        self._is_here = step == stop.step
        self._lock = threading.Lock()
        self._seen = 0

    def around(
        self, statement: Statement, params: tuple[Any, ...], proceed: Callable[[], Any]
    ) -> Any:
        del params
        if not self._is_here or statement.name != self._stop.statement:
            return proceed()
        with self._lock:
            is_end = self._seen == self._stop.number
            self._seen += 1
        if not is_end:
            return proceed()
        if self._stop.is_sent:
            proceed()
        Path(self._stop.notes).touch()
        if self._stop.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("stopped by the test")


class StoppingWriter(StreamWriter):
    """Ends in a task, or in a commit."""

    def __init__(self, writer: StreamWriter, stop: SinkStop) -> None:
        self.__dict__.update(writer.__dict__)
        self._stop = stop

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._watch("write")
        return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._watch("commit")
        super().commit(messages, batchId)

    def _watch(self, step: str) -> None:
        session = store.shared(self._options.connection).session
        intercept(session, Countdown(self._stop, step))


class StoppingSink(CassieqDataSource):
    """Only its writer differs."""

    @classmethod
    def name(cls) -> str:
        return "cassieq_stopping_sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StoppingWriter:  # noqa: N802 - Spark's name
        stop = SinkStop(**json.loads(self.options[OPTION]))
        self.options = {name: given for name, given in self.options.items() if name != OPTION}
        return StoppingWriter(super().streamWriter(schema, overwrite), stop)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
