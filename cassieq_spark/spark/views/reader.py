"""``spark.read.format("cassieq").option("view", ...)`` shows a queue's state, a reader per view.

Views lease nothing and write nothing. The driver plans bucket numbers; tasks read their rows, anew
with each action. `LookReader` is ``spark.read.format("cassieq")`` without a view: the messages that
are visible now.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cassieq_spark.model.ids import ID_LIMIT
from cassieq_spark.options.of_spark import VIEWS_OF_MANY
from cassieq_spark.queue.find import lanes_of
from cassieq_spark.queue.inspect.visible import plan_visible
from cassieq_spark.queue.lane import live_buckets
from cassieq_spark.queue.schedule import looked_at_lanes
from cassieq_spark.spark import boundary
from cassieq_spark.spark.partition import PlannedPartition, spread
from cassieq_spark.spark.schema import resolve
from cassieq_spark.spark.views import pushdown
from cassieq_spark.spark.views.columns import MESSAGES, VIEWS
from cassieq_spark.spark.views.rows import (
    Asked,
    BucketsPartition,
    QueuesPartition,
    queue_rows,
)
from cassieq_spark.store import portal, store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from cassieq_spark.options import QueueSelection, ReadOptions
    from cassieq_spark.queue.fetch import Planned
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.spark.views.pushdown import Condition
    from cassieq_spark.store.store import Store

MOST_BUCKETS: Final = 1_024
FEWEST_BUCKETS: Final = 64
"""Bucket rows for one task, unless more tasks are asked for: each is a quorum read, 64 at once."""

FEWEST_QUEUES: Final = 8


class _Reader(DataSourceReader):
    """A reader of some columns of a view. Planned once per ``load`` in the driver's process."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._conditions: tuple[Condition, ...] = ()


@boundary.spark_facing
class _Pushing(_Reader):
    """A reader that takes filters. Spark refuses one unless filter pushdown is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters; return those left to Spark. Called once before `partitions`."""
        self._conditions, left = pushdown.split(filters, VIEWS[self._options.view].filtered)
        return left


@boundary.spark_facing
class ViewReader(_Reader):
    """All views but ``messages``."""

    @property
    def _asked(self) -> Asked:
        """The columns and filters asked for, made on use: a view's functions do not pickle."""
        return Asked(view=VIEWS[self._options.view], names=self._names, conditions=self._conditions)

    def partitions(self) -> list[InputPartition]:
        """Plan windows of buckets, or shares of the queues.

        Raises:
            QueueNotFound: No queue has that name.
        """
        where = store.shared(self._options.connection)
        if self._asked.view.name in VIEWS_OF_MANY:
            return list(self._shares(len(queue_rows(where, self._options.queues, self._asked))))
        return [
            BucketsPartition(one, part)
            for lane in selected(where, self._options.queues, self._conditions)
            for one in portal.run(looked_at_lanes(lane))
            for part in windows(
                pushdown.bucket_spans(self._conditions, lane.bucket_size, ids=self._asked.view.ids),
                portal.run(live_buckets(one)),
                at_least=self._options.min_partitions,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read in a task, anew with each action: it shows the state at the moment of the read."""
        if isinstance(partition, BucketsPartition | QueuesPartition):
            yield from partition.read(store.shared(self._options.connection), self._asked)

    def _shares(self, queues: int) -> Iterator[QueuesPartition]:
        cores = min(os.cpu_count() or 1, -(-queues // FEWEST_QUEUES))
        shares = max(1, min(queues, self._options.min_partitions or cores))
        for share in range(shares):
            yield QueuesPartition(self._options.queues, share, shares)


@boundary.spark_facing
class LookReader(_Reader):
    """Reads visible messages."""

    def partitions(self) -> list[InputPartition]:
        """Plan the messages visible at this moment; a read leaves out what is acked meanwhile."""
        where = store.shared(self._options.connection)
        lanes = selected(where, self._options.queues, self._conditions)
        return list(
            spread(
                [(lane, list(self._plan(lane))) for lane in lanes],
                connection=self._options.connection,
                names=self._names,
                at_least=self._options.min_partitions,
            )
        )

    def _plan(self, lane: Lane) -> Iterator[Planned]:
        spans = pushdown.bucket_spans(self._conditions, lane.bucket_size, ids=("id",))
        ids = pushdown.id_spans(self._conditions)
        for planned in portal.iterate(plan_visible(lane, spans)):
            runs = planned.runs & pushdown.offsets_of(planned.bucket, lane.bucket_size, ids)
            if runs:
                yield replace(planned, runs=runs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read in a task; pure in its partition. An empty queue plans one empty partition."""
        if isinstance(partition, PlannedPartition):
            yield from partition.read()


class PushingViewReader(_Pushing, ViewReader):
    """As `ViewReader`, with filters."""


class PushingLookReader(_Pushing, LookReader):
    """As `LookReader`, with filters."""


def selected(where: Store, queues: QueueSelection, conditions: tuple[Condition, ...]) -> list[Lane]:
    """The first lanes of the queues to read, without those that a filter excludes.

    Raises:
        QueueNotFound: A named queue does not exist.
    """
    return [
        lane
        for lane in portal.run(lanes_of(where, list(queues.names) or None))
        if queues.has(lane.queue) and pushdown.hold(conditions, {"queue": lane.queue})
    ]


def reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    """Return the reader of a view.

    Raises:
        OptionInvalid: The schema names a column that the view does not have, or another type.
    """
    view = VIEWS[options.view]
    names = resolve(schema, view.all, view.whose)
    if view is MESSAGES:
        return (PushingLookReader if options.push_filters else LookReader)(options, names)
    return (PushingViewReader if options.push_filters else ViewReader)(options, names)


def windows(
    spans: tuple[range, ...], live: range, *, at_least: int | None
) -> list[tuple[range, ...]]:
    """Divide buckets among tasks, with about as many live ones for each.

    The last task gets whatever comes after the live buckets: Spark plans once per ``load``, and a
    later action on it should see later buckets.

    Args:
        at_least: The least number of tasks, as far as there are buckets. Unset: one per core of the
            driver's machine, if that gives each some work.
    """
    spans = pushdown.intersect(spans, (range(live.start, ID_LIMIT),))
    total = sum(len(span) for span in pushdown.intersect(spans, (live,)))
    wanted = at_least or min(os.cpu_count() or 1, -(-total // FEWEST_BUCKETS))
    share = max(1, -(-total // max(1, wanted, -(-total // MOST_BUCKETS))))
    parts: list[list[range]] = [[]]
    left = share
    for span in spans:
        first = span.start
        while first < min(span.stop, live.stop):
            if left == 0:
                parts.append([])
                left = share
            end = min(first + left, span.stop, live.stop)
            parts[-1].append(range(first, end))
            left -= end - first
            first = end
        if first < span.stop:
            parts[-1].append(range(first, span.stop))
    return [tuple(part) for part in parts if part]
