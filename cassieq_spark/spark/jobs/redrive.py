"""Redrive on Spark: SQL filters the `messages` view, and tasks redrive what is left by its ids.

    tasks read the view  ->  the driver groups the ids by bucket  ->  tasks redrive, by the
    steps of `repair.redrive`

One task gets all of a bucket's ids, so that one CAS takes them. The filter may run more than
once: messages that are no longer visible are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's users write it

from cassieq_spark.model import dead_letter
from cassieq_spark.model.ids import BucketNo, Place, QueueName, Runs, bucket_of, first_id
from cassieq_spark.options import ConnectionOptions, parse_connection
from cassieq_spark.queue.find import LaneSpec, open_lane
from cassieq_spark.queue.schedule import looked_at_lanes
from cassieq_spark.repair.redrive import RedriveRequest, redrive
from cassieq_spark.repair.report import Redriven
from cassieq_spark.spark import arrays, boundary
from cassieq_spark.spark.schema import ALL
from cassieq_spark.spark.worker import in_tasks, task_store
from cassieq_spark.store import portal, store

Work: TypeAlias = tuple[Place, Runs]

BUCKETS_PER_TASK: Final = 8
"""The number of buckets of one task. A bucket costs at least one transaction, about eight LWTs; a
task costs Spark about as much.
"""


@boundary.crossing
def redrive_where(
    spark: SparkSession,
    where: str | None,
    *,
    connection: Mapping[str, object],
    queue: QueueName,
    to: QueueName | None = None,
    is_dry_run: bool = False,
) -> Redriven:
    """Redrive the visible messages for which an SQL condition is true; see `Client.redrive`.

    Args:
        where: On the columns of view ``messages`` and on those of the last move,
            ``source_queue``, ``reason``, ``deliveries`` int, ``first_time`` and ``last_time``
            timestamp; None: all.
        connection: Connection options, as the reader takes them.

    Raises:
        UsageError: The target cannot be used.
        QueueNotFound: The queue, or the target, does not exist.
        PySparkException: The condition is not valid, or a task failed: the next repair carries
            over what it had taken.
    """
    options = parse_connection(connection)
    lane = portal.run(open_lane(store.shared(options), queue))
    done = portal.run(
        redrive(lane, RedriveRequest(ids={}, to=to), is_dry_run=True)
    )  # refuses a target that cannot be used
    found = letters_of(spark, connection, queue)
    if where is not None:
        found = found.where(where)
    work: list[Work] = []
    chosen = found.select("lane", "id").toArrow()
    for lane_id in (one.lane_id for one in portal.run(looked_at_lanes(lane))):
        of_lane = chosen.filter(pc.equal(chosen.column("lane"), str(lane_id)))
        ids = of_lane.column("id").to_numpy()
        work += [
            (Place(lane_id, bucket), runs) for bucket, runs in by_bucket(ids, lane.bucket_size)
        ]
    in_task = partial(_in_task, options, LaneSpec.of(lane), to, is_dry_run)
    for part in in_tasks(spark.sparkContext, in_task, work, per_task=BUCKETS_PER_TASK):
        done.add(part)
    return done


def letters_of(
    spark: SparkSession, connection: Mapping[str, object], queue: QueueName
) -> DataFrame:
    """View ``messages`` of a queue, with the additional columns of `redrive_where`."""
    given = {name: str(value) for name, value in connection.items() if value is not None}
    reader = spark.read.format("cassieq").options(**given, queue=queue)
    messages = reader.schema(ALL).load()

    headers = {
        "source_queue": (dead_letter.SOURCE_QUEUE, "string"),
        "reason": (dead_letter.REASON, "string"),
        "deliveries": (dead_letter.DELIVERIES, "int"),
        "first_time": (dead_letter.FIRST_TIME, "timestamp"),
        "last_time": (dead_letter.LAST_TIME, "timestamp"),
    }
    # A producer may have written anything there.
    return messages.withColumns(
        {
            column: F.col("headers")[dead_letter.PREFIX + name].try_cast(kind)
            for column, (name, kind) in headers.items()
        }
    )


def by_bucket(ids: NDArray[np.int64], bucket_size: int) -> list[tuple[BucketNo, Runs]]:
    """Group ids, in any order, as offsets by bucket, ascending."""
    ids = np.unique(ids)
    starts = np.flatnonzero(np.diff(ids // bucket_size, prepend=-1))
    return [
        (
            bucket := bucket_of(int(some[0]), bucket_size),
            arrays.runs(some - first_id(bucket, bucket_size)),
        )
        for some in np.split(ids, starts[1:])
        if len(some)
    ]


@boundary.crossing
def _in_task(
    connection: ConnectionOptions,
    lane: LaneSpec,
    to: QueueName | None,
    is_dry_run: bool,
    work: Iterable[Work],
) -> Iterator[Redriven]:
    """Runs in a Python worker, perhaps twice: the second run finds what was taken before gone."""
    wanted = RedriveRequest(ids=dict(work), to=to)
    yield portal.run(redrive(lane.on(task_store(connection)), wanted, is_dry_run=is_dry_run))
