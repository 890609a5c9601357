"""Move dead sets to their queue: each as one sink transaction, once (ADR 16, ADR 18).

    write the sink row  ->  is the set still there?  ->  write, commit  ->  take the set out of its
    bucket row  ->  delete the sink row

The set's id names the transaction, so a second mover finds it committed (I7). The sink row comes
before the look at the bucket row. A mover that slept while another did all of it finds the set gone
[P24]. A mover that slept after that look finds a sink row that it has not written [R14]. The commit
asks for its very version: another mover of the set has changed or removed the row since, and a row
that is inserted again is another version [T3].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final
from uuid import UUID

from cassieq_spark.errors import SinkFenced
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import bucket as rules
from cassieq_spark.model import dead_letter
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.dead import Dead, DeadSet
from cassieq_spark.model.group import with_group
from cassieq_spark.model.ids import BucketNo, LaneId, first_id, union
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.outcome import Applied, Stored
from cassieq_spark.model.sink_txn import (
    NO_BATCH,
    Begun,
    Identity,
    SinkRow,
    TaskResult,
    abort,
    forget,
    move_id,
    new_row,
)
from cassieq_spark.model.sizes import BUCKET_BYTES, BYTES_IN_FLIGHT
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Message, in_groups, read_messages
from cassieq_spark.queue.put import encode
from cassieq_spark.queue.roll_forward import roll_forward
from cassieq_spark.queue.sink import transaction
from cassieq_spark.queue.sink.transaction import heartbeat
from cassieq_spark.queue.sink.writer import BulkWriter
from cassieq_spark.repair.transactions import is_silent
from cassieq_spark.store import chunk as chunks

MESSAGES_TOGETHER: Final = 1_000
"""The number of messages that a move holds in memory, as far as `BYTES_IN_FLIGHT` allows."""

WRITES_IN_FLIGHT: Final = 8

_logger = get_logger("repair")


class Standing(Enum):
    """The reasons why this mover writes no copy of a dead set."""

    MOVED = "its transaction is committed"
    AT_WORK = "another mover is at work on it, or died so recently that nobody can tell"


async def move(lane: Lane, target: Lane, bucket: BucketNo, dead: Dead) -> int | None:
    """Move one dead set, unless another mover does it now.

    Args:
        dead: All entries of the set, which is closed [R14].

    Returns:
        The number of messages that this call made visible in the target; None if another mover is
        at work. Otherwise the set is gone from here, moved by this call or by another one.

    Raises:
        SinkFenced: The move was ended while this call copied; the set stays [T18].
        QueueDeleted: The target is gone; the set stays.
        StoreError: Try again: a new call finds what was done.
    """
    set_id = dead[0].set_id
    sink_id = move_id(set_id)
    begun = await _begin(target, sink_id)
    if begun is Standing.AT_WORK:
        return None
    moved = 0
    if await _is_there(lane, bucket, set_id):
        if isinstance(begun, Begun):
            moved = await _copy_once(lane, target, bucket, dead, begun)
        # If the target was deleted meanwhile, the copy may have gone with it: the set stays.
        await target.read_pointers()
        await _take_out(lane, bucket, set_id)
        where = {"queue": lane.queue, "to": target.queue, "messages": moved}
        if dead[0].target is None:
            event(_logger, "dead_moved", **where)
        else:
            event(_logger, "messages_redriven", **where)
    await _end(target, sink_id)
    return moved


async def _begin(target: Lane, sink_id: str) -> Begun | Standing:
    """Make the sink row this mover's own: a version that only this call has written [T3].

    An existing row is taken over if its mover is silent, by a CAS that ends its epoch: that mover's
    copy is void. A row of a deleted queue is taken over, too: nobody knows whether a commit to that
    queue came before the deletion or after (I1).
    """
    sinks, who = target.store.sinks, Identity(sink_id=sink_id, lane=target.first.lane_id)
    stored: Stored[SinkRow] | None = None
    async for _ in target.attempts():
        if stored is None:
            written = new_row(who, now_us=target.clock.now_us(), is_once=True)
            outcome = await sinks.insert(sink_id, written)
        else:
            written = _taken_over(target, stored.value)
            outcome = await sinks.update(sink_id, stored, written)
        if isinstance(outcome, Applied) and outcome.was_sent_once:
            return transaction.begun(who, outcome)
        stored = outcome.now
        is_ours = isinstance(outcome, Applied) and outcome.now.value == written
        if stored is not None and not is_ours:
            standing = await _standing(target, sink_id, stored.value)
            if standing is not None:
                return standing
    raise target.contended(f"sink {sink_id!r} of queue {target.queue!r}")


async def _standing(target: Lane, sink_id: str, row: SinkRow) -> Standing | None:
    """Return why another mover's row must not be taken over; None: it may be."""
    is_elsewhere = row.lane != target.first.lane_id
    if is_elsewhere and (await target.store.lane(row.lane).pointers.read()).is_deleted:
        return None
    if row.last != NO_BATCH:
        return Standing.MOVED
    return None if await is_silent(target, sink_id, row, row.changed_us) else Standing.AT_WORK


def _taken_over(target: Lane, row: SinkRow) -> SinkRow:
    now_us = target.clock.now_us()
    if row.lane != target.first.lane_id:
        return forget(row, lane=target.first.lane_id, now_us=now_us)
    return abort(row, now_us=now_us)


