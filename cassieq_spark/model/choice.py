"""Choose the order in which a program's claim tries the buckets of a look (docs/design/choice.md).

It is pure, and only orders: a call that has found too little goes on with the next bucket, to those
of others too (I10), and what it gets is decided by the CAS (I2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from cassieq_spark.model.ids import began_us, union
from cassieq_spark.model.lease import visible
from cassieq_spark.model.taken import past

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo, Runs

RECENT_US: Final = 1_000_000
"""A bucket is another's for so long after that one has claimed there. How long makes no difference
as long as it is more than a claim takes: 0.05 and 5 s were simulated."""


class Kind(IntEnum):
    """What a bucket is to a client that chooses; a lower one is tried first."""

    RETURNED = 0
    MINE = 1
    FREE = 2
    CROWDED = 3
    OTHERS = 4


class Seen(NamedTuple):
    """A bucket's row as a look has seen it.

    Attributes:
        changed_by: The client whose CAS was the last one; None: it is not known.
        is_crowded: Whether a claimer prefers another bucket for the size of this row [R6]. To know
            costs an encoding, and only the order asks for it.
    """

    row: Bucket
    changed_by: UUID | None
    is_crowded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chooser:
    """What one client knows of a lane when it chooses.

    Attributes:
        has_met: Whether it has lost a claim or a seal to another's claim lately. As long as it has
            not, a lane is read by id, whoever acks or cancels there.
        is_by_id: Whether this is the call, one in so many, that takes fresh messages by id,
            whoever holds the bucket: so each visible message is tried within a time (I10).
        mine: The buckets of its last claims, but for those in which it has lost a race since.
        draw: A number drawn for this call: clients that meet go on in orders of their own.
    """

    client: UUID
    has_met: bool = False
    is_by_id: bool = False
    mine: Collection[BucketNo] = ()
    draw: int = 0

    def kind(self, bucket: BucketNo, seen: Seen, now_us: int) -> Kind:
        """What this bucket is to the client."""
        if self.is_others(bucket, seen, now_us):
            return Kind.OTHERS
        if seen.is_crowded:
            return Kind.CROWDED
        if came_back_us(seen.row, now_us) < math.inf:
            return Kind.RETURNED
        return Kind.MINE if self.has_met and bucket in self.mine else Kind.FREE

    def order(self, bucket: BucketNo, seen: Seen, now_us: int) -> tuple[int, float, int]:
        """A key to sort the buckets by.

        What came back goes by time, to the second where clients have met, or all of them would
        begin in the same bucket.
        """
        if self.is_by_id and has_fresh(seen.row, now_us):
            return -1, 0.0, bucket
        back_us = came_back_us(seen.row, now_us)
        if self.has_met and back_us < math.inf:
            back_us //= RECENT_US
        return self.kind(bucket, seen, now_us), back_us, self.turn(bucket)

    def turn(self, bucket: BucketNo) -> int:
        """The place of a bucket among those of its kind."""
        return hash((self.draw, bucket)) if self.has_met and not self.is_by_id else bucket

    def is_others(self, bucket: BucketNo, seen: Seen, now_us: int) -> bool:
        """Whether another is at work in a bucket: it has just changed the row, and claimed there.

        One that only extends its leases is not: it claims nothing of what else is there.
        """
        if not self.has_met or self.is_by_id or bucket in self.mine:
            return False
        if seen.changed_by == self.client or now_us - seen.row.changed_us >= RECENT_US:
            return False
        leases = seen.row.leases
        if not leases:  # what was claimed is acked by now, if there was a claim
            return bool(seen.row.manifest - _unclaimed(seen.row, now_us))
        # Leases of older releases have no time.
        began = (began_us(lease.lease_id) for lease in leases)
        return any(at is None or now_us - at < RECENT_US for at in began)


def has_fresh(row: Bucket, now_us: int) -> bool:
    """Whether it has a message that was never delivered."""
    return bool(row.fresh - past(row, now_us))


def came_back_us(row: Bucket, now_us: int) -> float:
    """When its first message came back, 0 if it was released; infinity: none has."""
    due_us = row.earliest_return_us()
    return due_us if due_us is not None and due_us <= now_us else math.inf


def is_lost(now: Bucket, before: Bucket) -> bool:
    """Whether a refused claim was lost to another's claim: what could be had is leased or acked.

    An ack alone leaves no such trace, nor does a cancel, a purge, or the removal of what expired.
    """
    now_us = now.changed_us
    there = union(part.runs for part in visible(before, now_us))
    return bool(there - _unclaimed(now, now_us))


def _unclaimed(row: Bucket, now_us: int) -> Runs:
    """What is in the row, or has left it, without a claim."""
    return union(
        [
            *(part.runs for part in visible(row, now_us)),
            *(part.runs for part in row.delayed),
            *(part.runs for part in row.dead),
            row.purged,
            row.cancelled,
        ]
    )
