"""`Schedules` is the public face of schedules. It checks arguments and delegates."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, Unpack

from cassieq_spark.doors import blocking
from cassieq_spark.entropy import system
from cassieq_spark.errors import ClientClosed, OptionInvalid, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import group as groups
from cassieq_spark.model.frozen import freeze, frozen
from cassieq_spark.model.ids import QueueName
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.recurring import (
    NEVER_US,
    Definition,
    Schedule,
    Status,
    last_us,
    missed_us,
    times,
)
from cassieq_spark.model.rows.writer import MAX_REFUSALS
from cassieq_spark.model.slots import Cron, Slot
from cassieq_spark.options import arguments, queue_name, schedule_name
from cassieq_spark.options.schedules import OWNER, ScheduleArguments, definition_of, interval
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.schedules import declared as declaring
from cassieq_spark.queue.schedules import define
from cassieq_spark.queue.schedules.dispatch import QUEUES, Dispatched, Touchers, dispatch
from cassieq_spark.queue.schedules.touch import Fill, Touched, Toucher, computing
from cassieq_spark.recent import Recent
from cassieq_spark.repair.lead import LEASE_S, Lead
from cassieq_spark.store import schema
from cassieq_spark.store.portal import LEFT_S
from cassieq_spark.store.process import OfOneProcess
from cassieq_spark.store.store import Store

PASS_EVERY_S: Final = LEASE_S / 2
"""The time between two passes of a leader: it renews its lead twice in a lease."""

LEAD: Final = "schedules"
"""The name of the lead of passes."""

_logger = get_logger("queue")

MOST_TIMES: Final = 1_000
"""The most times that `Schedules.next_times` returns."""

MOST_BACKFILLED: Final = 500
"""The most times that one call puts again: the row names them."""


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule, as `Schedules.get` and `Schedules.list` show it.

    Attributes:
        status: ``active``, ``paused`` or ``deleting``.
        occurrences: How many were put, those that were put ahead among them.
        next_at: Its next time; None: it has ended, or is paused.
        last_at: Its latest time that was put and is over; None: there was none.
        missed_at: Its first time that is over and was not put; None: it keeps up. A touch puts it,
            or passes it over, as ``misfire`` says.
        datacenter: The home of its queue.
    """

    name: str
    queue: str
    status: str
    cron: str | None
    timezone: str
    every: timedelta | None
    at: datetime | None
    start: datetime | None
    end: datetime | None
    count: int | None
    jitter: timedelta | None
    horizon: timedelta
    misfire: str
    catch_up: int
    body: bytes
    tag: str | None
    headers: Mapping[str, str]
    group: str | None
    priority: int
    key: str | None
    ttl: timedelta | None
    owner: str | None
    occurrences: int
    next_at: datetime | None
    last_at: datetime | None
    missed_at: datetime | None
    datacenter: str

    def __post_init__(self) -> None:
        freeze(self, "headers")

    @classmethod
    def of(cls, schedule: Schedule, now_us: int) -> ScheduleInfo:
        """Describe the schedule of a row; not part of the API."""
        its = schedule.its
        headers, group = groups.split(dict(its.headers))
        following = missed = None
        with suppress(OptionInvalid), computing(schedule.name):
            following, missed = next(times(schedule, now_us), None), missed_us(schedule, now_us)
        last = last_us(schedule.state, now_us)
        return cls(
            name=schedule.name,
            queue=schedule.queue,
            status=schedule.status.value,
            cron=its.cron or None,
            timezone=its.timezone,
            every=interval(its.every_us),
            at=time_of(its.at_us) if its.at_us else None,
            start=time_of(its.start_us) if its.start_us else None,
            end=None if its.end_us == NEVER_US else time_of(its.end_us),
            count=its.count,
            jitter=interval(its.jitter_us),
            horizon=timedelta(microseconds=its.horizon_us),
            misfire=its.misfire.value,
            catch_up=its.catch_up,
            body=its.body,
            tag=its.tag,
            headers=headers,
            group=group,
            priority=its.priority,
            key=its.key,
            ttl=interval(its.ttl_us),
            owner=its.owner or None,
            occurrences=schedule.state.count,
            next_at=None if following is None else time_of(following),
            last_at=time_of(last) if last else None,
            missed_at=None if missed is None else time_of(missed),
            datacenter=schedule.datacenter,
        )


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleChange:
    """What `Schedules.apply` does about one schedule.

    Attributes:
        action: ``create``, ``alter``, ``delete`` or ``keep``.
        before, after: The arguments that change, by name; empty unless it is altered.
    """

    name: str
    action: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def __post_init__(self) -> None:
        freeze(self, "before", "after")

    @classmethod
    def of(cls, step: declaring.Step, now_us: int) -> ScheduleChange:
        """Describe a step; not part of the API."""
        sides: list[dict[str, Any]] = [{}, {}]
        if step.before is None or step.after is None:
            action = "create" if step.before is None else "delete"
        else:
            old, new = (
                ScheduleInfo.of(replace(step.before, definition=one), now_us)
                for one in (step.before.its, step.after)
            )
            names = [
                one
                for one in ScheduleArguments.__annotations__
                if getattr(old, one) != getattr(new, one)
            ]
            sides = [{one: getattr(side, one) for one in names} for side in (old, new)]
            action = "alter" if names else "keep"
        return cls(name=step.name, action=action, before=sides[0], after=sides[1])


