"""Run one repair pass: each step is idempotent, and its failure stops no other step."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from cassieq_spark.entropy import generator
from cassieq_spark.errors import CassieqError, QueueDeleted
from cassieq_spark.model.sink_txn import set_of
from cassieq_spark.queue import deletion
from cassieq_spark.queue.find import at_home, lanes_of, read_row, rows_at_home
from cassieq_spark.queue.lane import Lane, live_buckets, windows
from cassieq_spark.repair.cleanup import close_gaps, drop, free, sweep, sweep_lanes
from cassieq_spark.repair.progress import SILENT, Tracker
from cassieq_spark.repair.report import QueueRepair, RepairReport
from cassieq_spark.repair.schedule import Schedule, sweep_schedules, together
from cassieq_spark.repair.steps import Healed, heal_buckets, note, noting
from cassieq_spark.repair.transactions import (
    abort_if_silent,
    end_of_deleted,
    end_once,
    may_be_over,
)
from cassieq_spark.store.tables.queues import QueueStatus
from cassieq_spark.store.tables.sinks import ALL, FIRST_TOKEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from cassieq_spark.model.ids import BucketNo, LaneId, QueueName
    from cassieq_spark.repair.progress import OnProgress
    from cassieq_spark.store.store import Store
    from cassieq_spark.store.tables.sinks import Glimpse

WINDOW: Final = 64

SINKS_TOGETHER: Final = 10_000
"""The most sink rows that a pass looks through, from a random start. A day's resting rows may be
many more, and each pass would read them all (I9). A full pass reads all [T10]."""


DELETED_QUEUES: Final = "(deleted queues)"
SINK_LISTS: Final = "(sink lists)"
"""The names for problems with sinks and lists that belong to no existing queue."""


class Pass:
    """One pass over some queues: for each queue `Pass.finish` after its buckets, then `Pass.end`.

    A queue is healed lane by lane; its transactions span all its lanes, and end after all of them.
    `repair.steps.heal_buckets` may heal the buckets anywhere in between.

    Attributes:
        lanes: The first lanes of the queues to heal.
        report: What was done so far.
    """

    def __init__(self, store: Store, *, is_full: bool, is_of_all: bool) -> None:
        self._store = store
        self._is_full = is_full
        self._is_of_all = self._has_all = is_of_all
        self.report = RepairReport()
        # Read before any bucket: see `_end_moves`.
        self._once: dict[LaneId, list[str]] = defaultdict(list)
        self._dead_sets: set[UUID] = set()
        self._unfinished: list[QueueRepair] = []
        self.lanes: list[Lane] = []
        self.schedule = Schedule(store)

    @classmethod
    async def begin(cls, store: Store, names: list[QueueName] | None, *, is_full: bool) -> Self:
        """Read the work of the pass.

        Args:
            names: None: every queue whose home is this client's data centre.
        """
        made = cls(store, is_full=is_full, is_of_all=names is None)
        now_us = store.clock.now_us()
        for seen in await made._some_sinks():
            if may_be_over(seen, now_us=now_us):
                made._once[seen.lane].append(seen.sink_id)
        made.lanes = await made._open(names)
        # After the sinks: a set that one of those moves is in one of these lanes [U9].
        made.schedule = await Schedule.of(store, made.lanes)
        return made

    async def windows(
        self, lane: Lane, healed: Healed, size: int = WINDOW, *, tracker: Tracker = SILENT
    ) -> AsyncIterator[list[BucketNo]]:
        """Yield the buckets of a lane, ``size`` at a time; the tracker counts the earlier ones."""
        try:
            live = await live_buckets(lane)
            reach = await tracker.lane(live)
            for window in windows(live, size):
                yield window
                await reach(window[-1])
        except QueueDeleted:
            raise  # the queue is gone
        except CassieqError:
            healed.has_missed = True
            raise

    async def finish(self, lane: Lane, healed: Healed) -> None:
        """Do a queue's steps that come after all its buckets were healed."""
        done = healed.done
        for sink_id, undecided in healed.undecided.items():
            with noting(done):
                done.aborted += await abort_if_silent(lane, sink_id, undecided)
        lanes = self.schedule.lanes_of(lane)

        async def close(one: Lane) -> int:
            closed = 0
            with noting(done):
                closed += await close_gaps(one)
            return closed

        async def remove(one: Lane) -> tuple[int, int]:
            dropped = freed = 0
            with noting(done):
                dropped, freed = await _drop_and_free(one, healed)
            return dropped, freed

        done.gaps_closed += sum(await together(self._store, close, lanes))
        for sink_id in self._once[lane.lane_id]:
            if set_of(sink_id) is None:
                with noting(done):
                    done.sinks_ended += await end_once(lane, sink_id)
        for dropped, freed in await together(self._store, remove, lanes):
            done.dropped += dropped
            done.freed += freed
        with noting(done):
            await self.schedule.finish(lane)
        self._dead_sets |= healed.dead_sets
        self._has_all &= not healed.has_missed
        self.report.queues.append(done)

    async def end(self) -> RepairReport:
        """Do the steps that come after all queues were healed."""
        if self._has_all:
            await self._end_moves()
        if self._is_of_all:
            await self._end_sinks_of_deleted()
        if self._is_full:
            await self._sweep()
        if self._is_full and self._is_of_all:
            await self._sweep_lists()
        self.report.queues += self._unfinished
        return self.report

    async def _open(self, names: list[QueueName] | None) -> list[Lane]:
        if names is None:
            for row in await rows_at_home(self._store, QueueStatus.DELETING):
                failed = QueueRepair(queue=row.name)
                with noting(failed):
                    await self._finish_deletion(row.name)
                if failed.problems:
                    self._unfinished.append(failed)
        return await lanes_of(self._store, names)

    async def _finish_deletion(self, name: QueueName) -> None:
        found = await read_row(self._store, name)
        if (
            found is not None
            and found.value.status is QueueStatus.DELETING
            and at_home(self._store, found.value)
        ):
            await deletion.finish_deletion(self._store, found)
            self.report.deletions_finished.append(name)

    async def _end_moves(self) -> None:
        """Remove the rows of moves whose mover died before it could do only that.

        A set that was in no bucket row, read after its sink's row, is never moved again: a mover
        that still has it finds its transaction gone [P24]. A queue that this data centre's quorum
        does not know yet could hold the set. So if there is anything to remove, all data centres
        are asked for queues.
        """
        left = [
            (lane, sink_id, done)
            for lane, done in zip(self.lanes, self.report.queues, strict=True)
            for sink_id in self._once[lane.lane_id]
            if (set_id := set_of(sink_id)) is not None and set_id not in self._dead_sets
        ]
        if not left:
            return
        with noting(left[0][2]):
            if not await self._knows_every_lane():
                return
            for lane, sink_id, done in left:
                with noting(done):
                    done.sinks_ended += await end_once(lane, sink_id)

    async def _knows_every_lane(self, *, in_any_datacenter: bool = False) -> bool:
        """Whether this pass heals all queues of this data centre, or of any."""
        known = {lane.lane_id for lane in self.lanes}
        rows = await self._store.queues.read_all()
        return not any(
            known.isdisjoint(row.lanes)
            for row in rows
            if in_any_datacenter or at_home(self._store, row)
        )

    async def _end_sinks_of_deleted(self) -> None:
        """Remove the rows of single transactions whose queue was deleted.

        A move may belong to a queue that lives in another data centre: then it is left alone.
        """
        known = {lane.lane_id for lane in self.lanes}
        failed = QueueRepair(queue=DELETED_QUEUES)
        with noting(failed):
            others = [lane_id for lane_id in self._once if lane_id not in known]
            pointers = await self._store.session.map(
                lambda lane: self._store.lane(lane).pointers.read(), others
            )
            gone = [
                lane_id for lane_id, one in zip(others, pointers, strict=True) if one.is_deleted
            ]
            has_moves = bool(gone) and self._has_all
            has_moves = has_moves and await self._knows_every_lane(in_any_datacenter=True)
            for lane_id in gone:
                for sink_id in self._once[lane_id]:
                    set_id = set_of(sink_id)
                    if set_id is None or (has_moves and set_id not in self._dead_sets):
                        with noting(failed):
                            self.report.sinks_swept += await end_of_deleted(
                                self._store, sink_id, lane_id
                            )
        if failed.problems:
            self._unfinished.append(failed)

    async def _some_sinks(self) -> list[Glimpse]:
        if self._is_full:
            return await self._store.sinks.once(start=FIRST_TOKEN, at_most=ALL)
        anywhere = generator().randrange(FIRST_TOKEN, -FIRST_TOKEN)
        return await self._store.sinks.once(start=anywhere, at_most=SINKS_TOGETHER)

    async def _sweep_lists(self) -> None:
        """Delete bucket lists that no sink row names: their writer died before its CAS.

        A list without a row belongs to a removed row, unless a queue of another data centre has it.
        """
        lanes = {lane.lane_id for lane in self.lanes}
        failed = QueueRepair(queue=SINK_LISTS)
        with noting(failed):
            found = await self._store.sinks.lists()
            are_all_here = bool(found) and await self._knows_every_lane(in_any_datacenter=True)
            for sink_id, ids in found.items():
                with noting(failed):
                    stored = await self._store.sinks.read_serial(sink_id)
                    if (stored is None and are_all_here) or (
                        stored is not None
                        and stored.value.lane in lanes
                        and not stored.value.is_once
                    ):
                        await self._store.sinks.drop_lists(sink_id, stored, ids)
        if failed.problems:
            self._unfinished.append(failed)

    async def _sweep(self) -> None:
        rows: dict[LaneId, list[BucketNo]] = defaultdict(list)
        messages: dict[LaneId, list[BucketNo]] = defaultdict(list)
        for lane_id, bucket in await self._store.everything.buckets():
            rows[lane_id].append(bucket)
        for lane_id, bucket in await self._store.everything.messages():
            messages[lane_id].append(bucket)
        for lane, done in zip(self.lanes, self.report.queues, strict=True):
            for one in self.schedule.lanes_of(lane):
                with noting(done):
                    done.swept += await sweep(one, rows[one.lane_id], messages[one.lane_id])
        everywhere = QueueRepair(queue="*")
        with noting(everywhere):
            self.report.swept_lanes = await sweep_schedules(self._store)
            self.report.swept_lanes += await sweep_lanes(self._store, rows, messages)
        if everywhere.problems:
            self._unfinished.append(everywhere)


