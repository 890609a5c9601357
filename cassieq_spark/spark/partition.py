"""Spread planned messages over input partitions, and read a partition in a task.

See docs/design/source.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from cassieq_spark.options import ConnectionOptions
    from cassieq_spark.queue.fetch import Planned
    from cassieq_spark.queue.find import LaneSpec
    from cassieq_spark.queue.lane import Lane

MOST_PER_PARTITION: Final = 500_000
"""The most for one task, so that a large batch keeps more cores busy than the driver's machine has,
and a task that fails does not begin again with all of it."""

FEWEST_PER_PARTITION: Final = 10_000
"""The least for a task of its own. Beyond one task per core, each costs Spark 10 ms, and 50 ms if
Spark's Python tasks are fed by TCP; in 50 ms a worker reads 100,000 messages (two cores, measured).
So there are no more tasks than cores except for large batches, and fewer for very small ones."""


@dataclass(frozen=True, repr=False)
class PlannedPartition(InputPartition):
    """Messages for one task, by queue. Pickled by Spark."""

    connection: ConnectionOptions
    names: tuple[str, ...]
    plan: tuple[tuple[LaneSpec, tuple[Planned, ...]], ...]

    def __repr__(self) -> str:
        """Show counts only: Spark prints partitions."""
        messages = {
            lane.row.name: sum(planned.runs.count for planned in some) for lane, some in self.plan
        }
        return f"PlannedPartition(messages={messages})"

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the planned messages, a record batch per stored chunk, with the requested columns.

        Runs in a Python worker, as often as Spark retries, speculates or runs another action; the
        same rows each time (I8). The worker's store is kept between tasks.

        Raises:
            DataLoss: A planned message does not exist.
        """
        # Only tasks need these; planning does not wait for their imports.
        from cassieq_spark.queue.fetch import fetch  # noqa: PLC0415 - as said
        from cassieq_spark.spark.columns import Builder  # noqa: PLC0415 - as said
        from cassieq_spark.spark.worker import task_store  # noqa: PLC0415 - as said
        from cassieq_spark.store import portal  # noqa: PLC0415 - as said

        here = task_store(self.connection)
        for spec, plan in self.plan:
            first = spec.on(here)
            builders = {
                lane_id: Builder.of(first.sibling(lane_id), self.names)
                for lane_id in {planned.lane for planned in plan}
            }
            for found in portal.iterate(fetch(here, first.queue, first.fixed, plan)):
                yield builders[found.planned.lane].of_found(found)


def spread(
    plan: Sequence[tuple[Lane, Sequence[Planned]]],
    *,
    connection: ConnectionOptions,
    names: tuple[str, ...],
    at_least: int | None,
) -> list[PlannedPartition]:
    """Make partitions of about equal size, ids ascending in each lane, the highest class first.

    Queue by queue, in the order of their names: the same in a replay (I8).

    Args:
        plan: What to read of each queue.
        at_least: The least number of partitions, as far as there are messages for them. Unset: one
            per core of the driver's machine, if that makes them neither tiny nor huge.
    """
    total = sum(planned.runs.count for _, some in plan for planned in some)
    if not total:
        return []
    if at_least is None:
        at_least = min(os.cpu_count() or 1, -(-total // FEWEST_PER_PARTITION))
    wanted = min(total, max(at_least, -(-total // MOST_PER_PARTITION)))
    share = -(-total // wanted)
    from cassieq_spark.queue.find import LaneSpec  # noqa: PLC0415 - tasks unpickle without it

    parts: list[dict[LaneSpec, list[Planned]]] = [{}]
    left = share
    for lane, some in sorted(plan, key=lambda part: part[0].queue):
        spec = LaneSpec.of(lane)
        order = {lane_id: lane.fixed.rank(lane_id) for lane_id in {one.lane for one in some}}
        for planned in sorted(some, key=lambda one: (order[one.lane], one.bucket, one.runs.first)):
            rest = planned.runs
            while rest:
                if left == 0:
                    parts.append({})
                    left = share
                taken, rest = rest.take(left)
                parts[-1].setdefault(spec, []).append(replace(planned, runs=taken))
                left -= taken.count
    return [
        PlannedPartition(
            connection, names, tuple((spec, tuple(some)) for spec, some in part.items())
        )
        for part in parts
    ]