class Schedules(OfOneProcess):
    """The schedules of a keyspace: each puts a message again and again, each time exactly once.

    They are put ahead, by a pass of any process that dispatches: a gateway, a worker, or
    ``cassieq schedule dispatch``. A pause of all of these for less than a schedule's horizon is not
    noticed.
    """

    def __init__(self, store: Store, *, queue: str | None = None) -> None:
        """Prepare; nothing is read.

        Args:
            queue: Only the schedules of this queue exist for these calls; None: all do.
        """
        self._store = store
        self._queue = queue
        self._lead = Lead(store, LEAD)
        self._touchers: Touchers = Recent(QUEUES)

    @blocking
    async def create(
        self, name: str, *, queue: str, **definition: Unpack[ScheduleArguments]
    ) -> ScheduleInfo:
        """Create a schedule, and put its first messages. It may exist with the same definition.

        Args:
            name: Letters, digits, ``. - _``, 1 to 200 characters; of an account: ``account/name``.
            queue: The queue that the messages go to.
            definition: One of

                - ``cron``: an expression of five fields, as in crontab, in ``timezone`` (UTC);
                - ``every``: 1 s or more, from ``start`` (now) on;
                - ``at``: one time;

                and further:

                - ``start``, ``end``: times before and after which there are none;
                - ``count``: the most messages;
                - ``jitter``: each is due up to so much later, always the same for one time;
                - ``horizon``: how far ahead messages are put at least, 60 s to 24 h. Default: 1 h,
                  or a hundred times ``every``;
                - ``misfire``: what becomes of times that were missed: ``latest`` (the last one is
                  put), ``all`` (up to ``catch_up``, 100) or ``skip``;
                - ``body``, ``tag``, ``headers``, ``group``, ``priority``, ``key``, ``ttl``: those
                  of `Queue.put`, 64 KiB together;
                - ``owner``: whoever declares it, see `apply`.

        Raises:
            OptionInvalid, BodyInvalid: An argument has a wrong form; nothing was written.
            QueueNotFound: The queue does not exist.
            errors.ScheduleExists: A schedule of that name has another definition.
            StoreError: It may have been created. Call again.
        """
        return (await self._created(name, queue, definition))[0]

    @blocking
    async def find_or_create(
        self, name: str, *, queue: str, **definition: Unpack[ScheduleArguments]
    ) -> tuple[ScheduleInfo, bool]:
        """Do as `create` does, and also return whether this call has created the schedule."""
        return await self._created(name, queue, definition)

    async def _created(
        self, name: str, queue: str, definition: ScheduleArguments
    ) -> tuple[ScheduleInfo, bool]:
        of_queue, checked = queue_name(queue), schedule_name(name)
        await schema.check(self._store.session)
        lane = await open_lane(self._store, of_queue)
        found, is_new = await define.create(lane, checked, _made_of(definition))
        return self._shown(found), is_new

    @blocking
    async def alter(self, name: str, **changes: Unpack[ScheduleArguments]) -> ScheduleInfo:
        """Change a schedule from now on. Messages that were put ahead are taken back.

        Args:
            changes: See `create`; None asks for the default.

        Raises:
            OptionInvalid, BodyInvalid: An argument has a wrong form; nothing was written.
            errors.ScheduleNotFound: There is none.
            StoreError: It may have been altered. Call again.
        """

        def change(before: Definition, now_us: int) -> Definition:
            return definition_of(changes, now_us=now_us, before=before)

        return await self._altered(name, change, None)

    @blocking
    async def apply(
        self,
        owner: str,
        declared: Mapping[str, Mapping[str, Any]],
        *,
        prune: bool = False,
        dry_run: bool = False,
    ) -> Sequence[ScheduleChange]:
        """Create and alter schedules until they are as an owner declares; return what changes.

        A further call with the same changes nothing, and one that was cut off is carried on by it.
        Whether a schedule is paused stays as it is.

        Args:
            owner: Its schedules have this label. Those of others, or of nobody, are not changed.
            declared: By name: the arguments of `create`, ``queue`` among them. What is left out has
                its default; only an ``every`` keeps the ``start`` that it has.
            prune: Also delete schedules of this owner that are not declared.
            dry_run: Write nothing.

        Raises:
            OptionUnknown, OptionInvalid, BodyInvalid, QueueNotFound: A definition is wrong, and is
                named; nothing was written.
            errors.ScheduleExists: A schedule belongs to somebody else, or has another queue.
            StoreError: Some may be changed. Call again.
        """
        OWNER.checked("owner", owner)
        await schema.check(self._store.session)
        made: dict[str, tuple[QueueName, declaring.Make]] = {}
        for name, given in declared.items():
            rest = {**given, "owner": owner}
            made[schedule_name(name)] = queue_name(rest.pop("queue", None)), _made_of(rest, name)
        steps = await declaring.plan(self._store, owner, made, prune=prune)
        for step in () if dry_run else steps:
            await declaring.carry_out(self._store, owner, step)
        now_us = self._store.clock.now_us()
        return [ScheduleChange.of(step, now_us) for step in steps]

    @blocking
    async def pause(self, name: str) -> ScheduleInfo:
        """Pause a schedule: what was put ahead is taken back. Times until `resume` are left out."""
        return await self._altered(name, _same, Status.PAUSED)

    @blocking
    async def resume(self, name: str) -> ScheduleInfo:
        """Go on with a schedule that was paused, from now on."""
        return await self._altered(name, _same, Status.ACTIVE)

    @blocking
    async def delete(self, name: str) -> None:
        """Delete a schedule. Messages that were put ahead are taken back.

        Raises:
            errors.ScheduleNotFound: There is none.
            StoreError: It may be deleted later. Call again.
        """
        await define.finish(self._store, await self._row(name))

    @blocking
    async def get(self, name: str) -> ScheduleInfo:
        """Return a schedule.

        Raises:
            errors.ScheduleNotFound: There is none.
        """
        return ScheduleInfo.of(await self._row(name), self._store.clock.now_us())

    @blocking
    async def list(self, queue: str | None = None) -> Sequence[ScheduleInfo]:
        """Return all schedules of this data centre, or those of a queue, by name."""
        await schema.check(self._store.session)
        now_us = self._store.clock.now_us()
        return [
            ScheduleInfo.of(one, now_us)
            for one in await self._store.timetable.read_all()
            if one.definition is not None and queue in {None, one.queue}
        ]

    @blocking
    async def next_times(self, name: str, count: int = 5) -> Sequence[datetime]:
        """Return the next times of a schedule, in its time zone; none if it is paused.

        Raises:
            errors.ScheduleNotFound: There is none.
        """
        most = arguments.count("count", count)
        row = await self._row(name)
        with computing(row.name):
            rule = row.its.rule
            now_us = self._store.clock.now_us()
            found = list(islice(times(row, now_us), min(most, MOST_TIMES)))
        zone = rule.zone if isinstance(rule, Cron) else None
        return [time_of(one).astimezone(zone or UTC) for one in found]

    @blocking
    async def backfill(self, name: str, begin: datetime, end: datetime) -> int:
        """Put the messages of past times once more; return how many.

        Each is put exactly once by a call, even if this process dies: others carry it on.

        Args:
            begin, end: Times between these, both included, up to now.

        Raises:
            OptionInvalid: A time has no time zone, or there are more than 500 times.
            errors.ScheduleNotFound: There is none.
            StoreError: They may have been put.
        """
        begin_us = arguments.moment_us("begin", begin)
        end_us = arguments.moment_us("end", end)
        row = await self._row(name)
        lane = await open_lane(self._store, row.queue)
        now_us = lane.clock.now_us()
        slots = []
        for slot in row.its.slots(Slot(begin_us - 1)):
            if slot.at_us > min(end_us, now_us):
                break
            slots.append(slot)
            if len(slots) > MOST_BACKFILLED:
                raise OptionInvalid(
                    f"schedule {name!r} has more than {MOST_BACKFILLED} times between begin and "
                    "end. Put them in several calls"
                )
        if slots:
            await self._fill(lane, row.name, slots)
        return len(slots)

    @blocking
    async def run_now(self, name: str) -> datetime:
        """Put a message of a schedule at once, beside those of its times; return its slot.

        A call puts it exactly once, even if this process dies: others carry it on. A further call
        puts a further message, so look before you repeat one that has failed: the message has the
        slot in its header ``cassieq-slot``. It counts neither as one of ``count`` nor as a time of
        the schedule, which may be paused.

        Raises:
            errors.ScheduleNotFound: There is none.
            StoreError: It may have been put.
        """
        row = await self._row(name)
        lane = await open_lane(self._store, row.queue)
        at_us = lane.clock.now_us() // 1_000 * 1_000  # as headers show it
        with computing(row.name):
            one = next(row.its.slots(Slot(at_us - 1)), None)
        if one is not None and one.at_us < at_us + 1_000:
            at_us -= 1_000  # that slot has a message of its own
        await self._fill(lane, row.name, [Slot(at_us)])
        return time_of(at_us)

    async def _fill(self, lane: Lane, name: str, slots: Sequence[Slot]) -> None:
        """Put these slots at once: the row names the call, so whoever loses an answer finds it."""
        fill = Fill(self._store.entropy.new_uuid().bytes, slots)
        for _ in range(MAX_REFUSALS):
            found = _checked((await Toucher(lane).touch([name], again=fill))[0])
            if found.has_filled:
                return
            if found.row is None:
                raise define.missing(name)
        raise lane.contended(f"schedule {name!r}")

    @blocking
    async def dispatch(self) -> Dispatched:
        """Run a pass: touch each schedule that is to be filled. Any number may run at once."""
        await schema.check(self._store.session)
        return await dispatch(self._store)

    @blocking
    async def dispatch_as_leader(self) -> Dispatched | None:
        """Run a pass; return None if another process runs them, which is enough.

        This process keeps the lead until it stops to call this: after half a minute, another one
        takes it.
        """
        await schema.check(self._store.session)
        is_leader = await self._lead.take_if_free()
        return await dispatch(self._store, self._touchers) if is_leader else None

    async def _altered(self, name: str, change: Any, status: Status | None) -> ScheduleInfo:
        row = await self._row(name)
        lane = await open_lane(self._store, row.queue)
        return self._shown(await define.alter(lane, row.name, change, status))

    def _shown(self, found: Touched) -> ScheduleInfo:
        row = _checked(found).row
        if row is None or row.value.definition is None:
            raise define.missing(found.name)
        return ScheduleInfo.of(row.value, self._store.clock.now_us())

    async def _row(self, name: str) -> Schedule:
        await schema.check(self._store.session)
        checked = schedule_name(name)
        row = await self._store.timetable.find(checked)
        if row is None or row.value.definition is None:
            raise define.missing(checked)
        if self._queue not in {None, row.value.queue}:
            raise define.missing(checked)
        return row.value


