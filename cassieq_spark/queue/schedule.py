"""Give messages that are due much later a lane of their period, and find those lanes.

  INSERT monoton  ->  write schedule row  ->  read registers, then L  ->  put as always

Holds I1: a period is closed before its due lanes are read, and a client that creates a lane reads
afterwards whether its period is closed. So repair finds the lane, or its creation is undone [U2].
See docs/design/due-lanes.md.
"""

from __future__ import annotations

from math import inf
from typing import Final

from cassieq_spark.errors import QueueDeleted, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.lanes import (
    LONGEST_PERIODS,
    DueLane,
    due_lane,
    first_period,
    looked_at,
    periods_end,
)
from cassieq_spark.model.outcome import Applied, Outcome
from cassieq_spark.model.pointer import Pointers
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.reserve import begin_queue, close_unused
from cassieq_spark.store.tables.lanes import Monoton

SLICE_S: Final = 30.0
"""A consumer remembers this long which due lanes exist."""

REGISTER_S: Final = 600.0
"""A consumer remembers this long which period is the first that may be unfinished. A remembered one
can only be too early."""

SCHEDULE_WAIT_S: Final = 2.0
"""The time that a consumer waits for the schedule or the registers."""

_logger = get_logger("queue")


class DueLanes:
    """The due lanes that are known to exist, for one client of a queue."""

    def __init__(self) -> None:
        self._known: set[LaneId] = set()

    async def lane_for(self, lane: Lane, due_us: int) -> Lane | None:
        """Return the due lane for a message that would go to ``lane``; None if it goes to ``lane``.

        Args:
            lane: One of the queue's fixed lanes, of the message's priority.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: It is unknown whether such a lane exists; nothing was put.
        """
        settings = lane.settings
        due = due_lane(
            due_us,
            lane.priority,
            now_us=lane.clock.now_us(),
            after_us=int(settings.schedule_after_s * 1e6),
            period_us=settings.period_us,
        )
        return None if due is None else await self.get(lane, due)

    async def get(self, lane: Lane, due: DueLane) -> Lane | None:
        """Return a due lane that exists and takes messages; None if it takes none any more.

        Args:
            lane: Any lane of the queue.

        Raises:
            QueueDeleted, StoreError: As `lane_for`.
        """
        its_lane = lane.due_lane(due)
        if its_lane.lane_id not in self._known:
            if not await ensure(its_lane, due):
                return None
            if len(self._known) >= LONGEST_PERIODS:
                self._known.clear()  # most are over; the others are found again
            self._known.add(its_lane.lane_id)
        return its_lane


async def ensure(lane: Lane, due: DueLane) -> bool:
    """Make sure that a due lane exists and is found. Return False if it takes no messages any more.

    Raises:
        QueueDeleted: The queue is gone.
    """
    await begin_queue(lane.first)
    period_us = lane.settings.period_us
    made = await lane.monotons.insert(Monoton(next_id=0, reserved_us=lane.clock.now_us()))
    await lane.store.schedules.add(lane.lanes[0], due, period_us=period_us)
    # A client that closes a period or deletes a queue raises its register first and reads the
    # schedule afterwards. So it has found this lane, or this read finds the register [U2].
    pointers = await lane.first.pointers.read()
    # A row may exist although all of the lane is acked: a late copy of an INSERT.
    is_open = (
        not pointers.is_deleted
        and due.period >= first_open(lane, pointers)
        and not (await lane.pointers.read()).is_deleted
    )
    if not is_open:
        await _undo(lane, due, made)
    if pointers.is_deleted:
        raise lane.deleted()
    return is_open


def first_open(lane: Lane, pointers: Pointers) -> int:
    """Return the first period in which a due lane may be created, by the registers of a queue."""
    closed = max(pointers.schedule, pointers.schedule_closed)
    return first_period(closed, created_us=lane.created_us, period_us=lane.settings.period_us)


