"""Report what a repair pass would do, by reads only (docs/design/repair.md)."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from cassieq_spark.errors import CassieqError, QueueDeleted
from cassieq_spark.model.bucket import FINISHED, OF_A_SINK, Bucket, Status
from cassieq_spark.model.ids import BucketNo, QueueName
from cassieq_spark.model.lease import expired_of
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.sink_txn import Fate, fate
from cassieq_spark.queue.find import lanes_of, rows_at_home
from cassieq_spark.queue.inspect.facts import Sinks
from cassieq_spark.queue.lane import Lane, live_buckets, read_rows, windows
from cassieq_spark.queue.schedule import looked_at_lanes
from cassieq_spark.queue.seal import alive
from cassieq_spark.repair.cleanup import is_done, rest_us
from cassieq_spark.repair.heal import has_expired, with_dead
from cassieq_spark.repair.report import OnProgress, QueueRepair, RepairReport, Tracker, noting
from cassieq_spark.repair.transactions import is_silent
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.queues import QueueStatus

WINDOW: Final = 64


async def heal_dry_run(
    store: Store, names: list[QueueName] | None, *, on_progress: OnProgress | None = None
) -> RepairReport:
    """Report what a pass that begins now would do, but not the later effects of each step.

    Args:
        names: None: every queue whose home is this client's data centre, and interrupted deletions.
        on_progress: Called with the progress of the pass.

    Raises:
        QueueNotFound: A named queue does not exist.
    """
    lanes = await lanes_of(store, names)
    ending = [] if names is not None else await rows_at_home(store, QueueStatus.DELETING)
    report = RepairReport(deletions_finished=[row.name for row in ending])
    tracker = Tracker(on_progress, len(lanes))
    for lane in lanes:
        with suppress(QueueDeleted):  # deleted meanwhile: nothing is left to heal
            done = QueueRepair(queue=lane.queue)
            its_lanes = await looked_at_lanes(lane)
            await tracker.begin(lane.queue, len(its_lanes))
            for one in its_lanes:
                done.add(await _dry_run_lane(one, tracker))
            report.queues.append(done)
    await tracker.begin_rest()
    return report


async def _dry_run_lane(lane: Lane, tracker: Tracker) -> QueueRepair:
    done = QueueRepair(queue=lane.queue)
    monoton = await lane.read_monoton()
    live = await live_buckets(lane)
    reach = await tracker.lane(live)
    rows: dict[BucketNo, Stored[Bucket] | None] = {}
    away: dict[BucketNo, CassieqError] = {}
    sinks = Sinks(lane)
    for window in windows(live, WINDOW):
        rows |= await read_rows(lane, window, away)
        await reach(window[-1])
    low = (await lane.read_pointers()).repair
    before_us, is_run = lane.clock.now_us() - rest_us(lane), True
    for at in range(max(low, live.start), live.stop):
        bucket = BucketNo(at)
        row = rows.get(bucket)
        is_run &= row is not None and is_done(row.value, before_us)
        done.dropped += is_run
        with noting(done, lane, bucket):
            if bucket in away:
                raise away[bucket]
            if row is None:
                await _foresee_open(lane, bucket, done)
                continue
            if row.value.status is Status.CORRUPT:
                await lane.buckets.read(bucket)  # raises the reason [T21]
            await _foresee_bucket(lane, bucket, row.value, sinks, done)
            if not is_run and row.value.status in FINISHED:
                done.freed += await lane.messages.has_any(bucket)
    done.gaps_closed = await _gaps(lane, rows, monoton.reserved_us, done)
    return done


async def _foresee_bucket(
    lane: Lane, bucket: BucketNo, row: Bucket, sinks: Sinks, done: QueueRepair
) -> None:
    now_us = lane.clock.now_us()
    if row.status is Status.SEALING:
        done.seals_finished += 1
    elif row.status in OF_A_SINK and row.sink is not None:
        sink = await sinks.read(row.sink.sink_id)
        if fate(sink, place=lane.place(bucket), epoch=row.sink.epoch) is not Fate.UNDECIDED:
            done.rolled_forward += 1
        elif sink is not None and await is_silent(
            lane, row.sink.sink_id, sink, max(row.changed_us, sink.changed_us)
        ):
            done.aborted += 1
    elif row.status is Status.SEALED:
        _foresee_sealed(lane, row, now_us, done)


async def _foresee_open(lane: Lane, bucket: BucketNo, done: QueueRepair) -> None:
    if await has_expired(lane, bucket):
        done.closed_expired += 1
        waiting = await lane.messages.scan(bucket)
        left = sum(chunk.count for chunk in alive(lane, waiting))
        done.expired += sum(chunk.count for chunk in waiting) - left


def _foresee_sealed(lane: Lane, row: Bucket, now_us: int, done: QueueRepair) -> None:
    after = with_dead(lane, row, now_us)
    dead = sum(part.runs.count for part in after.dead)
    redriven = sum(part.runs.count for part in after.dead if part.target is not None)
    expired = expired_of(row, now_us).count
    died = dead - sum(part.runs.count for part in row.dead)
    done.expired += expired
    done.marked_dead += died - expired if lane.expired_die else died
    done.moved_dead += dead - redriven if lane.settings.dead_letter_queue is not None else 0
    done.redriven += redriven
    due_us = after.earliest_return_us()
    done.hints_written += due_us is not None and due_us <= now_us


async def _gaps(
    lane: Lane,
    rows: dict[BucketNo, Stored[Bucket] | None],
    reserved_us: int,
    done: QueueRepair,
) -> int:
    """Count buckets that are open, empty, and reserved longer ago than the gap timeout [R11]."""
    before_us = lane.clock.now_us() - int(lane.settings.gap_timeout_s * 1e6)
    oldest_us = reserved_us
    gaps = 0
    for bucket in sorted(rows, reverse=True):
        row = rows[bucket]
        if row is not None and row.value.status is not Status.CORRUPT:
            oldest_us = min(oldest_us, row.value.changed_us)
        elif row is None and oldest_us <= before_us:
            with noting(done, lane, bucket):
                gaps += not await lane.messages.has_any(bucket)
    return gaps
