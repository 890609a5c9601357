"""Run a repair pass on Spark: tasks heal the buckets, the driver does the rest (design 9)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from cassieq_spark.queue.find import LaneSpec
from cassieq_spark.repair.heal import Healed, Pass, heal_buckets
from cassieq_spark.repair.report import RepairReport, noting
from cassieq_spark.spark import boundary
from cassieq_spark.spark.worker import task_store
from cassieq_spark.store import portal
from cassieq_spark.store.store import Store, opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from cassieq_spark.model.ids import BucketNo, LaneId, QueueName
    from cassieq_spark.options import ConnectionOptions
    from cassieq_spark.queue.lane import Lane

BUCKETS_PER_SHARE: Final = 256
"""How many buckets one share has: they cost about as much as the start of a task costs Spark."""

FEW_SHARES: Final = 4
"""Up to this many shares, the driver is faster alone."""

SHARES_PER_CORE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Some buckets of one lane, for one task; pickled into it."""

    lane: LaneSpec
    buckets: tuple[BucketNo, ...]


@boundary.crossing
def heal(
    spark: SparkSession,
    connection: ConnectionOptions,
    names: list[QueueName] | None,
    *,
    is_full: bool = False,
) -> RepairReport:
    """Run one pass; see `cassieq_spark.repair.heal.heal`.

    Buckets are read by their keys, which the pointers name: there is no scan, and no connector on
    the class path (ADR 14).

    Raises:
        QueueNotFound: A named queue does not exist.
    """
    with opened(connection) as here:
        one = portal.run(Pass.begin(here, names, is_full=is_full))
        shares = [share for lane in one.lanes for share in _shares(one, lane)]
        is_little = len(shares) <= FEW_SHARES
        found = _heal(here, shares) if is_little else _by_tasks(spark, connection, shares)
        for lane_id, some in found:
            one.healed[lane_id].add(some)
        for lane in one.lanes:
            portal.run(one.finish(lane))
        return portal.run(one.end())


def _shares(one: Pass, lane: Lane) -> Iterator[Share]:
    healed = one.healed[lane.lane_id]
    for its_lane in one.schedule.lanes_of(lane):
        with noting(healed.done):
            for window in portal.iterate(one.windows(its_lane, healed, BUCKETS_PER_SHARE)):
                yield Share(lane=LaneSpec.of(its_lane), buckets=tuple(window))


def _by_tasks(
    spark: SparkSession, connection: ConnectionOptions, shares: list[Share]
) -> list[tuple[LaneId, Healed]]:
    context = spark.sparkContext
    slices = min(len(shares), SHARES_PER_CORE * context.defaultParallelism)
    work = context.parallelize(shares, slices)
    found: list[tuple[LaneId, Healed]] = work.mapPartitions(
        partial(_heal_in_task, connection)
    ).collect()
    return found


@boundary.crossing
def _heal_in_task(
    connection: ConnectionOptions, shares: Iterable[Share]
) -> Iterator[tuple[LaneId, Healed]]:
    """Heal shares in a task. Spark may run it again: each step is idempotent."""
    return _heal(task_store(connection), shares)


def _heal(here: Store, shares: Iterable[Share]) -> Iterator[tuple[LaneId, Healed]]:
    for share in shares:
        lane = share.lane.on(here)
        yield lane.first.lane_id, portal.run(heal_buckets(lane, list(share.buckets)))
