"""Choose the order in which a claim tries the buckets that a scan saw (docs/design/choice.md).

The module is pure, and only orders buckets. A call that has found too little goes on with the next
bucket, another client's too (I10). The CAS decides what a call gets (I2).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.ids import BucketNo, Runs, began_us, union
from cassieq_spark.model.lease import past, visible

LATELY_US: Final = 10_000_000
"""The time for which a lost race counts, and for which a bucket is another client's after that
client's last claim. It only has to be longer than a client's way from one claim to the next, where
claims are so frequent that they meet: clients that claim more rarely seldom lose a race."""


class Kind(IntEnum):
    """The kinds of buckets for a client that chooses; lower ones are tried first."""

    RETURNED = 0
    MINE = 1
    FREE = 2
    CROWDED = 3
    OTHERS = 4


class Seen(NamedTuple):
    """A bucket's row as a scan has read it.

    Attributes:
        changed_by: The client whose CAS was the last one; None: it is not known.
        is_crowded: Whether a claimer prefers another bucket for the size of this row [R6]. This
            costs an encoding, and only the order needs it.
    """

    row: Bucket
    changed_by: UUID | None
    is_crowded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chooser:
    """A client's knowledge of a lane, by which it chooses.

    Attributes:
        has_met: Whether the client lately lost a claim or a seal to another's claim. As long as it
            has not, it reads a lane by id, even if others ack or cancel there.
        is_by_id: Whether this call, one in several, takes fresh messages by id, from others'
            buckets too: so each visible message is tried within a time (I10).
        mine: The buckets of its last claims, except those in which it has lost a race since.
        draw: A number drawn for this call: clients that meet go on in different orders.
    """

    client: UUID
    has_met: bool = False
    is_by_id: bool = False
    mine: Collection[BucketNo] = ()
    draw: int = 0

    @property
    def keeps_apart(self) -> bool:
        """Whether it leaves others' buckets to them, as long as there are more."""
        return self.has_met and not self.is_by_id

    def kind(self, bucket: BucketNo, seen: Seen, now_us: int) -> Kind:
        """Return the kind that this bucket is for the client."""
        if self.is_others(bucket, seen, now_us):
            return Kind.OTHERS
        if seen.is_crowded:
            return Kind.CROWDED
        if came_back_us(seen.row, now_us) < math.inf:
            return Kind.RETURNED
        return Kind.MINE if self.has_met and bucket in self.mine else Kind.FREE

    def order(self, bucket: BucketNo, seen: Seen, now_us: int) -> tuple[int, float, int]:
        """Return a key to sort the buckets by.

        Buckets with returned messages go by time. Where clients have met, they go by the second, or
        all clients would begin in the same bucket.
        """
        if self.is_by_id and has_fresh(seen.row, now_us):
            return -1, 0.0, bucket
        back_us = came_back_us(seen.row, now_us)
        if self.has_met and back_us < math.inf:
            back_us //= 1_000_000
        return self.kind(bucket, seen, now_us), back_us, self.turn(bucket)

    def turn(self, bucket: BucketNo) -> int:
        """Return the place of a bucket among those of its kind."""
        return hash((self.draw, bucket)) if self.keeps_apart else bucket

    def is_others(self, bucket: BucketNo, seen: Seen, now_us: int) -> bool:
        """Whether another client works in a bucket: it has just changed the row, and claimed there.

        A client that only extends its leases does not count: it claims none of the other messages.
        """
        return (
            self.keeps_apart
            and bucket not in self.mine
            and seen.changed_by != self.client
            and now_us < others_until_us(seen.row, now_us)
        )


def others_until_us(row: Bucket, now_us: int) -> int:
    """Return until when a bucket belongs to its last claimer, if the row stays; 0: to no client."""
    lately_us = row.changed_us
    if row.leases:
        # Leases of older releases have no time.
        began = [began_us(lease.lease_id) for lease in row.leases]
        lately_us = min(lately_us, max(lately_us if at is None else at for at in began))
    elif not row.manifest - _unclaimed(row, now_us):
        return 0  # claimed messages would be acked by now
    return lately_us + LATELY_US


def has_fresh(row: Bucket, now_us: int) -> bool:
    """Whether the bucket has a message that was never delivered."""
    return bool(row.fresh - past(row, now_us))


def came_back_us(row: Bucket, now_us: int) -> float:
    """Return when the bucket's first message came back: 0 if released, infinity if none has."""
    due_us = row.earliest_return_us()
    return due_us if due_us is not None and due_us <= now_us else math.inf


def is_lost(now: Bucket, before: Bucket) -> bool:
    """Whether a refused claim was lost to another claim: visible messages are leased or acked now.

    An ack alone leaves no such trace, nor does a cancel, a purge, or the removal of expired
    messages.
    """
    now_us = now.changed_us
    there = union(part.runs for part in visible(before, now_us))
    return bool(there - _unclaimed(now, now_us))


def _unclaimed(row: Bucket, now_us: int) -> Runs:
    """Return the messages that are in the row, or have left it, without a claim."""
    return union(
        [
            *(part.runs for part in visible(row, now_us)),
            *(part.runs for part in row.delayed),
            *(part.runs for part in row.dead),
            row.purged,
            row.cancelled,
        ]
    )
