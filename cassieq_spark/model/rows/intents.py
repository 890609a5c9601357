"""Define what a caller may want of a bucket row: a pure function of the row and the moment.

    intent.apply(row, moment) -> Effect(row, result, times that need a hint)

`fold` makes one change of the intents of several callers; `RowWriter` decides when:

    settlements, in the order in which they came  ->  claims

Each has the result that it would have if all were carried out in this order, one after the other.
Settlements come first: a lease that ran out is still its holder's until a claim takes it [R20].
Holds I2, I3, I4.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple
from uuid import UUID

from cassieq_spark.model import bucket as moves
from cassieq_spark.model import lease as leases
from cassieq_spark.model import settlement
from cassieq_spark.model.bucket import Bucket, Lease, Status
from cassieq_spark.model.ids import EMPTY, OFFSET_LIMIT, Runs, union
from cassieq_spark.model.lease import Wanted, cancelled
from cassieq_spark.model.settlement import Ack, Action, Judged

ACK: Final = Ack()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The time of one step, and its other inputs.

    Attributes:
        now_us: Cluster time (G6).
        at_s: Monotonic time, for deadlines.
        spare_us: The least time that a claim lasts: some of this client's own CAS times, measured
            from the fold to the answer [R21].
        new_id: Draws an id; a lease's id holds ``now_us`` (UUID version 7).
        passed: The minute of the lane's time pointer, as this client last read it.
    """

    now_us: int
    at_s: float
    spare_us: int
    new_id: Callable[[], UUID]
    passed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The messages that one claim got.

    Attributes:
        leases: Each with the caller's own runs: others may hold further runs of the same lease.
        gone: The expired messages that this claim has taken out of the row, to be counted once.
    """

    leases: tuple[Lease, ...] = ()
    gone: Runs = EMPTY


Result = Claimed | Judged | bool | int | moves.IllegalMove | None
"""The result of each intent: of `Claim`, `Settle`, `Cancel` or `Change`, and `Purge`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect of one intent.

    Attributes:
        before, row: The row before and after this intent; the same object if nothing changes.
        times_us: When the messages that this intent has moved come back; 0: now
            (docs/design/returns-and-hints.md).
        is_whole: Whether all of the intent takes effect. Otherwise a newer row may give more.
        reads_low: The caller may believe the result only if L, read after the row, is not above the
            bucket (G5).
    """

    before: Bucket | None
    row: Bucket | None
    result: Result
    times_us: tuple[int, ...] = ()
    is_whole: bool = True
    reads_low: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Wanted):
    """Lease up to ``at_most`` visible messages.

    Attributes:
        visibility_us: The length of the lease, from the fold on.
    """

    visibility_us: int
    touches: ClassVar[Runs | None] = EMPTY

    @property
    def sharing(self) -> tuple[object, ...] | None:
        """The key of claims that share leases; None: this one shares with no other.

        A Spark batch's offset names whole leases, so a run does not share its leases (I8).
        """
        if self.run is not None:
            return None
        dying = self.max_deliveries, self.expired_die
        return self.owner, self.visibility_us, self.below, self.fresh_first, *dying


def claim_together(row: Bucket | None, claims: list[Claim], moment: Moment) -> list[Effect]:
    """Apply claims of equal `Claim.sharing`, one after the other; return the effect of each.

    The first effect has the row before all of them, and the expired messages.
    """
    if row is None:
        nothing = Effect(before=None, row=None, result=Claimed(), is_whole=False, reads_low=True)
        return [nothing for _ in claims]
    now_us = moment.now_us
    until_us = now_us + max(claims[0].visibility_us, moment.spare_us)
    gone = leases.expired_of(row, now_us)
    after, given = leases.claim_each(row, claims, moment.new_id, now_us=now_us, until_us=until_us)
    if not any(given) and not gone and after.dead == row.dead:
        after = row
    return [
        Effect(
            before=row,
            row=after,
            result=Claimed(leases=mine, gone=EMPTY if at else gone),
            times_us=(until_us,) if mine else (),
            is_whole=bool(mine),
            reads_low=True,
        )
        for at, mine in enumerate(given)
    ]


class Ask(NamedTuple):
    """An action on messages of a delivery; ``runs`` None means all that the lease holds."""

    lease_id: UUID
    action: Action
    runs: Runs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Ack, release, reject, extend, take over or update deliveries; no message has two actions."""

    asks: tuple[Ask, ...]

    @property
    def is_plain_ack(self) -> bool:
        """Whether it can be merged with other acks."""
        return all(ask.action == ACK and ask.runs is not None for ask in self.asks)

    @property
    def touches(self) -> Runs | None:
        """The messages that it names; None: all that a lease holds."""
        if len(self.asks) == 1:
            return self.asks[0].runs
        named = [ask.runs for ask in self.asks if ask.runs is not None]
        return union(named) if len(named) == len(self.asks) else None

    def apply(self, row: Bucket | None, moment: Moment) -> Effect:
        """Judge the asks, and carry out those on held messages."""
        return settled(row, self.asks, moment)


