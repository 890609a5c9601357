"""Read the messages of an input partition, in a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.queue.fetch import fetch
from cassieq_spark.spark.columns import Builder
from cassieq_spark.spark.worker import task_store
from cassieq_spark.store import chunk as chunks
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from cassieq_spark.spark.partition import PlannedPartition


def read_partition(partition: PlannedPartition) -> Iterator[pa.RecordBatch]:
    """Yield the planned messages, a record batch per stored chunk, with only the requested columns.

    Runs in a Python worker, as often as Spark retries, speculates or runs another action; the same
    rows each time (I8). The worker's store is kept between tasks.

    Raises:
        DataLoss: A planned message does not exist.
    """
    reader = task_store(partition.connection)
    for where, plan in partition.plan:
        builders = {
            lane: Builder(
                partition.names,
                where.queue,
                lane,
                bucket_size=where.bucket_size,
                priority=where.lanes.priority_of(lane),
            )
            for lane in {planned.lane for planned in plan}
        }
        for found in portal.iterate(fetch(reader, where.queue, where.lanes, plan)):
            planned, row = found.planned, found.chunk
            yield builders[planned.lane].build(
                chunks.decode(row.payload),
                bucket=planned.bucket,
                first=row.first,
                keep=found.keep,
                bodies=found.bodies,
                lease=planned.lease_id,
                delivery_count=planned.delivery_count,
                enqueued_us=row.enqueued_us,
            )
