"""What a program rules about the messages it holds: done, again, or never again (design 5).

All of a bucket's rulings are one CAS. Holds I2, I3, I4: a ruling takes effect on its own delivery,
or on nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from cassieq_spark.model import lease as rules
from cassieq_spark.model.bucket import Bucket, Returned, merge_returned
from cassieq_spark.model.dead import buried
from cassieq_spark.model.ids import EMPTY, Runs, union

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID


class Ruling(StrEnum):
    """On one message.

    Attributes:
        ACK: It is done.
        RELEASE: It goes back, to anybody, and has used up a delivery.
        DEAD: It goes to the dead-letter queue, whatever deliveries it had left.
    """

    ACK = "ack"
    RELEASE = "release"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a row says to rulings.

    Attributes:
        held: What they take effect on, by ruling and lease.
        repeated: What they have taken effect on before, by ruling: of a task that runs again.
        acked: Over already, by whatever way; however it is ruled.
        stale: Of deliveries that ended, by lease: the messages came back, or are somebody else's.
        unknown: Never in this bucket, by lease.
    """

    held: Mapping[Ruling, Mapping[UUID, Runs]] = field(default_factory=dict)
    repeated: Mapping[Ruling, Runs] = field(default_factory=dict)
    acked: Runs = EMPTY
    stale: Mapping[UUID, Runs] = field(default_factory=dict)
    unknown: Mapping[UUID, Runs] = field(default_factory=dict)


def judge(row: Bucket, rulings: Mapping[UUID, Mapping[Ruling, Runs]]) -> Judged:
    """What rulings, by lease, find in a row.

    A lease that ran out and was not claimed again is still its holder's [R20]. What is back in the
    queue counts as released, and what is in a dead set as dead: a ruling may come twice. What a
    redrive has taken since is neither.
    """
    unacked = row.unacked
    there = {
        Ruling.RELEASE: union(
            [*(part.runs for part in row.returned), *(group.runs for group in row.delayed)]
        ),
        Ruling.DEAD: union(part.runs for part in row.dead if part.target is None),
    }
    held: dict[Ruling, dict[UUID, Runs]] = {}
    repeated: dict[Ruling, Runs] = {}
    acked = EMPTY
    stale: dict[UUID, Runs] = {}
    unknown: dict[UUID, Runs] = {}
    for lease_id, by_ruling in rulings.items():
        lease = row.lease(lease_id)
        under = EMPTY if lease is None else lease.runs
        for ruling, runs in by_ruling.items():
            if mine := runs & under:
                held.setdefault(ruling, {})[lease_id] = mine
            rest = runs - under
            if again := rest & there.get(ruling, EMPTY):
                repeated[ruling] = repeated.get(ruling, EMPTY) | again
            rest -= again
            acked |= (rest & row.manifest) - unacked
            if ended := rest & unacked:
                stale[lease_id] = stale.get(lease_id, EMPTY) | ended
            if never := rest - row.manifest:
                unknown[lease_id] = unknown.get(lease_id, EMPTY) | never
    return Judged(held=held, repeated=repeated, acked=acked, stale=stale, unknown=unknown)


def carry_out(
    row: Bucket,
    held: Mapping[Ruling, Mapping[UUID, Runs]],
    new_id: Callable[[], UUID],
    *,
    reason: str,
    now_us: int,
    due_us: int | None = None,
) -> Bucket:
    """The row after the rulings on what is held.

    Args:
        reason: Of those that are dead.
        due_us: Nobody gets what is released before this time; None: at once.
    """
    if dead := held.get(Ruling.DEAD):
        row = condemn(row, dead, new_id, reason=reason, now_us=now_us)
    if released := held.get(Ruling.RELEASE):
        row = rules.release(row, released, now_us=now_us, due_us=due_us)
    if acked := held.get(Ruling.ACK):
        row = rules.ack(row, acked, now_us=now_us)
    return row


def condemn(
    row: Bucket,
    condemned: Mapping[UUID, Runs],
    new_id: Callable[[], UUID],
    *,
    reason: str,
    now_us: int,
) -> Bucket:
    """Take messages out of their leases into the open dead set [R14].

    Their updated bodies stay theirs: those move with them [P26]. A lease that is not there is
    passed over (I3).
    """
    leases = []
    ended = []
    for lease in row.leases:
        dying = lease.runs & condemned.get(lease.lease_id, EMPTY)
        if dying:
            ended.append(Returned(deliveries=lease.delivery_count, runs=dying))
        if rest := lease.runs - dying:
            leases.append(replace(lease, runs=rest))
    died = [(part.deliveries, part.runs) for part in merge_returned(ended)]
    dead = buried(row.dead, died, new_id, reason=reason, now_us=now_us) if died else row.dead
    return replace(row, changed_us=now_us, leases=tuple(leases), dead=dead)
