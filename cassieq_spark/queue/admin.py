"""Create, alter, purge and delete queues; each survives a crash at any step.

  delete:  status = deleting  ->  L = 2^62  ->  no monoton row  ->  no data  ->  no queue row

A client that finds a half-way deletion carries on where it stopped: all steps are idempotent. A row
that is active over a lane with L = 2^62 is half-way deleted, too [T14]. See docs/design/repair.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, assert_never

from cassieq_spark import metrics
from cassieq_spark.errors import (
    CasContention,
    CassieqError,
    DeadLetterCycle,
    OptionInvalid,
    QueueExists,
    QueueInUse,
    QueueNotFound,
    SettingFixed,
    UsageError,
)
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import FINISHED, OF_A_SINK, Bucket
from cassieq_spark.model.ending import Close, Drop, Over, Raise, next_step
from cassieq_spark.model.ids import BucketNo, LaneId, Place, QueueName
from cassieq_spark.model.lanes import DueLane, first_period, periods_end
from cassieq_spark.model.outcome import Applied, Stored
from cassieq_spark.model.pointer import DELETED, Pointer
from cassieq_spark.model.rows.intents import Purge
from cassieq_spark.options import QueueSettings, arguments, queue_name
from cassieq_spark.queue import roll_forward, seal
from cassieq_spark.queue.find import at_home, check_home, lane_of, missing, read_row, sources_of
from cassieq_spark.queue.inspect.stats import stats
from cassieq_spark.queue.lane import Lane, attempts, first_of, live_buckets, per_bucket, windows
from cassieq_spark.queue.reserve import give_up
from cassieq_spark.queue.schedule import every_lane
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.lanes import Monoton
from cassieq_spark.store.tables.queues import QueueRow, QueueStatus

WINDOW: Final = 256
"""The number of buckets that are read, closed or dropped together."""

FIXED: Final = ("bucket_size", "priorities", "shards", "schedule_period")
"""Settings that cannot change. An id is bucket number times size plus offset, and a lane belongs to
its priority and shard, or period: with other values, readers would look elsewhere for stored
messages."""

_NOT_DELETED: Final = "Nothing was deleted. See client.queues() for the names of all queues"

_logger = get_logger("queue")


async def create(
    store: Store,
    name: QueueName,
    given: Mapping[str, Any],
    labels: Mapping[str, str],
) -> tuple[QueueRow, bool]:
    """Return the queue of that name with these settings, and whether it is new.

    Args:
        given: The settings that the caller names. An existing queue may have any value of the
            others: their defaults are those of the release that created it.
        labels: The labels of a new queue. An existing queue keeps its own.

    Raises:
        OptionUnknown, OptionInvalid: The error names the setting, or a name that no new queue can
            have.
        QueueExists: A named setting has another value.
        DeadLetterCycle: Its dead-letter queues would form a cycle.
        QueueNotFound: The dead-letter queue does not exist.
        UsageError: The queue, or its dead-letter queue, lives in another data centre.
    """
    settings = QueueSettings.parse(**given)
    await check_dead_letter_queue(store, name, settings)
    async for _ in attempts(store):
        found = await read_row(store, name)
        if found is not None:
            check_home(store, found.value)
            if not await _is_usable(store, found.value):
                await finish_deletion(store, found)
                found = None
        is_new = found is None
        if found is None:
            _check_new_name(name)
            found = await _insert(store, name, settings, labels)
        if found is not None and found.value.status is QueueStatus.ACTIVE:
            _check_same(name, given, found.value.settings)
            return found.value, is_new
    raise QueueNotFound(
        f"other clients create and delete queue {name!r} again and again. Try again later"
    )


def _check_new_name(name: QueueName) -> None:
    """Refuse names that no URL can have. Queues that older releases created may have them."""
    if name.rpartition("/")[2] in {".", ".."}:
        raise OptionInvalid(
            f"a new queue cannot be named {name!r}: in a URL, '.' and '..' are steps of a path, so "
            "nobody could reach it over HTTP. Choose another name"
        )


async def alter(store: Store, name: QueueName, changes: dict[str, Any]) -> QueueRow:
    """Change settings. Every client that has the queue open sees them within seconds.

    Raises:
        QueueNotFound: The queue does not exist.
        OptionUnknown, OptionInvalid: The error names the setting.
        SettingFixed, DeadLetterCycle: A setting cannot change, or dead-letter queues would form a
            cycle.
        UsageError: The queue, or its dead-letter queue, lives in another data centre.
    """

    async def change(row: QueueRow) -> QueueRow:
        settings = row.settings.altered(changes)
        different = [key for key, _, _ in settings.differences(row.settings)]
        if fixed := [key for key in different if key in FIXED]:
            raise SettingFixed(
                f"{', '.join(fixed)} of queue {name!r} cannot change: where its messages are "
                "depends on it. Create another queue"
            )
        if "dead_letter_queue" in different:
            await check_dead_letter_queue(store, name, settings)
        return replace(row, settings=settings)

    before, after = await change_row(store, name, change)
    if different := [key for key, _, _ in after.value.settings.differences(before.settings)]:
        if "dead_letter_queue" in different:
            await _hold_target(store, after, before.settings)
        event(_logger, "queue_altered", queue=name, settings=",".join(different))
        _tell_of_no_effect(name, after.value.settings)
    return after.value


async def label(store: Store, name: QueueName, changes: Mapping[str, str | None]) -> QueueRow:
    """Set labels, and remove those whose text is None. The others stay. No rule depends on them.

    Raises:
        QueueNotFound: The queue does not exist.
        OptionInvalid: The labels would be too large together.
        UsageError: The queue lives in another data centre.
    """

    async def change(row: QueueRow) -> QueueRow:
        merged = {**row.labels, **changes}
        labels = {key: text for key, text in merged.items() if text is not None}
        arguments.check_labels(labels)
        return replace(row, labels=labels)

    before, after = await change_row(store, name, change)
    if after.value != before:
        event(_logger, "queue_altered", queue=name, settings="labels")
    return after.value


async def change_row(
    store: Store, name: QueueName, change: Callable[[QueueRow], Awaitable[QueueRow]]
) -> tuple[QueueRow, Stored[QueueRow]]:
    """CAS the row of an active queue to what ``change`` makes of it.

    Args:
        change: Returns the new row; returning the same row means no change. It may be called again
            with a newer row.

    Returns:
        The row before and after the change.

    Raises:
        QueueNotFound: The queue does not exist.
        UsageError: The queue lives in another data centre.
        CasContention: It lost too many times in a row.
    """
    async for _ in attempts(store):
        found = await read_row(store, name)
        if found is None or found.value.status is not QueueStatus.ACTIVE:
            raise await missing(store, name)
        check_home(store, found.value)
        row = await change(found.value)
        if row == found.value:
            return found.value, found
        outcome = await store.queues.update(found, row)
        if isinstance(outcome, Applied):
            return found.value, outcome.now
    raise CasContention(f"other clients alter queue {name!r} again and again. Try again later")


async def delete(
    store: Store,
    name: QueueName,
    lane: LaneId | None = None,
    *,
    force: bool = True,
    if_empty: bool = False,
    if_unused: bool = False,
) -> LaneId:
    """Delete a queue with everything in it. Return its first lane.

    What depends on the queue is looked for before the first step, which is refused if the row has
    changed since: so no queue can begin to name it as its dead-letter queue in between; see
    `_hold_target`. But a message may be put in between: a put changes no row of the queue, and
    stopping puts cannot be undone. That message is lost with the queue, as is one that was put just
    before an unconditional deletion. A deletion that has begun goes on.

    Args:
        lane: Delete only the queue that has this lane, and not one created since under its name.
            None: delete the queue that has the name now.
        force: Delete it although other queues name it as their dead-letter queue.
        if_empty, if_unused: Delete it only if it has no message, or none in flight.

    Raises:
        QueueInUse: Something depends on the queue; nothing was deleted.
        QueueNotFound: The queue does not exist.
        UsageError: The queue lives in another data centre, as do the writers that a deletion must
            stop.
    """
    is_ending = False
    async for _ in attempts(store):
        found = await read_row(store, name)
        if found is None or (lane is not None and lane not in found.value.lanes):
            if is_ending and lane is not None:
                metrics.forget_queue(name)
                return lane  # another client has completed it
            raise await missing(store, name, _NOT_DELETED)
        check_home(store, found.value)
        lane = found.value.lanes[0]
        if found.value.status is QueueStatus.DELETING:
            await finish_deletion(store, found)
            return lane
        if not force:
            await _refuse_a_target(store, name)
        if if_empty or if_unused:
            await _refuse_held(store, found.value, if_empty=if_empty, if_unused=if_unused)
        outcome = await store.queues.update(
            found, replace(found.value, status=QueueStatus.DELETING)
        )
        is_ending |= isinstance(outcome, Applied)
    raise await missing(store, name, _NOT_DELETED)


async def _refuse_a_target(store: Store, name: QueueName) -> None:
    if sources := await sources_of(store, name, is_decided=True):
        raise QueueInUse(
            f"queue {name!r} is the dead-letter queue of {', '.join(map(repr, sources))}: without "
            "it, repair cannot move their dead messages. Give them another dead-letter queue, or "
            "delete it with force=True"
        )


async def _refuse_held(store: Store, row: QueueRow, *, if_empty: bool, if_unused: bool) -> None:
    held = await stats(lane_of(store, row))
    if if_unused and held.in_flight:
        raise QueueInUse(
            f"queue {row.name!r} has {held.in_flight:,} messages in flight: consumers work on "
            "them. Delete it when they have ended, or without the condition that it is unused"
        )
    if if_empty and held.total:
        raise QueueInUse(
            f"queue {row.name!r} holds {held.total:,} messages. Delete it when they are done, or "
            "without the condition that it is empty"
        )


async def finish_deletion(store: Store, found: Stored[QueueRow]) -> None:
    """Complete a deletion, from wherever it stopped.

    The repair pointer comes first. From then on every put, get and commit fails its check against
    it, so no message is acknowledged that the drop after it would take away [P13] [R25].
    """
    row = found.value
    check_home(store, row)
    # The first lane dies first: it stands for the queue. Then all others, before data is removed.
    for lane in row.lanes:
        await _raise(store, lane)
    # A client that creates a due lane reads L of the first lane afterwards, and undoes its
    # creation.
    scheduled = await _scheduled(store, row)
    due = [one.lane_id(row.lanes[0]) for one in scheduled]
    await store.session.map(lambda lane: _raise(store, lane), due)
    lanes = [*row.lanes, *due]
    await store.session.map(lambda lane: end_lane(store, lane, row.settings.bucket_size), lanes)
    period_us = row.settings.period_us
    await store.session.map(
        lambda one: store.schedules.remove(row.lanes[0], one, period_us=period_us), scheduled
    )
    await store.queues.delete(found)
    metrics.forget_queue(row.name)
    event(_logger, "queue_deleted", queue=row.name)


async def _scheduled(store: Store, row: QueueRow) -> list[DueLane]:
    period_us = row.settings.period_us
    register = (await store.lane(row.lanes[0]).pointers.read()).schedule
    first = first_period(register, created_us=row.created_us, period_us=period_us)
    end = periods_end(store.clock.now_us(), period_us)
    return await store.schedules.read(row.lanes[0], first, end, period_us=period_us)


async def _raise(store: Store, lane: LaneId) -> None:
    """Take the first step of a lane's end, if it was not taken."""
    step = next_step(None, await store.lane(lane).pointers.read(), at_most=1)
    if isinstance(step, Raise):
        await _take(store, lane, step)


