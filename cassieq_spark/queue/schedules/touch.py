"""Touch schedules: put what comes, exactly once (docs/design/schedules.md). Holds I11.

  take back  ->  settle  ->  take places  ->  CAS: named  ->  write  ->  prove  ->  CAS: proven

A row names each occurrence with its place before its message is written. Whoever finds named
occurrences that are not proven settles them first: the bucket is closed, and its manifest says
which are in. One that is not in never will be (I5), and gets another place. So it does not matter
who dies, or stands still, or how many work at once: whoever is late loses its CAS, or its writes
come into a closed bucket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import recurring as rules
from cassieq_spark.model.bucket import Status as BucketStatus
from cassieq_spark.model.ids import EMPTY, BucketNo, LaneId, Place, Runs
from cassieq_spark.model.lanes import MAX_SHARDS, shard_of
from cassieq_spark.model.moments import show_time, time_of
from cassieq_spark.model.outcome import Outcome, Stored
from cassieq_spark.model.recurring import Named, Occurrence, Run, Schedule, Status
from cassieq_spark.model.rows.intents import Cancel
from cassieq_spark.queue import seal
from cassieq_spark.queue.lane import Lane, LaneEnded, attempts
from cassieq_spark.queue.put import encode
from cassieq_spark.queue.put.encode import Packed, Times
from cassieq_spark.queue.put.producer import Producer
from cassieq_spark.queue.put.results import Outcome as Put
from cassieq_spark.queue.put.results import Placed
from cassieq_spark.queue.schedule import DueLanes
from cassieq_spark.store.chunk import Row

HEADERS: Final = ("cassieq-schedule", "cassieq-slot", "cassieq-due")
"""The headers of an occurrence: its schedule's name, its slot, and when it was due."""

_HAS_KEY: Final = b"slot"
"""A row with a key keeps its manifest when its bucket is dropped, for whoever settles it [U5]."""

_logger = get_logger("queue")


@dataclass(slots=True)
class Touched:
    """What became of one schedule.

    Attributes:
        named: Occurrences that its row names since: they are put, by this touch or another one.
        put: Those that this touch has put.
        left: Slots that could not be taken back, of a former definition.
        unsure: Slots of which nothing is kept any more; they count as put.
        row: Its row after that; None: it is gone.
    """

    name: str
    named: int = 0
    put: int = 0
    left: list[int] = field(default_factory=list)
    unsure: int = 0
    problem: CassieqError | None = None
    row: Stored[Schedule] | None = None


@dataclass(slots=True)
class _Draft:
    """A schedule whose row is settled, and what is to be put for it."""

    found: Touched
    row: Stored[Schedule]
    schedule: Schedule
    todo: list[Occurrence]
    placed: list[tuple[Occurrence, Placed]] = field(default_factory=list)


