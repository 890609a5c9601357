"""Decide what a schedule puts, and when its row is touched (docs/design/schedules.md). Pure.

Holds I11: each occurrence is put exactly once. An occurrence is named in the schedule's row, with
its place, before its message is written; it leaves the row only when its bucket's manifest has
said that it is in (I5), or when its time is over after that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from itertools import chain, islice, takewhile
from typing import Any, Final, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack

from cassieq_spark.model.dedup import MAX_WINDOW_S
from cassieq_spark.model.ids import BucketNo, LaneId, Place, QueueName, Runs
from cassieq_spark.model.slots import Cron, Every, Once, Rule, Slot, latest

FILLED_TO: Final = 3
"""A touch fills a schedule so many horizons ahead. The next touch comes when between one and two
are left, by a hash of its name, so that the schedules of a minute are not all touched together."""

MOST_SLOTS: Final = 500
"""The most occurrences that a row names ahead: each CAS carries them."""

LATE_US: Final = 60_000_000
"""A schedule that skips what it has missed still puts a slot that is no older than this: the unit
of an expression is a minute."""

MARKS: Final = 8
"""The number of calls of `backfill` and `run_now` that a row remembers: one whose answer was lost
finds its own."""

AT_ONCE_US: Final = 0
"""The due time of what such a call puts: it is over by every clock, so no alteration by a process
whose clock is behind takes it back."""

NEVER_US: Final = (1 << 63) - 1
"""The time of the next touch of a schedule that has ended, or is paused."""

UNSURE_US: Final = MAX_WINDOW_S * 1_000_000
"""After this long, it is no longer kept which messages a dropped bucket had [U5]."""


class Misfire(StrEnum):
    """What becomes of slots that were missed."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


class Status(StrEnum):
    """The phase of a schedule's life."""

    NEW = "new"
    """Its row is only a name: a late copy of its INSERT may bring that back [T3]."""

    FOREIGN = "foreign"
    """A later release has written what this one does not know, so this one leaves it alone."""

    ACTIVE = "active"
    PAUSED = "paused"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a schedule puts, and when.

    Attributes:
        cron: An expression of five fields; or every, or at_us.
        timezone: The name of the zone of the expression.
        every_us: The distance of two occurrences; the first is at ``start_us``.
        start_us, end_us: No occurrence is before, or after.
        count: The most occurrences; None: no limit.
        jitter_us: An occurrence is due up to so much later than its slot, by a hash of both.
        catch_up: The most missed slots that `Misfire.ALL` puts.
        ttl_us: 0 means for ever.
        owner: Whoever declares it in a file; empty: it was made by hand.
    """

    cron: str = ""
    timezone: str = "UTC"
    every_us: int = 0
    at_us: int = 0
    start_us: int = 0
    end_us: int = NEVER_US
    count: int | None = None
    jitter_us: int = 0
    horizon_us: int = 3_600_000_000
    misfire: Misfire = Misfire.LATEST
    catch_up: int = 100
    body: bytes = b""
    tag: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    key: str | None = None
    ttl_us: int = 0
    owner: str = ""

    @property
    def rule(self) -> Rule:
        """Its slots, without regard to its end."""
        if self.cron:
            return Cron(self.cron, ZoneInfo(self.timezone))
        return Every(self.every_us, self.start_us) if self.every_us else Once(self.at_us)

    def slots(self, after: Slot) -> Iterator[Slot]:
        """Return its slots after one of them, or after a time."""
        if after.at_us < self.start_us:
            after = Slot(self.start_us - 1)
        return takewhile(lambda one: one.at_us <= self.end_us, self.rule.after(after))

    def missed(self, after: Slot, now_us: int) -> list[Slot]:
        """Return the slots up to now that are still to be put."""
        most = {Misfire.SKIP: 1, Misfire.LATEST: 1, Misfire.ALL: self.catch_up}[self.misfire]
        begin = after if after.at_us >= self.start_us else Slot(self.start_us - 1)
        found = latest(self.rule, begin, min(now_us, self.end_us), most)
        is_skipped = self.misfire is Misfire.SKIP
        return [one for one in found if not is_skipped or one.at_us > now_us - LATE_US]


class Named(NamedTuple):
    """An occurrence that has a place.

    Attributes:
        offset: Its place in the bucket.
        at_us: Its slot.
        due_us: The time from which consumers may get it.
    """

    offset: int
    at_us: int
    due_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The occurrences of one bucket.

    Attributes:
        named_us: The time when the row began to name them.
        is_proven: Whether the manifest of the bucket has them, or will have them (I1).
    """

    place: Place
    slots: tuple[Named, ...]
    named_us: int
    is_proven: bool = False

    @property
    def offsets(self) -> Runs:
        """Their places in the bucket."""
        return Runs.of(*((one.offset, one.offset) for one in self.slots))

    def only(self, is_wanted: Callable[[Named], bool]) -> Run | None:
        """Return the run with those slots alone; None if there are none."""
        some = tuple(filter(is_wanted, self.slots))
        return replace(self, slots=some) if some else None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far a schedule has come.

    Attributes:
        cursor: The last slot that has a place, was put, or was passed over.
        count: The number of occurrences up to there.
        runs: The occurrences that are not due yet, or not proven.
        revoking: The runs that are being taken back.
        done_us: Slots after the cursor that were put under an earlier definition.
        last_us: The latest slot that was put and is over, as of the last touch; 0: none.
        since_us: The time from which the present definition counts; 0: an earlier release wrote it.
        fills: The marks of the last calls that put some at once.
        more: Entries of a later release.
    """

    cursor: Slot
    count: int = 0
    runs: tuple[Run, ...] = ()
    revoking: tuple[Run, ...] = ()
    done_us: frozenset[int] = frozenset()
    last_us: int = 0
    since_us: int = 0
    fills: tuple[bytes, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unproven(self) -> list[Run]:
        """The runs of which it is not known whether they are in."""
        return [one for one in self.runs if not one.is_proven]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule, as its row has it.

    Attributes:
        datacenter: The home of its queue; only clients there may touch it.
        lane: The queue's first lane: another one is another queue.
        definition: None if it is new or foreign.
        touch_us: When it is to be looked at.
    """

    datacenter: str
    name: str
    queue: QueueName
    lane: LaneId
    status: Status
    definition: Definition | None
    state: State
    touch_us: int

    @property
    def its(self) -> Definition:
        """Its definition, which it has."""
        if self.definition is None:
            raise ValueError(f"schedule {self.name!r} has no definition")
        return self.definition


