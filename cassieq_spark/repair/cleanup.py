"""Remove what nobody needs any more (docs/design/repair.md). Holds G5.

`drop` removes finished buckets: messages, then the repair pointer, then rows, in this order. If
messages had deduplication keys, it keeps the bucket's manifest first. `free` removes only the
messages of such buckets. `sweep` and `sweep_lanes` remove the rows that late statements left
behind. `close_gaps` closes buckets that nobody filled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import FINISHED
from cassieq_spark.model.ids import ID_LIMIT, BucketNo
from cassieq_spark.model.lanes import DueLane
from cassieq_spark.model.pointer import DELETED, Pointer
from cassieq_spark.queue import seal
from cassieq_spark.queue.deletion import drop_dead
from cassieq_spark.queue.find import at_home
from cassieq_spark.queue.get.claim import Rows
from cassieq_spark.queue.get.scan import Scanner
from cassieq_spark.queue.per_bucket import each_bucket, first_of, per_bucket
from cassieq_spark.queue.reserve import CREATED, close_unused
from cassieq_spark.repair.schedule import due_lanes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cassieq_spark.errors import CassieqError
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo, LaneId, Runs
    from cassieq_spark.model.pointer import Pointers
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored
    from cassieq_spark.store.store import Store
    from cassieq_spark.store.tables.monotons import Monoton

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
            if row is None or not _is_done(row.value, before_us):
                return bucket, to_keep
            if row.value.has_keys:
                to_keep[bucket] = row.value.manifest
    return max(pointers.repair, pointers.reader), to_keep


def rest_us(lane: Lane) -> int:
    """Return how long a finished row is left alone [R2]."""
    return int(lane.rest_s * 1e6)


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
    scanner = Scanner(lane)
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


def _is_done(row: Bucket, before_us: int) -> bool:
    return row.status in FINISHED and row.changed_us <= before_us


async def _drop_messages(lane: Lane, bucket: BucketNo) -> None:
    await lane.messages.drop(bucket)
    await lane.overlays.drop(bucket)


def _was_left(monoton: Stored[Monoton], now_us: int) -> bool:
    """Whether a creator died before it named a lane, or while it gave its lanes up."""
    age_s = (now_us - monoton.value.reserved_us) / 1e6
    return monoton.version.row_version == CREATED and age_s > CREATION_S


async def _sweep(store: Store, lane: LaneId, buckets: set[BucketNo]) -> bool:
    monoton = await store.lane(lane).monotons.find()
    if monoton is not None and monoton.value.is_closed:
        # Its creator died while it gave the lane up: until L goes up, the lane is only closed.
        await store.lane(lane).pointers.advance(Pointer.REPAIR, DELETED)
    elif monoton is not None and _was_left(monoton, store.clock.now_us()):
        return await close_unused(store, lane, monoton)
    elif not (await store.lane(lane).pointers.read()).is_deleted:
        return False  # a queue that is being created
    await drop_dead(store, lane, buckets)
    if monoton is not None:
        await store.lane(lane).monotons.delete(monoton)
    return True
