"""Run a repair pass on Spark: tasks heal the buckets, the driver does the rest.

See docs/design/repair.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, TypeAlias

from pyspark.sql import SparkSession

from cassieq_spark.model.ids import BucketNo, LaneId, QueueName
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.queue.find import LaneSpec
from cassieq_spark.queue.lane import Lane
from cassieq_spark.repair.heal import Healed, Pass, heal_buckets
from cassieq_spark.repair.report import RepairReport, noting
from cassieq_spark.spark import boundary
from cassieq_spark.spark.worker import in_tasks, task_store
from cassieq_spark.store import portal
from cassieq_spark.store.store import Store, opened

Share: TypeAlias = tuple[LaneSpec, list[BucketNo]]
"""The buckets of one lane for one task; pickled into it."""

BUCKETS_PER_SHARE: Final = 256
"""The number of buckets of one share: they cost about as much as the start of a task costs
Spark."""

FEW_SHARES: Final = 4
"""Up to this many shares, the driver is faster alone."""

SHARES_PER_CORE: Final = 4


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
        found: Iterable[tuple[LaneId, Healed]] = _heal(here, shares)
        if len(shares) > FEW_SHARES:
            heals = partial(_heal_in_task, connection)
            found = in_tasks(spark.sparkContext, heals, shares, per_core=SHARES_PER_CORE)
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
                yield LaneSpec.of(its_lane), list(window)


@boundary.crossing
def _heal_in_task(
    connection: ConnectionOptions, shares: Iterable[Share]
) -> Iterator[tuple[LaneId, Healed]]:
    """Heal shares in a task. Spark may run it again: each step is idempotent."""
    return _heal(task_store(connection), shares)


def _heal(here: Store, shares: Iterable[Share]) -> Iterator[tuple[LaneId, Healed]]:
    for spec, buckets in shares:
        lane = spec.on(here)
        yield lane.first.lane_id, portal.run(heal_buckets(lane, buckets))
