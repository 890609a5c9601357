"""Touch schedules: put what comes, exactly once (docs/design/schedules.md). Holds I11.

  take back  ->  settle  ->  take places  ->  CAS: named  ->  write  ->  prove  ->  CAS: proven

A row names each occurrence with its place before its message is written. Whoever finds named
occurrences that are not proven settles them first: the bucket is closed, and its manifest says
which are in. One that is not in never will be (I5), and gets another place. So it does not matter
who dies, or stands still, or how many work at once: whoever is late loses its CAS, or its writes
come into a closed bucket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Self

from cronsim import CronSimError

from cassieq_spark import metrics
from cassieq_spark.errors import CasAmbiguous, CassieqError, OptionInvalid
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import recurring as rules
from cassieq_spark.model.bucket import Status as BucketStatus
from cassieq_spark.model.ids import EMPTY, BucketNo, LaneId, Place, Runs
from cassieq_spark.model.lanes import MAX_SHARDS, shard_of
from cassieq_spark.model.lease import EXPIRY_MARGIN_US
from cassieq_spark.model.moments import show_time, time_of
from cassieq_spark.model.outcome import Applied, Outcome, Stored
from cassieq_spark.model.recurring import Named, Occurrence, Run, Schedule, Status
from cassieq_spark.model.rows.intents import Cancel
from cassieq_spark.model.slots import Slot
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
        at_us: When it was looked at. What was missed before is put, if all is well.
        put: Occurrences that this touch has put.
        has_filled: Whether its row has noted what a call puts once more: it is put exactly once.
        row: Its row after that; None: it is gone.
    """

    name: str
    at_us: int = 0
    put: int = 0
    has_filled: bool = False
    problem: CassieqError | None = None
    row: Stored[Schedule] | None = None


@dataclass(frozen=True, slots=True)
class Fill:
    """Occurrences that a call puts at once, beside all others.

    Attributes:
        mark: Names the call in the row: whoever has lost the answer finds it there.
    """

    mark: bytes
    slots: Sequence[Slot]


@dataclass(slots=True)
class _Draft:
    """A schedule whose row is settled, and what is to be put for it."""

    found: Touched
    row: Stored[Schedule]
    schedule: Schedule
    cursor: Slot
    is_late: bool
    fill: bytes | None
    packed: list[tuple[Occurrence, LaneId, Packed]]
    placed: list[tuple[Occurrence, Placed]] = field(default_factory=list)


