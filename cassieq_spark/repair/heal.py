"""Run one repair pass: each step is idempotent, and its failure stops no other step.

Any task may heal any bucket at any time (`heal_buckets`); a `Pass` does what comes before and after
the buckets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self
from uuid import UUID

from cassieq_spark.errors import CassieqError, QueueDeleted, QueueNotFound, SinkFenced
from cassieq_spark.model import lease as rules
from cassieq_spark.model.bucket import FINISHED, OF_A_SINK, Bucket, Status, with_closed_sets
from cassieq_spark.model.dead import Dead, may_close, movable
from cassieq_spark.model.ids import EMPTY, BucketNo, LaneId, Place, QueueName
from cassieq_spark.model.lease import Terms, is_dying
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.rows.intents import Change
from cassieq_spark.model.sink_txn import set_of
from cassieq_spark.queue import admin, roll_forward, seal
from cassieq_spark.queue.find import at_home, lanes_of, open_lane, read_row, rows_at_home
from cassieq_spark.queue.lane import Lane, by_lane, live_buckets, named, per_bucket, windows
from cassieq_spark.queue.seal import note_expired
from cassieq_spark.repair import dead
from cassieq_spark.repair.cleanup import (
    Schedule,
    close_gaps,
    drop,
    free,
    sweep,
    sweep_lanes,
    sweep_schedules,
    together,
)
from cassieq_spark.repair.report import (
    SILENT,
    OnProgress,
    Part,
    QueueRepair,
    RepairReport,
    Tracker,
    note,
    noting,
)
from cassieq_spark.repair.transactions import (
    Undecided,
    abort_if_silent,
    end_of_deleted,
    end_once,
    may_be_over,
)
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.queues import QueueStatus
from cassieq_spark.store.tables.sinks import ALL, FIRST_TOKEN

Row = Stored[Bucket]

WINDOW: Final = 64

SINKS_TOGETHER: Final = 10_000
"""The most sink rows that a pass looks through, from a random start. A day's resting rows may be
many more, and each pass would read them all (I9). A full pass reads all [T10]."""


DELETED_QUEUES: Final = "(deleted queues)"
SINK_LISTS: Final = "(sink lists)"
"""The names for problems with sinks and lists that belong to no existing queue."""

EACH_S: Final = 5.0
"""The time that a pass waits for each statement about one bucket, before it goes on with others."""


@dataclass(slots=True, kw_only=True)
class Healed(Part):
    """The result for some buckets of one queue, and the rest of the queue's work.

    Attributes:
        undecided: Undecided buckets by sink id.
        finished: Drained or void buckets.
        dead_sets: Dead sets that still exist.
        has_missed: Whether some buckets could not be read at all.
    """

    done: QueueRepair
    undecided: dict[str, list[Undecided]] = field(default_factory=dict)
    finished: list[Place] = field(default_factory=list)
    dead_sets: set[UUID] = field(default_factory=set)
    has_missed: bool = False


async def heal_buckets(lane: Lane, buckets: list[BucketNo]) -> Healed:
    """Finish half-done steps, settle decided ones, move the dead, write hints that may be lost.

    A failure of one bucket stops no other: it is in the report, and left to the next pass.
    """
    healed = Healed(done=QueueRepair(queue=lane.queue), has_missed=True)
    done = healed.done
    # A pass waits for no bucket: the next pass comes, and the other buckets are to be healed now
    # [T5].
    with noting(done), lane.store.session.within(each_s=EACH_S):
        found, unread = await lane.buckets.read_some(buckets)
        rows = {bucket: row for bucket, row in found.items() if row is not None}
        await _finish_halves(lane, rows, done)
        await _close_expired(lane, [at for at, row in found.items() if row is None], rows, done)
        has_missed = False
        for bucket, row in rows.items():
            if row.value.status is Status.CORRUPT:
                has_missed = True  # dead sets are missed, too
                with noting(done):
                    await lane.buckets.read(bucket)  # raises the reason [T21]
                continue
            now = row
            with noting(done, lane, bucket):
                now = await _heal_bucket(lane, bucket, row, done)
            _note(healed, lane.place(bucket), now)
        for bucket, error in unread.items():
            note(done, named(error, lane, bucket))
        healed.has_missed = has_missed or bool(unread)
    return healed


def _note(healed: Healed, place: Place, row: Row) -> None:
    value = row.value
    if value.status in FINISHED:
        healed.finished.append(place)
    elif value.status in OF_A_SINK and value.sink is not None:
        found = Undecided(place, value.sink.epoch, value.changed_us)
        healed.undecided.setdefault(value.sink.sink_id, []).append(found)
    healed.dead_sets |= {part.set_id for part in value.dead}


async def _finish_halves(lane: Lane, rows: dict[BucketNo, Row], done: QueueRepair) -> None:
    """Finish seals that were begun, and decided transactions; update ``rows``."""
    bulk = {bucket: row for bucket, row in rows.items() if row.value.status in OF_A_SINK}
    with noting(done):
        failed: dict[str, CassieqError] = {}
        changed = await roll_forward.settle_decided(lane, bulk, failed)
        done.rolled_forward += len(changed)
        rows.update(changed)
        for error in failed.values():
            note(done, error)
    for bucket, row in list(rows.items()):
        if row.value.status is Status.SEALING:
            with noting(done, lane, bucket):
                closed = await seal.finish(lane, bucket, row)
                if closed is not None:
                    rows[bucket] = closed.row
                    done.seals_finished += 1


async def _close_expired(
    lane: Lane, unread: list[BucketNo], rows: dict[BucketNo, Row], done: QueueRepair
) -> None:
    """Seal open buckets with expired messages; update ``rows``.

    If nobody ever reads them, their messages would otherwise stay for ever.
    """

    async def close(bucket: BucketNo) -> seal.Closed | None:
        if not await has_expired(lane, bucket) or await lane.is_dropped(bucket):
            return None  # left alone, or dropped meanwhile (G5)
        return await seal.close(lane, bucket)

    with noting(done):
        closed, failed = await per_bucket(lane, close, unread)
        for bucket, one in closed.items():
            if one is not None:
                rows[bucket] = one.row
                done.closed_expired += 1
        for error in failed.values():
            note(done, error)


async def has_expired(lane: Lane, bucket: BucketNo) -> bool:
    """Whether a message in an open bucket has expired: one read of a row, seldom two."""
    now_us = lane.clock.now_us()
    return await lane.messages.has_expired(bucket, now_us=now_us, retention_us=lane.retention_us)


async def _heal_bucket(lane: Lane, bucket: BucketNo, row: Row, done: QueueRepair) -> Row:
    if row.value.status is not Status.SEALED:
        return row
    now = await _mark_dead(lane, bucket, row, done)
    by_target: dict[QueueName | None, list[Dead]] = defaultdict(list)
    for one in movable(now.value.dead):
        by_target[one[0].target].append(one)
    for name, sets in by_target.items():
        with noting(done):
            await _move(lane, bucket, sets, name, done)
    now_us = lane.clock.now_us()
    due_us = now.value.earliest_return_us()
    if due_us is not None and due_us <= now_us:
        # Its hint may be lost. This one makes the next get look there, wherever the reader pointer
        # is.
        await lane.hints.write([(bucket, now_us)], now_us=now_us)
        done.hints_written += 1
    return now


async def _move(
    lane: Lane,
    bucket: BucketNo,
    sets: list[Dead],
    redriven_to: QueueName | None,
    done: QueueRepair,
) -> None:
    """Move dead sets to the target of their redrive, or to the dead-letter queue."""
    count = sum(part.runs.count for one in sets for part in one)
    name = redriven_to or lane.settings.dead_letter_queue
    if name is None:
        done.problems.append(
            f"{count} messages of {lane.bucket_title(bucket)} died while the queue had a "
            "dead-letter queue. They stay until it has one again: "
            f"client.alter_queue({lane.queue!r}, dead_letter_queue=...)"
        )
        return
    try:
        target = await open_lane(lane.store, name)
    except QueueNotFound as error:
        if redriven_to is None:
            raise
        raise QueueNotFound(
            f"{count} messages of {lane.bucket_title(bucket)} were being redriven to "
            f"{name!r} when that queue was deleted. They stay until it exists again: "
            f"client.create_queue({name!r})"
        ) from error
    for one in sets:
        try:
            moved = await dead.move(lane, target, bucket, one) or 0
        except SinkFenced as error:
            done.problems.append(str(error))  # only this set failed
            continue
        if redriven_to is None:
            done.moved_dead += moved
        else:
            done.redriven += moved


async def _mark_dead(lane: Lane, bucket: BucketNo, row: Row, done: QueueRepair) -> Row:
    """End unheld messages that are expired or out of deliveries now, and not at the next get.

    The same CAS closes the open dead set, or it could not be moved [R14].
    """
    limit = lane.max_deliveries

    def is_to_die(value: Bucket, now_us: int) -> bool:
        return is_dying(value, now_us=now_us, max_deliveries=limit)

    if not is_to_die(row.value, lane.clock.now_us()) and not may_close(row.value.dead):
        return row
    gone = EMPTY

    def change(value: Bucket, now_us: int, _: Callable[[], UUID]) -> Bucket | None:
        nonlocal gone
        gone = rules.expired_of(value, now_us)
        new = with_dead(lane, value, now_us) if is_to_die(value, now_us) else value
        if new.status is Status.SEALED and may_close(new.dead):
            new = with_closed_sets(new, now_us=now_us)
        return None if new is value else new

    answer = await lane.apply(bucket, Change(change=change), known=row)
    if (now := answer.row) is None:
        return row
    note_expired(lane, bucket, gone)
    done.expired += gone.count
    died = _dead(answer.changed) - _dead(answer.before)
    done.marked_dead += max(0, died - gone.count if lane.expired_die else died)
    return now


def _dead(row: Bucket | None) -> int:
    return 0 if row is None else sum(part.runs.count for part in row.dead)


def with_dead(lane: Lane, row: Bucket, now_us: int) -> Bucket:
    """Return the row without expired or exhausted messages: the result of a claim of none."""
    terms = Terms(
        at_most=0,
        owner="repair",
        run=None,
        now_us=now_us,
        until_us=now_us,
        max_deliveries=lane.max_deliveries,
        expired_die=lane.expired_die,
    )
    return rules.claim(row, terms, lane.store.entropy.new_uuid)[0]


class Pass:
    """A pass over some queues: for each queue `Pass.finish` after its buckets, then `Pass.end`.

    A queue is healed lane by lane; its transactions span all its lanes, and end after all of them.
    `heal_buckets` may heal the buckets anywhere in between.

    Attributes:
        lanes: The first lanes of the queues to heal.
        healed: What was done for each queue so far, by its first lane.
        report: The report of the queues that are finished.
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
        self.healed: dict[LaneId, Healed] = {}
        self.schedule = Schedule(store)

    @classmethod
    async def begin(cls, store: Store, names: list[QueueName] | None, *, is_full: bool) -> Self:
        """Read the work of the pass.

        Args:
            names: None: every queue whose home is this client's data centre.
        """
        made = cls(store, is_full=is_full, is_of_all=names is None)
        now_us = store.clock.now_us()
        sinks = partial(store.sinks.once, start=FIRST_TOKEN, at_most=ALL)
        if not is_full:
            anywhere = store.entropy.rng.randrange(FIRST_TOKEN, -FIRST_TOKEN)
            sinks = partial(store.sinks.once, start=anywhere, at_most=SINKS_TOGETHER)
        for seen in await sinks():
            if may_be_over(seen, now_us=now_us):
                made._once[seen.lane].append(seen.sink_id)
        made.lanes = await made._open(names)
        # After the sinks: a set that one of those moves is in one of these lanes [U9].
        made.schedule = await Schedule.of(store, made.lanes)
        for lane in made.lanes:
            healed = made.healed[lane.lane_id] = Healed(done=QueueRepair(queue=lane.queue))
            if (error := made.schedule.failed.get(lane.lane_id)) is not None:
                healed.has_missed = True  # its due lanes, with their messages
                note(healed.done, error)
        return made

    async def windows(
        self, lane: Lane, healed: Healed, size: int, *, tracker: Tracker = SILENT
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

    async def finish(self, lane: Lane) -> None:
        """Do a queue's steps that come after all its buckets were healed."""
        healed = self.healed[lane.lane_id]
        done = healed.done
        for sink_id, undecided in healed.undecided.items():
            with noting(done):
                done.aborted += await abort_if_silent(lane, sink_id, undecided)
        lanes = self.schedule.lanes_of(lane)

        async def close(one: Lane) -> None:
            with noting(done):
                closed = await close_gaps(one)
                done.gaps_closed += closed

        await together(self._store, close, lanes)
        for sink_id in self._once[lane.lane_id]:
            if set_of(sink_id) is None:
                with noting(done):
                    done.sinks_ended += await end_once(lane, sink_id)
        await together(self._store, partial(_drop_and_free, healed), lanes)
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

    @contextmanager
    def _apart(self, name: str) -> Iterator[QueueRepair]:
        """Note failures that belong to no queue of the pass under a name of their own."""
        failed = QueueRepair(queue=name)
        with noting(failed):
            yield failed
        if failed.problems:
            self._unfinished.append(failed)

    async def _open(self, names: list[QueueName] | None) -> list[Lane]:
        store = self._store
        ending = [] if names is not None else await rows_at_home(store, QueueStatus.DELETING)
        for row in ending:
            with self._apart(row.name):
                found = await read_row(store, row.name)
                is_ending = found is not None and found.value.status is QueueStatus.DELETING
                if found is not None and is_ending and at_home(store, found.value):
                    await admin.finish_deletion(store, found)
                    self.report.deletions_finished.append(row.name)
        return await lanes_of(store, names)

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
        with self._apart(DELETED_QUEUES) as failed:
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

    async def _sweep_lists(self) -> None:
        """Delete bucket lists that no sink row names: their writer died before its CAS.

        A list without a row belongs to a removed row, unless a queue of another data centre has it.
        """
        lanes = {lane.lane_id for lane in self.lanes}
        with self._apart(SINK_LISTS) as failed:
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

    async def _sweep(self) -> None:
        everything = self._store.everything
        rows, messages = by_lane(await everything.buckets()), by_lane(await everything.messages())
        for lane, done in zip(self.lanes, self.report.queues, strict=True):
            for one in self.schedule.lanes_of(lane):
                with noting(done):
                    done.swept += await sweep(one, rows[one.lane_id], messages[one.lane_id])
        with self._apart("*"):
            self.report.swept_lanes = await sweep_schedules(self._store)
            self.report.swept_lanes += await sweep_lanes(self._store, rows, messages)


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
        its_lanes = one.schedule.lanes_of(lane)
        await tracker.begin(lane.queue, len(its_lanes))
        for some in await together(store, heal_lane, its_lanes):
            one.healed[lane.lane_id].add(some)
        await one.finish(lane)
    await tracker.begin_rest()
    return await one.end()


async def _heal_lane(one: Pass, tracker: Tracker, lane: Lane) -> Healed:
    healed = Healed(done=QueueRepair(queue=lane.queue))
    with noting(healed.done):
        async for window in one.windows(lane, healed, WINDOW, tracker=tracker):
            healed.add(await heal_buckets(lane, window))
    return healed


async def _drop_and_free(healed: Healed, lane: Lane) -> None:
    done = healed.done
    with noting(done):
        dropped = await drop(lane)
        done.dropped += dropped
        low = (await lane.read_pointers()).repair
        of_lane = [place.bucket for place in healed.finished if place.lane == lane.lane_id]
        freed, failed = await free(lane, [bucket for bucket in of_lane if bucket >= low])
        done.freed += freed
        for error in failed:
            note(done, error)
