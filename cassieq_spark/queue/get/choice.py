"""`Choice` is what one reader remembers of a lane to choose its next buckets.

It remembers the races it has lost, its gets by id, and the buckets of its last get. A program goes
on in those for `LEFT_FOR_S` without a look (docs/design/choice.md). Otherwise a program that works
off a backlog by a hundred messages at a time would look at the whole lane each time, for messages
that it has just seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random
from typing import Final

from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.choice import LATELY_US, Chooser, Seen, came_back_us, is_lost
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.lease import claimable
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.row_limits import PREFERRED_BYTES, PREFERRED_LEASES
from cassieq_spark.queue.get.claim import Claimed, Rows
from cassieq_spark.queue.lane import Lane
from cassieq_spark.store.tables.buckets import size_of

BY_ID_EVERY: Final = 32
"""The number of gets of which one goes by id. If clients have met, it costs one refused claim each
time."""

BY_ID_AFTER_S: Final = 30.0
"""A get goes by id this long after the last one in any case: slow consumers do not contend."""

LEFT_FOR_S: Final = 1.0
"""Gets go on this long without a look. Messages that come back elsewhere wait at most this long
(I10)."""


def first_count(rng: Random) -> int:
    """Draw the first count of gets: a reader that gets once and ends may go by id, too."""
    return rng.randrange(BY_ID_EVERY)


class Choice:
    """The memory of a reader for its choice of buckets [P28].

    Attributes:
        is_by_id: Whether the current get takes fresh messages by id.
        mine: The buckets of the last get that was not by id, except those in which a race was lost
            since. Two clients in one bucket would meet there again and again.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._lost_at = -math.inf
        self._rng = lane.store.entropy.rng
        self._count = first_count(self._rng)
        self._by_id_at = lane.clock.monotonic()
        self._draw = 0
        self._left_until = -math.inf
        self.is_by_id = False
        self.mine: list[BucketNo] = []

    def begin(self) -> None:
        """Begin a get: it may be one by id, and it has an order of its own."""
        now = self._lane.clock.monotonic()
        self._count += 1
        is_due = self._count >= BY_ID_EVERY or now - self._by_id_at >= BY_ID_AFTER_S
        self.is_by_id = is_due and not self.is_by_id  # otherwise a slow one would do nothing else
        if self.is_by_id:
            self._count, self._by_id_at = 0, now
        self._draw = self._rng.getrandbits(32)

    @property
    def has_met(self) -> bool:
        """Whether a race was lost lately."""
        return self._lane.clock.monotonic() - self._lost_at < LATELY_US / 1e6

    @property
    def chooser(self) -> Chooser:
        """The chooser for the current knowledge."""
        return Chooser(
            client=self._lane.store.session.client_id,
            has_met=self.has_met,
            is_by_id=self.is_by_id,
            mine=self.mine,
            draw=self._draw,
        )

    def learn(self, tried: Rows, won: Iterable[Claimed], now: Rows) -> None:
        """Learn which claims on these rows were refused because others have claimed there.

        Args:
            now: The rows as they are now.
        """
        ours = {one.bucket for one in won}
        for bucket, row in tried.items():
            if bucket in now and bucket not in ours and is_lost(now[bucket].value, row.value):
                self.note_lost(bucket)

    def note_lost(self, bucket: BucketNo) -> None:
        """Note that another client has claimed here, in a race with this reader."""
        self._lost_at = self._lane.clock.monotonic()
        self.mine = [at for at in self.mine if at != bucket]

    def in_order(self, rows: Rows) -> Rows:
        """Return the rows in the order in which a claim tries them."""
        now_us, chooser = self._lane.clock.now_us(), self.chooser

        def key(item: tuple[BucketNo, Stored[Bucket]]) -> tuple[int, float, int]:
            bucket, row = item
            return chooser.order(bucket, seen(row, is_crowded=is_crowded(row)), now_us)

        return dict(sorted(rows.items(), key=key))

    def split(self, rows: Rows) -> tuple[Rows, Rows]:
        """Split rows into those to claim from at once, and those that come after open buckets.

        A row with nothing to claim is in the first part.
        """
        now_us, chooser = self._lane.clock.now_us(), self.chooser
        theirs = {
            bucket: row
            for bucket, row in rows.items()
            if chooser.is_others(bucket, seen(row), now_us) and self._claimable(row)
        }
        return {bucket: row for bucket, row in rows.items() if bucket not in theirs}, theirs

    def keep(self, claimed: Iterable[Claimed], looked_at: Rows) -> None:
        """Keep the buckets of a get for the next one, after a look at these rows.

        If messages came back in other rows, the next get looks again: it takes those before fresh
        ones (I10).
        """
        self.mine = sorted({one.bucket for one in claimed})
        now_us = self._lane.clock.now_us()
        others = (row for bucket, row in looked_at.items() if bucket not in self.mine)
        have_back = any(came_back_us(row.value, now_us) < math.inf for row in others)
        now = self._lane.clock.monotonic()
        self._left_until = -math.inf if have_back else now + LEFT_FOR_S

    def left(self, at_most: int) -> Rows:
        """Return the rows of these buckets, if they have as many messages for a claim now.

        A row is used only as this client's own last CAS has left it, and only if others do not
        change it, too. A claim is a CAS from such a row, as from one that was read (G2).
        """
        if not self.mine or self._lane.clock.monotonic() >= self._left_until:
            return {}
        left = {bucket: self._lane.buckets.as_left(bucket) for bucket in self.mine}
        rows = {
            bucket: row for bucket, row in left.items() if row is not None and not is_crowded(row)
        }
        return rows if sum(map(self._claimable, rows.values())) >= at_most else {}

    def _claimable(self, row: Stored[Bucket]) -> int:
        lane = self._lane
        now_us, limit = lane.clock.now_us(), lane.max_deliveries
        return claimable(row.value, now_us=now_us, below=None, max_deliveries=limit)


def seen(row: Stored[Bucket], *, is_crowded: bool = False) -> Seen:
    """Return a row in the form that a choice needs."""
    return Seen(row.value, row.version.last_client, is_crowded)


def is_crowded(row: Stored[Bucket]) -> bool:
    """Whether a claimer prefers another bucket; it never refuses one for its size [R6] [T2]."""
    return len(row.value.leases) >= PREFERRED_LEASES or size_of(row.value) > PREFERRED_BYTES
