"""The stream reader of ``spark.readStream.format("cassieq")`` answers Spark's calls.

Spark keeps one Python process per running query and calls all methods but ``read`` there, one at a
time; ``read`` runs in tasks, on a pickled copy. `Planner` holds what the process must remember.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import UsageError
from cassieq_spark.model.ids import ID_LIMIT
from cassieq_spark.model.offset import INITIAL
from cassieq_spark.options import SourceOptions
from cassieq_spark.spark import boundary
from cassieq_spark.spark.partition import PlannedPartition, spread

if TYPE_CHECKING:
    import pyarrow as pa

    from cassieq_spark.spark.source.planner import Planner

FILE: Final = "cassieq-loads"
"""The file, in the folder of a Spark application, of which each load locks a byte. It writes
nothing."""

BYTES: Final = 1 << 62

LOOKS_EVERY_S: Final = 0.01
"""The time after which a source may learn that it is alone. It waits for the lock, and the wait
ends after `STARTS_WITHIN_S`; nothing else depends on this value."""

STARTS_WITHIN_S: Final = 10.0
"""After this, two sources that might be of two queries are taken for two of one query."""

TWICE: Final = (
    "this query reads one load() twice, as a self-join does. Each side would be a "
    "consumer of its own, and get messages that the other one does not get. Join in "
    "foreachBatch, where both sides are the same batch; or write the messages to a "
    "table and join that; or call load() twice, for two queues. If another query of "
    "this DataFrame was starting at the same time, start this one again"
)


@boundary.spark_facing
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The consumer of one streaming query."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...], load: UUID) -> None:
        self._options = options
        self._names = names
        self._load = OneLoad(load)
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Give tasks the settings only; sessions and threads stay in the planner's process."""
        return {"_options": self._options, "_names": self._names, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:
        """A constant: Spark calls it several times, and again on a restart of batch 0 [P23]."""
        self._load.starts()
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark has to pass back with each trigger.

        Each of Spark's own kinds is one limit, and none combines several (Spark 4.2, 4.3): this one
        only says that ours hold, and `Planner.limits` knows them.
        """
        with self._load.asked_for_limits():
            return ReadMaxRows(self._options.max_messages_per_trigger or ID_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack what ``start`` names, then claim the next batch.

        Called after every batch, also when idle and once after the last AvailableNow batch; its
        ``start`` is in Spark's commit log already (Spark 4.2, 4.3), so acking it is safe.
        """
        self._load.starts()
        planner = self._plan()
        return planner.latest(start, planner.limits(limit))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return this query's lag, for its progress; see `Lag.report`."""
        return self._plan().report()

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the target: every id that has been handed out by now."""
        with self._load.asked_for_limits():
            self._plan().aim_at_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch. Called once per batch and action, on a restart before `latestOffset`."""
        self._load.starts()
        planner = self._plan()
        return spread(
            planner.plan(start, end),
            connection=self._options.connection,
            names=self._names,
            at_least=self._options.min_partitions,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition. Runs in tasks, as often as they run: the same rows each time (I8)."""
        if isinstance(partition, PlannedPartition):
            yield from partition.read()

    def commit(self, end: dict[str, Any]) -> None:
        """Ack. It comes one batch late, never for the last one; `latestOffset` acks first."""
        self._plan().ack(end)

    def stop(self) -> None:
        """Close the planner; leases run out by themselves. Spark calls this at an orderly end."""
        if self._planner is not None:
            self._planner.close()

    def _plan(self) -> Planner:
        if self._planner is None:
            # Tasks, and the process that pickles this reader for them, need none of these.
            from cassieq_spark.spark import environment  # noqa: PLC0415 - as said
            from cassieq_spark.spark.source.planner import Planner  # noqa: PLC0415 - as said
            from cassieq_spark.store import store  # noqa: PLC0415 - as said

            environment.tell_if_slow()
            self._planner = Planner.open(store.shared(self._options.connection), self._options)
        return self._planner


class OneLoad:
    """The place of a source among those of its load, while its query starts.

    It refuses a query that reads one ``load()`` twice, as a self-join does: Spark gives each side a
    source of its own, so the first one would lease what both are to read. A planner does not learn
    its query, but the load, which both sides share (4.2, 4.3).

    Spark asks all sources of a query for their limits, one after the other, before it asks any of
    them for an offset. In between, a source holds a shared lock. One that is asked for its limits
    while another holds it is of the same query, if the other is not asked for an offset meanwhile:
    the query would have to answer for both. Otherwise two queries start at the same time.
    """

    def __init__(self, load: UUID) -> None:
        self._byte = load.int % BYTES
        self._file: int | None = None

    @contextmanager
    def asked_for_limits(self) -> Iterator[None]:
        """Wrap each call by which Spark prepares a query.

        Raises:
            UsageError: Another source of this query reads the same load.
        """
        with suppress(OSError):  # a place without locks: a query is not refused for that
            self._file = _open() if self._file is None else self._file
            self._lock(fcntl.LOCK_UN)
            self._await_others()
        yield
        with suppress(OSError):
            self._lock(fcntl.LOCK_SH)

    def starts(self) -> None:
        """Note that Spark has asked for something else, so that all sources have been prepared."""
        if self._file is not None:
            os.close(self._file)  # with its lock
            self._file = None

    def _await_others(self) -> None:
        """Wait until no other source of the load is between its preparation and its start."""
        clock = SystemClock()
        until_s = clock.monotonic() + STARTS_WITHIN_S
        while not self._is_alone():
            if clock.monotonic() > until_s:
                raise UsageError(TWICE)
            clock.wait(LOOKS_EVERY_S)
        self._lock(fcntl.LOCK_UN)

    def _is_alone(self) -> bool:
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process holds a lock of the byte
            return False
        return True

    def _lock(self, how: int) -> None:
        if self._file is not None:
            fcntl.lockf(self._file, how, 1, self._byte)


def _open() -> int:
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    return os.open(Path(folder) / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
