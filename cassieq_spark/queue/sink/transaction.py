"""Run the sink's transaction against the store: admit a task, commit, forget. Holds I7.

`heartbeat` shows meanwhile that a writer is alive, so that repair does not abort it [R3].

See docs/design/sink.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import assert_never

from cassieq_spark.errors import (
    CasAmbiguous,
    CassieqError,
    QueueDeleted,
    RowCorrupt,
    SinkFenced,
    SinkIdReused,
)
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import sink_txn as rules
from cassieq_spark.model.ids import Place
from cassieq_spark.model.outcome import Applied, Evicted, Outcome, Refused
from cassieq_spark.model.sink_txn import (
    ONLY_BATCH,
    Admission,
    Begun,
    Commit,
    Costs,
    Identity,
    NothingToDo,
    Register,
    SinkRow,
    TaskResult,
    WriteUnder,
)
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.roll_forward import VISIBLE, roll_forward
from cassieq_spark.queue.sink.writer import Meter
from cassieq_spark.store.call import repeating

_logger = get_logger("queue")


async def begin_once(lane: Lane, sink_id: str) -> Begun:
    """Create the row of a sink that is used for one transaction.

    The driver calls this; no task may.

    If the INSERT was sent more than once, a copy of it may land long after the row was removed, and
    bring the very same row back. So the row is then written once more, by a CAS that creates no
    row: a row that it wrote never comes back [T3].

    Raises:
        SinkFenced: The row belongs to another writer: such sink ids are not used twice.
    """
    sinks = lane.store.sinks
    who = Identity(sink_id=sink_id, lane=lane.first.lane_id)
    row = rules.new_row(who, now_us=lane.clock.now_us(), is_once=True)
    outcome = await sinks.insert(sink_id, row)
    async for _ in lane.attempts():
        if not isinstance(outcome, Applied):
            raise _ended(who)
        if outcome.was_sent_once:
            return begun(who, outcome)
        outcome = await sinks.update(
            sink_id, outcome.now, rules.abort(outcome.now.value, now_us=lane.clock.now_us())
        )
    raise lane.contended(f"sink {sink_id!r} of queue {lane.queue!r}")


def begun(who: Identity, outcome: Applied[SinkRow]) -> Begun:
    """Return the transaction of a row that was just written, by a CAS that was sent once."""
    return Begun(who=who, epoch=outcome.now.value.epoch, writer=outcome.now.version.writer)


async def admit_once(lane: Lane, once: Begun) -> WriteUnder:
    """Admit a task of such a transaction before it writes anything: one serial read.

    Raises:
        SinkFenced: The transaction was ended, because its writer was silent for too long.
        QueueDeleted: The queue is not the one in which the transaction was begun [T6].
    """
    _check_lane(lane, once.who)
    stored = await lane.store.sinks.read_serial(once.who.sink_id)
    if stored is None or stored.version.writer != once.writer:
        raise _ended(once.who)
    return WriteUnder(epoch=once.epoch)


async def commit_once(lane: Lane, once: Begun, results: Sequence[TaskResult]) -> int:
    """Make such a transaction visible, whole and once; then roll it forward.

    Its CAS is conditional on the row as it was begun and is never tried on another row. If a row
    was removed and is born again, its write may be in the queue already [T3].

    Returns:
        The number of messages that this call made visible.

    Raises:
        SinkFenced: Another client ended the transaction; none of its messages is visible.
        QueueDeleted: The queue is gone, with what was written.
        CasAmbiguous: The answer was lost, and so is all evidence: the write may be in the queue.
    """
    return await commit(lane, once.who, ONLY_BATCH, results, once=once)


async def admit(
    lane: Lane,
    who: Identity,
    batch_id: int,
    *,
    refuse_second_write: bool = False,
) -> Admission:
    """Admit a task before it writes anything: one serial read, and one LWT the first time.

    Raises:
        SinkIdReused, SinkFenced, SinkDiverged: See `model.sink_txn.admit`.
    """
    sinks = lane.store.sinks
    stored = await sinks.read_serial(who.sink_id)
    if stored is None:
        stored = (
            await sinks.insert(who.sink_id, rules.new_row(who, now_us=lane.clock.now_us()))
        ).now
        if stored is None:
            raise _gone(who)
    return rules.admit(stored.value, who, batch_id, refuse_second_write=refuse_second_write)


async def commit(
    lane: Lane,
    who: Identity,
    batch_id: int,
    results: Sequence[TaskResult],
    *,
    refuse_second_write: bool = False,
    once: Begun | None = None,
) -> int:
    """Make a batch visible, whole and once; then roll it forward.

    Idempotent: a batch that is committed already is not committed again.

    Args:
        once: The transaction, if its sink is used for one only; see `commit_once`.

    Returns:
        The number of messages that this call made visible.

    Raises:
        SinkIdReused, SinkFenced, SinkDiverged: No message of the batch is visible.
        QueueDeleted: The queue is gone, with what was written; or another one has its name.
        CasAmbiguous: The batch may be committed: a restart finds out and carries on.
    """
    if not results:
        return 0
    meter = Meter()
    _check_lane(lane, *(one.who for one in results), who)
    sinks = lane.store.sinks
    async for _ in lane.attempts():
        stored = await sinks.read(who.sink_id)
        if once is not None and (stored is None or stored.version.writer != once.writer):
            raise _ended(who)
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
                if isinstance(await sinks.update(who.sink_id, stored, row), Applied):
                    event(_logger, "replay_skipped", sink=who.sink_id, batch=batch_id)
                    return 0
            case Commit(row=row, roll_first=earlier):
                # The next commit overwrites this list: all of it must be visible before (I7) [P10].
                await roll_forward(lane, who.sink_id, earlier)
                outcome = await sinks.update(who.sink_id, stored, row)
                if await _took_effect(lane, who, outcome, row):
                    costs = sum((one.costs for one in results), meter.read())
                    return await _committed(lane, who, batch_id, row, costs)
            case _:
                assert_never(decision)
    raise lane.contended(f"sink {who.sink_id!r} of queue {lane.queue!r}")


async def forget(lane: Lane, sink_id: str) -> None:
    """Let a new checkpoint use this sink id. Undecided buckets become void.

    Raises:
        SinkIdReused: The sink id belongs to another queue that is alive. Buckets that it has
            committed there may still wait to be rolled forward, and would become void.
    """
    async for _ in lane.attempts():
        stored = await lane.store.sinks.read_serial(sink_id)
        if stored is None:
            return
        if stored.value.lane == lane.first.lane_id:
            await roll_forward(lane, sink_id, stored.value.listed)
        elif not (await lane.store.lane(stored.value.lane).pointers.read()).is_deleted:
            raise SinkIdReused(
                f"sink {sink_id!r} belongs to another queue (lane {stored.value.lane}), not to "
                f"queue {lane.queue!r}. Call forget_sink with the name of that queue",
                sink_id=sink_id,
            )
        row = rules.forget(stored.value, lane=lane.first.lane_id, now_us=lane.clock.now_us())
        if isinstance(await lane.store.sinks.update(sink_id, stored, row), Applied):
            event(_logger, "sink_forgotten", sink=sink_id)
            return
    raise lane.contended(f"sink {sink_id!r} of queue {lane.queue!r}")


def _check_lane(lane: Lane, *whos: Identity) -> None:
    """Refuse results that were written to a deleted queue of the same name [T6]."""
    if any(who.lane != lane.first.lane_id for who in whos):
        raise QueueDeleted(
            f"queue {lane.queue!r} was deleted and created again while it was written to. What "
            "was written is gone with the former queue, and nothing of it is in this one. Write "
            "it again"
        )


async def _took_effect(lane: Lane, who: Identity, outcome: Outcome[SinkRow], row: SinkRow) -> bool:
    """Whether a commit took effect, by its CAS, or else by its effects."""
    match outcome:
        case Applied():
            return True
        case Evicted(now=now):  # its tag was evicted: does the row show the effects? [R8]
            there = now.value
            shown = there.last, there.run, there.epoch, there.listed
            return shown == (row.last, row.run, row.epoch, row.listed)
        case Refused(now=None, was_sent_once=False):
            return await _is_visible(lane, who, row)
        case Refused():
            return False
        case _:
            assert_never(outcome)


async def _is_visible(lane: Lane, who: Identity, row: SinkRow) -> bool:
    """Whether a commit took effect whose row was removed before its answer came [T9].

    A row is removed when all listed buckets are visible. Buckets that it does not list are void
    from then on, so any one of the buckets tells (G5).

    Raises:
        CasAmbiguous: They are all dropped.
    """
    if not row.listed.runs:
        return True
    # Look at the highest bucket of each lane: dropped buckets are below the repair pointer.
    for place in {run.lane: Place(run.lane, run.last) for run in row.listed.runs}.values():
        its_lane = lane.sibling(place.lane)
        stored = await its_lane.buckets.read(place.bucket)
        if not await its_lane.is_dropped(place.bucket):
            return stored is not None and stored.value.status in VISIBLE
    raise CasAmbiguous(
        f"the commit of sink {who.sink_id!r} to queue {lane.queue!r} stayed unanswered until its "
        "row and its buckets were gone: either it was committed, and its messages have been "
        "consumed, or it was aborted. Look for its messages where they are consumed before you "
        "write them again. A write with options sinkId and batchId can be repeated safely"
    )


async def _committed(lane: Lane, who: Identity, batch_id: int, row: SinkRow, costs: Costs) -> int:
    """Complete a batch that is committed.

    A failure after the commit must not make the caller write the batch again: the next reader,
    commit or repair carries on where this stops. But a queue that was deleted meanwhile may have
    taken the batch along: the repair pointer is read after the commit, and then the writer gets an
    error [T6].
    """
    try:
        await lane.read_pointers()
        await roll_forward(lane, who.sink_id, row.listed)
    except (RowCorrupt, QueueDeleted):
        raise
    except CassieqError as error:
        event(_logger, "roll_forward_left_to_others", sink=who.sink_id, error=str(error))
    event(
        _logger,
        "batch_committed",
        queue=lane.queue,
        sink=who.sink_id,
        batch=batch_id,
        messages=row.listed.messages,
        buckets=sum(run.last - run.first + 1 for run in row.listed.runs),
        **asdict(costs),
    )
    return row.listed.messages


def _gone(who: Identity) -> SinkFenced:
    return SinkFenced(
        f"the transaction of sink {who.sink_id!r} is over: its row was removed while a task still "
        "wrote. Nothing of this attempt is visible",
        sink_id=who.sink_id,
    )


def _ended(who: Identity) -> SinkFenced:
    return SinkFenced(
        f"the transaction of sink {who.sink_id!r} was ended while it was written, because its "
        "writer was silent for too long. Nothing of this attempt is visible. Write it again",
        sink_id=who.sink_id,
    )


BEATS_PER_TIMEOUT = 3


@asynccontextmanager
async def heartbeat(lane: Lane, sink_id: str, *, is_row_fresh: bool = False) -> AsyncIterator[None]:
    """Beat while the block runs.

    It is politeness, not safety: a beat that fails is logged, and the work goes on.

    Args:
        is_row_fresh: Whether the sink's row was just changed, which is a sign of life, too. Then
            work that ends within a third of the timeout sends no beat.
    """
    timeout_s = lane.settings.repair_timeout_s
    period_s = timeout_s / BEATS_PER_TIMEOUT

    async def beat() -> None:
        try:
            # Do not wait long for the store: the work must begin, and the next beat be due [T5].
            with lane.store.session.within(period_s):
                await lane.store.heartbeats.beat(sink_id, ttl_s=timeout_s)
        except CassieqError as error:
            event(_logger, "heartbeat_failed", sink=sink_id, error=str(error))

    if not is_row_fresh:
        await beat()
    # A Spark task may wait minutes for its next row, and a commit for its buckets.
    async with repeating(beat, period_s):
        yield
