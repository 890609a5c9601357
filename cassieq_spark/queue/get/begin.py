"""`Beginning` makes the first reads of a look, as few as the previous look allows. Holds I9."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.ids import bucket_of
from cassieq_spark.queue.get.look import FIRST_WINDOW, Begun, Scan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.model.pointer import Pointers
    from cassieq_spark.queue.get.finished import Finished
    from cassieq_spark.queue.get.time_pointer import Hints, TimePointer
    from cassieq_spark.queue.lane import Lane

NEWS_FOR_S: Final = 0.1
"""A look may begin this long with the reads of `Beginning.has_news`, which the same call has
made."""

POINTERS_FOR_S: Final = 0.5
"""A program's looks go on this long with the pointers that one of them has read (ADR 37)."""


class Beginning:
    """Begins the looks of one consumer.

    A look may begin with older pointers, as a slow look does: they only save reads, and L is read
    again where it decides. If much has happened since, it reads them anew (I9).

    Args:
        goes_on: Whether looks that follow each other share their pointers.
    """

    def __init__(self, lane: Lane, time: TimePointer, finished: Finished, *, goes_on: bool) -> None:
        self._lane = lane
        self._time = time
        self._finished = finished
        self._goes_on = goes_on
        self._last: Scan | None = None
        self._news: Begun | None = None
        self._news_until = -math.inf

    async def begin(self) -> Begun:
        """Read what was not just read: two reads, or three in two steps.

        Raises:
            QueueDeleted: The lane is dead.
        """
        begun = self._from_news() or await self._from_last() or await self._anew()
        self._last = begun.scan if self._goes_on else None
        return begun

    async def has_news(self, scan: Scan) -> bool:
        """Whether there may be something new since a look that left nothing open. Two reads.

        A new message has an id that was not handed out then, and messages that come back have a
        hint; hinted messages of a drained bucket never come back. A look that follows at once
        begins with these reads, but not two such looks in a row.
        """
        begun = await self._after(scan)
        if begun is None:
            return True
        has_some = begun.scan.monoton.next_id != scan.monoton.next_id or any(
            bucket >= scan.pointers.repair and bucket not in self._finished
            for _, bucket in begun.hints
        )
        if not self._is_near(begun.scan):
            self._last = None
        elif has_some and not scan.is_begun:
            begun.scan.is_begun = True
            self._news = begun
            self._news_until = self._lane.clock.monotonic() + NEWS_FOR_S
        return has_some

    def forget_news(self) -> None:
        """Begin the next look anew, unless `has_news` is asked before."""
        self._news = None

    def _from_news(self) -> Begun | None:
        begun, self._news = self._news, None
        return begun if self._lane.clock.monotonic() < self._news_until else None

    async def _from_last(self) -> Begun | None:
        """Begin with the pointers of the last look. Ids and hints are read in any case (I10)."""
        last = self._last
        if last is None or self._lane.clock.monotonic() >= last.looked_at + POINTERS_FOR_S:
            return None
        begun = await self._after(last) if self._is_near(last) else None
        return begun if begun and self._is_near(begun.scan) else None

    async def _after(self, scan: Scan) -> Begun | None:
        """Read ids and hints, side by side; None if the lane was closed or deleted since."""
        lane = self._lane
        now_us = lane.clock.now_us()
        hints = self._begin_hints(scan.pointers, now_us)
        monoton = await lane.monotons.find()
        if monoton is None or monoton.value.is_closed != scan.monoton.is_closed:
            return None
        first, end = (
            bucket_of(one.next_id, lane.bucket_size) for one in (scan.monoton, monoton.value)
        )
        return Begun(
            scan=Scan(pointers=scan.pointers, monoton=monoton.value, looked_at=scan.looked_at),
            hints=await hints(),
            now_us=now_us,
            fresh=range(first, end),
        )

    def _begin_hints(self, pointers: Pointers, now_us: int) -> Callable[[], Awaitable[Hints]]:
        return self._time.begin_hints(pointers, now_us, self._finished.end(pointers.repair))

    def _is_near(self, scan: Scan) -> bool:
        """Whether one window covers all buckets ahead of R.

        A closed lane's pointers tell its end.
        """
        end = bucket_of(scan.monoton.next_id, self._lane.bucket_size)
        return end - scan.pointers.reader <= FIRST_WINDOW and not scan.monoton.is_closed

    async def _anew(self) -> Begun:
        lane = self._lane
        looked_at = lane.clock.monotonic()
        pointers = await lane.read_pointers()
        # Both reads come after the pointers. They say nothing about each other, so both run at
        # once.
        now_us = lane.clock.now_us()
        hints = self._begin_hints(pointers, now_us)
        scan = Scan(pointers=pointers, monoton=await lane.read_monoton(), looked_at=looked_at)
        return Begun(scan=scan, hints=await hints(), now_us=now_us)
