"""The sink's transaction against the store (design 8): admission of a task, commit, forget. I7."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, assert_never

from cassieq_spark.errors import CassieqError, RowCorrupt, SinkFenced, SinkIdReused
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import sink_txn as rules
from cassieq_spark.model.sink_txn import (
    Admission,
    Commit,
    Identity,
    NothingToDo,
    Register,
    SinkRow,
    TaskResult,
)
from cassieq_spark.queue.lane import MAX_LOST_RACES
from cassieq_spark.queue.meter import Meter
from cassieq_spark.queue.roll import roll_forward
from cassieq_spark.store.cas import Applied, Evicted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cassieq_spark.queue.lane import Lane

_logger = get_logger("queue")


def begin_once(lane: Lane, sink_id: str) -> None:
    """Create the row of a sink that is used for one transaction: the driver does, no task may."""
    who = Identity(sink_id=sink_id, lane=lane.lane_id)
    lane.store.sinks.insert(sink_id, rules.new_row(who, now_us=lane.clock.now_us(), is_once=True))


def admit(
    lane: Lane,
    who: Identity,
    batch_id: int,
    *,
    is_once: bool = False,
    refuse_second_write: bool = False,
) -> Admission:
    """What a task does before it pulls its first row: one serial read, the first time one LWT.

    Raises:
        SinkIdReused, SinkFenced, SinkDiverged: See `model.sink_txn.admit`.
    """
    sinks = lane.store.sinks
    stored = sinks.read_serial(who.sink_id)
    if stored is None:
        if is_once:
            raise _gone(who)
        stored = sinks.insert(who.sink_id, rules.new_row(who, now_us=lane.clock.now_us())).now
        if stored is None:
            raise _gone(who)
    return rules.admit(stored.value, who, batch_id, refuse_second_write=refuse_second_write)


def commit(
    lane: Lane,
    who: Identity,
    batch_id: int,
    results: Sequence[TaskResult],
    *,
    refuse_second_write: bool = False,
) -> int:
    """Make a batch visible, whole and once; then roll it forward.

    Idempotent: a batch that is committed already is not committed again.

    Returns:
        How many messages this call made visible.

    Raises:
        SinkIdReused, SinkFenced, SinkDiverged: Nothing of the batch is visible.
        CasAmbiguous: It may be committed: a restart finds out and carries on.
    """
    if not results:
        return 0
    meter = Meter()
    sinks = lane.store.sinks
    for attempt in range(MAX_LOST_RACES):
        stored = sinks.read(who.sink_id)
        if stored is None:
            raise _gone(who)
        decision = rules.decide(
            stored.value,
            who,
            batch_id,
            results,
            now_us=lane.clock.now_us(),
            refuse_second_write=refuse_second_write,
        )
        match decision:
            case NothingToDo():
                return 0
            case Register(row=row):
                if isinstance(sinks.update(who.sink_id, stored, row), Applied):
                    event(_logger, "replay_skipped", sink=who.sink_id, batch=batch_id)
                    return 0
            case Commit(row=row, roll_first=earlier):
                # The next commit overwrites this list: all of it must be visible before (I7) [P10].
                roll_forward(lane, who.sink_id, earlier)
                outcome = sinks.update(who.sink_id, stored, row)
                if isinstance(outcome, Applied) or (
                    isinstance(outcome, Evicted) and _is_ours(outcome.now.value, row)
                ):
                    _roll_forward_if_possible(lane, who.sink_id, row)
                    costs = sum((one.costs for one in results), meter.read())
                    event(
                        _logger,
                        "batch_committed",
                        queue=lane.queue,
                        sink=who.sink_id,
                        batch=batch_id,
                        messages=row.listed.messages,
                        buckets=sum(len(one.buckets) for one in results),
                        **asdict(costs),
                    )
                    return row.listed.messages
            case _:
                assert_never(decision)
        lane.stand_back(attempt)
    raise lane.contended(f"sink {who.sink_id!r}")


def forget(lane: Lane, sink_id: str) -> None:
    """Let a new checkpoint use this sink id; what was undecided becomes void.

    Raises:
        SinkIdReused: It belongs to another queue that is alive: what it has committed there may
            still wait to be rolled forward, and would be void.
    """
    for _ in range(MAX_LOST_RACES):
        stored = lane.store.sinks.read_serial(sink_id)
        if stored is None:
            return
        if stored.value.lane == lane.lane_id:
            roll_forward(lane, sink_id, stored.value.listed)
        elif not lane.store.pointers.read(stored.value.lane).is_deleted:
            raise SinkIdReused(
                f"sink {sink_id!r} belongs to another queue than {lane.queue!r} (lane "
                f"{stored.value.lane}). Call forget_sink with that queue's name",
                sink_id=sink_id,
            )
        row = rules.forget(stored.value, lane=lane.lane_id, now_us=lane.clock.now_us())
        if isinstance(lane.store.sinks.update(sink_id, stored, row), Applied):
            event(_logger, "sink_forgotten", sink=sink_id)
            return
    raise lane.contended(f"sink {sink_id!r}")


def _roll_forward_if_possible(lane: Lane, sink_id: str, row: SinkRow) -> None:
    """The batch is committed: a failure from here on must not make anybody write it again.

    The next reader, commit or repair carries on where this stops.
    """
    try:
        roll_forward(lane, sink_id, row.listed)
    except RowCorrupt:
        raise
    except CassieqError as error:
        event(_logger, "roll_forward_left_to_others", sink=sink_id, error=str(error))


def _is_ours(now: SinkRow, written: SinkRow) -> bool:
    """The effects of a commit whose tag was pushed out [R8]."""
    return (
        now.last == written.last
        and now.run == written.run
        and now.epoch == written.epoch
        and now.listed == written.listed
    )


def _gone(who: Identity) -> SinkFenced:
    return SinkFenced(
        f"the transaction of sink {who.sink_id!r} is over: its row was removed while a task still "
        "wrote. Nothing of this attempt is visible",
        sink_id=who.sink_id,
    )