def first_unfinished(lane: Lane, pointers: Pointers) -> int:
    """Return the first period that may have a due lane, by the registers of a queue."""
    return first_period(
        pointers.schedule, created_us=lane.created_us, period_us=lane.settings.period_us
    )


async def _undo(lane: Lane, due: DueLane, made: Outcome[Monoton]) -> None:
    """End the lane that was just created, if it was not used since (ADR 25).

    L goes up before the row goes: a late copy of an INSERT may bring the row back, and a client
    that has found the lane open before would use it although no reader looks there any more.
    """
    if isinstance(made, Applied):
        await close_unused(lane.store, lane.lane_id, made.now)
    if (await lane.pointers.read()).is_deleted:
        await lane.store.schedules.remove(lane.lanes[0], due, period_us=lane.settings.period_us)


async def begun_and_later(lane: Lane) -> tuple[list[Lane], list[Lane]]:
    """Return the due lanes that readers look at now, and the later ones, with two reads.

    Raises:
        QueueDeleted: The queue is gone.
    """
    now_us, period_us = lane.clock.now_us(), lane.settings.period_us
    begin_later = looked_at(now_us, period_us)
    begun: list[Lane] = []
    later: list[Lane] = []
    for one in await _unfinished(lane, periods_end(now_us, period_us)):
        is_later = one.due is not None and one.due.period >= begin_later
        (later if is_later else begun).append(one)
    return begun, later


async def every_lane(lane: Lane) -> list[Lane]:
    """Return all lanes of a queue: the fixed ones, and the due lanes that are not finished."""
    end = periods_end(lane.clock.now_us(), lane.settings.period_us)
    return lane.all + await _unfinished(lane, end)


async def looked_at_lanes(lane: Lane) -> list[Lane]:
    """Return the lanes in the order of a get: highest priority first, then the earliest due."""
    end = looked_at(lane.clock.now_us(), lane.settings.period_us)
    return as_read([*lane.all, *await _unfinished(lane, end)])


def as_read(lanes: list[Lane]) -> list[Lane]:
    """Sort lanes of one queue into the order in which a get looks at them."""
    return sorted(lanes, key=lambda one: one.fixed.rank(one.lane_id))


async def due_between(lane: Lane, first: int, end: int) -> list[Lane]:
    """Return the due lanes of the periods from ``first`` to before ``end``: one read per year."""
    found = await lane.store.schedules.read(
        lane.lanes[0], first, end, period_us=lane.settings.period_us
    )
    some = [due for due in found if due.priority < lane.settings.priorities]
    return [lane.due_lane(due) for due in some]


async def _unfinished(lane: Lane, end: int) -> list[Lane]:
    return await due_between(lane, first_unfinished(lane, await lane.first.read_pointers()), end)


class DueLaneCache:
    """The due lanes that one consumer looks at, cached.

    It costs one read in `SLICE_S`, and one more in `REGISTER_S`. If the schedule does not answer,
    the cache is used: the other lanes go on (I10).
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._first: int | None = None
        self._register_at = -inf
        self._read_at = -inf
        self._end = 0
        self._lanes: list[Lane] = []

    async def lanes(self) -> list[Lane]:
        """Return the due lanes that have begun, oldest first.

        Raises:
            QueueDeleted: The queue is gone.
        """
        lane = self._lane
        end = looked_at(lane.clock.now_us(), lane.settings.period_us)
        now = lane.clock.monotonic()
        if end == self._end and now - self._read_at <= SLICE_S:
            return self._lanes
        try:
            with lane.store.session.within(each_s=SCHEDULE_WAIT_S):
                if self._first is None or now - self._register_at > REGISTER_S:
                    self._first = first_unfinished(lane, await lane.first.read_pointers())
                    self._register_at = now
                self._lanes = await due_between(lane, self._first, end)
            self._end = end
        except QueueDeleted:
            raise
        except StoreError as error:
            event(_logger, "schedule_unreachable", queue=lane.queue, error=str(error))
        self._read_at = now
        return self._lanes
