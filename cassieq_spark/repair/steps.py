"""Do repair's work bucket by bucket: any task may, for any bucket, at any time."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError, QueueNotFound, SinkFenced
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import lease as rules
from cassieq_spark.model.bucket import FINISHED, OF_A_SINK, Bucket, Status, with_closed_sets
from cassieq_spark.model.dead import may_close, movable
from cassieq_spark.model.ids import EMPTY
from cassieq_spark.model.lease import Terms, is_dying
from cassieq_spark.model.rows.intents import Change
from cassieq_spark.queue import roll_forward, seal
from cassieq_spark.queue.expired import note_expired
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.per_bucket import named, per_bucket
from cassieq_spark.repair import dead
from cassieq_spark.repair.report import QueueRepair
from cassieq_spark.repair.transactions import Undecided

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from cassieq_spark.model.dead import Dead
    from cassieq_spark.model.ids import BucketNo, Place, QueueName
    from cassieq_spark.store.cas import Stored

    Row = Stored[Bucket]

EACH_S: Final = 5.0
"""The time that a pass waits for each statement about one bucket, before it goes on with others."""


_logger = get_logger("repair")


@dataclass(slots=True, kw_only=True)
class Healed:
    """The result for some buckets of one queue, and the rest of the queue's work.

    Attributes:
        undecided: Undecided buckets by sink id.
        finished: Drained or void buckets.
        dead_sets: Dead sets that still exist.
        has_missed: Whether some buckets could not be read at all.
    """

    done: QueueRepair
    undecided: dict[str, Undecided] = field(default_factory=dict)
    finished: list[Place] = field(default_factory=list)
    dead_sets: set[UUID] = field(default_factory=set)
    has_missed: bool = False

    def add(self, other: Healed) -> None:
        """Add the result for other buckets of the same queue."""
        self.done.add(other.done)
        for sink_id, some in other.undecided.items():
            known = self.undecided.setdefault(sink_id, Undecided())
            known.add(some.buckets, some.epoch, some.youngest_us)
        self.finished += other.finished
        self.dead_sets |= other.dead_sets
        self.has_missed |= other.has_missed


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
        sink = healed.undecided.setdefault(value.sink.sink_id, Undecided())
        sink.add([place], value.sink.epoch, value.changed_us)
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
    with noting(done):
        closed, failed = await per_bucket(lane, lambda at: _close_if_expired(lane, at), unread)
        for bucket, one in closed.items():
            if one is not None:
                rows[bucket] = one.row
                done.closed_expired += 1
        for error in failed.values():
            note(done, error)


async def _close_if_expired(lane: Lane, bucket: BucketNo) -> seal.Closed | None:
    """Return the bucket if it is closed now; None if left alone, or dropped meanwhile (G5)."""
    if not await has_expired(lane, bucket) or await lane.is_dropped(bucket):
        return None
    return await seal.close(lane, bucket)


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
            moved = (await dead.move(lane, target, bucket, one)).messages
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
    now: Row | None = answer.row  # type: ignore[assignment]  # the value that was read comes out
    if now is None:
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
    return rules.claim(row, terms, new_uuid)[0]


@contextmanager
def noting(
    done: QueueRepair, lane: Lane | None = None, bucket: BucketNo | None = None
) -> Iterator[None]:
    """Report a step that fails, with its bucket, and leave it to the next pass; others go on."""
    try:
        yield
    except CassieqError as error:
        if lane is not None and bucket is not None:
            named(error, lane, bucket)
        note(done, error)


def note(done: QueueRepair, error: CassieqError) -> None:
    """Report a step that failed."""
    done.problems.append(str(error))
    event(_logger, "repair_failed", queue=done.queue, error=str(error))
