"""`AsyncSchedules` has the calls of `Schedules` for asyncio."""

from __future__ import annotations

from cassieq_spark.doors import awaited
from cassieq_spark.schedules import Schedules
from cassieq_spark.store.process import OfOneProcess


class AsyncSchedules(OfOneProcess):
    """The schedules of a keyspace, for tasks of any event loop. Its calls are those of `Schedules`.

    A call that is cancelled goes on to its end.
    """

    def __init__(self, schedules: Schedules) -> None:
        self._sync = schedules

    alter = awaited(Schedules.alter)
    apply = awaited(Schedules.apply)
    backfill = awaited(Schedules.backfill)
    create = awaited(Schedules.create)
    delete = awaited(Schedules.delete)
    dispatch = awaited(Schedules.dispatch)
    dispatch_as_leader = awaited(Schedules.dispatch_as_leader)
    find_or_create = awaited(Schedules.find_or_create)
    get = awaited(Schedules.get)
    list = awaited(Schedules.list)
    next_times = awaited(Schedules.next_times)
    pause = awaited(Schedules.pause)
    resume = awaited(Schedules.resume)
    run_now = awaited(Schedules.run_now)
