"""`Quiet` decides with two cheap reads whether a get may find something after an empty one (I9)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cassieq_spark.queue.get.look import Scan
    from cassieq_spark.queue.get.scan import Scanner
    from cassieq_spark.queue.lane import Lane

QUIET_FOR_S = 30.0
"""An idle consumer goes this long without a whole look, which also moves the pointers on."""


class Quiet:
    """A reader's knowledge of a lane in which it found nothing.

    Attributes:
        since: The look that found nothing; None if the last one found something, or is running.
    """

    def __init__(self, lane: Lane, scanner: Scanner) -> None:
        self._lane = lane
        self._scanner = scanner
        self.since: Scan | None = None
        self._asked_at = -math.inf

    async def may_find(self) -> bool:
        """Whether a get may find something after one that found nothing, by two cheap reads."""
        self._scanner.forget_news()
        if self.since is None:
            return True
        now = self._lane.clock.monotonic()
        if now - self.since.looked_at > QUIET_FOR_S or await self._scanner.has_news(self.since):
            return True
        self._asked_at = now
        return False

    def is_recent(self, within_s: float) -> bool:
        """Whether the last get found nothing, and this lane was asked within ``within_s``."""
        if self.since is None:
            return False
        asked_at = max(self.since.looked_at, self._asked_at)
        return self._lane.clock.monotonic() - asked_at < within_s

    @property
    def is_drained(self) -> bool:
        """Whether the last look was recent and found that nothing at all was left in the lane."""
        scan = self.since
        if scan is None or self._lane.clock.monotonic() - scan.looked_at > QUIET_FOR_S:
            return False
        return scan.pointers.repair * self._lane.bucket_size >= scan.monoton.next_id
