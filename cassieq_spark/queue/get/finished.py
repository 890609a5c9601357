"""`Finished` is the set of buckets that one reader knows to be finished, so that it skips them.

A program that takes messages one by one leaves a finished bucket for each, and a hint for it, which
no client deletes. The time pointer passes those hints two minutes later. Until then each look would
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
"""The number of buckets behind the first unfinished one that are remembered, as long as R has
passed them."""

MANY_HINTS: Final = 64
"""A look that has read more hints in vain than this reads some rows, to be rid of them."""

ROWS_TO_LEARN: Final = 128
"""The maximum number of rows that such a look reads at once."""

LEARN_EVERY_S: Final = 0.5
STUCK_FOR_S: Final = 5.0
"""The time between such looks: the latter if the first bucket was still unfinished, as it may be
leased for long."""


class Finished:
    """The buckets that are never delivered from again (`FINISHED`). That never changes."""

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
        """Mark a bucket as finished."""
        self._buckets.add(bucket)

    def end(self, low: BucketNo) -> BucketNo:
        """Return the first bucket that is not known to be finished; hints below it do not matter.

        Args:
            low: L, as of any time: buckets below it were dropped, which comes after being finished.
                In a lane that has ended, L says nothing of its buckets.
        """
        if low < DELETED:
            self._end = max(self._end, low)
        while self._end in self:
            self._end = BucketNo(self._end + 1)
        return self._end

    def forget(self, reader: BucketNo, hinted: Set[BucketNo]) -> None:
        """Forget buckets that no look asks for: those behind the reader pointer, without a hint.

        Buckets near the first unfinished one are kept: `end` goes on over them once that one is
        finished.
        """
        near = range(self._end, self._end + KEPT_BUCKETS)
        self._buckets = {
            bucket
            for bucket in self._buckets
            if bucket >= self._end and (bucket >= reader or bucket in hinted or bucket in near)
        }

    def to_learn(self, reader: BucketNo, hinted: Collection[BucketNo]) -> list[BucketNo]:
        """Return buckets whose rows may spare later looks the hints that this one has read in vain.

        These are buckets behind the reader pointer that were finished without this reader. It asks
        for none if there are too many to get past them: L will pass them.
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
