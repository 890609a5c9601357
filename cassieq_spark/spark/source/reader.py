"""The stream reader of ``spark.readStream.format("cassieq")`` answers Spark's calls.

Spark keeps one Python process per running query and calls all methods but ``read`` there, one at a
time; ``read`` runs in tasks, on a pickled copy. `Planner` holds what the process must remember.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cassieq_spark.model.ids import ID_LIMIT
from cassieq_spark.model.offset import INITIAL
from cassieq_spark.spark import boundary
from cassieq_spark.spark.partition import PlannedPartition, spread
from cassieq_spark.spark.source.one_load import OneLoad

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    import pyarrow as pa

    from cassieq_spark.options import SourceOptions
    from cassieq_spark.spark.source.planner import Planner


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
        """The limit by the ``...PerTrigger`` options; without any: all that is visible."""
        with self._load.asked_for_limits():
            return read_limit(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack what ``start`` names, then claim the next batch.

        Called after every batch, also when idle and once after the last AvailableNow batch; its
        ``start`` is in Spark's commit log already (Spark 4.2, 4.3), so acking it is safe.
        """
        self._load.starts()
        planner = self._plan()
        return planner.latest(start, planner.limits(limit))

    def reportLatestOffset(self) -> dict[str, Any]:
        """How far this query is behind, for its progress; see `Lag.report`."""
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
        """Called when the process ends in an orderly way; leases run out by themselves."""
        if self._planner is not None:
            self._planner.close()

    def _plan(self) -> Planner:
        if self._planner is None:
            # Tasks, and the process that pickles this reader for them, need none of these.
            from cassieq_spark.spark import environment  # noqa: PLC0415 - as said
            from cassieq_spark.spark.source.planner import Planner  # noqa: PLC0415 - as said
            from cassieq_spark.store import store  # noqa: PLC0415 - as said

            environment.tell_if_slow()
            self._planner = Planner(store.shared(self._options.connection), self._options)
        return self._planner


def read_limit(options: SourceOptions) -> ReadLimit:
    """The limit that Spark has to pass back with each trigger.

    Each of Spark's own kinds is one limit, and none combines several (Spark 4.2, 4.3): this one
    only says that there are limits, and `Planner.limits` knows them.
    """
    has_limits = (
        options.max_messages_per_trigger
        or options.max_bytes_per_trigger
        or options.min_messages_per_trigger
    )
    at_most = options.max_messages_per_trigger or ID_LIMIT
    return ReadMaxRows(at_most) if has_limits else ReadAllAvailable()
