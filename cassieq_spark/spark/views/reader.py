"""``spark.read.format("cassieq").option("view", ...)`` shows a queue's state, a reader per view.

Views lease nothing and write nothing. The driver plans bucket numbers; tasks read their rows, anew
with each action. Without a view, it is the messages that are visible now.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from cassieq_spark.errors import QueueDeleted, QueueNotFound
from cassieq_spark.model.bucket import Bucket, Returned, Status
from cassieq_spark.model.dead import DeadSet
from cassieq_spark.model.ids import ID_LIMIT, BucketNo, QueueName, Runs
from cassieq_spark.options import QueueSelection, ReadOptions
from cassieq_spark.options.option import VIEWS_OF_MANY
from cassieq_spark.queue.fetch import Found, Planned, fetch
from cassieq_spark.queue.find import LaneSpec, at_home, every_row, find_row, lane_of, lanes_of
from cassieq_spark.queue.inspect import facts, stats
from cassieq_spark.queue.inspect.facts import looks_at, plan_visible
from cassieq_spark.queue.lane import Lane, live_buckets
from cassieq_spark.queue.schedule import every_lane, looked_at_lanes
from cassieq_spark.spark import boundary
from cassieq_spark.spark.arrays import integers
from cassieq_spark.spark.columns import Builder, arrow_schema
from cassieq_spark.spark.partition import PlannedPartition, spread
from cassieq_spark.spark.schema import ALL, resolve
from cassieq_spark.spark.views import columns, pushdown
from cassieq_spark.spark.views.columns import View
from cassieq_spark.spark.views.pushdown import Condition
from cassieq_spark.store import portal, store
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.queues import QueueRow, QueueStatus

MOST_BUCKETS: Final = 1_024
FEWEST_BUCKETS: Final = 64
"""Bucket rows for one task, unless more tasks are asked for: each is a quorum read, 64 at once."""

FEWEST_QUEUES: Final = 8

UNSEALED: Final = (facts.OPEN, Status.SEALING.value)


@boundary.spark_facing
class ViewReader(DataSourceReader):
    """A reader of some columns of a view. Planned once per ``load`` in the driver's process."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._conditions: tuple[Condition, ...] = ()

    @property
    def _asked(self) -> Asked:
        """The columns and filters asked for, made on use: a view's functions do not pickle."""
        return Asked(
            view=columns.VIEWS[self._options.view], names=self._names, conditions=self._conditions
        )

    def partitions(self) -> Sequence[InputPartition]:
        """Plan messages, windows of buckets, or shares of the queues.

        Messages are those visible at this moment; a read leaves out what is acked meanwhile.

        Raises:
            QueueNotFound: No queue has that name.
        """
        options, asked = self._options, self._asked
        where = store.shared(options.connection)
        if asked.view.name in VIEWS_OF_MANY:
            queues = len(queue_rows(where, options.queues, asked))
            cores = min(os.cpu_count() or 1, -(-queues // FEWEST_QUEUES))
            shares = max(1, min(queues, options.min_partitions or cores))
            return [QueuesPartition(options.queues, share, shares) for share in range(shares)]
        lanes = selected(where, options.queues, asked.conditions)
        if asked.view is columns.MESSAGES:
            return spread(
                [(lane, list(_looks(lane, asked))) for lane in lanes],
                connection=options.connection,
                names=asked.names,
                at_least=options.min_partitions,
            )
        return [
            BucketsPartition(LaneSpec.of(one), part)
            for lane in lanes
            for one in portal.run(looked_at_lanes(lane))
            for part in windows(
                pushdown.bucket_spans(asked.conditions, lane.bucket_size, ids=asked.view.ids),
                portal.run(live_buckets(one)),
                at_least=options.min_partitions,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read in a task, anew with each action: it shows the state at the moment of the read.

        An empty queue plans one empty partition.
        """
        if isinstance(partition, PlannedPartition):
            yield from partition.read()
        elif isinstance(partition, BucketsPartition | QueuesPartition):
            yield from partition.read(store.shared(self._options.connection), self._asked)


@boundary.spark_facing
class PushingViewReader(ViewReader):
    """A reader that takes filters. Spark refuses one unless filter pushdown is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters; return those left to Spark. Called once before `partitions`."""
        self._conditions, left = pushdown.split(filters, self._asked.view.filtered)
        return left


def _looks(lane: Lane, asked: Asked) -> Iterator[Planned]:
    spans = pushdown.bucket_spans(asked.conditions, lane.bucket_size, ids=asked.view.ids)
    ids = pushdown.id_spans(asked.conditions)
    for planned in portal.iterate(plan_visible(lane, spans)):
        runs = planned.runs & pushdown.offsets_of(planned.bucket, lane.bucket_size, ids)
        if runs:
            yield replace(planned, runs=runs)


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
    now, later = (pushdown.intersect(spans, (at,)) for at in (live, range(live.stop, ID_LIMIT)))
    total = sum(map(len, now))
    wanted = at_least or min(os.cpu_count() or 1, -(-total // FEWEST_BUCKETS))
    share = max(1, -(-total // max(1, wanted, -(-total // MOST_BUCKETS))))
    parts: list[list[range]] = [[]]
    left = share
    for span in now:
        rest = span
        while rest:
            if left == 0:
                parts.append([])
                left = share
            parts[-1].append(rest[:left])
            left, rest = left - len(parts[-1][-1]), rest[left:]
    parts[-1] += later
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
        wanted = {*self.names, *map(pushdown.column, self.conditions)}
        return bool(wanted & columns.LOOKED_INTO) and any(
            pushdown.hold(self.conditions, {"status": status}) for status in UNSEALED
        )


@dataclass(frozen=True, slots=True, repr=False)
class BucketsPartition(InputPartition):
    """Live buckets of one queue. Pickled by Spark."""

    lane: LaneSpec
    spans: tuple[range, ...]

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


@dataclass(frozen=True, slots=True)
class QueuesPartition(InputPartition):
    """A part of the queues of a keyspace, one of ``shares``. Pickled by Spark."""

    queues: QueueSelection
    share: int
    shares: int

    def read(self, where: Store, asked: Asked) -> Iterator[pa.RecordBatch]:
        """Read for views ``queues``, ``lanes``, ``stats`` and ``scheduled``."""
        return _let_through(asked, self._facts(where, asked))

    def _facts(self, where: Store, asked: Asked) -> Iterator[tuple[str, object]]:
        for row in queue_rows(where, self.queues, asked):
            # By name, so that it is the same in each task, however many queues come and go
            # meanwhile.
            if zlib.crc32(row.name.encode()) % self.shares == self.share:
                with suppress(QueueDeleted):  # deleted since it was listed
                    for found in portal.run(_facts_of(asked.view.name, where, row)):
                        yield row.name, found


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
    return [
        row
        for row in rows
        if pushdown.hold(asked.conditions, {"queue": row.name})
        and (asked.view is columns.QUEUES or row.status is QueueStatus.ACTIVE)
        and (asked.view is columns.QUEUES or queues.names or at_home(where, row))
    ]


def _row_of(where: Store, queue: QueueName) -> QueueRow:
    found = portal.run(find_row(where, queue))
    if found is None:
        raise QueueNotFound(
            f"there is no queue {queue!r} in keyspace {where.session.keyspace!r}. Leave out "
            "options 'queue' and 'queues' to see all queues"
        )
    return found.value


async def _facts_of(view: str, where: Store, row: QueueRow) -> Sequence[object]:
    """Return the rows of one queue in a view of many queues."""
    if view == "queues":
        return [await facts.queue_facts(where, row)]
    lane = lane_of(where, row)
    if view == "lanes":
        lanes = await every_lane(lane)
        return [await facts.lane_facts(one, await stats.visible_in(one)) for one in lanes]
    return [await stats.stats(lane)] if view == "stats" else await stats.by_hour(lane)


def _bucket_rows(
    lane: Lane, spans: tuple[range, ...], asked: Asked
) -> Iterator[tuple[str, object]]:
    now_us = lane.clock.now_us()
    found = facts.live_rows(lane, spans, scans=asked.is_looked_into)
    for bucket, row, waiting in portal.iterate(found):
        yield lane.queue, facts.bucket_facts(lane, bucket, row, waiting, now_us=now_us)


def _lease_rows(lane: Lane, spans: tuple[range, ...], _: Asked) -> Iterator[tuple[str, object]]:
    now_us = lane.clock.now_us()
    for bucket, row in _sealed(lane, spans):
        for found in facts.lease_facts(lane, bucket, row, now_us=now_us):
            yield lane.queue, found


def _let_through(asked: Asked, rows: Iterable[tuple[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows for which all conditions hold."""
    of = {name: asked.view.columns[name].of for name in map(pushdown.column, asked.conditions)}
    wanted = (
        (queue, found)
        for queue, found in rows
        if pushdown.hold(asked.conditions, {name: of[name](queue, found) for name in of})
    )
    return columns.batches(asked.view, asked.names, wanted)


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
            [planned] = looks_at(
                lane, bucket, row, [Returned(deliveries=part.deliveries, runs=runs)]
            )
            for found in portal.iterate(fetch(lane.store, lane.queue, lane.fixed, [planned])):
                yield _dead_batch(builder, asked.names, found, part)


def _of_set(part: DeadSet) -> dict[str, str | None]:
    return {"reason": part.reason, "set_id": str(part.set_id), "target": part.target}


def _dead_batch(
    builder: Builder, names: tuple[str, ...], found: Found, part: DeadSet
) -> pa.RecordBatch:
    built, chunk = builder.of_found(found), found.chunk
    offsets = Runs.span(chunk.first, chunk.last) if found.keep is None else found.keep
    schema, same = arrow_schema(names, columns.DEAD.all), _of_set(part)

    def column(field: pa.Field) -> pa.Array:
        if field.name in same:
            return pa.repeat(pa.scalar(same[field.name], field.type), offsets.count)
        if field.name != "died_at":
            return built.column(field.name)
        times = {offset: us for us, runs in part.deaths() for offset in (runs & offsets).offsets()}
        return integers(
            np.array([times[offset] for offset in offsets.offsets()], dtype=np.int64), field.type
        )

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)
