"""Describe what one caller wants of a bucket row: a pure function of the row and the moment.

    intent.apply(row, moment) -> Effect(row, result, times that need a hint)

`fold` applies several to one row; `RowWriter` decides when. Holds I2, I3, I4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from cassieq_spark.model import bucket as moves
from cassieq_spark.model import lease as leases
from cassieq_spark.model import settlement
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.ids import EMPTY, Runs, union
from cassieq_spark.model.lease import Terms
from cassieq_spark.model.settlement import Ack, Judged
from cassieq_spark.model.taken import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from cassieq_spark.model.bucket import Lease
    from cassieq_spark.model.settlement import Action

ACK: Final = Ack()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The time of one step, and what else the step must be given.

    Attributes:
        now_us: Cluster time (G6).
        at_s: Monotonic time, for deadlines.
        spare_us: A claim lasts at least this long: some of this client's own CAS times, measured
            from the fold to the answer [R21].
        new_id: Draws an id; a lease's tells ``now_us`` (UUID version 7).
        passed: The minute of the lane's time pointer, as this client last read it.
    """

    now_us: int
    at_s: float
    spare_us: int
    new_id: Callable[[], UUID]
    passed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The messages that one claim was given.

    Attributes:
        leases: Each with the caller's own runs: others may hold further runs of the same lease.
        gone: The expired messages that this claim has taken out of the row, to be counted once.
    """

    leases: tuple[Lease, ...] = ()
    gone: Runs = EMPTY


Result = Claimed | Judged | bool | int | moves.IllegalMove | None
"""By intent: what `Claim`, `Settle`, `Cancel` or `Change`, and `Purge` tell their callers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect of one intent.

    Attributes:
        before, row: The row before and after this intent; the same object: it changes nothing.
        times_us: When messages come back that this intent has moved; 0: now (design 6).
        is_whole: All that was asked takes effect. Otherwise a newer row may say more.
        reads_low: The caller may believe the result only above L, read after the row (G5).
    """

    before: Bucket | None
    row: Bucket | None
    result: Result
    times_us: tuple[int, ...] = ()
    is_whole: bool = True
    reads_low: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Lease up to ``at_most`` visible messages.

    Attributes:
        visibility_us: From the fold on.
        run, below, max_deliveries, expired_die, fresh_first: As in `Terms`.
    """

    at_most: int
    owner: str
    visibility_us: int
    run: UUID | None = None
    below: int | None = None
    max_deliveries: int | None = None
    expired_die: bool = False
    fresh_first: bool = False
    touches: ClassVar[Runs | None] = EMPTY

    @property
    def sharing(self) -> tuple[object, ...] | None:
        """Claims of equal values share leases; None: this one shares with nobody.

        A Spark batch's offset names whole leases, so a run's are its own (I8).
        """
        if self.run is not None:
            return None
        dying = self.max_deliveries, self.expired_die
        return self.owner, self.visibility_us, self.below, self.fresh_first, *dying

    def terms(self, moment: Moment) -> Terms:
        """The terms of a claim that is folded now."""
        return Terms(
            at_most=self.at_most,
            owner=self.owner,
            run=self.run,
            now_us=moment.now_us,
            until_us=moment.now_us + max(self.visibility_us, moment.spare_us),
            below=self.below,
            max_deliveries=self.max_deliveries,
            expired_die=self.expired_die,
            fresh_first=self.fresh_first,
        )


def claim_together(row: Bucket | None, claims: list[Claim], moment: Moment) -> list[Effect]:
    """Apply claims of equal `Claim.sharing`, one after the other; the effect of each.

    The first one's effect has the row before all of them, and what was taken out.
    """
    if row is None:
        nothing = Effect(before=None, row=None, result=Claimed(), is_whole=False, reads_low=True)
        return [nothing for _ in claims]
    wanted = [one.terms(moment) for one in claims]
    gone = leases.expired_of(row, moment.now_us)
    after, given = leases.claim_each(row, wanted, moment.new_id)
    if not any(given) and not gone and after.dead == row.dead:
        after = row
    return [
        Effect(
            before=row,
            row=after,
            result=Claimed(leases=mine, gone=EMPTY if at else gone),
            times_us=(wanted[at].until_us,) if mine else (),
            is_whole=bool(mine),
            reads_low=True,
        )
        for at, mine in enumerate(given)
    ]


