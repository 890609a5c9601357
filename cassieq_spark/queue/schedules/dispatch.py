"""Touch all schedules whose time has come: a pass (docs/design/schedules.md)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError, OptionInvalid, SchemaMissing
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import recurring as rules
from cassieq_spark.model.frozen import freeze, frozen
from cassieq_spark.model.ids import LaneId, QueueName
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.schedules.touch import Touched, Toucher, computing
from cassieq_spark.recent import Recent
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.timetable import Glance

QUEUES: Final = 1_000
"""The number of queues whose touchers are kept."""

TOGETHER: Final = 32
"""The most schedules that share buckets: what a pass that fails leaves for the next one."""

_logger = get_logger("queue")


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """What a pass over all schedules did.

    Attributes:
        schedules: The number that exist.
        looked_at: Those whose time had come.
        put: The messages that were put.
        problems: What went wrong, by schedule.
    """

    schedules: int
    looked_at: int
    put: int
    problems: Mapping[str, str]

    def __post_init__(self) -> None:
        freeze(self, "problems")


Touchers = Recent[LaneId, Toucher]
"""Those of the queues' first lanes, which remember buckets and due lanes from pass to pass."""


LOOKED_AT: Final = 100
"""The most schedules that `lateness` reads: those whose touch is overdue for longest."""

SURELY_ON_TIME_US: Final = 60_000_000
"""A schedule is touched a horizon before its next slot that is not put, which is 60 s or more. So
one whose touch is overdue by less has missed nothing, unless its last touch has failed."""


async def lateness(store: Store) -> tuple[int, float]:
    """Return how many schedules there are, and for how many seconds the latest one is late.

    One scan of small columns; rows are read only of schedules whose touch is overdue.
    """
    try:
        known = await store.timetable.glance()
    except SchemaMissing:
        known = []
    now_us = store.clock.now_us()
    overdue = sorted((one.touch_us, one.name) for one in known)[:LOOKED_AT]

    async def late_us(name: str) -> int:
        row = await store.timetable.find(name)
        if row is None or row.value.definition is None:
            return 0
        missed: int | None = None
        with suppress(OptionInvalid), computing(name):
            missed = rules.missed_us(row.value, now_us)
        return 0 if missed is None else now_us - missed

    names = [name for touch_us, name in overdue if touch_us <= now_us - SURELY_ON_TIME_US]
    found = await store.session.each(late_us, names)
    return len(known), max([0, *(one for one in found if isinstance(one, int))]) / 1e6


async def dispatch(store: Store, touchers: Touchers | None = None) -> Dispatched:
    """Touch each schedule whose time has come. Any number of passes may run at once.

    It costs one scan, and two reads for each queue that has schedules: one that was deleted and
    created again has lost what was put ahead.
    """
    try:
        known = await store.timetable.glance()
    except SchemaMissing:  # an earlier release has made the tables: there are no schedules yet
        known = []
    touched: list[Touched] = []
    kept: Touchers = Recent(QUEUES) if touchers is None else touchers
    by_queue: dict[QueueName, list[Glance]] = {}
    for one in sorted(known, key=lambda one: (one.touch_us, one.name)):
        by_queue.setdefault(one.queue, []).append(one)

    async def of_queue(queue: QueueName) -> None:
        now_us = store.clock.now_us()
        names = [one.name for one in by_queue[queue] if one.touch_us <= now_us]
        try:
            lane = await open_lane(store, queue)
            toucher = kept.get_or_make(lane.lane_id, partial(Toucher, lane)).use(lane)
            names = [
                one.name
                for one in by_queue[queue]
                if one.touch_us <= now_us or one.lane != lane.lane_id
            ]
            for start in range(0, len(names), TOGETHER):
                touched.extend(await toucher.touch(names[start : start + TOGETHER]))
        except CassieqError as error:
            touched.extend(Touched(name, problem=error) for name in names)

    await store.session.each(of_queue, by_queue)
    problems = {one.name: str(one.problem) for one in touched if one.problem is not None}
    metrics.SCHEDULE_PASSES.inc()
    metrics.SCHEDULE_FAILURES.inc(len(problems))
    for name, problem in problems.items():
        event(_logger, "schedule_failed", schedule=name, error=problem)
    return Dispatched(
        schedules=len(known),
        looked_at=len(touched),
        put=sum(one.put for one in touched),
        problems=problems,
    )
