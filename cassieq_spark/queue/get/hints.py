"""The hints of messages that come back by time, and the finished buckets whose hints are in vain.

`TimePointer` reads hints, and moves the time pointer over minutes whose hints do not matter any
more. `Finished` is the set of buckets that one reader knows to be finished, so that it skips them:
a program that takes messages one by one leaves a finished bucket for each, and a hint for it, which
no client deletes. The time pointer passes those hints two minutes later. Until then each look would
read them all. Holds I9, I10. See docs/design/returns-and-hints.md.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Set
from dataclasses import replace
from typing import Final

from cassieq_spark.errors import StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import FINISHED, Bucket
from cassieq_spark.model.ids import FIRST_BUCKET, BucketNo
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.pointer import (
    DELETED,
    MINUTE_US,
    REACH_MINUTES,
    Pointer,
    Pointers,
    first_minute,
    is_passable,
    minute_of,
)
from cassieq_spark.queue.lane import Lane

Hints = list[tuple[int, BucketNo]]

ADVANCE_S: Final = 2.0
"""The time that a pointer's write may take: it saves reads, and nothing depends on it."""

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

_logger = get_logger("queue")


class TimePointer:
    """Follows a lane's hints for one consumer."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._carried: set[tuple[int, BucketNo]] = set()

    def begin_hints(
        self, pointers: Pointers, now_us: int, from_bucket: BucketNo = FIRST_BUCKET
    ) -> Callable[[], Awaitable[Hints]]:
        """Ask for the hints of messages that may have come back by now, without waiting.

        It is one read per hour. Call the returned function once to get (minute, bucket) pairs.

        Args:
            from_bucket: Hints of buckets below it may be left out.
        """
        now = minute_of(now_us)
        return self._lane.hints.begin_read(self._first(pointers, now), now, from_bucket)

    async def advance(
        self,
        pointers: Pointers,
        hints: Hints,
        is_due: Callable[[BucketNo, int], bool],
        *,
        now_us: int,
    ) -> Pointers:
        """Move the pointer over minutes whose hints do not matter any more.

        Args:
            is_due: Whether a bucket has messages that come back in this minute or before.

        Returns:
            The pointers, moved on.
        """
        passed = self._first(pointers, minute_of(now_us))
        blocked = min(
            (minute for minute, bucket in hints if is_due(bucket, minute)),
            default=minute_of(now_us),
        )
        while passed < blocked and is_passable(passed, now_us=now_us):
            passed += 1
        if passed <= max(pointers.time, minute_of(self._lane.begins_us)):
            return pointers
        is_stored = await begin_advance(self._lane, Pointer.TIME, passed)()
        return replace(pointers, time=passed) if is_stored else pointers

    async def carry_over(
        self, pointers: Pointers, hints: Hints, finished: Finished, *, now_us: int
    ) -> None:
        """Copy hints from below a pointer that is ahead of now to beyond it, once each.

        The writers of those hints may not have seen how far the pointer is. When now has reached
        it, no client looks at them any more [T7].
        """
        lane, now, passed = self._lane, minute_of(now_us), pointers.time
        if passed <= now:
            self._carried.clear()
            return
        last = min(passed - 1, now + REACH_MINUTES)
        later = await lane.hints.read(now + 1, last)
        fresh = {
            (passed, bucket)
            for _, bucket in [*hints, *later]
            if bucket >= pointers.repair and bucket not in finished
        } - self._carried
        behind_us = (passed + 1) * MINUTE_US
        await lane.hints.write([(bucket, behind_us) for _, bucket in fresh], now_us=now_us)
        self._carried |= fresh

    def _first(self, pointers: Pointers, now: int) -> int:
        created = minute_of(self._lane.begins_us)
        return first_minute(pointers.time, created=created, now=now)


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


def begin_advance(lane: Lane, pointer: Pointer, value: int) -> Callable[[], Awaitable[bool]]:
    """Begin to move a pointer. Call the returned function once to wait; it tells if it was moved.

    Neither fails: the next look moves the pointer if this one cannot.
    """
    session = lane.store.session
    with session.within(ADVANCE_S):
        moved = lane.pointers.begin_advance(pointer, value)

    async def wait() -> bool:
        try:
            await moved()
        except StoreError as error:
            event(_logger, "pointer_not_advanced", **lane.as_fields(), error=str(error))
            return False
        return True

    return wait


def still_due(row: Stored[Bucket] | None, minute: int) -> bool:
    """Whether a bucket has messages that come back in this minute or before.

    A bucket without a sealed row has none. A hint whose CAS never came is passed, and repair frees
    the messages of a claimer that died just then [P17]. It does the same for an unreadable row once
    that is restored: otherwise all other hints would be read again with its own [T21].
    """
    if row is None:
        return False
    due_us = row.value.earliest_return_us()
    return due_us is not None and minute_of(due_us) <= minute
