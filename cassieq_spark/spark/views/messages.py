"""``spark.read.format("cassieq")`` shows the messages that are visible now; it leases nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cassieq_spark.queue.inspect.stats import plan_visible
from cassieq_spark.queue.lane import open_lane
from cassieq_spark.spark import boundary
from cassieq_spark.spark.partition import PlannedPartition, read_partition, spread
from cassieq_spark.spark.views import pushdown
from cassieq_spark.store import store

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from cassieq_spark.model.ids import QueueName
    from cassieq_spark.options import ReadOptions
    from cassieq_spark.queue.fetch import Planned
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.spark.views.pushdown import Condition


@boundary.spark_facing
class LookReader(DataSourceReader):
    """Reads visible messages: planned once in the driver's Python process, then read by tasks."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._conditions: tuple[Condition, ...] = ()

    def partitions(self) -> list[InputPartition]:
        """Plan the messages visible at this moment; a read leaves out what is acked meanwhile."""
        queue = cast("QueueName", self._options.queue)
        lane = open_lane(store.shared(self._options.connection), queue)
        if not pushdown.hold(self._conditions, {"queue": queue}):
            return []
        return list(
            spread(
                list(self._plan(lane)),
                lane=lane,
                connection=self._options.connection,
                names=self._names,
                at_least=self._options.min_partitions,
            )
        )

    def _plan(self, lane: Lane) -> Iterator[Planned]:
        spans = pushdown.bucket_spans(self._conditions, lane.bucket_size, ids=("id",))
        ids = pushdown.id_spans(self._conditions)
        for planned in plan_visible(lane, spans):
            runs = planned.runs & pushdown.offsets_of(planned.bucket, lane.bucket_size, ids)
            if runs:
                yield replace(planned, runs=runs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read in a task; pure in its partition. An empty queue plans one empty partition."""
        if isinstance(partition, PlannedPartition):
            yield from read_partition(partition)
