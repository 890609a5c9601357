"""The Arrow writer runs ``writeStream`` and ``write`` with ``format("cassieq")``.

See docs/design/sink.md.

For every micro-batch Spark makes the writer in one driver-side process, pickles it into the tasks,
and makes it again in another process for the commit: nothing kept in the object survives, so the
tasks' messages carry what the commit must know (Spark 4.2, 4.3).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import OptionInvalid, UsageError
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.sink_txn import Admission, AlreadyCommitted, Begun, Identity, TaskResult
from cassieq_spark.options import SinkOptions
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.sink import transaction
from cassieq_spark.queue.sink.transaction import heartbeat
from cassieq_spark.queue.sink.writer import BulkWriter, LaneWriter, Meter
from cassieq_spark.spark import boundary
from cassieq_spark.spark.lane_packer import LanePacker, SortedLanes, Sorting
from cassieq_spark.spark.packer import ChunkTaker, check_sink_schema
from cassieq_spark.spark.worker import partition_id, settle_in, task_store
from cassieq_spark.store import portal, store

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
JOB_GROUP = "spark.jobGroup.id"
JOB_TAGS = "spark.job.tags"
"""Local properties that tasks of a streaming query see (measured on 4.2 and 4.3)."""

ROOT_TAG: Final = re.compile(r"\bspark-session-([0-9a-f-]{36})-execution-root-id-\d+\b")
"""Spark's tag of the outermost SQL execution. In a streaming query, that is the batch's."""

TASKS: Final = 2
"""A guess follows this many tasks: most tasks of a stream are alike."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The report of one winning task attempt to the commit."""

    result: TaskResult


