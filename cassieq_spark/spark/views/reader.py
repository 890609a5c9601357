"""``spark.read.format("cassieq").option("view", ...)``: a queue's state, a reader for each view.

They lease nothing and write nothing. The driver plans numbers of buckets, tasks read their rows,
anew with each action. Messages have a reader of their own, in `look`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cassieq_spark.model.ids import ID_LIMIT
from cassieq_spark.queue.lane import live_buckets, open_lane
from cassieq_spark.spark import boundary, columns
from cassieq_spark.spark.views import pushdown
from cassieq_spark.spark.views.columns import MESSAGES, QUEUES, STATS, VIEWS
from cassieq_spark.spark.views.messages import LookReader
from cassieq_spark.spark.views.rows import (
    Asked,
    BucketsPartition,
    QueuesPartition,
    queue_rows,
)
from cassieq_spark.store import store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from cassieq_spark.model.ids import QueueName
    from cassieq_spark.options import ReadOptions
    from cassieq_spark.spark.views.pushdown import Condition

MOST_BUCKETS: Final = 1_024
FEWEST_BUCKETS: Final = 64
"""Bucket rows for one task, unless it is asked for more tasks: a quorum read each, 64 at once."""

FEWEST_QUEUES: Final = 8


@boundary.spark_facing
class ViewReader(DataSourceReader):
    """All views but ``messages``. Planned once per ``load`` in the driver's Python process."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._conditions: tuple[Condition, ...] = ()

    @property
    def _asked(self) -> Asked:
        """By name, and made where it is used: a view's functions do not pickle."""
        return Asked(view=VIEWS[self._options.view], names=self._names, conditions=self._conditions)

    def partitions(self) -> list[InputPartition]:
        """Windows of buckets, or shares of the queues.

        Raises:
            QueueNotFound: There is no queue of that name.
        """
        where = store.shared(self._options.connection)
        if self._asked.view in (QUEUES, STATS):
            return list(self._shares(len(queue_rows(where, self._options.queue, self._asked))))
        lane = open_lane(where, cast("QueueName", self._options.queue))
        if not pushdown.hold(self._conditions, {"queue": lane.queue}):
            return []
        spans = pushdown.bucket_spans(self._conditions, lane.bucket_size, ids=self._asked.view.ids)
        live = live_buckets(lane)
        found = windows(spans, live, at_least=self._options.min_partitions)
        return [BucketsPartition(lane, part) for part in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in tasks; what it shows is of the moment in which it reads it."""
        if isinstance(partition, BucketsPartition | QueuesPartition):
            yield from partition.read(store.shared(self._options.connection), self._asked)

    def _shares(self, queues: int) -> Iterator[QueuesPartition]:
        cores = min(os.cpu_count() or 1, -(-queues // FEWEST_QUEUES))
        shares = max(1, min(queues, self._options.min_partitions or cores))
        for share in range(shares):
            yield QueuesPartition(self._options.queue, share, shares)


@boundary.spark_facing
class PushingViewReader(ViewReader):
    """It takes filters, and Spark refuses it unless filter pushdown is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Called once before `partitions`; what is returned is left to Spark."""
        self._conditions, left = pushdown.split(filters, self._asked.view.filtered)
        return left


@boundary.spark_facing
class PushingLookReader(LookReader):
    """As `PushingViewReader`, of view ``messages``."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Called once before `partitions`; what is returned is left to Spark."""
        self._conditions, left = pushdown.split(filters, MESSAGES.filtered)
        return left


def schema_of(view: str) -> StructType:
    """All columns of a view."""
    return VIEWS[view].schema


def reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    """The reader of a view.

    Raises:
        OptionInvalid: The schema names a column that the view does not have, or another type.
    """
    view = VIEWS[options.view]
    names = columns.resolve(schema, view.schema, view.whose)
    if view is MESSAGES:
        return (PushingLookReader if options.push_filters else LookReader)(options, names)
    return (PushingViewReader if options.push_filters else ViewReader)(options, names)


def windows(
    spans: tuple[range, ...], live: range, *, at_least: int | None
) -> list[tuple[range, ...]]:
    """Buckets by task, about as many live ones for each.

    What comes after those that are live now is the last task's: Spark plans once per ``load``, and
    a later action on it shall see later buckets.

    Args:
        at_least: So many tasks, as far as there are buckets. Unset: one for each core of the
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
