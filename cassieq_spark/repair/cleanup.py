"""Remove what nobody needs any more (docs/design/repair.md). Holds G5.

`drop` removes finished buckets: messages, then the repair pointer, then rows, in this order. If
messages had deduplication keys, it keeps the bucket's manifest first. `free` removes only the
messages of such buckets. `sweep` and `sweep_lanes` remove the rows that late statements left
behind. `close_gaps` closes buckets that nobody filled. A `Schedule` finishes due lanes whose
period is over:

    closed register  ->  read the schedule  ->  lane by lane: close it; once it is drained
    L = 2^62  ->  no monoton row  ->  no schedule row;  then the register of finished periods

Holds I1, too: every lane that is created below the closed register is in the schedule as read after
it [U2].
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, Self, TypeVar

from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import FINISHED, Bucket
from cassieq_spark.model.ids import ID_LIMIT, BucketNo, LaneId, Runs
from cassieq_spark.model.lanes import DueLane, finished_below, healed_always, in_turn, periods_end
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.pointer import DELETED, Pointer, Pointers
from cassieq_spark.queue import seal
from cassieq_spark.queue.admin import drop_dead, end_lane
from cassieq_spark.queue.find import at_home
from cassieq_spark.queue.get.claim import Holder, Rows
from cassieq_spark.queue.get.scan import Scanner
from cassieq_spark.queue.lane import Lane, each_bucket, first_of, per_bucket
from cassieq_spark.queue.reserve import CREATED, close_unused
from cassieq_spark.queue.schedule import due_between, first_unfinished
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.lanes import Monoton

T = TypeVar("T")
R = TypeVar("R")


WINDOW: Final = 256

CREATION_S: Final = 86_400.0
"""The time for which an unused lane without a queue may belong to a queue that is being created."""

_logger = get_logger("repair")


async def drop(lane: Lane) -> int:
    """Drop the unbroken run of finished buckets above the repair pointer; return how many.

    Only rows that have rested for a while are dropped: a put that has written and not yet checked
    must find its bucket's row [R2]. The pointer is answered at quorum before a row goes: from then
    on an absent row means "dropped" and not "open" (G4, G5).
    """
    pointers = await lane.read_pointers()
    end, to_keep = await _finished(lane, pointers)
    if end == pointers.repair:
        return 0
    done = [BucketNo(at) for at in range(pointers.repair, end)]
    # Read again, after the rows: rows below the pointer may be ghosts, with another manifest (G5)
    # [U5].
    if to_keep and (await lane.read_pointers()).repair > pointers.repair:
        return 0  # another repairer does it

    async def remove(bucket: BucketNo) -> None:
        if bucket in to_keep:
            await lane.kept.write(bucket, to_keep[bucket])
        await _drop_messages(lane, bucket)

    _, failed = await per_bucket(lane, remove, done)
    if failed:
        # Only up to the first failure: nobody looks below the pointer again.
        end = min(failed)
        done = [bucket for bucket in done if bucket < end]
        event(_logger, "repair_failed", **lane.as_fields(), error=str(first_of(failed)))
    if not done:
        return 0
    await lane.pointers.advance(Pointer.REPAIR, end)
    await each_bucket(lane, lane.buckets.delete, done)
    event(_logger, "buckets_dropped", **lane.as_fields(), buckets=len(done))
    return len(done)


async def _finished(lane: Lane, pointers: Pointers) -> tuple[int, dict[BucketNo, Runs]]:
    """Return the end of the run of finished, rested buckets, and the manifests to keep of it."""
    before_us = lane.clock.now_us() - rest_us(lane)
    to_keep: dict[BucketNo, Runs] = {}
    for start in range(pointers.repair, pointers.reader, WINDOW):
        window = [BucketNo(at) for at in range(start, min(start + WINDOW, pointers.reader))]
        # A bucket that does not answer ends the run; those below it can still be dropped [T5].
        rows, _ = await lane.buckets.read_some(window)
        for bucket in window:
            row = rows.get(bucket)
            if row is None or not is_done(row.value, before_us):
                return bucket, to_keep
            if row.value.has_keys:
                to_keep[bucket] = row.value.manifest
    return max(pointers.repair, pointers.reader), to_keep


def rest_us(lane: Lane) -> int:
    """Return how long a finished row is left alone [R2]."""
    return int(lane.rest_s * 1e6)


def is_done(row: Bucket, before_us: int) -> bool:
    """Whether a row is finished, and has rested since then [R2]."""
    return row.status in FINISHED and row.changed_us <= before_us


async def free(lane: Lane, finished: Iterable[BucketNo]) -> tuple[int, list[CassieqError]]:
    """Drop the messages of finished buckets wherever they are; their rows stay [P14].

    A bucket below them may pin the repair pointer for thirty days. A bucket without messages is
    left alone: otherwise each pass would write another tombstone (I9).

    Returns:
        How many buckets were freed, and the errors of those that did not answer.
    """

    async def one(bucket: BucketNo) -> bool:
        has_any = await lane.messages.has_any(bucket)
        if has_any:
            await _drop_messages(lane, bucket)
        return has_any

    freed, failed = await per_bucket(lane, one, finished)
    return sum(freed.values()), list(failed.values())


async def sweep(lane: Lane, rows: Iterable[BucketNo], messages: Iterable[BucketNo]) -> int:
    """Remove late writes and ghosts below the repair pointer; return how many buckets.

    Nobody reads there, so they only cost space (ADR 10, 11).
    """
    low = (await lane.read_pointers()).repair
    ghosts = {bucket for bucket in rows if bucket < low}
    litter = {bucket for bucket in messages if bucket < low}
    await lane.store.session.map(lambda bucket: _drop_messages(lane, bucket), litter)
    await lane.store.session.map(lane.buckets.delete, ghosts)
    return len(ghosts | litter)


async def sweep_lanes(
    store: Store, rows: Mapping[LaneId, list[BucketNo]], messages: Mapping[LaneId, list[BucketNo]]
) -> int:
    """Remove the rows of late statements in lanes whose L is 2^62; return how many lanes.

    Such rows mean nothing (G5), take space, and nobody else would ever look for them [T15]. A lane
    that a queue row still names is left to the queue's deletion, which must know how far the data
    goes. A due lane of a queue that lives elsewhere is left to its home data centre: its schedule
    comes here late, and lanes that it does not name yet may be in use (I1) [P21].

    Args:
        rows: Of all lanes, the buckets that have a row.
        messages: Of all lanes, the buckets in which messages are stored.
    """
    monotons = set(await store.everything.monotons())
    found = monotons | {lane for lane, some in [*rows.items(), *messages.items()] if some}
    queues = await store.queues.read_all()
    named = {lane for row in queues for lane in row.lanes}
    named |= await due_lanes_of(store, {row.lanes[0] for row in queues})
    elsewhere = [row.lanes[0] for row in queues if not at_home(store, row)]
    swept = 0
    for lane in sorted(found - named):
        if not any(DueLane.said_by(queue, lane) for queue in elsewhere):
            swept += await _sweep(store, lane, {*rows.get(lane, ()), *messages.get(lane, ())})
    return swept


async def close_gaps(lane: Lane) -> int:
    """Close buckets that were reserved long ago and are still empty; return how many.

    The proof of age is the same as a reader's: the monoton row, or a later bucket's [R11]. A bucket
    with messages stays open for its next get, or for its producer.
    """
    scanner = Scanner(lane, Holder(owner="repair", run=None, visibility_us=0))
    scan = await scanner.scan(ID_LIMIT)
    gap_us = int(lane.settings.gap_timeout_s * 1e6)
    updated: Rows = {}
    for bucket in scan.open:
        age_us = lane.clock.now_us() - scan.oldest_later_us[bucket]
        if age_us < gap_us or await lane.messages.has_any(bucket):
            continue
        closed = await seal.close(lane, bucket)
        if closed is not None:
            updated[bucket] = closed.row
    await scanner.advance(scan, updated)
    return len(updated)


async def _drop_messages(lane: Lane, bucket: BucketNo) -> None:
    await lane.messages.drop(bucket)
    await lane.overlays.drop(bucket)


async def _sweep(store: Store, lane: LaneId, buckets: set[BucketNo]) -> bool:
    monoton = await store.lane(lane).monotons.find()
    if monoton is not None and monoton.value.is_closed:
        # Its creator died while it gave the lane up: until L goes up, the lane is only closed.
        await store.lane(lane).pointers.advance(Pointer.REPAIR, DELETED)
    elif monoton is not None and (
        monoton.version.row_version == CREATED
        and (store.clock.now_us() - monoton.value.reserved_us) / 1e6 > CREATION_S
    ):
        # A creator died before it named the lane, or while it gave its lanes up.
        return await close_unused(store, lane, monoton)
    elif not (await store.lane(lane).pointers.read()).is_deleted:
        return False  # a queue that is being created
    await drop_dead(store, lane, buckets)
    if monoton is not None:
        await store.lane(lane).monotons.delete(monoton)
    return True


TURN_US: Final = 600 * 1_000_000
"""The interval at which passes heal their share of lanes that have not begun: only producers use
them."""

REGISTERS_BEHIND: Final = 64
"""The most periods without any lane that are over before the registers are raised for them
alone."""

LANES_TOGETHER: Final = 8


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
        self.failed: dict[LaneId, CassieqError] = {}
        self._had_turn: set[LaneId] = set()

    @classmethod
    async def of(cls, store: Store, lanes: list[Lane]) -> Self:
        """Read the due lanes of these queues."""
        made = cls(store)
        for lane in lanes:
            try:
                made._due[lane.lane_id] = await made._read(lane)
            except CassieqError as error:
                made.failed[lane.lane_id] = error
        return made

    def lanes_of(self, lane: Lane) -> list[Lane]:
        """Return all lanes of a queue that this pass heals."""
        return [*lane.all, *self._due.get(lane.lane_id, ())]

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
        if end <= first or lane.lane_id in self.failed:
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