class Toucher:
    """Touches the schedules of one queue. To close its buckets disturbs nobody else."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._store = lane.store
        self._producers: dict[LaneId, Producer] = {}
        self._due_lanes = DueLanes()
        self._shard = lane.store.entropy.rng.randrange(MAX_SHARDS)

    def use(self, lane: Lane) -> Self:
        """Go on with the queue's newest settings."""
        self._lane = lane
        return self

    async def touch(
        self, names: Sequence[str], *, fills: bool = True, again: Fill | None = None
    ) -> list[Touched]:
        """Touch these schedules together; their occurrences share buckets, by due time.

        A failure ends one schedule's touch only, and is in its result: the next touch goes on.

        Args:
            fills: Whether what was missed, and what comes, is put. Else it only settles.
            again: What else is put for each.
        """
        found = {name: Touched(name) for name in names}
        drafts: dict[str, _Draft] = {}

        async def draft(name: str) -> None:
            one = await self._drafted(found[name], fills=fills, again=again)
            if one is not None:
                drafts[name] = one

        await self._each(found, draft, names)
        drafts = dict(sorted(drafts.items()))
        try:
            await self._place(drafts.values())
        except CassieqError as error:
            for name in drafts:
                found[name].problem = error
            return list(found.values())
        ours: list[str] = []

        async def name_all(name: str) -> None:
            if await self._named(drafts[name]):
                ours.append(name)

        await self._each(found, name_all, drafts)
        is_in = await self._written([one for name in ours for _, one in drafts[name].placed])

        async def note(name: str) -> None:
            await self._noted(drafts[name], is_in)

        await self._each(found, note, ours)
        return list(found.values())

    async def _each(
        self,
        found: Mapping[str, Touched],
        work: Callable[[str], Awaitable[None]],
        names: Iterable[str],
    ) -> None:
        async def one(name: str) -> None:
            with computing(name):
                await work(name)

        todo = [name for name in names if found[name].problem is None]
        for name, result in zip(todo, await self._store.session.each(one, todo), strict=True):
            if isinstance(result, CassieqError):
                found[name].problem = result

    async def _drafted(self, found: Touched, *, fills: bool, again: Fill | None) -> _Draft | None:
        """Take back what is to be taken back, settle the rest, and say what comes."""
        table, first = self._store.timetable, self._lane.first
        async for _ in attempts(self._store):
            row = found.row = await table.find(found.name)
            if row is None or row.value.definition is None or row.value.queue != self._lane.queue:
                return None
            schedule = row.value
            now_us = found.at_us = self._lane.clock.now_us()
            if schedule.lane != first.lane_id:
                # Read L after the row: if our queue lives, the row's is an older one [T6].
                await first.read_pointers()
                moved = rules.moved(schedule, first.lane_id, self._lane.created_us)
                await table.define(row, moved)
                continue
            if schedule.state.revoking:
                await self._take_back(row)
                continue
            if schedule.status is Status.DELETING:
                await table.delete(row)
                continue
            if not fills and not schedule.state.unproven:
                return None  # there is nothing to settle
            is_in, lost = await self._judged(schedule)
            schedule = rules.settled(schedule, is_in, now_us)
            todo = [Occurrence(Slot(one.at_us), one.due_us) for one in lost]
            cursor, fill = schedule.state.cursor, None
            if fills:
                some, cursor = rules.occurrences(schedule, now_us)
                todo += some
            if again is not None:
                found.has_filled = again.mark in schedule.state.fills
                if not found.has_filled:
                    fill = again.mark
                    todo += [Occurrence(one, rules.AT_ONCE_US) for one in again.slots]
            packed = [(what, *await self._packed(schedule, what)) for what in todo]
            is_late = fills and rules.missed_us(schedule, now_us) is not None
            return _Draft(found, row, schedule, cursor, is_late, fill, packed)
        raise self._lane.contended(f"schedule {found.name!r}")

    async def _take_back(self, row: Stored[Schedule]) -> None:
        """Cancel what a former definition has put ahead."""
        left: list[int] = []
        for run in row.value.state.revoking:
            left += await self._left_of(run)
        after = rules.revoked(row.value, left, self._lane.clock.now_us())
        await self._store.timetable.touch(row, after)

    async def _left_of(self, run: Run) -> list[int]:
        """Cancel a run's messages; return the slots that are or were delivered."""
        lane, bucket = self._lane.sibling(run.place.lane), run.place.bucket
        async for _ in lane.attempts():
            manifest = await _manifest(lane, bucket)
            left = manifest.runs
            if not manifest.is_dropped:
                answer = await lane.apply(bucket, Cancel(runs=run.offsets & left))
                if answer.row is None or answer.row.value.status is BucketStatus.SEALING:
                    continue  # it was dropped meanwhile, and this may be its ghost (G5)
                left -= answer.row.value.cancelled
            # What is later than now was not delivered, whatever else became of it, as by a purge.
            # If its bucket is gone, whoever came before has taken it back.
            until_us = lane.clock.now_us() + EXPIRY_MARGIN_US
            gone = run.offsets if manifest.is_dropped else left
            return [one.at_us for one in run.slots if one.offset in gone and one.due_us <= until_us]
        raise lane.contended(lane.bucket_title(bucket))

    async def _judged(self, schedule: Schedule) -> tuple[list[Run], list[Named]]:
        """Find out which named occurrences are in; the others never will be."""
        is_in: list[Run] = []
        lost: list[Named] = []
        for run in schedule.state.unproven:
            lane = self._lane.sibling(run.place.lane)
            manifest = await _manifest(lane, run.place.bucket)
            runs = manifest.runs
            if manifest.is_unknown and lane.clock.now_us() - run.named_us >= rules.UNSURE_US:
                runs = run.offsets
                event(_logger, "schedule_unsure", schedule=schedule.name, messages=runs.count)
            kept = run.only(lambda one, runs=runs: one.offset in runs)  # type: ignore[misc]
            if kept is not None:
                is_in.append(kept)
            lost += [one for one in run.slots if one.offset not in runs]
        return is_in, lost

    async def _place(self, drafts: Iterable[_Draft]) -> None:
        """Give each occurrence a place, by due time: a bucket's due times are then few bytes."""
        todo = [(one, *what) for one in drafts for what in one.packed]
        todo.sort(key=lambda one: one[1].due_us)
        by_lane: dict[LaneId, dict[int, Packed]] = {}
        for at, (_, _, lane_id, packed) in enumerate(todo):
            by_lane.setdefault(lane_id, {})[at] = packed
        for lane_id, some in by_lane.items():
            for at, placed in (await self._places(lane_id, some)).items():
                draft, what, *_ = todo[at]
                draft.placed.append((what, placed))

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
        at_us = what.slot.at_us
        slot, due = (show_time(time_of(one)) for one in (at_us, max(at_us, what.due_us)))
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
        schedule = rules.named(draft.schedule, places, draft.cursor, now_us, fill=draft.fill)
        if schedule == draft.row.value:
            return False
        outcome = await self._store.timetable.touch(draft.row, schedule)
        # Whether the CAS was applied says less: its answer may have been lost, and others may have
        # gone on, or its tag was evicted [U3].
        now = draft.found.row = outcome.now
        if now is not None and draft.fill is not None:
            has_filled = rules.has_filled(now.value.state, draft.fill, draft.row.value.state)
            if has_filled is None:
                raise CasAmbiguous(
                    f"too many other calls have put messages of schedule {draft.found.name!r} at "
                    "once, so it is unknown whether this call has. Look at the queue first, as a "
                    "further call may put them twice"
                )
            draft.found.has_filled = has_filled
        if now is None or not rules.names_all(now.value, schedule.state.unproven):
            return False
        if draft.is_late:
            metrics.SCHEDULE_MISFIRES.inc(self._lane.queue)
        draft.row = now
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
            after = rules.proven(row.value, mine, self._lane.clock.now_us())
            outcome: Outcome[Schedule] = await self._store.timetable.touch(row, after)
            row = draft.found.row = outcome.now
            if isinstance(outcome, Applied):
                return
        raise self._lane.contended(f"schedule {draft.found.name!r}")


@contextmanager
def computing(name: str) -> Iterator[None]:
    """Turn what a schedule cannot be computed for into an error of this schedule alone.

    Raises:
        OptionInvalid: This machine does not know its time zone, for example.
    """
    try:
        yield
    except CassieqError:
        raise
    except (ArithmeticError, CronSimError, LookupError, OSError, TypeError, ValueError) as error:
        raise OptionInvalid(
            f"schedule {name!r} cannot be computed here ({type(error).__name__}: {error}). Has "
            "this machine the newest time zone data? Alter the schedule, or delete it"
        ) from error


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
