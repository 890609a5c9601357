"""Touch all schedules whose time has come: a pass (docs/design/schedules.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import QueueName
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.schedules.touch import Toucher
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.timetable import Glance

TOGETHER: Final = 32
"""The most schedules that share buckets: what a pass that fails leaves for the next one."""

_logger = get_logger("queue")


@dataclass(slots=True)
class Dispatched:
    """What a pass did.

    Attributes:
        schedules: The number that exist.
        touched: Those whose time had come.
        put: The messages that were put.
        problems: What went wrong, by schedule.
    """

    schedules: int = 0
    touched: int = 0
    put: int = 0
    problems: dict[str, str] = field(default_factory=dict)


async def dispatch(store: Store) -> Dispatched:
    """Touch each schedule whose time has come. Any number of passes may run at once.

    It costs one scan, and two reads for each queue that has schedules: one that was deleted and
    created again has lost what was put ahead.
    """
    known = await store.timetable.glance()
    done = Dispatched(schedules=len(known))
    by_queue: dict[str, list[Glance]] = {}
    for one in sorted(known, key=lambda one: (one.touch_us, one.name)):
        by_queue.setdefault(one.queue, []).append(one)

    async def of_queue(queue: str) -> None:
        now_us = store.clock.now_us()
        names = [one.name for one in by_queue[queue] if one.touch_us <= now_us]
        try:
            lane = await open_lane(store, QueueName(queue))
            toucher = Toucher(lane)
            names = [
                one.name
                for one in by_queue[queue]
                if one.touch_us <= now_us or one.lane != lane.lane_id
            ]
            for start in range(0, len(names), TOGETHER):
                for found in await toucher.touch(names[start : start + TOGETHER]):
                    done.touched += 1
                    done.put += found.put
                    if found.problem is not None:
                        _note(done, found.name, found.problem)
        except CassieqError as error:
            for name in names:
                _note(done, name, error)

    await store.session.each(of_queue, by_queue)
    return done


def _note(done: Dispatched, name: str, error: CassieqError) -> None:
    done.problems[name] = str(error)
    event(_logger, "schedule_failed", schedule=name, error=str(error))