@contextmanager
def dispatching(schedules: Schedules) -> Iterator[None]:
    """Run passes beside the block, in a thread. A failure ends one pass only.

    A program whose role may not dispatch leaves it to others, and says so once.
    """
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(system.jitter(PASS_EVERY_S, 0)):
            try:
                schedules.dispatch_as_leader()
            except ClientClosed:
                return
            except Exception as error:  # noqa: BLE001 - the next pass may do better
                event(_logger, "schedules_failed", error=str(error))
                if isinstance(error, UsageError):
                    return

    thread = threading.Thread(target=work, name="cassieq-schedules", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(LEFT_S)  # what a pass leaves, the next one carries on


def _made_of(given: Mapping[str, Any], name: str = "") -> declaring.Make:
    """Return what makes the definition that these arguments declare.

    Args:
        name: The schedule that an error is to name.
    """

    def make(there: Definition | None, now_us: int) -> Definition:
        found = dict(given)
        if there is not None and there.every_us and found.get("every") and not found.get("start"):
            found["start"] = time_of(there.start_us)  # of an earlier call
        # What is there may have ended, as it was declared.
        before = None if there is None else Definition()
        try:
            return definition_of(found, now_us=now_us, before=before)
        except UsageError as error:
            if not name:
                raise
            raise type(error)(f"schedule {name!r}: {error.message}") from error

    return make


def _same(definition: Definition, _: int) -> Definition:
    return definition


def _checked(found: Touched) -> Touched:
    if found.problem is not None:
        raise found.problem
    return found
