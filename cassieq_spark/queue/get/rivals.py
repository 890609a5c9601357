"""`Rivals`: where others are faster: a program's next claims go elsewhere (ADR 34) [P28]."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import generator
from cassieq_spark.queue.get.gather import came_back_us, is_crowded

if TYPE_CHECKING:
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.get.gather import Gathered
    from cassieq_spark.queue.get.look import Rows
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

LOST_FOR_S: Final = 10.0
"""How long a lost race counts."""

TWICE: Final = 2
"""Whoever has lost so many races has a rival, and not only met somebody once."""

ORDER_FOR_S: Final = 4.0
"""How long a reader keeps its order of buckets. No bucket comes last for all for long (I10)."""


class Rivals:
    """The races that one reader has lost lately. Not thread-safe."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._random = generator()
        self._lost: dict[BucketNo, float] = {}
        self._times: list[float] = []
        self._salt, self._drawn_at = 0, -math.inf

    def learn(self, gathered: Gathered, tried: Rows) -> None:
        """Learn from claims on these rows: which were refused because others have claimed there."""
        now = self._lane.clock.monotonic()
        won = {one.bucket for one in gathered.claimed}
        for bucket, row in tried.items():
            found = gathered.updated.get(bucket)
            if found is not None and bucket not in won and _has_claimed(found.value, row.value):
                self._lost[bucket] = now
                self._times = [*self._times, now][-TWICE:]
                self._draw(now)

    def places(self) -> set[BucketNo]:
        """The buckets to leave to others; none where it has hardly ever lost a race."""
        since = self._lane.clock.monotonic() - LOST_FOR_S
        self._lost = {bucket: at for bucket, at in self._lost.items() if at > since}
        return set(self._lost) if sum(at > since for at in self._times) >= TWICE else set()

    def in_order(self, rows: Rows) -> Rows:
        """Order buckets for a claim: crowded ones last, what came back first, then what is fresh.

        That is by id, as long as it loses no races. Each race is lost by all but one, so then it is
        in an order of the reader's own, with the buckets last in which it has lost: whoever has
        taken another bucket wins there. Each lost race draws a new order.
        """
        now_us = self._lane.clock.now_us()
        lost = self.places()
        if lost and self._lane.clock.monotonic() - self._drawn_at > ORDER_FOR_S:
            self._draw(self._lane.clock.monotonic())

        def key(item: tuple[BucketNo, Stored[Bucket]]) -> tuple[bool, float, bool, int]:
            bucket, row = item
            turn = hash((self._salt, bucket)) if lost else 0
            return is_crowded(row), came_back_us(row, now_us), bucket in lost, turn

        return dict(sorted(rows.items(), key=key))

    def _draw(self, now: float) -> None:
        self._salt, self._drawn_at = self._random.getrandbits(32), now


def _has_claimed(now: Bucket, before: Bucket) -> bool:
    """Whether somebody has claimed in a bucket: an ack or a release has no such trace."""
    known = {lease.lease_id for lease in before.leases}
    return now.fresh != before.fresh or any(one.lease_id not in known for one in now.leases)
