"""Create, alter and delete schedules (docs/design/schedules.md). Holds I11.

What an earlier definition has put ahead is taken back: its messages are cancelled. A message whose
slot is over by then is delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cassieq_spark.errors import ScheduleExists, ScheduleNotFound
from cassieq_spark.model import recurring as rules
from cassieq_spark.model.outcome import Applied, Outcome, Stored
from cassieq_spark.model.recurring import NEVER_US, Definition, Schedule, State, Status
from cassieq_spark.model.slots import Slot
from cassieq_spark.queue.lane import Lane, attempts
from cassieq_spark.queue.schedules.touch import Touched, Toucher
from cassieq_spark.store.store import Store


async def create(lane: Lane, name: str, definition: Definition) -> Touched:
    """Create a schedule, and put its first occurrences.

    Idempotent: one that exists with this definition is only touched.

    Args:
        lane: Any lane of its queue.

    Raises:
        ScheduleExists: It has another definition, or another queue.
    """
    store, first = lane.store, lane.first
    now_us = lane.clock.now_us()
    mine = Schedule(
        datacenter=store.session.datacenter,
        name=name,
        queue=lane.queue,
        lane=first.lane_id,
        status=Status.ACTIVE,
        definition=definition,
        state=State(cursor=Slot(now_us)),
        touch_us=now_us,
    )
    async for _ in attempts(store):
        row = await store.timetable.find(name) or await _named(store, mine)
        if row is None:
            continue
        there = row.value
        if there.status is Status.NEW:
            await store.timetable.define(row, mine)
            continue
        if (there.definition, there.queue) != (definition, lane.queue):
            raise ScheduleExists(
                f"schedule {name!r} exists, with another definition or for another queue "
                f"({there.queue!r}). Alter it, delete it, or choose another name"
            )
        if there.status is not Status.DELETING:
            break
        await Toucher(lane).touch([name])
    else:
        raise lane.contended(f"schedule {name!r}")
    return await _touched(lane, name)


async def _named(store: Store, schedule: Schedule) -> Stored[Schedule] | None:
    """Insert a row that is only a name.

    A copy of the INSERT may land long after the row was removed. So the row is written once more,
    by a CAS that creates no row, until one was sent once: only on that one a definition is written,
    and it never comes back [T3].
    """
    name = replace(schedule, status=Status.NEW, definition=None, touch_us=NEVER_US)
    outcome: Outcome[Schedule] = await store.timetable.insert(name)
    async for _ in attempts(store):
        if not isinstance(outcome, Applied):
            return None
        if outcome.was_sent_once:
            return outcome.now
        outcome = await store.timetable.define(outcome.now, name)
    return None


async def alter(
    lane: Lane, name: str, change: Callable[[Definition], Definition], status: Status | None = None
) -> Touched:
    """Change a schedule: from now on the other definition counts.

    Args:
        change: Returns the new definition; called again if others alter it, too.
        status: Its status from now on; None: as it is.

    Returns:
        What its last touch did; ``left`` has the slots that could not be taken back.

    Raises:
        ScheduleNotFound: There is none.
    """
    store = lane.store
    async for _ in attempts(store):
        # What was missed until now is put under the former definition.
        row = (await _touched(lane, name)).row
        if row is None or row.value.definition is None:
            raise missing(name)
        there = row.value
        if there.state.unproven or there.state.revoking:
            continue
        definition = change(there.its)
        wanted = there.status if status is None else status
        if (definition, wanted) == (there.definition, there.status):
            break
        after = rules.altered(there, definition, wanted, lane.clock.now_us())
        outcome = await store.timetable.define(row, after)
        if isinstance(outcome, Applied):
            break
    else:
        raise lane.contended(f"schedule {name!r}")
    return await _touched(lane, name)


async def delete(lane: Lane, name: str) -> Touched:
    """Delete a schedule, and take back what it has put ahead."""
    return await alter(lane, name, lambda same: same, Status.DELETING)


async def forget(store: Store, name: str) -> None:
    """Delete a schedule whose queue is gone: there is nothing to take back."""
    async for _ in attempts(store):
        row = await store.timetable.find(name)
        if row is None or row.value.status is Status.NEW:
            return
        await store.timetable.delete(row)
    raise missing(name)


async def _touched(lane: Lane, name: str) -> Touched:
    found = (await Toucher(lane).touch([name]))[0]
    if found.problem is not None:
        raise found.problem
    return found


def missing(name: str) -> ScheduleNotFound:
    """Make the error for a schedule that does not exist."""
    return ScheduleNotFound(
        f"there is no schedule {name!r} here. Create it with client.schedules.create({name!r}, "
        "...), or see client.schedules.list() for all names"
    )
