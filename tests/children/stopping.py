"""Format ``cassieq_stopping``: reads as ``cassieq``, until it comes to a given point.

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
from cassieq_spark.spark.source.reader import StreamReader
from cassieq_spark.store import store
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.testing import ManualClock
from tests.fixtures.transports import intercept, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from cassieq_spark.spark.source.planner import Planner

OPTION = "stop"
NEVER = 1 << 30
STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where a run of a query ends, and how.

    Attributes:
        notes: Where each point is noted that the run came to, one a line, the last before it ended.
        how: ``raises``: an error in that place; ``dies``: SIGKILL of that Python process;
            ``waits``: for ever, until the test stops the query.
        at: A point by name: ``asked`` (about a batch after the first), ``claimed``, ``planned``,
            ``read``, ``committing``.
        write: Or the nth write that the planner would send, counted from 0: it is not sent, and
            nothing is after it.
        ahead_s: So far is the planner's clock ahead: leases that are shorter have run out.
        patience_s: So long it goes on while Cassandra is away, beyond what any client does.
    """

    notes: str
    how: str = "raises"
    at: str = ""
    write: int = NEVER
    ahead_s: float = 0.0
    patience_s: float = store.PATIENCE_S

    def to_option(self) -> str:
        return json.dumps(asdict(self))

    @property
    def reached(self) -> str | None:
        """The point that it ended at, None as long as it has not."""
        file = Path(self.notes)
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return lines[lines.index(STOPPED) - 1] if STOPPED in lines else None

    def note(self, line: str) -> None:
        with Path(self.notes).open("a", encoding="utf-8") as notes:
            notes.write(f"{line}\n")

    def end_here(self) -> None:
        self.note(STOPPED)
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        parent = os.getppid()
        while self.how == "waits" and os.getppid() == parent:
            threading.Event().wait(0.05)
        raise RuntimeError("stopped by the test")


class Stopper:
    """Counts down to the point; around every statement of a planner's process."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._writes = 0
        self._has_planned = False
        self.call = ""

    def come_to(self, point: str) -> None:
        self._has_planned |= point == "planned"
        self._stop.note(point)
        if point == self._stop.at and (self._has_planned or point != "asked"):
            self._stop.end_here()

    def around(
        self, statement: Statement, params: tuple[Any, ...], proceed: Callable[[], Any]
    ) -> Any:
        del params
        if statement.kind in (Kind.CAS, Kind.WRITE):
            with self._lock:
                self._stop.note(f"{self.call} {statement.name}")
                if self._writes == self._stop.write:
                    self._stop.end_here()
                self._writes += 1
        return proceed()


class StoppingReader(StreamReader):
    """Ends in the planner, or in a reading task."""

    def __init__(self, reader: StreamReader, stop: Stop) -> None:
        self.__dict__.update(reader.__dict__)
        self._stop = stop
        self._stopper = Stopper(stop)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stop": self._stop}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        self._stopper.call = "latestOffset"
        self._stopper.come_to("asked")
        end = super().latestOffset(start, limit)
        if end != start:
            self._stopper.come_to("claimed")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._stopper.call = "partitions"
        planned = super().partitions(start, end)
        self._stopper.come_to("planned")
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch
            if self._stop.at == "read" and self._stop.reached is None:
                self._stop.note("read")
                self._stop.end_here()

    def commit(self, end: dict[str, Any]) -> None:
        self._stopper.call = "commit"
        self._stopper.come_to("committing")
        super().commit(end)

    def _plan(self) -> Planner:
        shared = store.shared(self._options.connection)
        if intercepted(shared.session) is None:
            intercept(shared.session, self._stopper)
            shared.clock = ManualClock(shared.clock)
            shared.clock.advance(self._stop.ahead_s)
            shared.session.patience_s = self._stop.patience_s
        return super()._plan()


class StoppingSource(CassieqDataSource):
    """Only its reader differs."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__({name: given for name, given in options.items() if name != OPTION})
        self._stop = options[OPTION]

    @classmethod
    def name(cls) -> str:
        return "cassieq_stopping"

    def streamReader(self, schema: StructType) -> StoppingReader:  # noqa: N802 - Spark's name
        return StoppingReader(super().streamReader(schema), Stop(**json.loads(self._stop)))


cloudpickle.register_pickle_by_value(sys.modules[__name__])
