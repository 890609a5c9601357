"""Read the hints of messages that come back by time, and move the time pointer. Holds I10.

See docs/design/returns-and-hints.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import FIRST_BUCKET, BucketNo
from cassieq_spark.model.pointer import (
    MINUTE_US,
    REACH_MINUTES,
    Pointer,
    Pointers,
    first_minute,
    is_passable,
    minute_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.queue.get.finished import Finished
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

    Hints = list[tuple[int, BucketNo]]

ADVANCE_S: Final = 2.0
"""The time that a pointer's write may take: it saves reads, and nothing depends on it."""

_logger = get_logger("queue")


class TimePointer:
    """Follows a lane's hints for one consumer."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._carried: set[tuple[int, BucketNo]] = set()

    async def hints(self, pointers: Pointers, now_us: int) -> Hints:
        """Return (minute, bucket) of messages that may have come back by now; one read per hour."""
        return await self.begin_hints(pointers, now_us)()

    def begin_hints(
        self, pointers: Pointers, now_us: int, from_bucket: BucketNo = FIRST_BUCKET
    ) -> Callable[[], Awaitable[Hints]]:
        """Ask for `hints` without waiting. Call the returned function once to get them.

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
        """If the pointer is ahead of now, copy the hints below it to beyond it, once each.

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
