"""`Choosing` is one reader's memory for its choice of buckets (docs/design/choice.md) [P28]."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import shared
from cassieq_spark.model.choice import Chooser, Seen, has_fresh, is_lost
from cassieq_spark.model.lease import claimable
from cassieq_spark.model.row_limits import PREFERRED_BYTES, PREFERRED_LEASES
from cassieq_spark.store.tables.buckets import size_of

if TYPE_CHECKING:
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.get.gather import Gathered
    from cassieq_spark.queue.get.leftover import Leftover
    from cassieq_spark.queue.get.look import Rows
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

MET_FOR_S: Final = 10.0
"""The time for which a lost race counts."""

BY_ID_EVERY: Final = 32
"""One get in this number goes by id. If clients have met, it costs one refused claim each time."""

BY_ID_AFTER_S: Final = 30.0
"""A get goes by id this long after the last one in any case: slow consumers do not contend."""


def first_count() -> int:
    """Draw the first count of gets: a reader that gets once and ends may go by id, too."""
    return shared.randrange(BY_ID_EVERY)


class Choosing:
    """The races that one reader has lost, and its gets by id."""

    def __init__(self, lane: Lane, leftover: Leftover) -> None:
        self._lane = lane
        self._leftover = leftover
        self._lost_at = -math.inf
        self._count = first_count()
        self._by_id_at = lane.clock.monotonic()
        self._is_by_id = False
        self._draw = 0

    def begin(self) -> None:
        """Begin a get: it may be one by id, and it has an order of its own."""
        now = self._lane.clock.monotonic()
        self._count += 1
        is_due = self._count >= BY_ID_EVERY or now - self._by_id_at >= BY_ID_AFTER_S
        self._is_by_id = is_due and not self._is_by_id  # otherwise a slow one would do nothing else
        if self._is_by_id:
            self._count, self._by_id_at = 0, now
        self._draw = shared.getrandbits(32)

    @property
    def has_met(self) -> bool:
        """Whether a race was lost lately."""
        return self._lane.clock.monotonic() - self._lost_at < MET_FOR_S

    @property
    def keeps_apart(self) -> bool:
        """Whether the current get leaves others' buckets to them, as long as there are more."""
        return self.has_met and not self._is_by_id

    @property
    def is_by_id(self) -> bool:
        """Whether the current get takes fresh messages by id."""
        return self._is_by_id

    @property
    def chooser(self) -> Chooser:
        """The chooser for the current knowledge."""
        return Chooser(
            client=self._lane.store.session.client_id,
            has_met=self.has_met,
            is_by_id=self._is_by_id,
            mine=self._leftover.buckets,
            draw=self._draw,
        )

    def learn(self, gathered: Gathered, tried: Rows) -> None:
        """Learn which claims on these rows were refused because others have claimed there."""
        won = {one.bucket for one in gathered.claimed}
        for bucket, row in tried.items():
            found = gathered.updated.get(bucket)
            if found is not None and bucket not in won and is_lost(found.value, row.value):
                self.note_lost(bucket)

    def note_lost(self, bucket: BucketNo) -> None:
        """Note that another client has claimed here, in a race with this reader."""
        self._lost_at = self._lane.clock.monotonic()
        self._leftover.lose(bucket)

    def in_order(self, rows: Rows) -> Rows:
        """Return the rows in the order in which a claim tries them."""
        now_us, chooser = self._lane.clock.now_us(), self.chooser

        def key(item: tuple[BucketNo, Stored[Bucket]]) -> tuple[int, float, int]:
            bucket, row = item
            return chooser.order(bucket, seen(row, is_crowded=is_crowded(row)), now_us)

        return dict(sorted(rows.items(), key=key))

    def oldest_fresh(self, rows: Rows) -> BucketNo | None:
        """Return the first sealed bucket with fresh messages; open ones below it come before it."""
        now_us = self._lane.clock.now_us()
        return min((at for at, row in rows.items() if has_fresh(row.value, now_us)), default=None)

    def split(self, rows: Rows) -> tuple[Rows, Rows]:
        """Split rows into those to claim from at once, and those that come after open buckets.

        A row with nothing to claim is in the first part.
        """
        now_us, limit, chooser = self._lane.clock.now_us(), self._lane.max_deliveries, self.chooser
        theirs = {
            bucket: row
            for bucket, row in rows.items()
            if chooser.is_others(bucket, seen(row), now_us)
            and claimable(row.value, now_us=now_us, below=None, max_deliveries=limit)
        }
        return {bucket: row for bucket, row in rows.items() if bucket not in theirs}, theirs


def seen(row: Stored[Bucket], *, is_crowded: bool = False) -> Seen:
    """Return a row in the form that a choice needs."""
    return Seen(row.value, row.version.last_client, is_crowded)


def is_crowded(row: Stored[Bucket]) -> bool:
    """Whether a claimer prefers another bucket; it never refuses one for its size [R6] [T2]."""
    return len(row.value.leases) >= PREFERRED_LEASES or size_of(row.value) > PREFERRED_BYTES