class Ask(NamedTuple):
    """One action on messages of a delivery; ``runs`` None: all that the lease holds."""

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
        """The messages that it names; None: whatever a lease holds."""
        if len(self.asks) == 1:
            return self.asks[0].runs
        named = [ask.runs for ask in self.asks if ask.runs is not None]
        return union(named) if len(named) == len(self.asks) else None

    def apply(self, row: Bucket | None, moment: Moment) -> Effect:
        """Judge what is asked and carry out what is held."""
        return settled(row, self.asks, moment)


def settled(row: Bucket | None, asks: Iterable[Ask], moment: Moment) -> Effect:
    """Carry out what is asked of a row, as one settlement."""
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
    """What is asked, as `settlement.judge` takes it."""
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
    """Take messages back that nobody was given yet; tells whether all of them are cancelled."""

    runs: Runs

    @property
    def touches(self) -> Runs | None:
        """The messages that it names."""
        return self.runs

    def apply(self, row: Bucket | None, moment: Moment) -> Effect:
        """Cancel, unless somebody was given them."""
        if row is None:
            return Effect(before=None, row=None, result=False, is_whole=False, reads_low=True)
        after = cancelled(row, self.runs, now_us=moment.now_us)
        is_done = self.runs.issubset(after.cancelled)
        return Effect(before=row, row=after, result=is_done, is_whole=is_done, reads_low=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """Drop all of a sealed bucket; tells how many messages that were."""

    touches: ClassVar[Runs | None] = None

    def apply(self, row: Bucket | None, moment: Moment) -> Effect:
        """Drop what is left."""
        if row is None or row.status is not Status.SEALED:
            return Effect(before=row, row=row, result=0, is_whole=False, reads_low=True)
        after = moves.purged(row, now_us=moment.now_us)
        return Effect(before=row, row=after, result=row.unacked.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Any other change of a row, such as repair's; tells whether it changed the row.

    Attributes:
        change: Pure: row, now (µs) and a source of ids; None: leave the row as it is. It is called
            again with newer rows.
        times_us: When messages come back by it, whatever the row is.
        touches: The messages that it moves; None: any.
    """

    change: Callable[[Bucket, int, Callable[[], UUID]], Bucket | None]
    times_us: tuple[int, ...] = ()
    touches: Runs | None = field(default=None)

    def apply(self, row: Bucket | None, moment: Moment) -> Effect:
        """Call it."""
        after = None if row is None else self.change(row, moment.now_us, moment.new_id)
        if after is None or after is row:
            return Effect(before=row, row=row, result=False, is_whole=False, reads_low=True)
        return Effect(before=row, row=after, result=True, times_us=self.times_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A statement of the caller's own: insert, seal, fill, publish or drop.

    It is no function of the row. The caller is told when nothing of this client is under way on the
    row, sends it, and says how the row is then.
    """

    touches: ClassVar[Runs | None] = None


Settlement = Settle | Cancel | Purge | Change
Intent = Settlement | Claim | Turn


def moved_times_us(old: Bucket, new: Bucket, moved: Runs) -> list[int]:
    """When these messages come back, and any others whose time this change has moved.

    If delays no longer fit a row, all delays of the row are merged into wider steps [R7].
    """
    known = {group.due_us for group in old.delayed}
    shifted = [group.due_us for group in new.delayed if group.due_us not in known]
    return return_times_us(new, moved) + shifted


def return_times_us(row: Bucket, moved: Runs | None = None) -> list[int]:
    """When messages of a row come back by time; 0 for those that are back.

    Args:
        moved: Only these messages; None: all.
    """
    times = [lease.until_us for lease in row.leases if moved is None or lease.runs & moved]
    times += [group.due_us for group in row.delayed if moved is None or group.runs & moved]
    if any(moved is None or part.runs & moved for part in row.returned):
        times.append(0)
    return times
