"""Move dead sets to their queue: each as one sink transaction, once (design 9, ADR 16).

    create the sink row  ->  is the set still there?  ->  write, commit  ->  take the set out of its
    bucket row  ->  delete the sink row

The set's id names the transaction, so whoever does it again finds it committed (I7). The sink row
comes before the look at the bucket row: a mover that slept while another did all of it finds the
set gone [P24], and one that slept behind that look finds the sink row gone [R14].
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from cassieq_spark.log import event, get_logger
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.ids import first_id, union
from cassieq_spark.model.sink_txn import NO_BATCH, Identity, TaskResult, WriteUnder, forget
from cassieq_spark.model.sizes import BUCKET_BYTES
from cassieq_spark.queue import letters, outgoing, transaction
from cassieq_spark.queue.bulk import BulkWriter
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.letters import HISTORY, PREFIX
from cassieq_spark.queue.message import read_messages, time_of
from cassieq_spark.queue.roll import roll_forward
from cassieq_spark.store import chunk as chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.model.dead import Dead, DeadSet
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.queue.message import Message

MESSAGES_TOGETHER: Final = 1_000
WRITES_IN_FLIGHT: Final = 8

SINK_PREFIX: Final = "dead:"
"""Of the sink id of a move; the rest is the set's id."""

_logger = get_logger("repair")


def set_of(sink_id: str) -> UUID | None:
    """The dead set that a sink moves; None: it moves none."""
    return UUID(sink_id.removeprefix(SINK_PREFIX)) if sink_id.startswith(SINK_PREFIX) else None


def move(lane: Lane, target: Lane, bucket: BucketNo, dead: Dead) -> int:
    """Move one dead set; how many messages this call made visible in the queue it goes to.

    Args:
        dead: All entries of the set, which is closed [R14].

    Raises:
        SinkFenced: Another mover has done it meanwhile.
        QueueDeleted: The target is gone; the set stays.
        StoreError: Try again: what was done is found.
    """
    set_id = dead[0].set_id
    sink_id = f"{SINK_PREFIX}{set_id}"
    transaction.begin_once(target, sink_id)
    moved = 0
    if _is_there(lane, bucket, set_id):
        who = Identity(sink_id=sink_id, lane=target.lane_id)
        if not _is_elsewhere(target, sink_id):
            moved = _copy(lane, target, bucket, dead, who)
            # Deleted behind our back, the target may have taken the copy with it: the set stays.
            target.pointers()
        _take_out(lane, bucket, set_id)
        if dead[0].target is None:
            event(_logger, "dead_moved", queue=lane.queue, to=target.queue, messages=moved)
        else:
            event(_logger, "messages_redriven", queue=lane.queue, to=target.queue, messages=moved)
    _end(target, sink_id)
    return moved


def _is_elsewhere(target: Lane, sink_id: str) -> bool:
    """Whether a mover has committed the set to another queue, which was its target then.

    One that died before its commit, or sleeps, is fenced: the row is this target's from now on, in
    a later epoch, so that what was written over there is void (I7). So it is of a queue that was
    deleted: nobody knows whether the commit came before the deletion or after (I1).
    """
    stored = target.store.sinks.read_serial(sink_id)
    if stored is None or stored.value.lane == target.lane_id:
        return False
    is_alive = not target.store.pointers.read(stored.value.lane).is_deleted
    if is_alive and stored.value.last != NO_BATCH:
        return True
    row = forget(stored.value, lane=target.lane_id, now_us=target.clock.now_us())
    target.store.sinks.update(sink_id, stored, row)
    return False


def _copy(lane: Lane, target: Lane, bucket: BucketNo, dead: Dead, who: Identity) -> int:
    admission = transaction.admit(target, who, 0, is_once=True)
    if not isinstance(admission, WriteUnder):
        return 0
    with BulkWriter(
        target,
        sink_id=who.sink_id,
        epoch=admission.epoch,
        bucket_bytes=BUCKET_BYTES,
        writes_in_flight=WRITES_IN_FLIGHT,
    ) as writer:
        entries = {offset: part for part in dead for offset in part.runs.offsets()}
        base = first_id(bucket, lane.bucket_size)
        for some in _together(_dead_messages(lane, bucket, dead)):
            rows = [_with_history(lane, one, entries[one.id - base]) for one in some]
            for packed in outgoing.pack(rows, delay_us=0, bucket_size=target.bucket_size):
                writer.add(packed.payload, packed.count)
        buckets = writer.finish()
    result = TaskResult(who=who, epoch=admission.epoch, buckets=buckets)
    return transaction.commit(target, who, 0, [result])


def _dead_messages(lane: Lane, bucket: BucketNo, dead: Dead) -> Iterator[Message]:
    """All of a set by one read, however many entries it has [T2]."""
    runs = union(part.runs for part in dead)
    row = lane.store.buckets.read(lane.lane_id, bucket)
    planned = Planned(
        bucket=bucket,
        runs=runs,
        delivery_count=0,  # of each entry another: `_with_history` knows
        lease_id=None,
        revisions=() if row is None else row.value.revisions_of(runs),
    )
    return read_messages(lane, [(planned, None)])


def _with_history(lane: Lane, message: Message, dead: DeadSet) -> chunks.Row:
    """Its own body, tag and headers; and where it comes from, and why."""
    hop: dict[str, str] = {
        letters.SOURCE_QUEUE: lane.queue,
        letters.SOURCE_ID: str(message.id),
        letters.DELIVERIES: str(dead.deliveries),
        letters.FIRST_TIME: message.enqueued_at.isoformat(),
        letters.LAST_TIME: time_of(dead.died_us).isoformat(),
        letters.REASON: dead.reason,
    }
    return chunks.Row(
        body=message.body,
        message_id=message.uuid.bytes,
        tag=message.tag,
        headers={
            **message.headers,
            **{PREFIX + name: value for name, value in hop.items()},
            HISTORY: json.dumps([*_earlier(message), hop]),
        },
    )


def _earlier(message: Message) -> list[Any]:
    """Moves before this one. A producer may use the header, too: then there is no history in it."""
    try:
        found = json.loads(message.headers.get(HISTORY, "[]"))
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _is_there(lane: Lane, bucket: BucketNo, set_id: UUID) -> bool:
    row = lane.store.buckets.read(lane.lane_id, bucket)
    return (
        row is not None
        and any(part.set_id == set_id for part in row.value.dead)
        and not lane.is_dropped(bucket)  # else a ghost (G5, ADR 11)
    )


def _take_out(lane: Lane, bucket: BucketNo, set_id: UUID) -> None:
    def change(row: Bucket) -> Bucket | None:
        if row.status is not Status.SEALED or all(part.set_id != set_id for part in row.dead):
            return None
        return rules.without_dead(row, set_id, now_us=lane.clock.now_us())

    lane.change_bucket(bucket, change)


def _end(target: Lane, sink_id: str) -> None:
    """Delete the sink row, but never before all it lists is visible: without it that is void."""
    stored = target.store.sinks.read(sink_id)
    if stored is None or stored.value.lane != target.lane_id:
        return
    roll_forward(target, sink_id, stored.value.listed)
    target.store.sinks.delete(sink_id, stored)


def _together(messages: Iterator[Message]) -> Iterator[list[Message]]:
    some: list[Message] = []
    for message in messages:
        some.append(message)
        if len(some) >= MESSAGES_TOGETHER:
            yield some
            some = []
    if some:
        yield some