class Occurrence(NamedTuple):
    """What is to be put.

    Attributes:
        is_new: Whether the cursor passes it. Others have lost their place, or are put at once.
    """

    slot: Slot
    due_us: int
    is_new: bool = False


def occurrences(schedule: Schedule, now_us: int) -> tuple[list[Occurrence], Slot]:
    """Return what a touch puts: what was missed, and what comes; and where the cursor is then."""
    its, state = schedule.its, schedule.state
    if schedule.status is not Status.ACTIVE:
        return [], state.cursor
    room = MOST_SLOTS - sum(len(run.slots) for run in state.runs)
    if its.count is not None:
        room = min(room, its.count - state.count)
    missed = its.missed(state.cursor, now_us)
    until_us = now_us + FILLED_TO * its.horizon_us
    after = state.cursor if state.cursor.at_us > now_us else (missed or [Slot(now_us)])[-1]
    coming = takewhile(lambda one: one.at_us <= until_us, its.slots(after))
    fresh = [one for one in chain(missed, _bounded(coming)) if one.at_us not in state.done_us]
    some = fresh[: max(0, room)]
    cursor = max([state.cursor, *some])
    if len(some) == len(fresh):
        cursor = max(cursor, Slot(now_us))  # it passes over what is left out
    return [Occurrence(one, one.at_us + jitter_us(schedule, one), True) for one in some], cursor


def times(schedule: Schedule, now_us: int) -> Iterator[int]:
    """Return the times of a schedule that are later than now, whether they are put ahead or not."""
    its, state = schedule.its, schedule.state
    if schedule.status is not Status.ACTIVE:
        return iter(())
    ahead = sum(one.at_us > now_us for run in state.runs for one in run.slots)
    left = None if its.count is None else max(0, its.count - state.count + ahead)
    return (one.at_us for one in islice(its.slots(Slot(now_us)), left))


def _bounded(slots: Iterator[Slot]) -> Iterator[Slot]:
    return islice(slots, 2 * MOST_SLOTS)  # of which some may be done


def jitter_us(schedule: Schedule, slot: Slot) -> int:
    """Return how much later a slot is due: the same for whoever asks."""
    most_us = schedule.its.jitter_us
    if not most_us:
        return 0
    return int(_share(f"{schedule.name} {slot.at_us}") * most_us)


def _share(text: str) -> float:
    """Return a number from 0 to 1 that a text always has."""
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest()) / (1 << 48)


def named(
    schedule: Schedule,
    placed: Iterable[tuple[Occurrence, Place, int]],
    cursor: Slot,
    now_us: int,
    *,
    fill: bytes | None = None,
) -> Schedule:
    """Return the schedule that names these occurrences, with place and offset, before any is put.

    Former unproven runs are gone: what they named is among these, or was found to be in.

    Args:
        cursor: Where it is afterwards.
        fill: The mark of a call that puts some at once.
    """
    state = schedule.state
    by_place: dict[Place, list[Named]] = {}
    fresh = 0
    for one, place, offset in placed:
        by_place.setdefault(place, []).append(Named(offset, one.slot.at_us, one.due_us))
        fresh += one.is_new
    runs = tuple(
        Run(place=place, slots=tuple(slots), named_us=now_us) for place, slots in by_place.items()
    )
    state = replace(
        state,
        cursor=cursor,
        count=state.count + fresh,
        runs=(*(one for one in state.runs if one.is_proven), *runs),
        done_us=frozenset(one for one in state.done_us if one > cursor.at_us),
        fills=state.fills if fill is None else (*state.fills, fill)[-MARKS:],
    )
    return _touched(replace(schedule, state=state), now_us)