class Toucher:
    """Touches the schedules of one queue. To close its buckets disturbs nobody else."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._store = lane.store
        self._producers: dict[LaneId, Producer] = {}
        self._due_lanes = DueLanes()
        self._shard = lane.store.entropy.rng.randrange(MAX_SHARDS)

    async def put_again(self, name: str, what: Sequence[Occurrence]) -> Touched:
        """Put occurrences of the past once more.

        Raises:
            CasContention: Others have changed the row too often. Nothing was put.
        """
        async for _ in attempts(self._store):
            found = (await self.touch([name], what))[0]
            if found.named or found.problem is not None or found.row is None or not what:
                return found
        raise self._lane.contended(f"schedule {name!r}")

    async def touch(self, names: Sequence[str], more: Sequence[Occurrence] = ()) -> list[Touched]:
        """Touch these schedules together; their occurrences share buckets, by due time.

        A failure ends one schedule's touch only, and is in its result: the next touch goes on.

        Args:
            more: What else is put for each.
        """
        found = {name: Touched(name) for name in names}
        drafts: list[_Draft] = []

        async def draft(name: str) -> None:
            one = await self._drafted(found[name])
            if one is not None:
                one.todo += more
                drafts.append(one)

        await self._each(found, draft, names)
        drafts.sort(key=lambda one: one.found.name)
        try:
            await self._place(drafts)
        except CassieqError as error:
            for one in drafts:
                one.found.problem = error
            return list(found.values())
        by_name = {one.found.name: one for one in drafts}
        ours: list[_Draft] = []

        async def name_all(name: str) -> None:
            if await self._named(by_name[name]):
                ours.append(by_name[name])

        await self._each(found, name_all, by_name)
        is_in = await self._written([placed for one in ours for _, placed in one.placed])
        todo = [one.found.name for one in ours if one.placed]

        async def note(name: str) -> None:
            await self._noted(by_name[name], is_in)

        await self._each(found, note, todo)
        return list(found.values())

    async def _each(
        self,
        found: Mapping[str, Touched],
        work: Callable[[str], Awaitable[None]],
        names: Iterable[str],
    ) -> None:
        todo = [name for name in names if found[name].problem is None]
        for name, result in zip(todo, await self._store.session.each(work, todo), strict=True):
            if isinstance(result, CassieqError):
                found[name].problem = result

    async def _drafted(self, found: Touched) -> _Draft | None:
        """Take back what is to be taken back, settle the rest, and say what comes."""
        table, first = self._store.timetable, self._lane.first
        async for _ in attempts(self._store):
            row = found.row = await table.find(found.name)
            if row is None or row.value.definition is None:
                return None
            now_us = self._lane.clock.now_us()
            schedule = row.value
            if schedule.lane != first.lane_id:
                moved = rules.moved(schedule, first.lane_id, self._lane.created_us)
                await table.define(row, moved)
                continue
            if schedule.state.revoking:
                await self._take_back(found, row)
                continue
            if schedule.status is Status.DELETING:
                await table.delete(row)
                continue
            is_in, again = await self._judged(found, schedule)
            schedule = rules.settled(schedule, is_in, now_us)
            todo = rules.occurrences(schedule, again, now_us)
            return _Draft(found=found, row=row, schedule=schedule, todo=todo)
        raise self._lane.contended(f"schedule {found.name!r}")

    async def _take_back(self, found: Touched, row: Stored[Schedule]) -> None:
        """Cancel what a former definition has put ahead."""
        left: list[int] = []
        for run in row.value.state.revoking:
            left += await self._left_of(run)
        now_us = self._lane.clock.now_us()
        after = rules.revoked(row.value, left, now_us)
        await self._store.timetable.touch(row, after)
        found.left = left

    async def _left_of(self, run: Run) -> list[int]:
        """Cancel a run's messages; return the slots that are or were delivered."""
        lane, bucket = self._lane.sibling(run.place.lane), run.place.bucket
        async for _ in lane.attempts():
            manifest = await _manifest(lane, bucket)
            if manifest.is_dropped:
                # What was later than now was taken back by whoever came before.
                now_us = lane.clock.now_us()
                return [one.at_us for one in run.slots if one.due_us <= now_us]
            answer = await lane.apply(bucket, Cancel(runs=run.offsets & manifest.runs))
            if answer.row is not None:  # else it was dropped meanwhile
                left = manifest.runs - answer.row.value.cancelled
                return [one.at_us for one in run.slots if one.offset in left]
        raise lane.contended(lane.bucket_title(bucket))

    async def _judged(self, found: Touched, schedule: Schedule) -> tuple[list[Run], list[Named]]:
        """Find out which named occurrences are in; the others never will be."""
        is_in: list[Run] = []
        again: list[Named] = []
        for run in schedule.state.unproven:
            lane = self._lane.sibling(run.place.lane)
            manifest = await _manifest(lane, run.place.bucket)
            runs = manifest.runs
            if manifest.is_unknown and lane.clock.now_us() - run.named_us >= rules.UNSURE_US:
                runs = run.offsets
                found.unsure += len(run.slots)
                event(_logger, "schedule_unsure", schedule=found.name, messages=len(run.slots))
            kept = run.only(lambda one, runs=runs: one.offset in runs)  # type: ignore[misc]
            if kept is not None:
                is_in.append(kept)
            again += [one for one in run.slots if one.offset not in runs]
        return is_in, again

    async def _place(self, drafts: Sequence[_Draft]) -> None:
        """Give each occurrence a place, by due time: a bucket's due times are then few bytes."""
        todo = [(one, what) for one in drafts for what in one.todo]
        todo.sort(key=lambda both: both[1].due_us)
        by_lane: dict[LaneId, dict[int, Packed]] = {}
        for at, (one, what) in enumerate(todo):
            lane_id, packed = await self._packed(one.schedule, what)
            by_lane.setdefault(lane_id, {})[at] = packed
        for lane_id, some in by_lane.items():
            for at, placed in (await self._places(lane_id, some)).items():
                one, what = todo[at]
                one.placed.append((what, placed))

    async def _places(self, lane_id: LaneId, packed: dict[int, Packed]) -> dict[int, Placed]:
        producer = self._producers.setdefault(lane_id, Producer())
        lane = self._lane.sibling(lane_id)
        try:
            return await producer.place(lane, packed)
        except LaneEnded:  # a due lane takes no more
            return await self._places(self._fixed(lane.priority, None), packed)

    def _fixed(self, priority: int, key: str | None) -> LaneId:
        settings, fixed = self._lane.settings, self._lane.fixed
        shard = self._shard % settings.shards if key is None else shard_of(key, settings.shards)
        return fixed.lane(min(priority, settings.priorities - 1), shard)

    async def _packed(self, schedule: Schedule, what: Occurrence) -> tuple[LaneId, Packed]:
        its = schedule.its
        lane = self._lane.sibling(self._fixed(its.priority, its.key))
        times = Times(ttl_us=its.ttl_us)
        if what.due_us > lane.clock.now_us():
            times = Times(due_us=what.due_us, ttl_us=its.ttl_us)
            lane = await self._due_lanes.lane_for(lane, what.due_us) or lane
        slot, due = (show_time(time_of(one)) for one in (what.slot.at_us, what.due_us))
        headers = dict(zip(HEADERS, (schedule.name, str(slot), str(due)), strict=True))
        row = Row(body=its.body, message_id=None, tag=its.tag, headers={**its.headers, **headers})
        keys = [_HAS_KEY]
        packed = encode.pack([row], bucket_size=lane.bucket_size, times=times, keys=keys)
        return lane.lane_id, packed[0]

    async def _named(self, draft: _Draft) -> bool:
        """Make the row name its occurrences; return whether it does, so that they may be put."""
        now_us = self._lane.clock.now_us()
        places = [
            (what, Place(placed.lane, placed.bucket), placed.first) for what, placed in draft.placed
        ]
        schedule = rules.named(draft.schedule, places, now_us)
        if schedule == draft.row.value:
            return True
        outcome = await self._store.timetable.touch(draft.row, schedule)
        # Whether the CAS was applied says less: its answer may have been lost, and others may have
        # gone on, or its tag was evicted [U3].
        now = draft.found.row = outcome.now
        if now is None or not rules.names_all(now.value, schedule.state.unproven):
            return False
        draft.row = now
        draft.found.named = len(places)
        return True

    async def _written(self, placed: Sequence[Placed]) -> set[tuple[Place, int]]:
        """Write and prove; return the places of which it is sure that they are in."""
        by_lane: dict[LaneId, list[Placed]] = {}
        for one in placed:
            by_lane.setdefault(one.lane, []).append(one)
        found: set[tuple[Place, int]] = set()

        async def write(lane_id: LaneId) -> None:
            some = by_lane[lane_id]
            lane = self._lane.sibling(lane_id)
            kept = await self._producers[lane_id].store(lane, dict(enumerate(some)), Put())
            for one in some:
                manifest = kept[one.bucket]
                if manifest is not None and one.first in manifest:
                    found.add((Place(one.lane, one.bucket), one.first))

        await self._store.session.each(write, by_lane)
        return found

    async def _noted(self, draft: _Draft, is_in: set[tuple[Place, int]]) -> None:
        """Note what is proven. Without it, whoever comes next closes the buckets to find out."""
        row: Stored[Schedule] | None = draft.row
        mine = [
            run
            for run in draft.row.value.state.unproven
            if all((run.place, one.offset) in is_in for one in run.slots)
        ]
        draft.found.put = sum(len(run.slots) for run in mine)
        metrics.MESSAGES_PUT.inc(self._lane.queue, draft.found.put)
        if not mine:
            return
        async for _ in attempts(self._store):
            if row is None or not rules.names_all(row.value, mine):
                return  # others have settled them
            after = rules.proven(row.value, is_in, self._lane.clock.now_us())
            outcome: Outcome[Schedule] = await self._store.timetable.touch(row, after)
            row = draft.found.row = outcome.now
        raise self._lane.contended(f"schedule {draft.found.name!r}")


@dataclass(frozen=True, slots=True)
class _Manifest:
    """What is, or was, in a closed bucket.

    Attributes:
        is_unknown: Whether nothing is kept of a bucket that was dropped: no row with a key was in
            it, or that is too long ago.
    """

    runs: Runs
    is_dropped: bool = False
    is_unknown: bool = False


async def _manifest(lane: Lane, bucket: BucketNo) -> _Manifest:
    """Return what a bucket has; close it, if it is open.

    Raises:
        QueueDeleted: The queue is gone.
        StoreError: It is unknown.
    """
    async for _ in lane.attempts():
        row = await lane.buckets.read(bucket)
        # Read L after the row: only it explains an absence, or a ghost (G5) [P2].
        if await lane.is_dropped(bucket):
            kept = await lane.kept.read(bucket)
            return _Manifest(kept or EMPTY, is_dropped=True, is_unknown=kept is None)
        if row is not None and row.value.status is not BucketStatus.SEALING:
            return _Manifest(row.value.manifest)
        await seal.finish(lane, bucket, row)
    raise lane.contended(lane.bucket_title(bucket))
