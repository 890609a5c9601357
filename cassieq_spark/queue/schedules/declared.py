"""Make the schedules of an owner what the owner has declared (docs/guides/schedules.md).

All that can be refused is refused before anything is written. What is written goes through the
functions of `define`, one schedule after the other: whatever cuts it off, the next call goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cassieq_spark.errors import QueueNotFound, ScheduleExists
from cassieq_spark.model.ids import QueueName
from cassieq_spark.model.recurring import Definition, Schedule, Status
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.schedules import define
from cassieq_spark.store.store import Store

Make = Callable[[Definition | None, int], Definition]
"""Returns a definition, of the one that is there, and of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is to be done about one schedule.

    Attributes:
        before: The schedule that is there.
        make: Makes what is declared; None: the schedule is to be deleted.
        after: What it makes of what is there.
    """

    name: str
    queue: QueueName
    before: Schedule | None
    make: Make | None = None
    after: Definition | None = None

    @property
    def is_done(self) -> bool:
        """Whether all is as it is declared."""
        return self.before is not None and self.before.definition == self.after


async def plan(
    store: Store, owner: str, declared: Mapping[str, tuple[QueueName, Make]], *, prune: bool
) -> list[Step]:
    """Return what is to be done, by name; nothing is written.

    Args:
        prune: Whether schedules of this owner that are not declared are to be deleted.

    Raises:
        QueueNotFound: A queue does not exist.
        ScheduleExists: A schedule has another owner or queue.
        UsageError: What `Make` raises.
    """
    steps = []
    for name, (queue, make) in declared.items():
        lane = await open_lane(store, queue)
        row = await store.timetable.find(name)
        is_there = row is not None and row.value.status not in {Status.NEW, Status.DELETING}
        there = row.value if row is not None and is_there else None
        if there is not None:
            _check(name, there.definition, owner)
            if there.queue != queue:
                raise ScheduleExists(
                    f"schedule {name!r} puts messages into another queue than the declared one, "
                    f"{queue!r}, and no alteration changes that. Delete it, and apply again"
                )
        definition = None if there is None else there.definition
        after = make(definition, lane.clock.now_us())
        steps.append(Step(name=name, queue=queue, before=there, make=make, after=after))
    if prune:
        steps += [
            Step(name=one.name, queue=one.queue, before=one)
            for one in await store.timetable.read_all()
            if one.name not in declared
            and one.definition is not None
            and one.definition.owner == owner
        ]
    return sorted(steps, key=lambda one: one.name)


async def carry_out(store: Store, owner: str, step: Step) -> None:
    """Do what is to be done about a schedule, unless somebody has given it to another owner.

    Raises:
        ScheduleExists: It has another owner or, if it is new to us, another definition.
    """
    make = step.make

    def change(there: Definition, now_us: int) -> Definition:
        _check(step.name, there, owner)
        return there if make is None else make(there, now_us)

    try:
        lane = await open_lane(store, step.queue)
    except QueueNotFound:
        if make is not None or step.before is None:
            raise
        await define.finish(store, step.before)
        return
    if make is None:
        await define.alter(lane, step.name, change, Status.DELETING)
    elif step.before is None:
        await define.create(lane, step.name, make)
    elif not step.is_done:
        await define.alter(lane, step.name, change)


def _check(name: str, there: Definition | None, owner: str) -> None:
    whose = None if there is None else there.owner
    if whose != owner:
        raise ScheduleExists(
            f"schedule {name!r} belongs to {repr(whose) if whose else 'no owner'}, and not to "
            f"{owner!r}. Choose another name, or give it to this owner: cassieq schedule alter "
            f"{name} --owner {owner}"
        )
