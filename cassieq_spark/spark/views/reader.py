"""``spark.read.format("cassieq").option("view", ...)`` shows a queue's state, a reader per view.

Views lease nothing and write nothing. The driver plans bucket numbers; tasks read their rows, anew
with each action. `LookReader` is ``spark.read.format("cassieq")`` without a view: the messages that
are visible now.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from cassieq_spark.errors import QueueDeleted, QueueNotFound
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.dead import DeadSet
from cassieq_spark.model.ids import ID_LIMIT, BucketNo, QueueName, Runs
from cassieq_spark.options.of_spark import VIEWS_OF_MANY
from cassieq_spark.queue.fetch import Found, Planned, fetch
from cassieq_spark.queue.find import LaneSpec, at_home, every_row, find_row, lane_of, lanes_of
from cassieq_spark.queue.inspect import facts, stats
from cassieq_spark.queue.inspect.facts import plan_visible
from cassieq_spark.queue.lane import Lane, live_buckets
from cassieq_spark.queue.schedule import every_lane, looked_at_lanes
from cassieq_spark.spark import boundary
from cassieq_spark.spark.arrays import integers
from cassieq_spark.spark.columns import Builder, arrow_schema
from cassieq_spark.spark.partition import PlannedPartition, spread
from cassieq_spark.spark.schema import ALL, resolve
from cassieq_spark.spark.views import columns, pushdown
from cassieq_spark.store import portal, store
from cassieq_spark.store.tables.queues import QueueRow, QueueStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from pyspark.sql.types import StructType

    from cassieq_spark.options import QueueSelection, ReadOptions
    from cassieq_spark.queue.inspect.facts import LaneFacts, QueueFacts
    from cassieq_spark.queue.inspect.stats import QueueStats, ScheduledHour
    from cassieq_spark.spark.views.columns import View
    from cassieq_spark.spark.views.pushdown import Condition
    from cassieq_spark.store.store import Store

MOST_BUCKETS: Final = 1_024
FEWEST_BUCKETS: Final = 64
"""Bucket rows for one task, unless more tasks are asked for: each is a quorum read, 64 at once."""

FEWEST_QUEUES: Final = 8

UNSEALED: Final = (facts.OPEN, Status.SEALING.value)


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
        self._conditions, left = pushdown.split(filters, columns.VIEWS[self._options.view].filtered)
        return left


@boundary.spark_facing
class ViewReader(_Reader):
    """All views but ``messages``."""

    @property
    def _asked(self) -> Asked:
        """The columns and filters asked for, made on use: a view's functions do not pickle."""
        return Asked(
            view=columns.VIEWS[self._options.view], names=self._names, conditions=self._conditions
        )

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
    view = columns.VIEWS[options.view]
    names = resolve(schema, view.all, view.whose)
    if view is columns.MESSAGES:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The columns and rows that are asked of a view.

    Attributes:
        names: The columns.
        conditions: Filters that Spark no longer applies.
    """

    view: View
    names: tuple[str, ...]
    conditions: tuple[Condition, ...]

    @property
    def is_looked_into(self) -> bool:
        """Whether the messages of buckets that are not sealed must be read."""
        wanted = {*self.names, *(one.column for one in self.conditions)}
        return bool(wanted & columns.LOOKED_INTO) and any(
            pushdown.hold(self.conditions, {"status": status}) for status in UNSEALED
        )


class BucketsPartition(InputPartition):
    """Live buckets of one queue. Pickled by Spark."""

    def __init__(self, lane: Lane, spans: tuple[range, ...]) -> None:
        self.lane = LaneSpec.of(lane)
        self.spans = spans

    def __repr__(self) -> str:
        """Show no rows: Spark prints partitions."""
        return f"BucketsPartition(queue={self.lane.row.name!r}, spans={len(self.spans)})"

    def read(self, where: Store, asked: Asked) -> Iterator[pa.RecordBatch]:
        """Read for views ``buckets``, ``leases`` and ``dead``.

        Raises:
            QueueDeleted: The queue is gone.
        """
        lane = self.lane.on(where)
        if asked.view is columns.DEAD:
            return _dead(lane, self.spans, asked)
        rows = _lease_rows if asked.view is columns.LEASES else _bucket_rows
        return _let_through(asked, rows(lane, self.spans, asked))


class QueuesPartition(InputPartition):
    """One of ``shares`` parts of the queues of a keyspace. Pickled by Spark."""

    def __init__(self, queues: QueueSelection, share: int, shares: int) -> None:
        self.queues = queues
        self.share = share
        self.shares = shares

    def __repr__(self) -> str:
        """Show no rows: Spark prints partitions."""
        return f"QueuesPartition(queues={self.queues!s}, share={self.share}, of={self.shares})"

    def read(self, where: Store, asked: Asked) -> Iterator[pa.RecordBatch]:
        """Read for views ``queues``, ``lanes``, ``stats`` and ``scheduled``."""
        rows = [
            row
            for row in queue_rows(where, self.queues, asked)
            # By name, so that it is the same in each task, however many queues come and go
            # meanwhile.
            if zlib.crc32(row.name.encode()) % self.shares == self.share
        ]
        return _let_through(asked, _facts_of(where, rows, asked))


def queue_rows(where: Store, queues: QueueSelection, asked: Asked) -> list[QueueRow]:
    """The queues that a view of many queues shows, by name.

    Args:
        queues: Unless they are named, those of other data centres are shown as well, but not by
            `lanes` and `stats`: they cannot be counted here.

    Raises:
        QueueNotFound: A named queue does not exist.
    """
    if queues.names:
        rows = [_row_of(where, name) for name in queues.names]
    else:
        rows = [row for row in portal.run(every_row(where)) if queues.has(row.name)]
    if asked.view is not columns.QUEUES:
        rows = [
            row
            for row in rows
            if row.status is QueueStatus.ACTIVE and (queues.names or at_home(where, row))
        ]
    return [row for row in rows if pushdown.hold(asked.conditions, {"queue": row.name})]


def _row_of(where: Store, queue: QueueName) -> QueueRow:
    found = portal.run(find_row(where, queue))
    if found is None:
        raise QueueNotFound(
            f"there is no queue {queue!r} in keyspace {where.session.keyspace!r}. Leave out "
            "options 'queue' and 'queues' to see all queues"
        )
    return found.value


async def _settings(where: Store, row: QueueRow) -> list[QueueFacts]:
    return [await facts.queue_facts(where, row)]


async def _lanes(where: Store, row: QueueRow) -> list[LaneFacts]:
    return [
        await facts.lane_facts(lane, await stats.visible_in(lane))
        for lane in await every_lane(lane_of(where, row))
    ]


async def _stats(where: Store, row: QueueRow) -> list[QueueStats]:
    return [await stats.stats(lane_of(where, row))]


async def _scheduled(where: Store, row: QueueRow) -> list[ScheduledHour]:
    return await stats.by_hour(lane_of(where, row))


_OF_QUEUES: Final[dict[str, Callable[[Store, QueueRow], Coroutine[Any, Any, list[Any]]]]] = {
    columns.QUEUES.name: _settings,
    columns.LANES.name: _lanes,
    columns.STATS.name: _stats,
    columns.SCHEDULED.name: _scheduled,
}


def _facts_of(where: Store, rows: Iterable[QueueRow], asked: Asked) -> Iterator[tuple[str, object]]:
    for row in rows:
        with suppress(QueueDeleted):  # deleted since it was listed
            for found in portal.run(_OF_QUEUES[asked.view.name](where, row)):
                yield row.name, found


def _bucket_rows(
    lane: Lane, spans: tuple[range, ...], asked: Asked
) -> Iterator[tuple[str, object]]:
    now_us = lane.clock.now_us()
    for bucket, row, waiting in portal.iterate(
        facts.live_rows(lane, spans, scans=asked.is_looked_into)
    ):
        yield (
            lane.queue,
            facts.bucket_facts(lane, bucket, row, waiting, now_us=now_us),
        )


def _lease_rows(lane: Lane, spans: tuple[range, ...], _: Asked) -> Iterator[tuple[str, object]]:
    now_us = lane.clock.now_us()
    for bucket, row in _sealed(lane, spans):
        for found in facts.lease_facts(lane, bucket, row, now_us=now_us):
            yield lane.queue, found


def _let_through(asked: Asked, rows: Iterable[tuple[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows for which all conditions hold."""
    of = {one.column: asked.view.columns[one.column].of for one in asked.conditions}
    return columns.batches(
        asked.view,
        asked.names,
        (
            (queue, found)
            for queue, found in rows
            if pushdown.hold(
                asked.conditions, {name: value(queue, found) for name, value in of.items()}
            )
        ),
    )