async def _copy_once(lane: Lane, target: Lane, bucket: BucketNo, dead: Dead, begun: Begun) -> int:
    """Copy and commit; return 0 if another mover has moved the set.

    Raises:
        SinkFenced: Nobody has moved the set, and this move was ended [T18].
    """
    try:
        async with heartbeat(target, begun.who.sink_id, is_row_fresh=True):
            return await _copy(lane, target, bucket, dead, begun)
    except SinkFenced as error:
        if not await _is_there(lane, bucket, dead[0].set_id):
            return 0
        count = sum(part.runs.count for part in dead)
        raise SinkFenced(
            f"{count} messages of {lane.bucket_title(bucket)} are not in "
            f"{target.queue!r} yet: their move was ended while it went on, because it was silent "
            f"for {target.settings.repair_timeout_s:g} s (repair_timeout of {target.queue!r}) or "
            "longer. The next pass moves them",
            sink_id=begun.who.sink_id,
        ) from error


async def _copy(lane: Lane, target: Lane, bucket: BucketNo, dead: Dead, begun: Begun) -> int:
    async with BulkWriter(
        target,
        sink_id=begun.who.sink_id,
        epoch=begun.epoch,
        bucket_bytes=BUCKET_BYTES,
        writes_in_flight=WRITES_IN_FLIGHT,
    ) as writer:
        entries: dict[int, DeadSet] = {}
        for part in dead:
            for us, runs in part.deaths():
                entries |= dict.fromkeys(runs.offsets(), replace(part, died_us=us))
        base = first_id(bucket, lane.bucket_size)
        runs = union(part.runs for part in dead)  # one read, however many entries [T2]
        row = await lane.buckets.read(bucket)
        planned = Planned(
            lane=lane.lane_id,
            bucket=bucket,
            runs=runs,
            delivery_count=0,  # it differs by entry: `_with_history` adds it
            lease_id=None,
            revisions=() if row is None else row.value.revisions_of(runs),
        )
        found = read_messages(lane, [planned])
        async for some in in_groups(found, most=MESSAGES_TOGETHER, most_bytes=BYTES_IN_FLIGHT):
            by_lane: dict[LaneId, list[chunks.Row]] = {}
            for one in some:
                entry = entries[one.id - base]
                into_lane = by_lane.setdefault(_lane_for(lane, target, one, entry), [])
                into_lane.append(_with_history(lane, one, entry))
            for lane_id, rows in by_lane.items():
                into = writer.of(lane_id)
                for packed in encode.pack_into(rows, capacity=into.capacity):
                    await into.add(packed.payload, packed.count)
        buckets = await writer.finish()
    result = TaskResult(who=begun.who, epoch=begun.epoch, buckets=buckets)
    return await transaction.commit_once(target, begun, [result])


def _lane_for(lane: Lane, target: Lane, message: Message, dead: DeadSet) -> LaneId:
    """Return the target's lane for a message: of its class and shard, if they exist there.

    A redriven message goes back to the class and shard that it had where it died.
    """
    priority, shard = lane.priority, lane.shard
    if dead.target is not None:
        before = dead_letter.headers_of(message.headers)
        priority = priority if before.priority is None else before.priority
        shard = shard if before.shard is None else before.shard
    fixed = target.fixed
    shard = message.id if shard is None else shard
    return fixed.lane(min(priority, fixed.priorities - 1), shard % fixed.shards)


def _with_history(lane: Lane, message: Message, dead: DeadSet) -> chunks.Row:
    """Return the message's body, tag, headers and group, with its origin and reason."""
    hop: dict[str, str] = {
        dead_letter.SOURCE_QUEUE: lane.queue,
        dead_letter.SOURCE_ID: str(message.id),
        dead_letter.DELIVERIES: str(dead.deliveries),
        dead_letter.FIRST_TIME: message.enqueued_at.isoformat(),
        dead_letter.LAST_TIME: time_of(dead.died_us).isoformat(),
        dead_letter.REASON: dead.reason,
    }
    if len(lane.lanes) > 1:
        hop[dead_letter.PRIORITY] = str(lane.priority)
        if lane.shard is not None:
            hop[dead_letter.SHARD] = str(lane.shard)
    moved = dead_letter.moved(message.headers, hop, dies=dead.target is None)
    return chunks.Row(
        body=message.body,
        message_id=message.uuid.bytes,
        tag=message.tag,
        headers=with_group(moved, message.group),
    )


async def _is_there(lane: Lane, bucket: BucketNo, set_id: UUID) -> bool:
    row = await lane.buckets.read(bucket)
    return (
        row is not None
        and any(part.set_id == set_id for part in row.value.dead)
        and not await lane.is_dropped(bucket)  # otherwise a ghost (G5, ADR 11)
    )


async def _take_out(lane: Lane, bucket: BucketNo, set_id: UUID) -> None:
    def change(row: Bucket, now_us: int, _: Callable[[], UUID]) -> Bucket | None:
        if row.status is not Status.SEALED or all(part.set_id != set_id for part in row.dead):
            return None
        return rules.without_dead(row, set_id, now_us=now_us)

    await lane.change_bucket(bucket, change)


async def _end(target: Lane, sink_id: str) -> None:
    """Delete the sink row, but not before all that it lists is visible: without it that is void."""
    stored = await target.store.sinks.read(sink_id)
    if stored is None or stored.value.lane != target.first.lane_id:
        return
    await roll_forward(target, sink_id, stored.value.listed)
    await target.store.sinks.delete(sink_id, stored)
