"""Settle deliveries: compute what an ack, a release, an extension and so on do to a row.

All settlements of a bucket at a time are one CAS, whether a program asks by receipts or a streaming
query by leases (docs/design/settle.md). Holds I2, I3, I4: an action takes effect on its own
delivery, or on nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never
from uuid import UUID

from cassieq_spark.model import lease as rules
from cassieq_spark.model.bucket import Bucket, Lease
from cassieq_spark.model.dead import OUT_OF_DELIVERIES
from cassieq_spark.model.ids import EMPTY, Runs, union
from cassieq_spark.model.lease import EXPIRED


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The message goes back to the queue, for any consumer.

    Attributes:
        due_us: The earliest time of the next delivery; None: at once.
        count_delivery: False if nobody was handed the message: it uses up no delivery [P18].
    """

    due_us: int | None = None
    count_delivery: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """The message is dead, whatever deliveries it had left; repair moves it.

    Attributes:
        reason: The text of the dead letter's header ``cassieq-reason``.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend:
    """The lease runs out at another time.

    Attributes:
        visibility_us: The time counted from when the CAS is sent, not from the request: its row may
            have waited for an outage (I2) [T5].
        never_sooner: Whether a lease that runs out later than that stays as it is.
        of_run: The run that must still hold the lease [R17]; None: any.
    """

    visibility_us: int
    never_sooner: bool = False
    of_run: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """The lease is this run's now, whoever held it [P25] [R17]; its end is as in `Extend`."""

    run: UUID
    visibility_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Give one message another body or end, and a lease of its own: its old receipt is stale.

    The same delivery goes on: its count stays. A Spark batch's messages cannot be updated: what a
    batch reads must stay the same (I8).

    Attributes:
        new_lease_id: The id of its lease from now on.
        revision: The revision of its stored body; None: the body stays.
        visibility_us: As in `Extend`; None: the end stays.
        gives_back: Whether it becomes visible again, to any consumer, at once.
    """

    new_lease_id: UUID
    revision: int | None = None
    visibility_us: int | None = None
    gives_back: bool = False


Action = Ack | Release | Reject | Extend | TakeOver | Update


Asked = Mapping[UUID, Mapping[Action, Runs | None]]
"""The messages by lease and action; None: all that the lease holds. No message has two
actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict on each message that was named, by the row.

    Attributes:
        held: Messages that an action takes effect on, by action and lease.
        repeated: Messages on which it took effect before, by action: a task may run twice.
        acked: Messages that are over already, in whatever way, for any action.
        stale: By lease, messages whose delivery ended: they came back, or another consumer has
            them.
        never: By lease, messages that were never in this bucket.
    """

    held: Mapping[Action, Mapping[UUID, Runs]] = field(default_factory=dict)
    repeated: Mapping[Action, Runs] = field(default_factory=dict)
    acked: Runs = EMPTY
    stale: Mapping[UUID, Runs] = field(default_factory=dict)
    never: Mapping[UUID, Runs] = field(default_factory=dict)

    def done(self, action: Action) -> int:
        """Return how many messages an action takes effect on."""
        return sum(runs.count for runs in self.held.get(action, {}).values())

    @property
    def is_whole(self) -> bool:
        """Whether no message that was named was settled before, or is refused."""
        return not (self.repeated or self.acked or self.stale or self.never)

    def holds_all(self, asked: Asked) -> bool:
        """Whether all actions take effect, by a row that may be an old one."""
        if not self.is_whole:
            return False
        return bool(asked) and all(
            lease_id in self.held.get(action, {})
            for lease_id, actions in asked.items()
            for action in actions
        )

    @property
    def timed(self) -> Runs:
        """The messages that come back by time, now or later, when this is carried out."""
        return union(
            runs
            for action, leases in self.held.items()
            if not isinstance(action, Ack | Reject)
            for runs in leases.values()
        )


def held_runs(row: Bucket) -> dict[UUID, Runs]:
    """Return the messages that each delivery still holds, all of its entries together."""
    held: dict[UUID, Runs] = {}
    for lease in row.leases:
        held[lease.lease_id] = held.get(lease.lease_id, EMPTY) | lease.runs
    return held


def judge(row: Bucket, asked: Asked) -> Judged:
    """Judge the actions on a row's deliveries.

    A lease that ran out and was not claimed again is still its holder's [R20]. A message that is
    back in the queue counts as released, and one in a dead set as rejected. A message that a
    redrive has taken since counts as neither.
    """
    under = held_runs(row)
    held: dict[Action, dict[UUID, Runs]] = {}
    rest: list[tuple[UUID, Action, Runs]] = []
    for lease_id, actions in asked.items():
        there = under.get(lease_id, EMPTY)
        for action, runs in actions.items():
            mine = there if runs is None else runs & there
            if mine and _is_for(row, lease_id, action):
                held.setdefault(action, {})[lease_id] = mine
            else:
                mine = EMPTY
            if runs is not None and (left := runs - mine):
                rest.append((lease_id, action, left))
    return Judged(held=held) if not rest else _judge_rest(row, held, rest)


def rejected(row: Bucket) -> Runs:
    """Return the messages that a consumer has rejected, and that repair has not moved yet."""
    own = (OUT_OF_DELIVERIES, EXPIRED)
    return union(part.runs for part in row.dead if part.target is None and part.reason not in own)


def _is_for(row: Bucket, lease_id: UUID, action: Action) -> bool:
    """Whether the lease belongs to the run that the action is for."""
    match action:
        case Extend(of_run=run) if run is not None:
            pass
        case Update():
            run = None
        case _:
            return True
    return any(lease.lease_id == lease_id and lease.run == run for lease in row.leases)


def _judge_rest(
    row: Bucket,
    held: Mapping[Action, Mapping[UUID, Runs]],
    rest: Iterable[tuple[UUID, Action, Runs]],
) -> Judged:
    """Judge messages that their leases do not hold."""
    unacked = row.unacked
    repeated: dict[Action, Runs] = {}
    acked = EMPTY
    stale: dict[UUID, Runs] = {}
    never: dict[UUID, Runs] = {}
    for lease_id, action, left in rest:
        if again := left & _where_it_goes(row, action):
            repeated[action] = repeated.get(action, EMPTY) | again
        over = left - again
        acked |= (over & row.manifest) - unacked
        if ended := over & unacked:
            stale[lease_id] = stale.get(lease_id, EMPTY) | ended
        if not_there := over - row.manifest:
            never[lease_id] = never.get(lease_id, EMPTY) | not_there
    return Judged(held=held, repeated=repeated, acked=acked, stale=stale, never=never)


def _where_it_goes(row: Bucket, action: Action) -> Runs:
    """Return the messages on which an action may have taken effect before."""
    match action:
        case Release():
            back = [*(part.runs for part in row.returned), *(part.runs for part in row.delayed)]
            return union(back)
        case Reject():
            return union(part.runs for part in row.dead if part.target is None)
        case Update(new_lease_id=new_id, revision=revision):
            updated = Runs.from_offsets(
                [at for at, number in row.revisions if number == revision and revision is not None]
            )
            return updated | held_runs(row).get(new_id, EMPTY)
        case Ack() | Extend() | TakeOver():
            return EMPTY
        case _:
            assert_never(action)


def carry_out(
    row: Bucket,
    held: Mapping[Action, Mapping[UUID, Runs]],
    new_id: Callable[[], UUID],
    *,
    now_us: int,
) -> Bucket:
    """Carry out the actions on the held messages that `judge` found; return the row."""
    # An ack comes last, since it may leave the row drained.
    for action in sorted(held, key=lambda action: isinstance(action, Ack)):
        leases = held[action]
        match action:
            case Ack():
                row = rules.ack(row, leases, now_us=now_us)
            case Release(due_us=due_us, count_delivery=count_delivery):
                row = rules.release(
                    row, leases, now_us=now_us, due_us=due_us, count_delivery=count_delivery
                )
            case Reject(reason=reason):
                row = reject(row, leases, new_id, reason=reason, now_us=now_us)
            case Extend(visibility_us=visibility_us, never_sooner=never_sooner):
                until_us = now_us + visibility_us
                row = rules.extend(
                    row, leases, until_us=until_us, now_us=now_us, never_sooner=never_sooner
                )
            case TakeOver(run=run, visibility_us=visibility_us):
                until_us = now_us + visibility_us
                row = rules.take_over(row, leases, run=run, until_us=until_us, now_us=now_us)
            case Update():
                row = update(row, leases, action, now_us=now_us)
            case _:
                assert_never(action)
    return row


def reject(
    row: Bucket,
    rejected: Mapping[UUID, Runs],
    new_id: Callable[[], UUID],
    *,
    reason: str,
    now_us: int,
) -> Bucket:
    """Take messages out of their leases into the open dead set [R14].

    They keep their updated bodies, which move with them [P26]. A missing lease is skipped (I3).
    """
    row, ended = rules.parted(row, rejected, now_us=now_us)
    return rules.with_dead(row, ended, new_id, reason=reason, now_us=now_us)


def update(row: Bucket, leases: Mapping[UUID, Runs], action: Update, *, now_us: int) -> Bucket:
    """Carry out an `Update` of the one message that is held."""
    for lease_id, runs in leases.items():
        row = revise(row, lease_id, runs.first, action, now_us=now_us)
    if action.gives_back:
        row = rules.release(row, {action.new_lease_id: None}, now_us=now_us)
    return row


def revise(row: Bucket, lease_id: UUID, offset: int, action: Update, *, now_us: int) -> Bucket:
    """Give one message of a lease another body, end and lease id: its old receipt becomes stale.

    The same delivery goes on: its count stays.
    """
    one = Runs.span(offset, offset)
    leases: list[Lease] = []
    for lease in row.leases:
        if lease.lease_id != lease_id or offset not in lease.runs:
            leases.append(lease)
            continue
        if rest := lease.runs - one:
            leases.append(replace(lease, runs=rest))
        ends_us = lease.until_us if action.visibility_us is None else now_us + action.visibility_us
        leases.append(replace(lease, lease_id=action.new_lease_id, runs=one, until_us=ends_us))
    revisions = row.revisions
    if action.revision is not None:
        revisions = tuple(sorted({**dict(revisions), offset: action.revision}.items()))
    return replace(row, changed_us=now_us, leases=tuple(leases), revisions=revisions)
