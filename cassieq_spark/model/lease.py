"""Claim, ack, extend, release, take over: the moves of a sealed bucket (design 5), all pure.

Each is what one CAS writes, for any number of messages. Holds I2, I3, I4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cassieq_spark.model.bucket import (
    LEASES_LIMIT,
    Bucket,
    DeadSet,
    Lease,
    Returned,
    Status,
    drained_if_empty,
    merge_returned,
)
from cassieq_spark.model.ids import EMPTY, Runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

EXPIRY_MARGIN_US = 250_000
"""A lease is re-claimed only this long after it ran out: two measured clocks differ less (G6)."""

RUNS_PER_LEASE = 64
"""A claim takes at most this many separate runs into one lease, so that an offset naming them
stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a claimer asks for.

    Attributes:
        at_most: Messages, 1 or more.
        below: Only offsets below this one (a trigger's target), None for all.
        until_us: When the leases run out.
        max_deliveries: Deliveries after which a message dies; None where nothing dies, as in a
            queue without a dead-letter queue [R22].
    """

    at_most: int
    owner: str
    run: UUID | None
    now_us: int
    until_us: int
    below: int | None = None
    max_deliveries: int | None = None


def is_expired(lease: Lease, now_us: int) -> bool:
    """Whether anybody may take these messages over."""
    return now_us > lease.until_us + EXPIRY_MARGIN_US


def claimable(
    row: Bucket, *, now_us: int, below: int | None = None, max_deliveries: int | None = None
) -> int:
    """How many messages a claim could take now; those that it would find dead do not count."""
    if row.status is not Status.SEALED:
        return 0
    # Expired ones do not count: the claim that takes from them merges them first [R6].
    if sum(not is_expired(lease, now_us) for lease in row.leases) >= LEASES_LIMIT:
        return 0
    parts = [row.fresh, *(group.runs for group in row.delayed if group.due_us <= now_us)]
    parts += [
        part.runs
        for part in _held_by_nobody(row, now_us)
        if max_deliveries is None or part.deliveries < max_deliveries
    ]
    return sum(_below(runs, below).count for runs in parts)


def is_dying(row: Bucket, *, now_us: int, max_deliveries: int | None) -> bool:
    """Whether a claim would find messages that are out of deliveries, and so must be made."""
    return (
        max_deliveries is not None
        and row.status is Status.SEALED
        and any(part.deliveries >= max_deliveries for part in _held_by_nobody(row, now_us))
    )


def claim(
    row: Bucket, terms: Terms, new_id: Callable[[], UUID]
) -> tuple[Bucket, tuple[Lease, ...]]:
    """Lease up to ``terms.at_most`` messages; the row as it was, and no lease, if there are none.

    Expired leases are merged into one set per delivery count and due groups are freed by the same
    move [R6]; what came back goes out before what is fresh, fewest deliveries first. A lease holds
    messages of one delivery count only. What is out of deliveries becomes one fresh dead set [R14].
    """
    if row.status is not Status.SEALED:
        return row, ()
    row = _take_back(row, terms, new_id)
    leases: list[Lease] = []
    left = terms.at_most
    returned: list[Returned] = []
    for part in row.returned:
        taken, rest = _take(part.runs, left, terms.below)
        if taken and len(row.leases) + len(leases) < LEASES_LIMIT:
            leases.append(_lease(taken, part.deliveries + 1, terms, new_id))
            left -= taken.count
            returned.append(replace(part, runs=rest))
        else:
            returned.append(part)
    fresh, rest = _take(row.fresh, left, terms.below)
    if fresh and len(row.leases) + len(leases) < LEASES_LIMIT:
        leases.append(_lease(fresh, 1, terms, new_id))
    else:
        rest = row.fresh
    return (
        drained_if_empty(
            replace(
                row,
                changed_us=terms.now_us,
                fresh=rest,
                returned=merge_returned(returned),
                leases=(*row.leases, *leases),
            )
        ),
        tuple(leases),
    )


def ack(row: Bucket, acked: Mapping[UUID, Runs | None], *, now_us: int) -> Bucket:
    """Take messages out of their leases for good; None = all that the lease still holds.

    A lease that is not there is passed over: its messages were acked, or belong to somebody's later
    delivery and are not touched (I3). A lease that ran out but was not re-claimed still acks [R20].
    """
    leases = []
    for lease in row.leases:
        if lease.lease_id not in acked:
            leases.append(lease)
            continue
        runs = acked[lease.lease_id]
        left = EMPTY if runs is None else lease.runs - runs
        if left:
            leases.append(replace(lease, runs=left))
    return drained_if_empty(replace(row, changed_us=now_us, leases=tuple(leases)))


def extend(row: Bucket, lease_ids: Iterable[UUID], *, until_us: int, now_us: int) -> Bucket:
    """Let these leases run out at ``until_us`` instead; a lease that ended is passed over."""
    wanted = frozenset(lease_ids)
    return replace(
        row,
        changed_us=now_us,
        leases=tuple(
            replace(lease, until_us=until_us) if lease.lease_id in wanted else lease
            for lease in row.leases
        ),
    )


def take_over(
    row: Bucket, lease_ids: Iterable[UUID], *, run: UUID, until_us: int, now_us: int
) -> Bucket:
    """As `extend`, and the leases belong to ``run`` now: a restart resumes its batch [R17]."""
    wanted = frozenset(lease_ids)
    row = extend(row, wanted, until_us=until_us, now_us=now_us)
    return replace(
        row,
        leases=tuple(
            replace(lease, run=run) if lease.lease_id in wanted else lease for lease in row.leases
        ),
    )


def release(
    row: Bucket, lease_ids: Iterable[UUID], *, now_us: int, is_counted: bool = True
) -> Bucket:
    """Give messages back at once.

    Args:
        is_counted: False for a claim that was answered after its own end: nobody held the
            messages, so it uses up no delivery [P18].
    """
    wanted = frozenset(lease_ids)
    ended = [lease for lease in row.leases if lease.lease_id in wanted]
    uncounted = 0 if is_counted else 1
    back = [
        Returned(deliveries=lease.delivery_count - uncounted, runs=lease.runs) for lease in ended
    ]
    return replace(
        row,
        changed_us=now_us,
        leases=tuple(lease for lease in row.leases if lease.lease_id not in wanted),
        returned=merge_returned([*row.returned, *back]),
    )


def _take_back(row: Bucket, terms: Terms, new_id: Callable[[], UUID]) -> Bucket:
    now_us = terms.now_us
    due = [
        Returned(deliveries=0, runs=group.runs) for group in row.delayed if group.due_us <= now_us
    ]
    returned = merge_returned([*_held_by_nobody(row, now_us), *due])
    dead = EMPTY
    if terms.max_deliveries is not None:
        limit = terms.max_deliveries
        for part in returned:
            if part.deliveries >= limit:
                dead |= part.runs
        returned = tuple(part for part in returned if part.deliveries < limit)
    return replace(
        row,
        returned=returned,
        delayed=tuple(group for group in row.delayed if group.due_us > now_us),
        leases=tuple(lease for lease in row.leases if not is_expired(lease, now_us)),
        dead=(*row.dead, DeadSet(set_id=new_id(), runs=dead)) if dead else row.dead,
    )


def _held_by_nobody(row: Bucket, now_us: int) -> list[Returned]:
    """What was delivered before and is no live lease's now."""
    return [
        *row.returned,
        *(
            Returned(deliveries=lease.delivery_count, runs=lease.runs)
            for lease in row.leases
            if is_expired(lease, now_us)
        ),
    ]


def _lease(runs: Runs, delivery_count: int, terms: Terms, new_id: Callable[[], UUID]) -> Lease:
    return Lease(
        lease_id=new_id(),
        owner=terms.owner,
        run=terms.run,
        delivery_count=delivery_count,
        runs=runs,
        until_us=terms.until_us,
    )


def _below(runs: Runs, below: int | None) -> Runs:
    return runs if below is None else runs.below(below)


def _take(runs: Runs, at_most: int, below: int | None) -> tuple[Runs, Runs]:
    """Lowest first, at most ``at_most`` offsets in at most `RUNS_PER_LEASE` runs."""
    allowed = _below(runs, below)
    if len(allowed.pairs) > RUNS_PER_LEASE:
        allowed = Runs.of(*allowed.pairs[:RUNS_PER_LEASE])
    taken, _ = allowed.take(at_most)
    return taken, runs - taken
