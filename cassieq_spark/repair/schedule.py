"""Heal due lanes, finish those whose period is over, and remove the rest of finished ones.

    closed register  ->  read the schedule  ->  lane by lane: close it; once it is drained
    L = 2^62  ->  no monoton row  ->  no schedule row;  then the register of finished periods

Holds I1: every lane that is created below the closed register is in the schedule as read after it
[U2].
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self, TypeVar

from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.lanes import finished_below, healed_always, in_turn, periods_end
from cassieq_spark.model.pointer import DELETED, Pointer
from cassieq_spark.queue.deletion import end_lane
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.schedule import due_between, first_unfinished
from cassieq_spark.repair.steps import note
from cassieq_spark.store.cas import Stored
from cassieq_spark.store.tables.monotons import Monoton

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.model.lanes import DueLane
    from cassieq_spark.repair.steps import Healed
    from cassieq_spark.store.store import Store

    T = TypeVar("T")
    R = TypeVar("R")

TURN_US: Final = 600 * 1_000_000
"""The interval at which passes heal their share of lanes that have not begun: only producers use
them."""

REGISTERS_BEHIND: Final = 64
"""The most periods without any lane that are over before the registers are raised for them
alone."""

LANES_TOGETHER: Final = 8

_logger = get_logger("repair")


async def together(store: Store, work: Callable[[T], Awaitable[R]], lanes: Iterable[T]) -> list[R]:
    """Run some work for several lanes, a few at a time."""
    todo = list(lanes)
    done: list[R] = []
    for at in range(0, len(todo), LANES_TOGETHER):
        done += await store.session.map(work, todo[at : at + LANES_TOGETHER])
    return done


class Schedule:
    """The due lanes that one pass heals, read when it begins."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._now_us = store.clock.now_us()
        self._due: dict[LaneId, list[Lane]] = {}
        self._failed: dict[LaneId, CassieqError] = {}
        self._had_turn: set[LaneId] = set()

    @classmethod
    async def of(cls, store: Store, lanes: list[Lane]) -> Self:
        """Read the due lanes of these queues."""
        made = cls(store)
        for lane in lanes:
            try:
                made._due[lane.lane_id] = await made._read(lane)
            except CassieqError as error:
                made._failed[lane.lane_id] = error
        return made

    def lanes_of(self, lane: Lane) -> list[Lane]:
        """Return all lanes of a queue that this pass heals."""
        return [*lane.all, *self._due.get(lane.lane_id, ())]

    def check(self, lane: Lane, healed: Healed) -> None:
        """Report a schedule that could not be read: its lanes are missed, with their messages."""
        if lane.lane_id in self._failed:
            healed.has_missed = True
            note(healed.done, self._failed[lane.lane_id])

    async def finish(self, lane: Lane) -> None:
        """Finish the due lanes whose period is long over.

        A drained lane goes at once; only the register waits for the others.
        """
        if lane.lane_id in self._had_turn:
            await lane.pointers.advance(Pointer.SCHEDULE_HEALED, self._now_us)
        period_us = lane.settings.period_us
        end = finished_below(self._now_us, period_us)
        pointers = await lane.read_pointers()
        first = first_unfinished(lane, pointers)
        is_any = any(one.due is not None and one.due.period < end for one in self.lanes_of(lane))
        if end <= first or lane.lane_id in self._failed:
            return
        if not is_any and end - first < REGISTERS_BEHIND:
            return
        if pointers.schedule_closed < end:
            await lane.pointers.advance(Pointer.SCHEDULE_CLOSED, end)
        found = await self._store.schedules.read(lane.lane_id, first, end, period_us=period_us)
        left = await together(self._store, lambda due: _finish(lane, due), found)
        unfinished = [due.period for due, is_over in zip(found, left, strict=True) if not is_over]
        low = min(unfinished, default=end)
        if low > first:
            await lane.pointers.advance(Pointer.SCHEDULE, low)

    async def _read(self, lane: Lane) -> list[Lane]:
        period_us = lane.settings.period_us
        pointers = await lane.read_pointers()
        begin_later = healed_always(self._now_us, period_us)
        found = await due_between(lane, first_unfinished(lane, pointers), begin_later)
        since_us = max(pointers.schedule_healed, lane.created_us)
        if self._now_us - since_us < TURN_US:
            return found
        self._had_turn.add(lane.lane_id)
        end = periods_end(self._now_us, period_us)
        now_us = self._now_us
        for some in in_turn(
            begin_later, end, since_us=since_us, now_us=now_us, period_us=period_us
        ):
            found += await due_between(lane, *some)
        return found


async def _finish(lane: Lane, due: DueLane) -> bool:
    """Take the next steps of a due lane's end; return whether nothing of it is left."""
    its_lane = lane.due_lane(due)
    if not (await its_lane.pointers.read()).is_deleted:
        # A missing row may still land, as a late copy of an INSERT: so make a closed one.
        closed = await _close(its_lane)
        ids_end = -(-closed.value.next_id // its_lane.bucket_size)
        pointers = await its_lane.read_pointers()
        if pointers.repair < ids_end:
            return False
        # A producer that has written and reads this now never puts again: it may have been
        # delivered [P6].
        await its_lane.pointers.advance(Pointer.REPAIR, DELETED)
    row = await its_lane.monotons.find()
    if row is not None:
        await its_lane.monotons.delete(row)
    await lane.store.schedules.remove(lane.lane_id, due, period_us=lane.settings.period_us)
    event(_logger, "due_lane_finished", **its_lane.as_fields(), period=due.period)
    return True


async def _close(lane: Lane) -> Stored[Monoton]:
    async for _ in lane.attempts():
        row = await lane.monotons.find()
        if row is None:
            fresh = Monoton(next_id=0, reserved_us=lane.clock.now_us(), is_closed=True)
            await lane.monotons.insert(fresh)
        elif row.value.is_closed:
            return row
        else:
            await lane.monotons.update(row, replace(row.value, is_closed=True))
    raise lane.contended(f"the monoton row of {lane.title}")


async def due_lanes_of(store: Store, queues: Collection[LaneId]) -> set[LaneId]:
    """Return the due lanes that the schedules of these queues name, by the queues' first lanes."""
    parts = [(queue, year) for queue, year in await store.everything.schedules() if queue in queues]
    found = await store.session.map(lambda part: store.schedules.of_year(*part), parts)
    return {
        due.lane_id(queue) for (queue, _), some in zip(parts, found, strict=True) for due in some
    }


async def sweep_schedules(store: Store) -> int:
    """Remove schedule rows of queues that are gone, with their lanes; return how many lanes.

    A queue that a row still names is left to its deletion. Otherwise only a creator of a due lane
    that died after the deletion had read the schedule leaves any rows behind.
    """
    parts = await store.everything.schedules()
    named = {row.lanes[0] for row in await store.queues.read_all()}
    swept = 0
    for queue, year in parts:
        if queue in named or not (await store.lane(queue).pointers.read()).is_deleted:
            continue
        some = await store.schedules.of_year(queue, year)
        for due in some:
            await end_lane(store, due.lane_id(queue), 1)
        await store.schedules.drop(queue, year)
        swept += len(some)
    return swept