def settled(row: Bucket | None, asks: Iterable[Ask], moment: Moment) -> Effect:
    """Carry out the asks on a row, as one settlement."""
    asked = asked_of(asks)
    if row is None:
        never = {one: union(runs for runs in of.values() if runs) for one, of in asked.items()}
        judged = Judged(never=never)
        return Effect(before=None, row=None, result=judged, is_whole=False, reads_low=True)
    judged = settlement.judge(row, asked)
    is_whole = judged.holds_all(asked)
    after, times = row, tuple[int, ...]()
    if judged.held:
        after = settlement.carry_out(row, judged.held, moment.new_id, now_us=moment.now_us)
        if timed := judged.timed:
            times = tuple(moved_times_us(row, after, timed))
    return Effect(
        before=row,
        row=after,
        result=judged,
        times_us=times,
        is_whole=is_whole,
        reads_low=not is_whole,
    )


def asked_of(asks: Iterable[Ask]) -> dict[UUID, dict[Action, Runs | None]]:
    """Return the asks in the form that `settlement.judge` takes."""
    pairs: dict[UUID, dict[Action, list[tuple[int, int]] | None]] = {}
    for lease_id, action, runs in asks:
        actions = pairs.setdefault(lease_id, {})
        so_far = actions.setdefault(action, None if runs is None else [])
        if so_far is not None and runs is not None:
            so_far.extend(runs.pairs)
        else:
            actions[action] = None
    return {
        lease_id: {
            action: None if found is None else Runs.of(*found) for action, found in actions.items()
        }
        for lease_id, actions in pairs.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Cancel messages before their first delivery; the result is whether all are cancelled."""

    runs: Runs

    @property
    def touches(self) -> Runs | None:
        """The messages that it names."""
        return self.runs

    def apply(self, row: Bucket | None, moment: Moment) -> Effect:
        """Cancel those messages that nobody got yet."""
        if row is None:
            return Effect(before=None, row=None, result=False, is_whole=False, reads_low=True)
        after = cancelled(row, self.runs, now_us=moment.now_us)
        is_done = self.runs.issubset(after.cancelled)
        return Effect(before=row, row=after, result=is_done, is_whole=is_done, reads_low=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """Drop all messages of a sealed bucket; the result is their number."""

    touches: ClassVar[Runs | None] = None

    def apply(self, row: Bucket | None, moment: Moment) -> Effect:
        """Drop all that is left."""
        if row is None or row.status is not Status.SEALED:
            return Effect(before=row, row=row, result=0, is_whole=False, reads_low=True)
        after = moves.purged(row, now_us=moment.now_us)
        return Effect(before=row, row=after, result=row.unacked.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Any other change of a row, such as repair's; the result is whether the row changed.

    Attributes:
        change: A pure function of row, now (µs) and a source of ids; None: leave the row as it is.
            It is called again with newer rows.
        times_us: When messages come back by it, whatever the row is.
        touches: The messages that it moves; None: any.
    """

    change: Callable[[Bucket, int, Callable[[], UUID]], Bucket | None]
    times_us: tuple[int, ...] = ()
    touches: Runs | None = field(default=None)

    def apply(self, row: Bucket | None, moment: Moment) -> Effect:
        """Call ``change``."""
        after = None if row is None else self.change(row, moment.now_us, moment.new_id)
        if after is None or after is row:
            return Effect(before=row, row=row, result=False, is_whole=False, reads_low=True)
        return Effect(before=row, row=after, result=True, times_us=self.times_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A statement of the caller's own: insert, seal, fill, publish or drop.

    It is not a function of the row. The writer tells the caller when no statement of this client is
    under way on the row. The caller then sends its own, and reports the row afterwards.
    """

    touches: ClassVar[Runs | None] = None


Settlement = Settle | Cancel | Purge | Change
Intent = Settlement | Claim | Turn


def moved_times_us(old: Bucket, new: Bucket, moved: Runs) -> list[int]:
    """Return when these messages come back, and any others whose time this change has moved.

    If delays no longer fit a row, all delays of the row are merged into wider steps [R7].
    """
    known = {group.due_us for group in old.delayed}
    shifted = [group.due_us for group in new.delayed if group.due_us not in known]
    return return_times_us(new, moved) + shifted


def return_times_us(row: Bucket, moved: Runs | None = None) -> list[int]:
    """Return when messages of a row come back by time; 0 for those that are back.

    Args:
        moved: Only these messages; None: all.
    """
    times = [lease.until_us for lease in row.leases if moved is None or lease.runs & moved]
    times += [group.due_us for group in row.delayed if moved is None or group.runs & moved]
    if any(moved is None or part.runs & moved for part in row.returned):
        times.append(0)
    return times


# --- the fold -------------------------------------------------------------------------------------

Wish = tuple[int, Settlement | Claim]
"""A ticket, and its caller's intent."""


@dataclass(slots=True, kw_only=True)
class Folded:
    """The row after the whole fold, and each caller's part.

    Attributes:
        effects: By ticket, in the order of the fold.
    """

    row: Bucket | None
    effects: dict[int, Effect] = field(default_factory=dict)

    def add(self, ticket: int, effect: Effect) -> None:
        """Add an effect as the last one so far."""
        self.effects[ticket] = effect
        self.row = effect.row


def fold(row: Bucket | None, wanted: Iterable[Wish], moment: Moment) -> Folded:
    """Apply all intents to one row.

    Args:
        wanted: In the order in which they came; at most a thousand, so that a fold takes some
            milliseconds (a row of 16,000 leases: 0.1 s).
    """
    folded = Folded(row=row)
    acks = _Acks()
    wanted = in_order(wanted)
    for ticket, intent in wanted:
        if isinstance(intent, Claim):
            continue
        acked = intent.touches if isinstance(intent, Settle) and intent.is_plain_ack else None
        if acked is None or not may_merge(acks.places, acked):
            acks.carry_out(folded, moment)
            acks = _Acks()
        if isinstance(intent, Settle) and acked is not None:
            acks.add(ticket, intent, acked)
        else:
            folded.add(ticket, _applied(intent, folded.row, moment))
    acks.carry_out(folded, moment)
    for group in _together(wanted):
        claims = [claim for _, claim in group]
        effects = claim_together(folded.row, claims, moment)
        for (ticket, _), effect in zip(group, effects, strict=True):
            folded.add(ticket, effect)
    return folded


def in_order(wanted: Iterable[Wish]) -> list[Wish]:
    """Return the order of a fold: settlements, then claims, each as they came."""
    return sorted(wanted, key=lambda one: isinstance(one[1], Claim))


def may_merge(places: Sequence[tuple[int, int]], acked: Runs) -> bool:
    """Whether an ack may be merged with those so far into one settlement.

    It must be of other messages: a message's second action is judged on the row after the first. A
    merge goes through the row once, not once for each ack.

    Args:
        places: The runs of the acks so far, ascending.
        acked: The messages of this ack.
    """
    return not any(
        (at := bisect_right(places, (last, OFFSET_LIMIT))) and places[at - 1][1] >= first
        for first, last in acked.pairs
    )


class _Acks:
    """Acks of different messages, which make one settlement."""

    def __init__(self) -> None:
        self._members: list[tuple[int, Settle]] = []
        self.places: list[tuple[int, int]] = []

    def add(self, ticket: int, intent: Settle, acked: Runs) -> None:
        self._members.append((ticket, intent))
        for place in acked.pairs:
            insort(self.places, place)

    def carry_out(self, folded: Folded, moment: Moment) -> None:
        if not self._members:
            return
        together = settled(
            folded.row, [ask for _, one in self._members for ask in one.asks], moment
        )
        for ticket, one in self._members:
            mine = _part(together.result, one.asks, holds_all=together.is_whole)
            is_whole = not (mine.acked or mine.stale or mine.never)
            folded.add(
                ticket, replace(together, result=mine, is_whole=is_whole, reads_low=not is_whole)
            )


def _part(judged: Result, asks: Sequence[Ask], *, holds_all: bool) -> Judged:
    """Return one caller's part of the verdict on merged acks."""
    mine: dict[UUID, Runs] = {}
    for ask in asks:
        mine[ask.lease_id] = mine.get(ask.lease_id, EMPTY) | (ask.runs or EMPTY)
    if holds_all or not isinstance(judged, Judged):
        return Judged(held={ACK: mine})

    def of(found: Mapping[UUID, Runs]) -> dict[UUID, Runs]:
        return {key: part for key, runs in mine.items() if (part := found.get(key, EMPTY) & runs)}

    held = of(judged.held.get(ACK, {}))
    return Judged(
        held={ACK: held} if held else {},
        acked=judged.acked & union(mine.values()),
        stale=of(judged.stale),
        never=of(judged.never),
    )


def _applied(intent: Settlement, row: Bucket | None, moment: Moment) -> Effect:
    """Apply one settlement; a move that the row does not allow fails its own caller only."""
    try:
        return intent.apply(row, moment)
    except moves.IllegalMove as error:
        return Effect(before=row, row=row, result=error, is_whole=False)


def _together(wanted: Iterable[Wish]) -> list[list[tuple[int, Claim]]]:
    """Group the claims that share leases, in the order of each group's first claim."""
    groups: dict[object, list[tuple[int, Claim]]] = {}
    for ticket, intent in wanted:
        if isinstance(intent, Claim):
            key = ticket if intent.sharing is None else intent.sharing
            groups.setdefault(key, []).append((ticket, intent))
    return list(groups.values())
