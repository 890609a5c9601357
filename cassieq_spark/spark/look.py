"""``spark.read.format("cassieq")``: a look at what is visible now; it leases nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cassieq_spark.queue.lane import open_lane
from cassieq_spark.queue.look import plan_visible
from cassieq_spark.spark.partition import PlannedPartition, read_partition, spread
from cassieq_spark.store import store

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from cassieq_spark.options import ReadOptions


class LookReader(DataSourceReader):
    """Planned once in the driver's Python process, then read by tasks."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> list[InputPartition]:
        """The visible messages of this moment; what is acked meanwhile is left out when read."""
        lane = open_lane(store.shared(self._options.connection), self._options.queue)
        return list(
            spread(
                plan_visible(lane),
                lane=lane,
                connection=self._options.connection,
                names=self._names,
                at_least=self._options.min_partitions,
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task; pure in its partition. An empty queue plans one empty partition."""
        if isinstance(partition, PlannedPartition):
            yield from read_partition(partition)
