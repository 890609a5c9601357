"""Claim, ack, extend, release: the moves of a sealed bucket (docs/design/get-and-leases.md). Pure.

Each move is what one CAS writes, for any number of messages. Holds I2, I3, I4.

A message expires if nobody got it until its time was over. A leased message stays its holder's; it
expires when it is given back, or when its lease ran out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from uuid import UUID

from cassieq_spark.model.bucket import (
    Bucket,
    Lease,
    Returned,
    Status,
    drained_if_empty,
    merge_returned,
    name_of_holder,
    without_revisions,
)
from cassieq_spark.model.dead import OUT_OF_DELIVERIES, add_dead
from cassieq_spark.model.expiry import Delayed, in_one_order, merge_delayed, size_of
from cassieq_spark.model.ids import EMPTY, Runs, union
from cassieq_spark.model.row_limits import (
    CROWDED_LEASES,
    LEASES_PER_CLAIM,
    PREFERRED_BYTES,
    PREFERRED_LEASES,
    RUNS_PER_LEASE,
)

P = TypeVar("P", Delayed, Lease)

EXPIRED: Final = "expired"
"""The reason of a death by expiry."""

EXPIRY_MARGIN_US = 250_000
"""The least time from a lease's end to its re-claim: two measured clocks differ less (G6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The terms of a claim: how many messages, which ones, and for whom.

    Attributes:
        at_most: Messages, 1 or more.
        below: The limit of offsets (a trigger's target); None for all.
        max_deliveries: Deliveries after which a message dies; None if messages never die, as in a
            queue without a dead-letter queue [R22].
        expired_die: Whether expired messages are dead, to be moved; otherwise they count as acked.
        fresh_first: Whether fresh messages go out before those that came back.
    """

    at_most: int
    owner: str
    run: UUID | None = None
    below: int | None = None
    max_deliveries: int | None = None
    expired_die: bool = False
    fresh_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(Wanted):
    """The terms of a claim that is made now; ``until_us`` is when the new leases run out."""

    now_us: int
    until_us: int


def is_expired(lease: Lease, now_us: int) -> bool:
    """Whether any client may claim these messages again."""
    return now_us > lease.until_us + EXPIRY_MARGIN_US


def claimable(
    row: Bucket, *, now_us: int, below: int | None = None, max_deliveries: int | None = None
) -> int:
    """Return how many messages a claim could take now, without those that it would find dead."""
    if row.status is not Status.SEALED:
        return 0
    return sum(
        (part.runs if below is None else part.runs.below(below)).count
        for part in visible(row, now_us)
        if max_deliveries is None or part.deliveries < max_deliveries
    )


def is_crowded(row: Bucket, *, now_us: int) -> bool:
    """Whether a scan goes on after this bucket, though it may be claimed from [R6].

    Expired leases do not count: the claim that takes from them merges them first.
    """
    return (
        len(row.leases) >= CROWDED_LEASES
        and sum(not is_expired(lease, now_us) for lease in row.leases) >= CROWDED_LEASES
    )


def is_dying(row: Bucket, *, now_us: int, max_deliveries: int | None) -> bool:
    """Whether a claim would find messages to end, so that it must be made.

    Such messages are out of deliveries, or expired.
    """
    if row.status is not Status.SEALED:
        return False
    return bool(expired_of(row, now_us)) or (
        max_deliveries is not None
        and any(part.deliveries >= max_deliveries for part in held_by_nobody(row, now_us))
    )


def expired_of(row: Bucket, now_us: int) -> Runs:
    """Return the messages that expired while nobody held them, and are still in the row."""
    return union(part.runs for part in _expired(row, now_us))


def _expired(row: Bucket, now_us: int) -> list[Returned]:
    """Return the messages to take out now."""
    over = past(row, now_us) if row.status is Status.SEALED else EMPTY
    if not over:
        return []
    places = [
        (0, row.fresh),
        *((part.deliveries, part.runs) for part in row.returned),
        *((group.deliveries, group.runs) for group in row.delayed),
        *((one.delivery_count, one.runs) for one in row.leases if is_expired(one, now_us)),
    ]
    return [
        Returned(deliveries=count, runs=gone) for count, runs in places if (gone := runs & over)
    ]


def visible(row: Bucket, now_us: int) -> list[Returned]:
    """Return the messages a claim could take of a sealed row, and those out of deliveries."""
    fresh = row.fresh - past(row, now_us)
    return [Returned(deliveries=0, runs=fresh), *held_by_nobody(row, now_us)]


def later(row: Bucket, now_us: int) -> int:
    """Return how many messages are not due yet, without expired ones."""
    over = past(row, now_us)
    return sum((part.runs - over).count for part in row.delayed if part.due_us > now_us)


def held_by_nobody(row: Bucket, now_us: int) -> list[Returned]:
    """Return the messages that came back, in the order in which a claim takes them: by time."""
    back = [
        (group.due_us, Returned(deliveries=group.deliveries, runs=group.runs))
        for group in row.delayed
        if group.due_us <= now_us
    ]
    back += [
        (lease.until_us, Returned(deliveries=lease.delivery_count, runs=lease.runs))
        for lease in row.leases
        if is_expired(lease, now_us)
    ]
    parts = [*row.returned, *(part for _, part in sorted(back, key=lambda entry: entry[0]))]
    over = past(row, now_us)
    if not over:
        return parts
    return [replace(part, runs=left) for part in parts if (left := part.runs - over)]


def claim(
    row: Bucket, terms: Terms, new_id: Callable[[], UUID]
) -> tuple[Bucket, tuple[Lease, ...]]:
    """Lease up to ``terms.at_most`` messages; without any, return the row as it was, and no lease.

    Returned messages go out in the order in which they came back, before fresh ones, unless
    ``terms.fresh_first`` is set: messages that always return must not hide the rest (I10). A lease
    holds messages of one delivery count only. Messages out of deliveries go into the open dead set
    [R14]. Expired leases that are not taken stay: their holders may still ack [R20]. Too many
    leases are merged into one set per delivery count [R6]. Expired messages are taken out first, so
    that no claim hands them out. No claim is refused for the size of a row: visible messages can be
    had, whoever holds the rest [T2] [T11].
    """
    now_us, until_us = terms.now_us, terms.until_us
    row, (leases,) = claim_each(row, [terms], new_id, now_us=now_us, until_us=until_us)
    return row, leases


def claim_each(
    row: Bucket,
    wanted: Sequence[Wanted],
    new_id: Callable[[], UUID],
    *,
    now_us: int,
    until_us: int,
) -> tuple[Bucket, list[tuple[Lease, ...]]]:
    """Claim for several callers, one after the other; return the row and the leases of each.

    Callers share leases of up to `RUNS_PER_LEASE` runs, so that many small claims do not fill the
    row. Each caller gets its own part of such a lease, and settles it by its runs.

    Args:
        wanted: At least one; they differ in ``at_most`` only.
    """
    if row.status is not Status.SEALED:
        return row, [() for _ in wanted]
    first = wanted[0]
    gone = _expired(row, now_us)
    row = without_expired(row, gone, new_id, dies=first.expired_die, now_us=now_us)
    row = _without_exhausted(row, first.max_deliveries, new_id, now_us=now_us)
    left = deque([*held_by_nobody(row, now_us), Returned(deliveries=0, runs=row.fresh)])
    left.rotate(first.fresh_first)
    shared = _Shared(first.run, name_of_holder(row, first.owner), until_us, new_id)
    given = [tuple(shared.part(*part) for part in _taken(one, left).items()) for one in wanted]
    leases = shared.leases
    row = taken_out(row, union(lease.runs for lease in leases), now_us=now_us)
    if len(row.leases) + len(leases) > PREFERRED_LEASES:
        row = _merged(row, now_us)
    return drained_if_empty(replace(row, leases=(*row.leases, *leases))), given


def ack(row: Bucket, acked: Mapping[UUID, Runs | None], *, now_us: int) -> Bucket:
    """Take messages out of their leases for good; None means all that the lease still holds.

    A missing lease is skipped: its messages were acked, or belong to a later delivery and are not
    touched (I3). A lease that ran out but was not re-claimed still acks [R20].
    """
    row, done = parted(row, acked, now_us=now_us)
    if row.revisions:
        ended = union(part.runs for part in done)
        row = replace(row, revisions=without_revisions(row.revisions, ended))
    return drained_if_empty(row)


def parted(
    row: Bucket, named: Mapping[UUID, Runs | None], *, now_us: int
) -> tuple[Bucket, list[Returned]]:
    """Take messages out of their leases; return the row without them, and what was taken.

    A missing lease is skipped (I3). None means all that the lease still holds.
    """
    leases: list[Lease] = []
    out: list[Returned] = []
    for lease in row.leases:
        if lease.lease_id not in named:
            leases.append(lease)
            continue
        runs = named[lease.lease_id]
        moved = lease.runs if runs is None else lease.runs & runs
        if moved:
            out.append(Returned(deliveries=lease.delivery_count, runs=moved))
        if rest := lease.runs - moved:
            leases.append(replace(lease, runs=rest))
    return replace(row, changed_us=now_us, leases=tuple(leases)), out


def with_dead(
    row: Bucket, parts: Iterable[Returned], new_id: Callable[[], UUID], *, reason: str, now_us: int
) -> Bucket:
    """Put messages that were taken out of the row into its open dead set [R14]."""
    died = [(part.deliveries, part.runs) for part in merge_returned(parts)]
    if not died:
        return row
    return replace(row, dead=add_dead(row.dead, died, new_id, reason=reason, now_us=now_us))


def extend(
    row: Bucket,
    extended: Mapping[UUID, Runs | None],
    *,
    until_us: int,
    now_us: int,
    never_sooner: bool = False,
) -> Bucket:
    """Let messages of these leases come back at ``until_us`` instead; None means all of the lease.

    With ``never_sooner``, a lease that runs out later stays as it is. The part of a lease that is
    not extended keeps its end, in an entry of its own.
    """
    leases: list[Lease] = []
    for lease in row.leases:
        runs = extended.get(lease.lease_id, EMPTY)
        moved = lease.runs if runs is None else lease.runs & runs
        rest = lease.runs - moved
        if not moved or (never_sooner and lease.until_us >= until_us):
            leases.append(lease)
        elif not rest:
            leases.append(replace(lease, until_us=until_us))
        else:
            leases += [replace(lease, runs=rest), replace(lease, runs=moved, until_us=until_us)]
    return replace(row, changed_us=now_us, leases=_joined(leases))


def take_over(
    row: Bucket, lease_ids: Iterable[UUID], *, run: UUID, until_us: int, now_us: int
) -> Bucket:
    """Extend leases, and hand them to ``run``: a restart resumes its batch [R17]."""
    wanted = frozenset(lease_ids)
    row = extend(row, dict.fromkeys(wanted), until_us=until_us, now_us=now_us)
    return replace(
        row,
        leases=tuple(
            replace(lease, run=run) if lease.lease_id in wanted else lease for lease in row.leases
        ),
    )


def release(
    row: Bucket,
    released: Mapping[UUID, Runs | None],
    *,
    now_us: int,
    due_us: int | None = None,
    count_delivery: bool = True,
) -> Bucket:
    """Give messages back; None means all that the lease still holds.

    Args:
        due_us: The earliest time of the next delivery; None: at once.
        count_delivery: False if the claim was answered after its own end, or nobody was handed its
            messages: no delivery is used up [P18].
    """
    uncounted = 0 if count_delivery else 1
    row, taken = parted(row, released, now_us=now_us)
    back = [(part.deliveries - uncounted, part.runs) for part in taken]
    if due_us is None or due_us <= now_us:
        parts = (Returned(deliveries=count, runs=runs) for count, runs in back)
        return replace(row, returned=merge_returned([*row.returned, *parts]))
    later = (Delayed(due_us=due_us, runs=runs, deliveries=count) for count, runs in back)
    return replace(row, delayed=merge_delayed([*row.delayed, *later]))


class _Shared:
    """The leases that the callers of `claim_each` share."""

    def __init__(
        self, run: UUID | None, owner: str, until_us: int, new_id: Callable[[], UUID]
    ) -> None:
        self._run = run
        self._owner = owner
        self._until_us = until_us
        self._new_id = new_id
        self._filling: dict[int, int] = {}
        self.leases: list[Lease] = []

    def part(self, deliveries: int, runs: Runs) -> Lease:
        """Add one caller's messages of one delivery count; return its part of the lease."""
        at = self._filling.get(deliveries)
        together = runs if at is None else self.leases[at].runs | runs
        if at is not None and len(together.pairs) <= RUNS_PER_LEASE:
            self.leases[at] = replace(self.leases[at], runs=together)
            return replace(self.leases[at], runs=runs)
        self._filling[deliveries] = len(self.leases)
        lease = Lease(
            lease_id=self._new_id(),
            owner=self._owner,
            run=self._run,
            delivery_count=deliveries + 1,
            runs=runs,
            until_us=self._until_us,
        )
        self.leases.append(lease)
        return lease


def _taken(terms: Wanted, left: deque[Returned]) -> dict[int, Runs]:
    """Take one caller's messages out of the visible ones, in their order: one lease per count.

    Only the offsets of a Spark query name runs. A program may take any number of them, so that it
    gets messages that were put in any order by their due times, and as many as it asks for.
    """
    taken: dict[int, list[Runs]] = {}
    wanted = terms.at_most
    most_runs = terms.at_most if terms.run is None else RUNS_PER_LEASE
    rooms: dict[int, int] = {}
    passed: list[Returned] = []
    while left and wanted > 0:
        part = left.popleft()
        room = rooms.get(part.deliveries, most_runs if len(taken) < LEASES_PER_CLAIM else 0)
        below = part.runs if terms.below is None else part.runs.below(terms.below)
        now, _ = Runs(below.pairs[:room]).take(wanted)
        if now:
            wanted -= now.count
            so_far = taken.setdefault(part.deliveries, [])
            goes_on = bool(so_far) and so_far[-1].last + 1 == now.first
            rooms[part.deliveries] = room - len(now.pairs) + goes_on
            so_far.append(now)
        if rest := part.runs - now:
            passed.append(replace(part, runs=rest))
    left.extendleft(reversed(passed))
    return {deliveries: union(parts) for deliveries, parts in taken.items()}


def _without_exhausted(
    row: Bucket, limit: int | None, new_id: Callable[[], UUID], *, now_us: int
) -> Bucket:
    """Put messages out of deliveries into the open dead set; without a limit none dies [R22]."""
    if limit is None:
        return row
    ended = [part for part in held_by_nobody(row, now_us) if part.deliveries >= limit]
    if not ended:
        return row
    row = taken_out(row, union(part.runs for part in ended), now_us=now_us)
    return with_dead(row, ended, new_id, reason=OUT_OF_DELIVERIES, now_us=now_us)


def _merged(row: Bucket, now_us: int) -> Bucket:
    """Turn expired leases and due groups into returned messages, one entry per count [R6].

    Due groups stay, to be handed out by their times, if they are small together: neighbours that
    were put in this order become one.
    """
    due = in_one_order([one for one in row.delayed if one.due_us <= now_us])
    if size_of([(one.due_us, one.runs) for one in due]) <= PREFERRED_BYTES:
        ended = held_by_nobody(replace(row, delayed=()), now_us)
    else:
        ended, due = held_by_nobody(row, now_us), []
    return replace(
        row,
        returned=merge_returned(ended),
        delayed=(*due, *(one for one in row.delayed if one.due_us > now_us)),
        leases=tuple(lease for lease in row.leases if not is_expired(lease, now_us)),
    )


def _joined(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """Merge entries of one lease that end together."""
    joined: dict[tuple[UUID, int], Lease] = {}
    for lease in leases:
        key = (lease.lease_id, lease.until_us)
        before = joined.get(key)
        joined[key] = lease if before is None else replace(before, runs=before.runs | lease.runs)
    return tuple(joined.values())


def taken_out(row: Bucket, gone: Runs, *, now_us: int) -> Bucket:
    """Return the row without these messages, visible or leased; the caller puts them elsewhere."""
    return replace(
        row,
        changed_us=now_us,
        fresh=row.fresh - gone,
        returned=merge_returned(replace(part, runs=part.runs - gone) for part in row.returned),
        delayed=without(row.delayed, gone),
        leases=without(row.leases, gone),
    )


def without(parts: tuple[P, ...], gone: Runs) -> tuple[P, ...]:
    """Return the parts without these messages; empty parts are removed."""
    if not gone:
        return parts
    first, last = gone.first, gone.last
    return tuple(
        replace(part, runs=rest) if rest != part.runs else part
        for part in parts
        if (
            rest := part.runs
            if part.runs.last < first or part.runs.first > last
            else part.runs - gone
        )
    )


def past(row: Bucket, now_us: int) -> Runs:
    """Return the messages whose time is over, wherever they are; acked ones may be among them."""
    if row.expires_us is not None and row.expires_us <= now_us:
        return row.manifest
    over = [group.runs for group in row.expiring if group.expires_us <= now_us]
    return union(over) if over else EMPTY


def cancelled(row: Bucket, wanted: Runs, *, now_us: int) -> Bucket:
    """Cancel messages that nobody got yet and that are not expired; the row may stay as it is.

    The row remembers them: a caller that asks again, or has lost the answer, learns it [U14].
    """
    untouched = union(
        [
            row.fresh,
            *(part.runs for part in row.returned if not part.deliveries),
            *(group.runs for group in row.delayed if not group.deliveries),
        ]
    )
    gone = (wanted & untouched) - past(row, now_us)
    if row.status is not Status.SEALED or not gone:
        return row
    after = taken_out(row, gone, now_us=now_us)
    return drained_if_empty(
        replace(
            after,
            cancelled=row.cancelled | gone,
            revisions=without_revisions(row.revisions, gone),
        )
    )


def without_expired(
    row: Bucket,
    ended: Sequence[Returned],
    new_id: Callable[[], UUID],
    *,
    dies: bool,
    now_us: int,
) -> Bucket:
    """Return the row without what has expired: in the open dead set, or as if acked."""
    if not ended:
        return row
    gone = union(part.runs for part in ended)
    row = taken_out(row, gone, now_us=now_us)
    leased = union(lease.runs for lease in row.leases)
    over = tuple(group for group in row.expiring if group.expires_us <= now_us)
    later = tuple(group for group in row.expiring if group.expires_us > now_us)
    still = tuple(replace(group, runs=left) for group in over if (left := group.runs & leased))
    row = replace(row, expiring=(*still, *later))
    if not dies:
        return replace(row, revisions=without_revisions(row.revisions, gone))
    return with_dead(row, ended, new_id, reason=EXPIRED, now_us=now_us)
