"""Look whether open buckets hold messages, without a long wait for any (ADR 21)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import StoreError
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.queue.apart import apart
from cassieq_spark.queue.get.claim import GRACE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from cassieq_spark.errors import CassieqError
    from cassieq_spark.model.pointer import Pointers
    from cassieq_spark.queue.lane import Lane

AGAIN: Final = 2
AGAIN_AFTER_S: Final = 0.001
"""A look peeks this often again, each time after this pause, into a bucket that was reserved just
before it and is empty. Usually its first write is on its way, and a whole look costs more."""


class Peek:
    """A question to open buckets, all at once: do they hold messages?

    Args:
        pass_over: Called with each bucket that does not answer, and the error.
    """

    def __init__(
        self,
        lane: Lane,
        buckets: Iterable[BucketNo],
        pass_over: Callable[[BucketNo, CassieqError], None],
    ) -> None:
        self._lane = lane
        self._pass_over = pass_over
        with lane.store.session.within(each_s=GRACE_S):
            self._asked = {bucket: lane.messages.begin_has_any(bucket) for bucket in buckets}

    async def answers(self, wanted: Collection[BucketNo] | None = None) -> dict[BucketNo, bool]:
        """Wait, and return which of the answering buckets hold messages. Call it once.

        Args:
            wanted: The buckets whose answers are still needed; None: all.
        """
        lane = self._lane
        said = {
            bucket: await has_any()
            for bucket, has_any in self._asked.items()
            if wanted is None or bucket in wanted
        }
        found = {bucket: has_any for bucket, has_any in said.items() if has_any is not None}
        # Side by side, so that many without an answer take no longer than one (I10).
        with lane.store.session.within(each_s=GRACE_S):
            more, failed = await apart(lane, lane.messages.has_any, said.keys() - found.keys())
        for bucket, error in failed.items():
            if not isinstance(error, StoreError):
                raise error
            self._pass_over(bucket, error)
        return found | more

    async def answers_soon(self, wanted: Collection[BucketNo]) -> dict[BucketNo, bool]:
        """Return `answers`, but ask again if none of the buckets holds messages yet."""
        found = await self.answers(wanted)
        with self._lane.store.session.within(GRACE_S):
            for _ in range(AGAIN):
                if not found or any(found.values()):
                    break
                await self._lane.clock.sleep(AGAIN_AFTER_S)
                found = await Peek(self._lane, found, self._pass_over).answers()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Reads beside the rows of fresh buckets: L, and whether these buckets hold messages."""

    fresh: range
    low: Callable[[], Awaitable[Pointers]]
    peek: Peek

    @classmethod
    def begin(
        cls,
        lane: Lane,
        fresh: range,
        away: Collection[BucketNo],
        pass_over: Callable[[BucketNo, CassieqError], None],
    ) -> Beside | None:
        """Ask for what is needed if none of the buckets has a row, which is likely."""
        buckets = [BucketNo(at) for at in fresh if at not in away]
        if not buckets:
            return None
        return cls(fresh=fresh, low=lane.begin_pointers(), peek=Peek(lane, buckets, pass_over))
