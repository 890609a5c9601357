"""`Rivals`: where others are faster: a program's next claims go elsewhere (ADR 34, 35) [P28]."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import shared
from cassieq_spark.model.ids import union
from cassieq_spark.model.lease import claimable, visible
from cassieq_spark.queue.get.gather import came_back_us, is_crowded

if TYPE_CHECKING:
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.get.gather import Gathered
    from cassieq_spark.queue.get.look import IsTheirs, Rows
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

LOST_FOR_S: Final = 10.0
"""How long a lost race counts."""

AT_WORK_FOR_S: Final = 1.0
"""How long ago another client has changed a row that is still at work in its bucket."""

ORDER_FOR_S: Final = 4.0
"""How long a reader keeps its order of buckets. No bucket comes last for all for long (I10)."""

TURN_EVERY_S: Final = 60.0
TURN_FOR_S: Final = 2.0
"""For so long, once in so long, a bucket is claimed from although another client is at work there:
one that extends its leases claims nothing of what else is in it (I10)."""

TURNS: Final = 16
"""So many neighbours have their turns one after the other."""


class Rivals:
    """The races that one reader has lost lately. Not thread-safe.

    As long as it loses none, it takes buckets by id: a lane with one consumer is read in order.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._lost: dict[BucketNo, float] = {}
        self._salt, self._drawn_at = 0, -math.inf
        self._turns_began_at = lane.clock.monotonic() - shared.uniform(0.0, TURN_EVERY_S / 3)

    @property
    def are_there(self) -> bool:
        """Whether a race was lost lately."""
        now = self._lane.clock.monotonic()
        self._lost = {at: lost for at, lost in self._lost.items() if now - lost < LOST_FOR_S}
        return bool(self._lost)

    @property
    def is_theirs(self) -> IsTheirs | None:
        """How to tell that others are at work in a bucket; None if there is nobody, by all signs.

        They have won a race there, or have changed its row within the last second, and it is not
        its turn.
        """
        return self._is_theirs if self.are_there else None

    def learn(self, gathered: Gathered, tried: Rows) -> None:
        """Learn from claims on these rows: which were refused because others have claimed there."""
        won = {one.bucket for one in gathered.claimed}
        for bucket, row in tried.items():
            found = gathered.updated.get(bucket)
            if found is not None and bucket not in won and _has_claimed(found.value, row.value):
                self.note_lost(bucket)

    def note_lost(self, bucket: BucketNo) -> None:
        """Another has claimed here, in a race with this reader. That draws a new order."""
        self._lost[bucket] = self._lane.clock.monotonic()
        self._draw()

    def turn(self, bucket: BucketNo) -> int:
        """The place of a bucket in this reader's own order; by id, if there are no rivals.

        Each race is lost by all but one. Whoever goes on by id meets the others in the next bucket.
        """
        if not self.are_there:
            return bucket
        if self._lane.clock.monotonic() - self._drawn_at > ORDER_FOR_S:
            self._draw()
        return hash((self._salt, bucket))

    def split(self, rows: Rows) -> tuple[Rows, Rows]:
        """Split rows into those to claim from, and those that are left to others if possible.

        What came back is in the first part, whoever is at work there (I10), and so is a row with
        nothing to claim.
        """
        is_theirs = self.is_theirs
        if is_theirs is None:
            return rows, {}
        now_us, limit = self._lane.clock.now_us(), self._lane.max_deliveries
        theirs = {
            bucket: row
            for bucket, row in rows.items()
            if is_theirs(bucket, row, now_us)
            and came_back_us(row, now_us) == math.inf
            and claimable(row.value, now_us=now_us, below=None, max_deliveries=limit)
        }
        return {bucket: row for bucket, row in rows.items() if bucket not in theirs}, theirs

    def in_order(self, rows: Rows) -> Rows:
        """Order rows for a claim: what came back first, then what is fresh; crowded ones last."""
        now_us = self._lane.clock.now_us()

        def key(item: tuple[BucketNo, Stored[Bucket]]) -> tuple[bool, float, int]:
            bucket, row = item
            return is_crowded(row), came_back_us(row, now_us), self.turn(bucket)

        return dict(sorted(rows.items(), key=key))

    def _is_theirs(self, bucket: BucketNo, row: Stored[Bucket], now_us: int) -> bool:
        if bucket in self._lost:
            return True
        if row.version.last_client == self._lane.store.session.client_id:
            return False
        is_recent = now_us - row.value.changed_us < AT_WORK_FOR_S * 1e6
        return is_recent and not self._has_turn(bucket)

    def _has_turn(self, bucket: BucketNo) -> bool:
        """Each reader has moments of its own."""
        began_at = self._turns_began_at - TURN_FOR_S * (bucket % TURNS)
        lasts_s = self._lane.clock.monotonic() - began_at
        return lasts_s % TURN_EVERY_S >= TURN_EVERY_S - TURN_FOR_S

    def _draw(self) -> None:
        self._salt = shared.getrandbits(32)
        self._drawn_at = self._lane.clock.monotonic()


def _has_claimed(now: Bucket, before: Bucket) -> bool:
    """Whether what could be claimed is leased or acked now: an ack alone leaves no such trace.

    Nor does a cancel, a purge, or the removal of what has expired.
    """
    now_us = now.changed_us
    left = [
        *(part.runs for part in visible(now, now_us)),
        *(part.runs for part in now.delayed),
        *(part.runs for part in now.dead),
        now.purged,
        now.cancelled,
    ]
    return bool(union(part.runs for part in visible(before, now_us)) - union(left))
