"""Create, alter and delete schedules (docs/design/schedules.md). Holds I11.

What an earlier definition has put ahead is taken back: its messages are cancelled. A message whose
slot is over by then is delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cassieq_spark.errors import QueueNotFound, ScheduleExists, ScheduleNotFound
from cassieq_spark.model import recurring as rules
from cassieq_spark.model.outcome import Applied, Outcome, Stored
from cassieq_spark.model.recurring import NEVER_US, Definition, Schedule, State, Status
from cassieq_spark.model.slots import Slot
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.lane import Lane, attempts
from cassieq_spark.queue.schedules.touch import Touched, Toucher
from cassieq_spark.store.store import Store


async def create(
    lane: Lane, name: str, make: Callable[[Definition | None, int], Definition]
) -> tuple[Touched, bool]:
    """Create a schedule, put its first occurrences, and return whether this call has created it.

    Idempotent: one that exists with this definition is only touched.

    Args:
        lane: Any lane of its queue.
        make: Returns its definition, of the one that it has, if it exists, and of the time; called
            again if others create it, too.

    Raises:
        ScheduleExists: It has another definition, or another queue.
    """
    store = lane.store
    async for _ in attempts(store):
        row = await store.timetable.find(name)
        if row is not None and row.value.status is Status.DELETING:
            await finish(store, row.value)
            continue
        now_us = lane.clock.now_us()
        definition = make(None if row is None else row.value.definition, now_us)
        if row is None or row.value.status is Status.NEW:
            mine = Schedule(
                datacenter=store.session.datacenter,
                name=name,
                queue=lane.queue,
                lane=lane.first.lane_id,
                status=Status.ACTIVE,
                definition=definition,
                state=State(cursor=Slot(now_us), since_us=now_us),
                touch_us=now_us,
            )
            row = await _named(store, mine, row)
            if row is not None and isinstance(await store.timetable.define(row, mine), Applied):
                return await _touched(lane, name), True
        elif (row.value.definition, row.value.queue) != (definition, lane.queue):
            raise ScheduleExists(
                f"schedule {name!r} exists, with another definition or for another queue. Alter "
                "it, delete it, or choose another name"
            )
        else:
            return await _touched(lane, name), False
    raise lane.contended(f"schedule {name!r}")


async def _named(
    store: Store, schedule: Schedule, row: Stored[Schedule] | None
) -> Stored[Schedule] | None:
    """Insert a row that is only a name, or make one that was found ours.

    A copy of the INSERT may land long after the row was removed. So the row is written once more,
    by a CAS that creates no row, until one was sent once: only on that one a definition is written,
    and it never comes back [T3].
    """
    name = replace(schedule, status=Status.NEW, definition=None, touch_us=NEVER_US)
    outcome: Outcome[Schedule] | None = None if row else await store.timetable.insert(name)
    async for _ in attempts(store):
        if outcome is not None:
            if not isinstance(outcome, Applied):
                return None
            row, is_alone = outcome.now, outcome.was_sent_once
            if is_alone:
                return row
        if row is None:
            return None
        outcome = await store.timetable.define(row, name)
    return None


async def alter(
    lane: Lane,
    name: str,
    change: Callable[[Definition, int], Definition],
    status: Status | None = None,
) -> Touched:
    """Change a schedule: from now on the other definition counts.

    What was missed until then is put under the former one, unless it is paused or deleted.

    Args:
        change: Returns the new definition, of the former one and of the time from which it counts;
            called again if others alter it, too.
        status: Its status from now on; None: as it is.

    Raises:
        ScheduleNotFound: There is none.
    """
    store = lane.store
    fills = status is None or status is Status.ACTIVE
    async for _ in attempts(store):
        found = await _touched(lane, name, fills=fills)
        row = found.row
        if row is None or row.value.definition is None or row.value.queue != lane.queue:
            raise missing(name)
        there = row.value
        missed = fills and there.status is Status.ACTIVE and there.state.cursor.at_us < found.at_us
        if there.state.unproven or there.state.revoking or (missed and found.put):
            continue
        now_us = lane.clock.now_us()
        since_us = rules.counts_from(there, now_us)
        definition = change(there.its, since_us)
        wanted = there.status if status is None else status
        if (definition, wanted) == (there.definition, there.status):
            return found
        after = rules.altered(there, definition, wanted, since_us, now_us)
        if isinstance(await store.timetable.define(row, after), Applied):
            return await _touched(lane, name)
    raise lane.contended(f"schedule {name!r}")


async def delete(lane: Lane, name: str) -> None:
    """Delete a schedule, and take back what it has put ahead."""
    await alter(lane, name, lambda same, _: same, Status.DELETING)


async def finish(store: Store, schedule: Schedule) -> None:
    """Finish a deletion, or delete a schedule whose queue is gone: there is nothing to take back.

    Raises:
        CassieqError: It is not finished.
    """
    try:
        lane = await open_lane(store, schedule.queue)
    except QueueNotFound:
        row = await store.timetable.find(schedule.name)
        if row is not None and row.value.lane == schedule.lane:
            await store.timetable.delete(row)
    else:
        await delete(lane, schedule.name)


async def _touched(lane: Lane, name: str, *, fills: bool = True) -> Touched:
    found = (await Toucher(lane).touch([name], fills=fills))[0]
    if found.problem is not None:
        raise found.problem
    return found


def missing(name: str) -> ScheduleNotFound:
    """Make the error for a schedule that does not exist."""
    return ScheduleNotFound(
        f"there is no schedule {name!r} here. Create it with client.schedules.create({name!r}, "
        "...), or see client.schedules.list() for all names"
    )
