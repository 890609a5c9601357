"""One repair pass: every step idempotent, a failure of one stops no other (design 9)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError, SinkFenced
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import lease as rules
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.lease import Terms, is_dying
from cassieq_spark.queue import life, roll, seal
from cassieq_spark.queue.lane import Lane, lane_of, open_lane
from cassieq_spark.repair import dead
from cassieq_spark.repair.drop import drop
from cassieq_spark.repair.report import QueueRepair, RepairReport
from cassieq_spark.store.tables.queues import QueueStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.model.ids import QueueName
    from cassieq_spark.store.cas import Stored
    from cassieq_spark.store.store import Store

    Row = Stored[Bucket]

WINDOW: Final = 64

_logger = get_logger("repair")


def heal(store: Store, names: list[QueueName] | None) -> RepairReport:
    """One pass.

    Args:
        names: None: every queue whose home is this client's data centre.

    Raises:
        QueueNotFound: A named queue is not there.
    """
    report = RepairReport()
    if names is None:
        lanes = []
        for row in store.queues.read_all():
            if row.status is QueueStatus.DELETING:
                _finish_deletion(store, row.name, report)
            elif row.home_datacenter == store.session.datacenter:
                lanes.append(lane_of(store, row))
    else:
        lanes = [open_lane(store, name) for name in names]
    report.queues = [heal_queue(lane) for lane in lanes]
    return report


def heal_queue(lane: Lane) -> QueueRepair:
    """All steps for one queue: what is half-way first, then the dead, then what is done."""
    done = QueueRepair(queue=lane.queue)
    with _noting(done):
        for rows in _live_rows(lane):
            _finish_halves(lane, rows, done)
            for bucket, row in rows.items():
                with _noting(done):
                    _heal_bucket(lane, bucket, row, done)
    with _noting(done):
        done.dropped = drop(lane)
    return done


def _finish_halves(lane: Lane, rows: dict[BucketNo, Row], done: QueueRepair) -> None:
    """Seals that somebody began, transactions that are decided; ``rows`` as they are then."""
    bulk = {
        bucket: row
        for bucket, row in rows.items()
        if row.value.status in (Status.WRITING, Status.PREPARED)
    }
    with _noting(done):
        changed = roll.settle_decided(lane, bulk)
        done.rolled_forward += len(changed)
        rows.update(changed)
    for bucket, row in list(rows.items()):
        if row.value.status is Status.SEALING:
            with _noting(done):
                closed = seal.finish(lane, bucket, row)
                if closed is not None:
                    rows[bucket] = closed.row
                    done.seals_finished += 1


def _heal_bucket(lane: Lane, bucket: BucketNo, row: Row, done: QueueRepair) -> None:
    if row.value.status is not Status.SEALED:
        return
    now = _mark_dead(lane, bucket, row, done)
    dead_letter_queue = lane.settings.dead_letter_queue
    if now.value.dead and dead_letter_queue is None:
        done.problems.append(
            f"{sum(part.runs.count for part in now.value.dead)} messages of bucket {bucket} of "
            f"queue {lane.queue!r} died while it had a dead-letter queue: they stay until it has "
            "one again (client.alter_queue)"
        )
    elif dead_letter_queue is not None and now.value.dead:
        target = open_lane(lane.store, dead_letter_queue)
        for part in now.value.dead:
            try:
                done.moved_dead += dead.move(lane, target, bucket, part)
            except SinkFenced:
                continue  # another mover was faster, and has moved it
    now_us = lane.clock.now_us()
    due_us = now.value.earliest_return_us()
    if due_us is not None and due_us <= now_us:
        # Its hint may be lost: this one makes the next get look there, wherever the reader is.
        lane.store.hints.write(lane.lane_id, [(bucket, now_us)], now_us=now_us)
        done.hints_written += 1


def _mark_dead(lane: Lane, bucket: BucketNo, row: Row, done: QueueRepair) -> Row:
    """What is out of deliveries and held by nobody dies now, not when somebody next asks."""
    limit = lane.max_deliveries
    if not is_dying(row.value, now_us=lane.clock.now_us(), max_deliveries=limit):
        return row
    before = sum(part.runs.count for part in row.value.dead)

    def change(value: Bucket) -> Bucket | None:
        now_us = lane.clock.now_us()
        if not is_dying(value, now_us=now_us, max_deliveries=limit):
            return None
        terms = Terms(
            at_most=0,
            owner="repair",
            run=None,
            now_us=now_us,
            until_us=now_us,
            max_deliveries=limit,
        )
        return rules.claim(value, terms, new_uuid)[0]

    now = lane.change_bucket(bucket, change, known=row)
    if now is None:
        return row
    done.marked_dead += max(0, sum(part.runs.count for part in now.value.dead) - before)
    return now


def _live_rows(lane: Lane) -> Iterator[dict[BucketNo, Row]]:
    """Rows from the repair pointer to the monoton id, a window at a time."""
    monoton = lane.store.monotons.read(lane.lane_id)
    if monoton is None:
        raise lane.deleted()
    end = -(-monoton.value.next_id // lane.bucket_size)
    for start in range(lane.pointers().repair, end, WINDOW):
        window = [BucketNo(at) for at in range(start, min(start + WINDOW, end))]
        found = lane.store.buckets.read_many(lane.lane_id, window)
        yield {bucket: row for bucket, row in found.items() if row is not None}


def _finish_deletion(store: Store, name: QueueName, report: RepairReport) -> None:
    found = store.queues.read(name)
    if found is not None and found.value.status is QueueStatus.DELETING:
        life.finish_deletion(store, found)
        report.deletions_finished.append(name)


@contextmanager
def _noting(done: QueueRepair) -> Iterator[None]:
    """A step that fails is reported and left to the next pass; the others go on."""
    try:
        yield
    except CassieqError as error:
        done.problems.append(str(error))
        event(_logger, "repair_failed", queue=done.queue, error=str(error))
