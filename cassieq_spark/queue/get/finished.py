"""`Finished`: the buckets that one reader knows to be finished, so that it asks no more for them.

A program that takes messages one by one leaves a finished bucket for each, and a hint for it, which
nobody deletes. The time pointer passes those hints two minutes later: until then each look would
read them all (I9).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.bucket import FINISHED
from cassieq_spark.model.ids import FIRST_BUCKET, BucketNo
from cassieq_spark.model.pointer import DELETED

if TYPE_CHECKING:
    from collections.abc import Collection, Set

    from cassieq_spark.queue.lane import Lane

KEPT_BUCKETS: Final = 8_192
"""How many buckets behind the first unfinished one are remembered, as long as R has passed them."""

MANY_HINTS: Final = 64
"""A look that has read more hints in vain than these reads some rows, to be rid of them."""

ROWS_TO_LEARN: Final = 128
"""So many rows at once."""

LEARN_EVERY_S: Final = 0.5
STUCK_FOR_S: Final = 5.0
"""How far apart such looks are; and if the first bucket was unfinished: it may be leased for long.
"""


class Finished:
    """What is never delivered from again (`FINISHED`): that never changes. Not thread-safe."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._buckets: set[BucketNo] = set()
        self._end = FIRST_BUCKET
        self._learned_from: BucketNo | None = None
        self._learned_at = -math.inf

    def __contains__(self, bucket: BucketNo) -> bool:
        if bucket < self._end or bucket in self._buckets:
            return True
        row = self._lane.buckets.as_left(bucket)  # the ack that finishes a bucket is often our own
        return row is not None and row.value.status in FINISHED

    def add(self, bucket: BucketNo) -> None:
        """This one is."""
        self._buckets.add(bucket)

    def end(self, low: BucketNo) -> BucketNo:
        """The first bucket that is not known to be finished: no hint of one below it matters.

        Args:
            low: L, as of any time: what is below it was dropped, which comes after being finished.
                That of a lane that has ended says nothing of its buckets.
        """
        if low < DELETED:
            self._end = max(self._end, low)
        while self._end in self:
            self._end = BucketNo(self._end + 1)
        return self._end

    def forget(self, reader: BucketNo, hinted: Set[BucketNo]) -> None:
        """Forget what no look asks for: behind the reader pointer, without a hint.

        Those near the first unfinished one are kept: `end` goes on over them once that is finished.
        """
        near = range(self._end, self._end + KEPT_BUCKETS)
        self._buckets = {
            bucket
            for bucket in self._buckets
            if bucket >= self._end and (bucket >= reader or bucket in hinted or bucket in near)
        }

    def to_learn(self, reader: BucketNo, hinted: Collection[BucketNo]) -> list[BucketNo]:
        """Rows whose read may spare later looks the hints that this one has read in vain.

        Those of buckets behind the reader pointer that were finished without this reader. It asks
        for none if they are too many to get past them: L will pass them.
        """
        first, now = self._end, self._lane.clock.monotonic()
        rests_for_s = STUCK_FOR_S if first == self._learned_from else LEARN_EVERY_S
        if now < self._learned_at + rests_for_s:
            return []
        in_vain = [bucket for bucket in hinted if bucket in self]
        if len(in_vain) <= MANY_HINTS or min(in_vain) > first + KEPT_BUCKETS:
            return []
        self._learned_from, self._learned_at = first, now
        last = min(reader, first + ROWS_TO_LEARN)
        return [bucket for bucket in map(BucketNo, range(first, last)) if bucket not in self]