def _sealed(lane: Lane, spans: tuple[range, ...]) -> Iterator[tuple[BucketNo, Bucket]]:
    """Yield sealed buckets: only these have leases and dead messages."""
    for bucket, row, _ in portal.iterate(facts.live_rows(lane, spans, scans=False)):
        if row is not None and row.value.status is Status.SEALED:
            yield bucket, row.value


def _dead(lane: Lane, spans: tuple[range, ...], asked: Asked) -> Iterator[pa.RecordBatch]:
    """Messages of dead sets, without those that repair has moved and dropped meanwhile."""
    ids = pushdown.id_spans(asked.conditions)
    builder = Builder.of(lane, tuple(name for name in asked.names if name in ALL.names))
    for bucket, row in _sealed(lane, spans):
        wanted = pushdown.offsets_of(bucket, lane.bucket_size, ids)
        for part in row.dead:
            of_set = {"queue": lane.queue, **_of_set(part)}
            runs = part.runs & wanted
            if not runs or not pushdown.hold(asked.conditions, of_set):
                continue
            planned = Planned(
                lane=lane.lane_id,
                bucket=bucket,
                runs=runs,
                delivery_count=part.deliveries,
                lease_id=None,
                revisions=row.revisions_of(runs),
                is_look=True,
            )
            for found in portal.iterate(fetch(lane.store, lane.queue, lane.fixed, [planned])):
                yield _dead_batch(builder, asked.names, found, part)


def _of_set(part: DeadSet) -> dict[str, str | None]:
    return {"reason": part.reason, "set_id": str(part.set_id), "target": part.target}


def _dead_batch(
    builder: Builder, names: tuple[str, ...], found: Found, part: DeadSet
) -> pa.RecordBatch:
    built = builder.of_found(found)
    count = found.chunk.count if found.keep is None else found.keep.count
    same = _of_set(part)
    schema = arrow_schema(names, columns.DEAD.all)
    arrays = [
        pa.repeat(pa.scalar(same[field.name], field.type), count)
        if field.name in same
        else _died_at(found, part, field.type)
        if field.name == "died_at"
        else built.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _died_at(found: Found, part: DeadSet, kind: pa.DataType) -> pa.Array:
    """When each message that was found died."""
    chunk = found.chunk
    keep = Runs.span(chunk.first, chunk.last) if found.keep is None else found.keep
    times = {offset: us for us, runs in part.deaths() for offset in (runs & keep).offsets()}
    return integers(np.array([times[offset] for offset in keep.offsets()], dtype=np.int64), kind)