@boundary.spark_facing
class StreamWriter(DataSourceStreamArrowWriter):
    """Write each micro-batch as one transaction; exactly once by sink id and batch id (I7)."""

    def __init__(self, options: SinkOptions, schema: StructType, checkpoint: str | None) -> None:
        check_sink_schema(schema)
        if options.batch_id is not None:
            raise UsageError(
                "option 'batchId' is for df.write inside foreachBatch; a streaming query has its "
                "own batch ids. Leave it out"
            )
        self._options = options
        self._checkpoint = checkpoint

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition. Runs in a task, once per attempt; each has its own buckets [P8]."""
        meter, batches = Meter(), Ahead(iterator)
        context = _context()
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        if query_id is None or batch_id is None:
            raise UsageError(
                "this Spark does not tell its tasks the query and batch id, which exactly-once "
                "needs. Micro-batch queries of Spark 4.2 and later tell them; asynchronous "
                "progress tracking, continuous and real-time mode are not supported"
            )
        lane = portal.run(open_lane(task_store(self._options.connection), self._options.queue))
        who = Identity(
            sink_id=self._options.sink_id or query_id,
            lane=lane.first.lane_id,
            query_id=query_id,
            checkpoint=_canonical(self._checkpoint),
            run=context.getLocalProperty(JOB_GROUP),
        )
        admission = portal.run(transaction.admit(lane, who, int(batch_id)))
        return _write(lane, self._options, who, admission, batches, meter=meter)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit. Runs in the driver, in another process than the one that plans the write."""
        _commit(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: what is not committed is invisible, and void once its epoch is decided."""


@boundary.spark_facing
class BatchWriter(DataSourceArrowWriter):
    """``df.write``: one transaction; with ``sinkId`` and ``batchId`` written only once (I7)."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_sink_schema(schema)
        self._options = options
        self._transaction: Begun | tuple[str, int]
        if (named := _named(options)) is not None:
            self._transaction = named
        else:
            # The driver creates the row and no task may: a task must not begin a transaction again
            # that is over (docs/design/sink.md).
            lane = portal.run(open_lane(store.shared(options.connection), options.queue))
            begins = transaction.begin_once(lane, f"once:{new_uuid()}")
            self._transaction = portal.run(begins)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition. Runs in a task, once per attempt; each has its own buckets [P8]."""
        options, meter, batches = self._options, Meter(), Ahead(iterator)
        lane = portal.run(open_lane(task_store(options.connection), options.queue))
        ours = self._transaction
        if isinstance(ours, Begun):
            once = portal.run(transaction.admit_once(lane, ours))
            return _write(lane, options, ours.who, once, batches, meter=meter)
        sink_id, batch_id = ours
        who = identity(lane, sink_id, _context())
        admission = portal.run(transaction.admit(lane, who, batch_id, refuse_second_write=True))
        return _write(lane, options, who, admission, batches, meter=meter)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit. Runs in the driver, in another process, on a pickled copy of this writer."""
        settle_in()
        ours = self._transaction
        under = ours if isinstance(ours, Begun) else ours[1]
        _commit(self._options, messages, under, refuse_second_write=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing, as in `StreamWriter.abort`."""


def _named(options: SinkOptions) -> tuple[str, int] | None:
    """The batch that a program has named: it is written once."""
    if options.sink_id is None:
        return None
    if options.batch_id is None:
        raise OptionInvalid(
            f"option 'sinkId' is {options.sink_id!r}, but 'batchId' is not set: every write but "
            "the first one would be taken for a replay of it, and lost. Set both, and a batch is "
            "written once; or neither, and each write is a new transaction"
        )
    return options.sink_id, options.batch_id


def _write(
    lane: Lane,
    options: SinkOptions,
    who: Identity,
    admission: Admission,
    batches: Ahead,
    *,
    meter: Meter,
) -> Written:
    if isinstance(admission, AlreadyCommitted):
        batches.wait()
        return Written(TaskResult(who=who, epoch=None))
    writer = BulkWriter(
        lane,
        sink_id=who.sink_id,
        epoch=admission.epoch,
        bucket_bytes=options.bucket_bytes,
        writes_in_flight=options.writes_in_flight,
    )
    with portal.entered(heartbeat(lane, who.sink_id)), portal.entered(writer):
        if len(lane.lanes) == 1 and (expected := _expected(lane, who.sink_id)):
            portal.run(writer.of(lane.lane_id).begin(expected=expected))
        sorts = Sorting(lane.settings, partition_id())
        lanes = SortedLanes(lane, sorts)
        packer = LanePacker(
            lambda number: _taker(writer.of(portal.run(lanes.lane(number)).lane_id)),
            sorts,
            lane.clock.now_us,
            chunk_messages=options.chunk_messages,
            chunk_bytes=options.chunk_bytes,
            expect=lambda numbers: _begin(writer, lanes.make(numbers)),
        )
        for batch in batches:
            packer.add(batch)
        packer.flush()
        buckets = portal.run(writer.finish())
    filled = sum(place.lane == lane.lane_id for place, _ in buckets)  # others are due lanes
    _filled.append((lane.lane_id, who.sink_id, filled))
    return Written(TaskResult(who=who, epoch=admission.epoch, buckets=buckets, costs=meter.read()))


def _taker(writer: LaneWriter) -> ChunkTaker:
    """Hand a task's chunks to the writer of one lane."""
    return ChunkTaker(
        capacity=writer.capacity,
        add=lambda *chunk: portal.run(writer.add(*chunk)),
        close=lambda: portal.run(writer.close()),
    )


def _begin(writer: BulkWriter, lanes: Iterable[Lane]) -> None:
    for lane in lanes:
        portal.run(writer.of(lane.lane_id).begin())


def _commit(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    under: Begun | int,
    *,
    refuse_second_write: bool = False,
) -> None:
    results = [message.result for message in messages if isinstance(message, Written)]
    if not results:
        return
    lane = portal.run(open_lane(store.shared(options.connection), options.queue))
    who = results[0].who
    with portal.entered(heartbeat(lane, who.sink_id)):
        if isinstance(under, Begun):
            portal.run(transaction.commit_once(lane, under, results))
            return
        portal.run(
            transaction.commit(lane, who, under, results, refuse_second_write=refuse_second_write)
        )


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise UsageError("the writer runs outside a Spark task, which Spark never does")
    return context


def identity(lane: Lane, sink_id: str, context: TaskContext | SparkContext) -> Identity:
    """Return who writes to a queue, in ``foreachBatch`` or outside of any query.

    Raises:
        UsageError: See `run_of_batch`.
    """
    query_id = context.getLocalProperty(QUERY_ID)
    return Identity(
        sink_id=sink_id,
        lane=lane.first.lane_id,
        query_id=query_id,
        run=None if query_id is None else run_of_batch(context),
    )


def run_of_batch(context: TaskContext | SparkContext) -> str:
    """Return one text for all that a run of a query does in ``foreachBatch``.

    Spark tags a batch's SQL execution with the session that it makes for each run (4.2, 4.3). A
    program's own job group, which replaces the one that names the run, leaves the tag alone.

    Raises:
        UsageError: Neither is there. A second write of a batch would be taken for a replay.
    """
    tags, group = (context.getLocalProperty(name) or "" for name in (JOB_TAGS, JOB_GROUP))
    tag = ROOT_TAG.search(tags)
    try:
        return tag[1] if tag else str(UUID(group))
    except ValueError:
        raise UsageError(
            "the run of this streaming query is unknown, because the program has removed Spark's "
            f"own job tags and has set the job group {group!r}: a second write of a batch could "
            "not be told from a replay, and would be lost. Leave Spark's tags: remove only your "
            "own ones, with removeJobTag"
        ) from None


_filled: Final[deque[tuple[LaneId, str, int]]] = deque(maxlen=TASKS)
"""The number of buckets that each of this worker's last tasks has filled in the first lane of a
queue, by sink.

A task that is expected to have rows reserves its buckets at once, and opens the first one before
the first row; a wrong guess costs an LWT for each bucket, and two more."""


def _expected(lane: Lane, sink_id: str) -> int:
    """Return the least number of buckets that the next task will fill; 0: none, or unknown.

    The fewest of the last two: a bucket too few is opened a little later, and one too many costs
    two LWTs.
    """
    sink = lane.lane_id, sink_id
    return min((filled for *where, filled in _filled if tuple(where) == sink), default=0)


class Ahead:
    """The record batches of an input partition, the first of which is on its way already.

    Spark makes rows when a task asks for them: by then it has opened its files, and made the first
    10,000 rows of them, for as long as an admission takes (docs/design/sink.md).

    The thread is a daemon. A task that is refused ends its worker, and must not wait for a row that
    may take hours.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Ask for the first batch."""
        self._batches = batches
        self._first: Future[pa.RecordBatch | None] = Future()
        portal.apart(self._pull)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches in their order, in the caller's thread.

        Raises:
            Exception: What the input raised instead of its first batch.
        """
        first = self._first.result()
        del self._first  # it may be 64 MB, and all others are to come
        if first is not None:
            yield first
            del first  # as above
            yield from self._batches

    def wait(self) -> None:
        """Return once nothing reads the input any more: Spark's worker is about to, itself."""
        self._first.exception()

    def _pull(self) -> None:
        try:
            self._first.set_result(next(self._batches, None))
        except BaseException as error:  # noqa: BLE001 - it is raised where the rows are read
            self._first.set_exception(error)


def _canonical(checkpoint: str | None) -> str | None:
    """Spell the same place in one way."""
    if checkpoint is None:
        return None
    return checkpoint.removeprefix("file://").removeprefix("file:").rstrip("/") or "/"
