"""Write micro-batches by the connector, for ``df.writeStream.foreachBatch(...)``. I7.

See docs/design/sink.md.

The driver plays the part of a task of the Arrow writer: it is admitted, reserves and opens the
buckets, lets Spark tasks write the rows through the Spark Cassandra Connector, prepares and
commits. A row is fixed before it has a place: ``localCheckpoint`` keeps packed rows, so a lost
block fails the batch, and each attempt to write a row writes the same bytes [P8].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Final, Unpack

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from cassieq_spark.errors import ConnectorMissing, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket_plan import BucketPlan, PackedChunk, assign
from cassieq_spark.model.ids import Place
from cassieq_spark.model.sink_txn import AlreadyCommitted, Costs, Identity, TaskResult
from cassieq_spark.options import ConnectionArguments, SinkOptions, Spelling, parse_sink
from cassieq_spark.options.option import by_option
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.sink import transaction
from cassieq_spark.queue.sink.transaction import heartbeat
from cassieq_spark.queue.sink.writer import Meter, OpenBucket, open_buckets, prepare
from cassieq_spark.spark import boundary
from cassieq_spark.spark.connector import config
from cassieq_spark.spark.connector.packed import NO_CHUNK, SPARK_SCHEMA, packing
from cassieq_spark.spark.connector.sessions import java_class, saving
from cassieq_spark.spark.environment import driver_context
from cassieq_spark.spark.lane_packer import SortedLanes, Sorting
from cassieq_spark.spark.packer import check_sink_schema
from cassieq_spark.spark.sink import QUERY_ID, identity
from cassieq_spark.store import portal, store

CONNECTOR_CLASS: Final = "com.datastax.spark.connector.datasource.CassandraTable"

OTHER_ATTEMPT: Final = (
    "cassieq: this chunk was packed by another attempt of its task than the one that the batch "
    "was planned by. The batch fails. Nothing of it is visible, and its replay writes it anew"
)

_PLAN: Final = pa.schema(
    [
        ("plan_partition", pa.int32()),
        ("plan_number", pa.int32()),
        ("plan_attempt", pa.binary()),
        ("plan_lane", pa.string()),
        ("bucket", pa.int64()),
        ("first", pa.int32()),
    ]
)
"""A row for each chunk that says where it goes; the driver broadcasts it. A partition's head has
none."""

NOWHERE: Final = -1

_logger = get_logger("spark")


def foreach_batch(
    *,
    queue: str,
    sink_id: str | None = None,
    contact_points: str | Sequence[str] | None = None,
    chunk_messages: int | None = None,
    chunk_bytes: int | str | None = None,
    bucket_bytes: int | str | None = None,
    writes_in_flight: int | None = None,
    connector: Mapping[str, object] | None = None,
    **connection: Unpack[ConnectionArguments],
) -> Callable[[DataFrame, int], None]:
    """Return the function for ``df.writeStream.foreachBatch(...)``: it puts each micro-batch once.

    It writes through the Spark Cassandra Connector, which must be on the session's class path: see
    `spark_config`. Each call is one transaction, exactly once by sink id and batch id, as with
    ``format("cassieq")``; the options have the same names and variables.

    Args:
        sink_id: Names its transactions; default: the streaming query's id. A second write in one
            batch needs another one.
        connector: Settings of the connector for these writes, such as
            ``{"spark.cassandra.output.throughputMBPerSec": 5}``.
        connection: See `ConnectionArguments`; what is left out comes from the environment.

    Returns:
        ``f(df, batch_id)``. It raises `ConnectorMissing` before anything is written if the
        connector is missing; `SinkIdReused`, `SinkFenced` and `SinkDiverged` as the Arrow writer
        does. `BodyInvalid` and other failures in tasks come as Spark's own error, which quotes
        their text.

    Raises:
        OptionUnknown, OptionInvalid: Names the option, its value, and what is allowed.
    """
    own = {
        "queue": queue,
        "sink_id": sink_id,
        "contact_points": contact_points,
        "chunk_messages": chunk_messages,
        "chunk_bytes": chunk_bytes,
        "bucket_bytes": bucket_bytes,
        "writes_in_flight": writes_in_flight,
    }
    given = by_option(connection, own, of="foreach_batch", others=["connector"])
    return partial(_put, parse_sink(given, Spelling.PYTHON), config.checked(connector))


@boundary.crossing
def _put(
    options: SinkOptions, connector: Mapping[str, str], frame: DataFrame, batch_id: int
) -> None:
    """Put one micro-batch: none of it is visible before this returns, then all of it is (I7).

    Runs in the driver process of the query.

    Raises:
        ConnectorMissing, SinkIdReused, SinkFenced, SinkDiverged: See `foreach_batch`.
    """
    check_sink_schema(frame.schema)
    _check_session(frame.sparkSession, options, connector)
    lane = portal.run(open_lane(store.shared(options.connection), options.queue))
    context = frame.sparkSession.sparkContext
    sink_id = options.sink_id or context.getLocalProperty(QUERY_ID)
    if sink_id is None:
        raise UsageError(
            "this thread belongs to no streaming query, and sink_id is not set, so the "
            "transaction has no name. Call this in foreachBatch's own thread, or set sink_id"
        )
    who = identity(lane, sink_id, context)
    # Spark calls once per batch and run: a second call is another write of the batch [R26].
    admission = portal.run(transaction.admit(lane, who, batch_id, refuse_second_write=True))
    if isinstance(admission, AlreadyCommitted):
        portal.run(transaction.commit(lane, who, batch_id, [TaskResult(who=who, epoch=None)]))
        return
    with portal.entered(heartbeat(lane, who.sink_id)):
        result = _write(frame, lane, who, admission.epoch, options=options, connector=connector)
        portal.run(transaction.commit(lane, who, batch_id, [result], refuse_second_write=True))


def _write(
    frame: DataFrame,
    lane: Lane,
    who: Identity,
    epoch: int,
    *,
    options: SinkOptions,
    connector: Mapping[str, str],
) -> TaskResult:
    """Pack, place, write and prepare; after this nothing is decided yet."""
    meter, sink_id = Meter(), who.sink_id
    began, now_us = lane.clock.monotonic(), lane.clock.now_us()
    pack = packing(
        partial(Sorting, lane.settings),
        bucket_size=lane.bucket_size,
        chunk_messages=options.chunk_messages,
        chunk_bytes=options.chunk_bytes,
        now_us=now_us,
    )
    packed = frame.mapInArrow(pack, SPARK_SCHEMA).localCheckpoint(eager=True)
    try:
        chunks, attempts = _collected(packed)
        plans = assign(chunks, bucket_size=lane.bucket_size, bucket_bytes=options.bucket_bytes)
        lanes = _lanes(lane, plans)
        opened = _open(lanes, sink_id=sink_id, epoch=epoch)
        if opened:
            write_options = config.write_options(
                options.connection,
                connector,
                datacenter=lane.store.session.datacenter,
                writes_in_flight=options.writes_in_flight,
                write_time_us=now_us,
            )
            rows = message_rows(packed, plans, lanes, opened, attempts, enqueued_us=now_us)
            writer = rows.write.format(config.FORMAT).options(**write_options).mode("append")
            saving(writer.save, rows, timeout_s=options.connection.connect_timeout_s)
    finally:
        _unpersist(packed)

    async def finish(filled: tuple[Lane, OpenBucket, BucketPlan]) -> tuple[Place, int]:
        its_lane, bucket, plan = filled
        bucket.count, bucket.size_bytes = plan.count, plan.size_bytes
        bucket.due_us = plan.due_us()
        return await prepare(its_lane, bucket)

    filled = zip(lanes, opened, plans, strict=True)
    prepared = portal.run(lane.store.session.map(finish, filled))
    size_bytes = sum(plan.size_bytes for plan in plans)
    event(
        _logger,
        "batch_prepared",
        queue=lane.queue,
        sink=sink_id,
        messages=sum(plan.count for plan in plans),
        chunks=len(chunks),
        buckets=len(plans),
        size_bytes=size_bytes,
        seconds=round(lane.clock.monotonic() - began, 3),
    )
    costs = meter.read() + Costs(chunks=len(chunks), size_bytes=size_bytes)
    return TaskResult(who=who, epoch=epoch, buckets=tuple(prepared), costs=costs)


def _lanes(lane: Lane, plans: Sequence[BucketPlan]) -> list[Lane]:
    """The lane of each plan; due lanes that are not there yet are made."""
    numbers = list(dict.fromkeys(plan.lane for plan in plans))
    # Rows whose due lane takes none any more go together: any partition's shard will do.
    lanes = SortedLanes(lane, Sorting(lane.settings, 0)).make(numbers)
    by_number = dict(zip(numbers, lanes, strict=True))
    return [by_number[plan.lane] for plan in plans]


def _open(lanes: Sequence[Lane], *, sink_id: str, epoch: int) -> list[OpenBucket]:
    """Open a bucket in each of these lanes, in their order."""
    wanted = Counter(lane.lane_id for lane in lanes)
    distinct = list({lane.lane_id: lane for lane in lanes}.values())
    opened = portal.run(
        open_buckets(
            [(lane, wanted[lane.lane_id]) for lane in distinct], sink_id=sink_id, epoch=epoch
        )
    )
    ready = {lane.lane_id: iter(some) for lane, some in zip(distinct, opened, strict=True)}
    return [next(ready[lane.lane_id]) for lane in lanes]


def message_rows(
    packed: DataFrame,
    plans: Sequence[BucketPlan],
    lanes: Sequence[Lane],
    opened: Sequence[OpenBucket],
    attempts: Mapping[int, bytes],
    *,
    enqueued_us: int,
) -> DataFrame:
    """Join the packed rows with their places: exactly the columns that `ChunkWriter` writes."""
    places: list[tuple[int, int, bytes, str, int, int]] = [
        (at, chunk.number, attempts[at], str(lane.lane_id), bucket.bucket, first)
        for plan, lane, bucket in zip(plans, lanes, opened, strict=True)
        for chunk, first in plan.placed()
        for at in [chunk.partition]
    ]
    places += [
        (partition, NO_CHUNK, attempt, "", NOWHERE, 0) for partition, attempt in attempts.items()
    ]
    columns = dict(zip(_PLAN.names, zip(*places, strict=True), strict=True))
    planned = packed.sparkSession.createDataFrame(pa.Table.from_pydict(columns, schema=_PLAN))
    placed = packed.join(
        F.broadcast(planned),
        (F.col("partition") == F.col("plan_partition")) & (F.col("number") == F.col("plan_number")),
        "left",
    )
    # A row that no plan names must not be left out in silence, nor may all rows of a partition be
    # missing: each attempt has at least its head [P8].
    is_planned = F.col("attempt") == F.col("plan_attempt")
    rows = placed.select(
        F.col("plan_lane").alias("lane"),
        F.when(is_planned, F.col("bucket"))
        .otherwise(F.raise_error(F.lit(OTHER_ATTEMPT)).cast("long"))
        .alias("bucket"),
        "first",
        "part",
        "count",
        "parts",
        "payload",
        F.lit(enqueued_us).cast("long").alias("enqueued_us"),
    )
    return rows.where(F.col("bucket") != NOWHERE)


def _collected(packed: DataFrame) -> tuple[list[PackedChunk], dict[int, bytes]]:
    """Collect all chunks in their order, and the attempt that packed each partition."""
    rows = (
        packed.where("part = 0")
        .select("partition", "number", "lane", "attempt", "count", "size_bytes", "due")
        .collect()
    )
    rows.sort(key=lambda row: (row.partition, row.number))
    chunks = [
        PackedChunk(
            partition=row.partition,
            number=row.number,
            count=row["count"],
            size_bytes=row.size_bytes,
            due=None if row.due is None else bytes(row.due),
            lane=row.lane,
        )
        for row in rows
        if row.number != NO_CHUNK
    ]
    return chunks, {row.partition: bytes(row.attempt) for row in rows}


def _check_session(spark: SparkSession, options: SinkOptions, connector: Mapping[str, str]) -> None:
    """Check the session before anything is reserved."""
    context = driver_context(spark, "foreach_batch", "Use writeStream.format('cassieq')")
    ssl = spark.conf.get(config.SSL_ENABLED, "false") or "false"
    config.check_tls(options.connection, {config.SSL_ENABLED: ssl, **connector})
    if find_spec("pandas") is None:
        raise UsageError(
            "Spark's mapInArrow needs pandas in the driver's Python (measured with 4.3.0), "
            "though cassieq_spark does not use it here. Install it: pip install "
            "'cassieq_spark[connector]'"
        )
    try:
        java_class(context, CONNECTOR_CLASS, initialize=False)
    except Py4JJavaError as error:
        raise ConnectorMissing(
            "the Spark Cassandra Connector is not on the class path of this session. Add "
            f"--packages {config.CONNECTOR} to spark-submit, or set "
            f"spark.jars.packages={config.CONNECTOR} before the session is made. "
            "cassieq_spark.spark.spark_config(...) has all settings"
        ) from error


def _unpersist(packed: DataFrame) -> None:
    """Release the blocks now: Spark would when the driver's JVM next collects garbage.

    The RDD's own method is not used, since it warns of a lost lineage each time.
    """
    rdd = packed._jdf.queryExecution().logical().rdd()  # noqa: SLF001 - no public way
    packed.sparkSession.sparkContext._jsc.sc().unpersistRDD(rdd.id(), False)  # noqa: SLF001 - as above