def settled(schedule: Schedule, runs: Sequence[Run], now_us: int) -> Schedule:
    """Return the schedule after its unproven runs were judged; these were found to be in."""
    kept = (one for one in schedule.state.runs if one.is_proven)
    found = (replace(one, is_proven=True) for one in runs)
    state = replace(schedule.state, runs=(*kept, *found))
    return replace(schedule, state=_pruned(state, now_us))


def proven(schedule: Schedule, found: Collection[Run], now_us: int) -> Schedule:
    """Return the schedule in which these of its runs are proven."""
    runs = tuple(
        replace(run, is_proven=True) if run in found else run for run in schedule.state.runs
    )
    return _touched(replace(schedule, state=replace(schedule.state, runs=runs)), now_us)


def names_all(schedule: Schedule, runs: Iterable[Run]) -> bool:
    """Whether the schedule still names these runs, and nobody has judged them."""
    return {*runs} <= {*schedule.state.unproven}


def has_filled(state: State, mark: bytes, before: State) -> bool | None:
    """Whether a row has noted a call's mark after it was ``before``; None: it may be forgotten."""
    if mark in state.fills:
        return True
    # It would stand after the last one of before, and the first ones are forgotten first.
    is_sure = len(state.fills) < MARKS or not {*before.fills[-1:]}.isdisjoint(state.fills)
    return False if is_sure else None


def counts_from(schedule: Schedule, now_us: int) -> int:
    """Return the time from which another definition counts: all before has a place, or is over.

    It is no later than the cursor, as whoever alters may have slept since the last touch; and no
    earlier than any slot that is no longer named.
    """
    is_paused = schedule.status is Status.PAUSED
    return now_us if is_paused else min(now_us, schedule.state.cursor.at_us)


def altered(
    schedule: Schedule, definition: Definition, status: Status, since_us: int, now_us: int
) -> Schedule:
    """Return the schedule under another definition. What comes is to be taken back.

    Its runs are proven: whoever alters it settles them before.

    Args:
        since_us: See `counts_from`.
    """
    state = schedule.state
    revoking = _only(state.runs, lambda one: one.at_us > since_us)
    return replace(
        schedule,
        definition=definition,
        status=status,
        touch_us=now_us,
        state=replace(
            state,
            cursor=Slot(since_us),
            since_us=since_us,
            count=state.count - sum(len(one.slots) for one in revoking),
            runs=_only(state.runs, lambda one: one.at_us <= since_us),
            revoking=state.revoking + revoking,
        ),
    )


def revoked(schedule: Schedule, left_us: Collection[int], now_us: int) -> Schedule:
    """Return the schedule after its revocation; these slots could not be taken back."""
    state = schedule.state
    later = frozenset(one for one in left_us if one > state.cursor.at_us)
    return _touched(
        replace(
            schedule,
            state=replace(
                state,
                revoking=(),
                count=state.count + len(left_us),
                done_us=state.done_us | later,
            ),
        ),
        now_us,
    )


def moved(schedule: Schedule, lane: LaneId, created_us: int) -> Schedule:
    """Return the schedule on a queue that was created again.

    What was put ahead has died with the former queue, unless it was due before this one was there.
    But nothing comes from before the time from which the definition counts.
    """
    its, state = schedule.its, schedule.state
    cursor = min(state.cursor, Slot(max(created_us - its.jitter_us, state.since_us)))
    again = takewhile(lambda one: one.at_us <= created_us, _bounded(its.slots(cursor)))
    named = [one for run in (*state.runs, *state.revoking) for one in run.slots]
    done_us = {
        *(one.at_us for one in again if one.at_us + jitter_us(schedule, one) <= created_us),
        *(one.at_us for one in named if one.due_us <= created_us),
        *state.done_us,
    }
    died = sum(one.due_us > created_us for run in state.runs for one in run.slots)
    state = replace(
        state,
        cursor=cursor,
        count=state.count - died,
        runs=(),
        revoking=(),
        done_us=frozenset(one for one in done_us if cursor.at_us < one <= created_us),
    )
    return replace(schedule, lane=lane, state=state, touch_us=created_us)


