"""Take messages out of the parts of a sealed row, and find the expired ones. Pure.

A message expires if nobody got it until its time was over. A leased message stays its holder's; it
expires when it is given back, or when its lease ran out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from cassieq_spark.model.bucket import (
    Bucket,
    Lease,
    Returned,
    Status,
    drained_if_empty,
    merge_returned,
    without_revisions,
)
from cassieq_spark.model.dead import add_dead
from cassieq_spark.model.delays import Delayed
from cassieq_spark.model.ids import EMPTY, Runs, union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

P = TypeVar("P", Delayed, Lease)

EXPIRED: Final = "expired"
"""The reason of a death by expiry."""


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


def expired(row: Bucket, held: Iterable[Lease], *, now_us: int) -> list[tuple[int, Runs]]:
    """Return the messages to take out now, as (deliveries, messages).

    Args:
        held: The leases that still run.
    """
    over = past(row, now_us)
    if not over:
        return []
    running = {id(lease) for lease in held}
    places = [
        (0, row.fresh),
        *((part.deliveries, part.runs) for part in row.returned),
        *((group.deliveries, group.runs) for group in row.delayed),
        *((one.delivery_count, one.runs) for one in row.leases if id(one) not in running),
    ]
    return [(deliveries, gone) for deliveries, runs in places if (gone := runs & over)]


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
    ended: Sequence[tuple[int, Runs]],
    new_id: Callable[[], UUID],
    *,
    dies: bool,
    now_us: int,
) -> Bucket:
    """Return the row without what `expired` found: in the open dead set, or as if acked."""
    if not ended:
        return row
    gone = union(runs for _, runs in ended)
    row = taken_out(row, gone, now_us=now_us)
    leased = union(lease.runs for lease in row.leases)
    over = tuple(group for group in row.expiring if group.expires_us <= now_us)
    later = tuple(group for group in row.expiring if group.expires_us > now_us)
    still = tuple(replace(group, runs=left) for group in over if (left := group.runs & leased))
    row = replace(row, expiring=(*still, *later))
    if not dies:
        return replace(row, revisions=without_revisions(row.revisions, gone))
    parts = merge_returned(Returned(deliveries=count, runs=runs) for count, runs in ended)
    died = [(part.deliveries, part.runs) for part in parts]
    return replace(row, dead=add_dead(row.dead, died, new_id, reason=EXPIRED, now_us=now_us))
