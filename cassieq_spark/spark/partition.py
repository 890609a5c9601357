"""Spread planned messages over input partitions (design 7)."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cassieq_spark.model.ids import QueueName
    from cassieq_spark.model.lanes import Fixed
    from cassieq_spark.options import ConnectionOptions
    from cassieq_spark.queue.fetch import Planned
    from cassieq_spark.queue.lane import Lane

MOST_PER_PARTITION: Final = 500_000
"""The most for one task, so that a large batch keeps more cores busy than the driver's machine has,
and a task that fails does not begin again with all of it."""

FEWEST_PER_PARTITION: Final = 10_000
"""The least for a task of its own. Beyond one task per core, each costs Spark 10 ms, and 50 ms if
Spark's Python tasks are fed by TCP; in 50 ms a worker reads 100,000 messages (two cores, measured).
So there are no more tasks than cores except for large batches, and fewer for very small ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Everything that a task needs to read a queue, so that it reads no rows of its state."""

    queue: QueueName
    lanes: Fixed
    bucket_size: int

    @classmethod
    def of(cls, lane: Lane) -> Where:
        """Describe the queue of a lane."""
        return cls(queue=lane.queue, lanes=lane.fixed, bucket_size=lane.bucket_size)


class PlannedPartition(InputPartition):
    """Messages for one task, by queue. Pickled by Spark."""

    def __init__(
        self,
        connection: ConnectionOptions,
        names: tuple[str, ...],
        plan: tuple[tuple[Where, tuple[Planned, ...]], ...],
    ) -> None:
        self.connection = connection
        self.names = names
        self.plan = plan

    def __repr__(self) -> str:
        """Show counts only: Spark prints partitions."""
        messages = {
            where.queue: sum(planned.runs.count for planned in some) for where, some in self.plan
        }
        return f"PlannedPartition(messages={messages})"


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
    parts: list[dict[Where, list[Planned]]] = [{}]
    left = share
    for lane, some in sorted(plan, key=lambda part: part[0].queue):
        where = Where.of(lane)
        order = {lane_id: lane.fixed.rank(lane_id) for lane_id in {one.lane for one in some}}
        for planned in sorted(some, key=lambda one: (order[one.lane], one.bucket, one.runs.first)):
            rest = planned.runs
            while rest:
                if left == 0:
                    parts.append({})
                    left = share
                taken, rest = rest.take(left)
                parts[-1].setdefault(where, []).append(replace(planned, runs=taken))
                left -= taken.count
    return [
        PlannedPartition(
            connection, names, tuple((where, tuple(some)) for where, some in part.items())
        )
        for part in parts
    ]
