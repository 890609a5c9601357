"""One repair pass: every step idempotent, a failure of one stops no other (design 9)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import CassieqError, QueueDeleted
from cassieq_spark.queue import life
from cassieq_spark.queue.lane import (
    Lane,
    at_home,
    lanes_of,
    live_buckets,
    read_row,
    rows_at_home,
    windows,
)
from cassieq_spark.repair import dead
from cassieq_spark.repair.drop import drop, free, sweep
from cassieq_spark.repair.gaps import close_gaps
from cassieq_spark.repair.graves import sweep_lanes
from cassieq_spark.repair.report import QueueRepair, RepairReport
from cassieq_spark.repair.steps import Healed, heal_buckets, noting
from cassieq_spark.repair.transactions import abort_if_silent, end_once
from cassieq_spark.store.tables.queues import QueueStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from cassieq_spark.model.ids import BucketNo, LaneId, QueueName
    from cassieq_spark.store.store import Store

WINDOW: Final = 64


class Pass:
    """One pass over some queues: `begin`, then for each queue `Pass.finish`, then `Pass.end`.

    What is done bucket by bucket may be done anywhere between, by `repair.steps.heal_buckets`.

    Attributes:
        lanes: Of the queues to heal.
        report: Of what was done so far.
    """

    def __init__(self, store: Store, names: list[QueueName] | None, *, is_full: bool) -> None:
        self._store = store
        self._is_full = is_full
        self._has_all = names is None
        self.report = RepairReport()
        # Before any bucket is read: see `_end_moves`.
        self._once: dict[LaneId, list[str]] = defaultdict(list)
        for sink_id, lane_id in store.sinks.once():
            self._once[lane_id].append(sink_id)
        self._dead_sets: set[UUID] = set()
        self._unfinished: list[QueueRepair] = []
        self.lanes = self._open(names)

    def windows(self, lane: Lane, healed: Healed, size: int = WINDOW) -> Iterator[list[BucketNo]]:
        """The buckets of a queue, so many at a time."""
        try:
            yield from windows(live_buckets(lane), size)
        except QueueDeleted:
            raise  # nothing of it is left
        except CassieqError:
            healed.has_missed = True
            raise

    def finish(self, lane: Lane, healed: Healed) -> None:
        """What is to be done for a queue when all its buckets were healed."""
        done = healed.done
        for sink_id, undecided in healed.undecided.items():
            with noting(done):
                done.aborted += abort_if_silent(lane, sink_id, undecided)
        with noting(done):
            done.gaps_closed = close_gaps(lane)
        for sink_id in self._once[lane.lane_id]:
            if not sink_id.startswith(dead.SINK_PREFIX):
                with noting(done):
                    done.sinks_ended += end_once(lane, sink_id)
        with noting(done):
            done.dropped = drop(lane)
            low = lane.pointers().repair
            done.freed = free(lane, [bucket for bucket in healed.finished if bucket >= low])
        self._dead_sets |= healed.dead_sets
        self._has_all &= not healed.has_missed
        self.report.queues.append(done)

    def end(self) -> RepairReport:
        """What is to be done when all queues were healed."""
        if self._has_all:
            self._end_moves()
        if self._is_full:
            self._sweep()
        self.report.queues += self._unfinished
        return self.report

    def _open(self, names: list[QueueName] | None) -> list[Lane]:
        if names is None:
            for row in rows_at_home(self._store, QueueStatus.DELETING):
                failed = QueueRepair(queue=row.name)
                with noting(failed):
                    self._finish_deletion(row.name)
                if failed.problems:
                    self._unfinished.append(failed)
        return lanes_of(self._store, names)

    def _finish_deletion(self, name: QueueName) -> None:
        found = read_row(self._store, name)
        if (
            found is not None
            and found.value.status is QueueStatus.DELETING
            and at_home(self._store, found.value)
        ):
            life.finish_deletion(self._store, found)
            self.report.deletions_finished.append(name)

    def _end_moves(self) -> None:
        """Remove the rows of moves whose mover died when all was done but this.

        A set that was in no bucket row, read after its sink's row, is never moved again: who takes
        it for there without looking finds its transaction gone [P24]. A queue that this data
        centre's quorum does not know yet could hold it: where there is anything to remove, all
        data centres are asked for queues.
        """
        left = [
            (lane, sink_id, done)
            for lane, done in zip(self.lanes, self.report.queues, strict=True)
            for sink_id in self._once[lane.lane_id]
            if (set_id := dead.set_of(sink_id)) is not None and set_id not in self._dead_sets
        ]
        if not left:
            return
        with noting(left[0][2]):
            known = {lane.lane_id for lane in self.lanes}
            if any(
                at_home(self._store, row) and known.isdisjoint(row.lanes)
                for row in self._store.queues.read_all()
            ):
                return
            for lane, sink_id, done in left:
                with noting(done):
                    done.sinks_ended += end_once(lane, sink_id)

    def _sweep(self) -> None:
        rows: dict[LaneId, list[BucketNo]] = defaultdict(list)
        messages: dict[LaneId, list[BucketNo]] = defaultdict(list)
        for lane_id, bucket in self._store.buckets.every():
            rows[lane_id].append(bucket)
        for lane_id, bucket in self._store.messages.every():
            messages[lane_id].append(bucket)
        for lane, done in zip(self.lanes, self.report.queues, strict=True):
            with noting(done):
                done.swept = sweep(lane, rows[lane.lane_id], messages[lane.lane_id])
        everywhere = QueueRepair(queue="*")
        with noting(everywhere):
            self.report.swept_lanes = sweep_lanes(self._store, rows, messages)
        if everywhere.problems:
            self._unfinished.append(everywhere)


def heal(store: Store, names: list[QueueName] | None, *, is_full: bool = False) -> RepairReport:
    """One pass in this process.

    Args:
        names: None: every queue whose home is this client's data centre.
        is_full: Also look through all partition keys for what landed below the repair pointers.

    Raises:
        QueueNotFound: A named queue is not there.
    """
    one = Pass(store, names, is_full=is_full)
    for lane in one.lanes:
        healed = Healed(done=QueueRepair(queue=lane.queue))
        with noting(healed.done):
            for window in one.windows(lane, healed):
                healed.add(heal_buckets(lane, window))
        one.finish(lane, healed)
    return one.end()
