"""Do a task's part of a view: read bucket rows or queue rows, and make record batches of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cassieq_spark.errors import QueueDeleted, QueueNotFound
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.dead import DeadSet
from cassieq_spark.model.ids import Runs
from cassieq_spark.queue.fetch import Found, Planned, fetch
from cassieq_spark.queue.find import LaneSpec, at_home, every_row, find_row, lane_of
from cassieq_spark.queue.inspect import facts, stats
from cassieq_spark.queue.inspect.stats import by_hour
from cassieq_spark.queue.schedule import every_lane
from cassieq_spark.spark.arrays import integers
from cassieq_spark.spark.columns import Builder
from cassieq_spark.spark.schema import ALL
from cassieq_spark.spark.views import pushdown
from cassieq_spark.spark.views.columns import (
    DEAD,
    LANES,
    LEASES,
    LOOKED_INTO,
    QUEUES,
    SCHEDULED,
    STATS,
    View,
    arrow_schema,
    batches,
)
from cassieq_spark.store import chunk as chunks
from cassieq_spark.store import portal
from cassieq_spark.store.tables.queues import QueueStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cassieq_spark.model.ids import BucketNo, QueueName
    from cassieq_spark.options import QueueSelection
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.spark.views.pushdown import Condition
    from cassieq_spark.store.store import Store
    from cassieq_spark.store.tables.queues import QueueRow

UNSEALED: Final = (facts.OPEN, Status.SEALING.value)


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
        return bool(wanted & LOOKED_INTO) and any(
            pushdown.hold(self.conditions, {"status": status}) for status in UNSEALED
        )


class BucketsPartition(InputPartition):
    """Live buckets of one queue. Pickled by Spark."""

    def __init__(self, lane: Lane, spans: tuple[range, ...]) -> None:
        self.lane = LaneSpec.of(lane)
        self.spans = spans

    def __repr__(self) -> str:
        """Show no rows: Spark prints partitions."""
        return f"BucketsPartition(queue={self.lane.queue!r}, spans={len(self.spans)})"

    def read(self, where: Store, asked: Asked) -> Iterator[pa.RecordBatch]:
        """Read for views ``buckets``, ``leases`` and ``dead``.

        Raises:
            QueueDeleted: The queue is gone.
        """
        lane = self.lane.on(where)
        if asked.view is DEAD:
            return _dead(lane, self.spans, asked)
        rows = _lease_rows if asked.view is LEASES else _bucket_rows
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
        found = _OF_QUEUES[asked.view.name]
        return _let_through(asked, found(where, rows))


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
    if asked.view is not QUEUES:
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


def _settings(where: Store, rows: Iterable[QueueRow]) -> Iterator[tuple[str, object]]:
    for row in rows:
        yield row.name, portal.run(facts.queue_facts(where, row))


def _lanes(where: Store, rows: Iterable[QueueRow]) -> Iterator[tuple[str, object]]:
    for row in rows:
        try:
            first = lane_of(where, row)
            for lane in portal.run(every_lane(first)):
                yield (
                    row.name,
                    portal.run(facts.lane_facts(lane, portal.run(stats.visible_in(lane)))),
                )
        except QueueDeleted:
            continue  # deleted since it was listed


def _stats(where: Store, rows: Iterable[QueueRow]) -> Iterator[tuple[str, object]]:
    for row in rows:
        try:
            yield row.name, portal.run(stats.stats(lane_of(where, row)))
        except QueueDeleted:
            continue  # deleted since it was listed


def _scheduled(where: Store, rows: Iterable[QueueRow]) -> Iterator[tuple[str, object]]:
    for row in rows:
        try:
            for found in portal.run(by_hour(lane_of(where, row))):
                yield row.name, found
        except QueueDeleted:
            continue  # deleted since it was listed


_OF_QUEUES: Final = {
    QUEUES.name: _settings,
    LANES.name: _lanes,
    STATS.name: _stats,
    SCHEDULED.name: _scheduled,
}


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
    return batches(
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
    builder = Builder(
        tuple(name for name in asked.names if name in ALL.names),
        lane.queue,
        lane.lane_id,
        bucket_size=lane.bucket_size,
        priority=lane.priority,
    )
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
    built = builder.build(
        chunks.decode(found.chunk.payload),
        bucket=found.planned.bucket,
        first=found.chunk.first,
        keep=found.keep,
        lease=None,
        delivery_count=part.deliveries,
        enqueued_us=found.chunk.enqueued_us,
        bodies=found.bodies,
    )
    count = found.chunk.count if found.keep is None else found.keep.count
    same = _of_set(part)
    schema = arrow_schema(DEAD, names)
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