async def _take(store: Store, lane: LaneId, step: Raise) -> None:
    await _note(store, lane, Pointer.DROPPED, step.dropped)
    await store.lane(lane).pointers.advance(Pointer.REPAIR, DELETED)


async def end_lane(store: Store, lane: LaneId, bucket_size: int) -> None:
    """Take all steps of `model.ending` that are left."""
    while True:
        # Read it before the pointers: if it is gone, they say how far the data goes.
        monoton = await store.lane(lane).monotons.find()
        ids_end = None
        if monoton is not None:
            ids_end = BucketNo(max(0, -(-monoton.value.next_id // bucket_size)))
        match next_step(ids_end, await store.lane(lane).pointers.read(), at_most=WINDOW):
            case Raise() as step:
                await _take(store, lane, step)
            case Close(end=end):
                await _note(store, lane, Pointer.END, end)
                if monoton is not None:
                    await store.lane(lane).monotons.delete(monoton)
            case Drop(first=first, end=end):
                await drop_dead(store, lane, [BucketNo(at) for at in range(first, end)])
                await _note(store, lane, Pointer.DROPPED, end)
            case Over():
                return
            case other:
                assert_never(other)


async def _note(store: Store, lane: LaneId, pointer: Pointer, value: int) -> None:
    """Write a pointer, answered at quorum before what it records is destroyed (G4).

    Absent means 0.
    """
    if value:
        await store.lane(lane).pointers.advance(pointer, value)


async def drop_dead(store: Store, lane: LaneId, buckets: Iterable[BucketNo]) -> None:
    """Remove messages, overlays and rows of a dead lane's buckets."""

    async def one(bucket: BucketNo) -> None:
        await store.lane(lane).messages.drop(bucket)
        await store.lane(lane).overlays.drop(bucket)
        await store.lane(lane).buckets.delete(bucket)

    await store.session.map(one, buckets)


async def purge(lane: Lane) -> int:
    """Drop every message that is in the queue now: visible, leased, delayed and dead ones.

    Open buckets are sealed first. So a put that is running is either in the bucket, and dropped, or
    goes into a later bucket [R18]. Messages that a sink is still writing are not in the queue yet.

    Returns:
        The number of messages that were dropped.

    Raises:
        RowCorrupt: A bucket cannot be read; all others were purged.
        StoreError: A bucket or a sink does not answer; all others were purged. Purge again.
    """
    dropped = 0
    failed: dict[Place, CassieqError] = {}
    sinks_failed: dict[str, CassieqError] = {}
    for one in await every_lane(lane):
        dropped += await _purge_lane(one, failed, sinks_failed)
    event(_logger, "queue_purged", queue=lane.queue, messages=dropped)
    if failed:
        raise first_of(failed)
    if sinks_failed:
        raise next(iter(sinks_failed.values()))
    return dropped


async def _purge_lane(
    lane: Lane, failed: dict[Place, CassieqError], sinks_failed: dict[str, CassieqError]
) -> int:
    dropped = 0
    for window in windows(await live_buckets(lane), WINDOW):
        rows, unread = await per_bucket(lane, lane.buckets.read, window)
        undecided = {
            bucket: row
            for bucket, row in rows.items()
            if row is not None and row.value.status in OF_A_SINK
        }
        rows |= await roll_forward.settle_decided(lane, undecided, sinks_failed)
        todo = [at for at, row in rows.items() if row is None or row.value.status not in FINISHED]
        done, undone = await per_bucket(lane, partial(_purge_bucket, lane, rows), todo)
        dropped += sum(done.values())
        failed |= {lane.place(bucket): error for bucket, error in (unread | undone).items()}
    return dropped


async def check_dead_letter_queue(store: Store, name: QueueName, settings: QueueSettings) -> None:
    """Check that the dead-letter queue exists in this data centre, and that no chain leads back."""
    seen = [name]
    target = settings.dead_letter_queue
    while target is not None:
        if target in seen:
            raise DeadLetterCycle(
                f"the dead-letter queues {' -> '.join([*seen, target])} form a cycle, so a dead "
                "message would never rest. Choose another dead-letter queue"
            )
        found = await read_row(store, queue_name(target))
        if found is None or found.value.status is not QueueStatus.ACTIVE:
            raise QueueNotFound(
                f"the dead-letter queue {target!r} of queue {name!r} does not exist. Create it "
                "first"
            )
        if not at_home(store, found.value):
            raise UsageError(
                f"the dead-letter queue {target!r} lives in data centre "
                f"{found.value.home_datacenter!r}, but queue {name!r} lives in "
                f"{store.session.datacenter!r}: repair could not move anything there. Choose one "
                "that lives where its queue does"
            )
        seen.append(QueueName(target))
        target = found.value.settings.dead_letter_queue


async def _hold_target(store: Store, altered: Stored[QueueRow], before: QueueSettings) -> None:
    """Check a dead-letter queue again, after the queue began or ceased to name it.

    Two alterations may each have closed half of a cycle. And a deletion of the target may have
    looked for queues that name it before this one did. So its row gets another version:

      deletion:  reads version 1, finds no queue ............. CAS if version 1: refused
      here:                                   names it, version 2
    """
    name, settings = QueueName(altered.value.name), altered.value.settings
    target = settings.dead_letter_queue
    found = None if target is None else await read_row(store, queue_name(target))
    try:
        if found is not None and found.value.status is QueueStatus.ACTIVE:
            await store.queues.update(found, found.value)  # refused: it has another version already
        await check_dead_letter_queue(store, name, settings)
    except CassieqError:
        await store.queues.update(altered, replace(altered.value, settings=before))
        raise


def _tell_of_no_effect(name: QueueName, settings: QueueSettings) -> None:
    """Warn of settings that have no effect without a dead-letter queue, which may be set later."""
    if settings.dead_letter_queue is None:
        idle = {
            "max_deliveries": settings.max_deliveries is not None,
            "dead_letter_expired": settings.dead_letter_expired,
        }
        if any(idle.values()):
            names = ",".join(one for one, is_set in idle.items() if is_set)
            event(_logger, "dead_letter_queue_missing", queue=name, settings=names)


async def _is_usable(store: Store, row: QueueRow) -> bool:
    """Whether its lane can hand out ids; a queue without a monoton row counts as deleted [P13]."""
    return (
        row.status is QueueStatus.ACTIVE
        and await store.lane(row.lanes[0]).monotons.read() is not None
    )


async def _insert(
    store: Store, name: QueueName, settings: QueueSettings, labels: Mapping[str, str]
) -> Stored[QueueRow] | None:
    """Insert the monoton rows, then the queue row: without the first it counts as deleted [P13].

    Return None if another queue had the name.
    """
    lanes = tuple(
        LaneId(store.entropy.new_uuid()) for _ in range(settings.priorities * settings.shards)
    )
    now_us = store.clock.now_us()
    begin = Monoton(next_id=0, reserved_us=now_us)
    inserted = await store.session.map(lambda lane: store.lane(lane).monotons.insert(begin), lanes)
    unused = [one.now for one in inserted]
    row = QueueRow(
        name=name,
        queue_id=store.entropy.new_uuid(),
        status=QueueStatus.ACTIVE,
        settings=settings,
        lanes=lanes,
        home_datacenter=store.session.datacenter,
        created_us=now_us,
        labels=dict(labels),
    )
    outcome = await store.queues.insert(row)
    if isinstance(outcome, Applied):
        event(_logger, "queue_created", queue=name)
        _tell_of_no_effect(name, settings)
    elif outcome.now is None or outcome.now.value.lanes != lanes:
        with suppress(CassieqError):  # the caller's queue exists in any case
            await give_up(store, dict(zip(lanes, unused, strict=True)))
        return None
    if settings.dead_letter_queue is not None and outcome.now is not None:
        without = settings.altered({"dead_letter_queue": None})
        await _hold_target(store, outcome.now, without)
    return outcome.now


def _check_same(name: QueueName, given: Mapping[str, Any], there: QueueSettings) -> None:
    named = {key: value for key, value in given.items() if value is not None}
    different = there.altered(named).differences(there)
    if not different:
        return
    is_fixed = any(key in FIXED for key, _, _ in different)
    change = "" if is_fixed else f"change it with client.alter_queue({name!r}), "
    raise QueueExists(
        f"queue {name!r} exists with "
        + ", ".join(f"{key}={is_there!r}" for key, _, is_there in different)
        + ", but you asked for "
        + ", ".join(f"{key}={is_asked!r}" for key, is_asked, _ in different)
        + f". Open it with client.queue({name!r}), {change}or choose another name",
        queue=name,
        differences=tuple(key for key, _, _ in different),
    )


async def _purge_bucket(
    lane: Lane, rows: dict[BucketNo, Stored[Bucket] | None], bucket: BucketNo
) -> int:
    closed = await seal.finish(lane, bucket, rows[bucket])
    if closed is None:
        return 0
    dropped = (await lane.apply(bucket, Purge(), known=closed.row)).result
    return dropped if isinstance(dropped, int) else 0
