"""`Leftover` is the rest of the buckets of a program's last get, for the next get to go on with.

Without it, a program that works off a backlog by a hundred messages at a time would look at the
whole lane each time, for messages that it has just seen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.choice import came_back_us
from cassieq_spark.model.lease import claimable
from cassieq_spark.queue.get.choosing import is_crowded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.queue.get.look import Rows
    from cassieq_spark.queue.lane import Lane

LEFTOVER_FOR_S: Final = 1.0
"""Gets go on this long without a look. Messages that come back elsewhere wait at most this long
(I10)."""


class Leftover:
    """The buckets from which one reader has claimed since its last look.

    Their rows are used only as this client's own last CAS has left them, and only if others do not
    change them, too. A claim is a CAS from such a row, as from one that was read (G2).
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._buckets: list[BucketNo] = []
        self._good_until = -math.inf

    @property
    def buckets(self) -> Collection[BucketNo]:
        """The buckets, without those in which a race was lost since."""
        return self._buckets

    def lose(self, bucket: BucketNo) -> None:
        """Leave a bucket to others: two clients in one bucket would meet there again and again."""
        self._buckets = [at for at in self._buckets if at != bucket]

    def begin(self, claimed: Iterable[Claimed], seen: Rows) -> None:
        """Begin with the rows that a look has seen, after some of their messages were claimed.

        If messages came back in other rows, the next get looks again: it takes those before fresh
        ones (I10).
        """
        self._buckets = sorted({one.bucket for one in claimed})
        now_us = self._lane.clock.now_us()
        if any(
            came_back_us(row.value, now_us) < math.inf
            for bucket, row in seen.items()
            if bucket not in self._buckets
        ):
            self._good_until = -math.inf
        else:
            self._good_until = self._lane.clock.monotonic() + LEFTOVER_FOR_S

    def rows(self, at_most: int) -> Rows:
        """Return the rows, if they have as many messages for a claim now; nothing otherwise."""
        lane = self._lane
        if not self._buckets or lane.clock.monotonic() >= self._good_until:
            return {}
        left = {bucket: lane.buckets.as_left(bucket) for bucket in self._buckets}
        rows = {
            bucket: row for bucket, row in left.items() if row is not None and not is_crowded(row)
        }
        now_us, limit = lane.clock.now_us(), lane.max_deliveries
        there = sum(
            claimable(row.value, now_us=now_us, below=None, max_deliveries=limit)
            for row in rows.values()
        )
        return rows if there >= at_most else {}
