"""Abort transactions that nobody ends, and remove the rows of those that are over.

Both are politeness, not safety. An abort may come at any time, since the aborted transaction is
void (I7). A row may be removed at any time, too: whoever asks for a version of it finds another, or
none (ADR 18).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cassieq_spark.log import event, get_logger
from cassieq_spark.model import sink_txn as rules
from cassieq_spark.model.ids import LaneId, Place
from cassieq_spark.model.outcome import Applied, Stored
from cassieq_spark.model.sink_txn import FIRST_EPOCH, NO_BATCH, SinkRow, set_of
from cassieq_spark.queue.lane import Lane, by_lane
from cassieq_spark.queue.roll_forward import roll_forward, settle_decided
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.sinks import Glimpse

LONGEST_PATIENCE_S: Final = 3_600.0

REST_S: Final = 86_400.0
"""The time that the row of a finished transaction stays: a driver that has lost the answer to
its commit finds the outcome there [T9]. Nothing else depends on it."""

_logger = get_logger("repair")


class Undecided(NamedTuple):
    """A bucket that its sink's row has not decided, and the last change of it, in cluster time."""

    place: Place
    epoch: int
    changed_us: int


async def abort_if_silent(lane: Lane, sink_id: str, found: Sequence[Undecided]) -> int:
    """Abort an epoch whose writer has been silent for long; return how many buckets became void.

    Silent means that there was no heartbeat, and that no bucket changed. Each abort since the last
    commit doubles the time. Otherwise a batch that takes longer than the timeout would never end
    [R3].
    """
    stored = await lane.store.sinks.read_serial(sink_id)
    if stored is None or stored.value.lane != lane.first.lane_id:
        return 0
    if stored.value.epoch != max(one.epoch for one in found):
        return 0
    since_us = max(stored.value.changed_us, *(one.changed_us for one in found))
    if not await is_silent(lane, sink_id, stored.value, since_us) or not await _abort(
        lane, sink_id, stored
    ):
        return 0
    settled = 0
    for lane_id, buckets in by_lane(one.place for one in found).items():
        # If a bucket does not answer, a later pass settles it, or a get from it.
        its_lane = lane.sibling(lane_id)
        rows, _ = await its_lane.buckets.read_many(buckets)
        undecided = {at: row for at, row in rows.items() if row is not None}
        settled += len(await settle_decided(its_lane, undecided))
    return settled


def may_be_over(seen: Glimpse, *, now_us: int) -> bool:
    """Whether a row of one transaction is old enough to look at: it may be aborted or removed."""
    age_s = (now_us - seen.changed_us) / 1e6
    is_undecided = seen.epoch == FIRST_EPOCH and set_of(seen.sink_id) is None
    return age_s > (LONGEST_PATIENCE_S if is_undecided else REST_S)


async def end_once(lane: Lane, sink_id: str) -> bool:
    """Remove the row of a sink that had one transaction, if it is over; return whether it is gone.

    The row goes only when all that it lists is visible: without the row that would be void. A row
    without a commit is aborted first, when its writer is silent. A decided row rests [T9].
    """
    stored = await lane.store.sinks.read_serial(sink_id)
    if stored is None or not stored.value.is_once or stored.value.lane != lane.first.lane_id:
        return False
    row = stored.value
    if row.last == NO_BATCH and set_of(sink_id) is None:
        if not await is_silent(lane, sink_id, row, row.changed_us):
            return False
        if row.epoch == FIRST_EPOCH:
            await _abort(lane, sink_id, stored)
            return False
    if not _has_rested(row, lane.clock.now_us()):
        return False
    await roll_forward(lane, sink_id, row.listed)
    await lane.store.sinks.delete(sink_id, stored)
    return True


async def end_of_deleted(store: Store, sink_id: str, lane_id: LaneId) -> bool:
    """Remove the row of one transaction of a deleted queue; return whether it is gone [T15].

    All that it decided went with the queue. Its writer is refused: the row does not exist.
    """
    stored = await store.sinks.read_serial(sink_id)
    if stored is None or not stored.value.is_once or stored.value.lane != lane_id:
        return False
    if not _has_rested(stored.value, store.clock.now_us()):
        return False
    await store.sinks.delete(sink_id, stored)
    return True


async def is_silent(lane: Lane, sink_id: str, row: SinkRow, since_us: int) -> bool:
    """Whether a sink's writers have sent no heartbeat and changed nothing for long [R3].

    A ``df.write`` without an id sends no heartbeat until Spark gives its first task a core, and
    each retry is a new sink whose patience has not grown: it has the longest from the start [T8].
    """
    timeout_s = lane.settings.repair_timeout_s * 2 ** min(row.aborts, 32)
    if row.is_once and set_of(sink_id) is None:
        timeout_s = LONGEST_PATIENCE_S
    patience_s = max(lane.settings.repair_timeout_s, min(timeout_s, LONGEST_PATIENCE_S))
    is_old = lane.clock.now_us() - since_us > int(patience_s * 1e6)
    return is_old and not await lane.store.heartbeats.is_alive(
        sink_id, timeout_s=lane.settings.repair_timeout_s
    )


def _has_rested(row: SinkRow, now_us: int) -> bool:
    return now_us - row.changed_us > int(REST_S * 1e6)


async def _abort(lane: Lane, sink_id: str, stored: Stored[SinkRow]) -> bool:
    # The next list overwrites this one: all of it must be visible before (I7) [P10].
    await roll_forward(lane, sink_id, stored.value.listed)
    row = rules.abort(stored.value, now_us=lane.clock.now_us())
    is_ours = isinstance(await lane.store.sinks.update(sink_id, stored, row), Applied)
    if is_ours:
        event(
            _logger,
            "transaction_aborted",
            queue=lane.queue,
            sink=sink_id,
            epoch=stored.value.epoch,
            aborts=row.aborts,
        )
    return is_ours