def _only(runs: Iterable[Run], is_wanted: Callable[[Named], bool]) -> tuple[Run, ...]:
    """Return the runs with those slots alone."""
    some = (run.only(is_wanted) for run in runs)
    return tuple(run for run in some if run is not None)


def _pruned(state: State, now_us: int) -> State:
    """Return a state without what is over: proven and due."""
    kept = (
        run.only(lambda one: one.due_us > now_us) if run.is_proven else run for run in state.runs
    )
    runs = tuple(run for run in kept if run is not None)
    return replace(state, runs=runs, last_us=last_us(state, now_us))


def last_us(state: State, now_us: int) -> int:
    """Return the latest slot that was put and is over; 0: none."""
    proven = (run for run in state.runs if run.is_proven)
    over = (one.at_us for run in proven for one in run.slots if one.due_us <= now_us)
    return max([state.last_us, *over])


def missed_us(schedule: Schedule, now_us: int) -> int | None:
    """Return the first slot that is due, and was not put; None: there is none."""
    its, state = schedule.its, schedule.state
    unproven = [one for run in state.unproven for one in run.slots]
    found = [one.at_us for one in unproven if one.due_us <= now_us]
    if schedule.status is Status.ACTIVE and (its.count is None or state.count < its.count):
        fresh = (one for one in its.slots(state.cursor) if one.at_us not in state.done_us)
        following = next(fresh, None)
        if following is not None and following.at_us + jitter_us(schedule, following) <= now_us:
            found.append(following.at_us)
    return min(found, default=None)


def _touched(schedule: Schedule, now_us: int) -> Schedule:
    """Return the schedule with the time of its next touch, without what is over."""
    schedule = replace(schedule, state=_pruned(schedule.state, now_us))
    return replace(schedule, touch_us=_touch_us(schedule, now_us))


def _touch_us(schedule: Schedule, now_us: int) -> int:
    its, state = schedule.its, schedule.state
    if state.unproven or state.revoking or schedule.status is Status.DELETING:
        return now_us
    if schedule.status is Status.PAUSED or (its.count is not None and state.count >= its.count):
        return NEVER_US
    following = next(its.slots(state.cursor), None)
    if following is None:
        return NEVER_US
    return following.at_us - round((1 + _share(schedule.name)) * its.horizon_us)


# --- the columns ----------------------------------------------------------------------------------

_FIELDS: Final = frozenset(Definition.__dataclass_fields__)


def encode_definition(definition: Definition) -> bytes:
    """Return the bytes of the column: fields that differ from their defaults."""
    plain = Definition()
    found = {
        name: getattr(definition, name)
        for name in sorted(_FIELDS)
        if getattr(definition, name) != getattr(plain, name)
    }
    return bytes(msgpack.packb(found))


def decode_definition(stored: bytes) -> Definition | None:
    """Read the column; None: it was made by a later release, with a field unknown here."""
    found = msgpack.unpackb(stored)
    if found.keys() - _FIELDS or found.get("misfire", "all") not in list(Misfire):
        return None
    if "misfire" in found:
        found["misfire"] = Misfire(found["misfire"])
    return Definition(**found)


def encode_state(state: State) -> bytes:
    """Return the bytes of the column."""
    return bytes(
        msgpack.packb(
            {
                **state.more,
                "cursor": list(state.cursor),
                "count": state.count,
                "runs": [_encode_run(run) for run in state.runs],
                "revoking": [_encode_run(run) for run in state.revoking],
                "done": sorted(state.done_us),
                "fills": list(state.fills),
                "last": state.last_us,
                "since": state.since_us,
            }
        )
    )


def decode_state(stored: bytes) -> State | None:
    """Read the column; None: a later release has written runs that are unknown here."""
    found = msgpack.unpackb(stored)
    runs, revoking = found.pop("runs"), found.pop("revoking")
    for run in (*runs, *revoking):
        if len(run) != _PARTS or any(len(one) != len(Named._fields) for one in run[-1]):
            return None
    return State(
        cursor=Slot(*found.pop("cursor")),
        count=found.pop("count"),
        runs=tuple(map(_decode_run, runs)),
        revoking=tuple(map(_decode_run, revoking)),
        done_us=frozenset(found.pop("done")),
        fills=tuple(found.pop("fills")),
        last_us=found.pop("last", 0),
        since_us=found.pop("since", 0),
        more=found,
    )


_PARTS: Final = 5


def _encode_run(run: Run) -> list[Any]:
    slots = [list(one) for one in run.slots]
    return [run.place.lane.bytes, run.place.bucket, run.named_us, run.is_proven, slots]


def _decode_run(stored: list[Any]) -> Run:
    lane, bucket, named_us, is_proven, slots = stored
    return Run(
        place=Place(LaneId(UUID(bytes=lane)), BucketNo(bucket)),
        slots=tuple(Named(*one) for one in slots),
        named_us=named_us,
        is_proven=is_proven,
    )