async def heal(
    store: Store,
    names: list[QueueName] | None,
    *,
    is_full: bool = False,
    on_progress: OnProgress | None = None,
) -> RepairReport:
    """Run one pass in this process.

    Args:
        names: None: every queue whose home is this client's data centre.
        is_full: Whether to look through all partition keys for late writes below the repair
            pointers, too.
        on_progress: Called with the progress of the pass.

    Raises:
        QueueNotFound: A named queue does not exist.
    """
    one = await Pass.begin(store, names, is_full=is_full)
    tracker = Tracker(on_progress, len(one.lanes))
    heal_lane = partial(_heal_lane, one, tracker)
    for lane in one.lanes:
        healed = Healed(done=QueueRepair(queue=lane.queue))
        one.schedule.check(lane, healed)
        its_lanes = one.schedule.lanes_of(lane)
        await tracker.begin(lane.queue, len(its_lanes))
        for some in await together(store, heal_lane, its_lanes):
            healed.add(some)
        await one.finish(lane, healed)
    await tracker.begin_rest()
    return await one.end()


async def _heal_lane(one: Pass, tracker: Tracker, lane: Lane) -> Healed:
    healed = Healed(done=QueueRepair(queue=lane.queue))
    with noting(healed.done):
        async for window in one.windows(lane, healed, tracker=tracker):
            healed.add(await heal_buckets(lane, window))
    return healed


async def _drop_and_free(lane: Lane, healed: Healed) -> tuple[int, int]:
    dropped = await drop(lane)
    low = (await lane.read_pointers()).repair
    finished = [
        place.bucket
        for place in healed.finished
        if place.lane == lane.lane_id and place.bucket >= low
    ]
    freed, failed = await free(lane, finished)
    for error in failed:
        note(healed.done, error)
    return dropped, freed
