"""Decide which open buckets may be sealed now, and which are too young. Holds I10."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cassieq_spark.model.ids import BucketNo
from cassieq_spark.queue.get.peek import Peek

if TYPE_CHECKING:
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.queue.get.look import Scan
    from cassieq_spark.queue.get.scan import Scanner
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

SEALS_PER_CALL = 8
"""The maximum number of young buckets that one call seals [R10]."""

YOUNG_PER_OPEN_S = 0.005
"""A call that has found something leaves buckets alone that are younger than this times the number
of open non-empty ones: eager sealing would make every put reserve [R10]."""

FEW = 10
"""A bucket with at most this many messages gained little from being left open (ADR 29)."""


class OpenBuckets:
    """One reader's knowledge of the open buckets of its lane."""

    def __init__(self, lane: Lane, scanner: Scanner) -> None:
        self._lane = lane
        self._scanner = scanner
        self._first_seen: dict[BucketNo, float] = {}
        self._looked_at: dict[BucketNo, float] = {}
        self._eager_after = math.inf
        self._ripe_at = -math.inf
        self._last_sealed = BucketNo(-1)

    @property
    def sealed_singly(self) -> BucketNo | None:
        """The last bucket that this reader has sealed, if it held only a few messages."""
        return None if self._eager_after == math.inf else self._last_sealed

    def look_again(self) -> None:
        """Ask all of them at the next call, and not only those that were not asked lately."""
        self._looked_at.clear()

    def has_messages(self, bucket: BucketNo) -> bool:
        """Whether a message was seen in the bucket."""
        return bucket in self._first_seen

    def note_sealed(self, bucket: BucketNo, row: Stored[Bucket] | None, *, is_ours: bool) -> None:
        """Note that a bucket is not open any more, and learn whether it pays to leave buckets open.

        If it held only a few messages, messages that come later than ``linger`` after that seal
        began are taken at once, as long as this reader seals alone. A message that comes sooner
        would have shared this bucket, so it waits for others. So looks that seal are ``linger``
        apart, as always, and no producer reserves more often [R10].

        Args:
            is_ours: Whether this reader has sealed it, and got messages from it.
        """
        if self._first_seen.pop(bucket, None) is None:
            return
        is_single = is_ours and row is not None and row.value.manifest.count <= FEW
        linger = self._lane.settings.linger_s
        self._eager_after = self._ripe_at + linger if is_single else math.inf
        self._last_sealed = max(self._last_sealed, bucket)

    def _is_alone(self, scan: Scan, oldest: BucketNo) -> bool:
        """Whether no other reader has sealed a bucket between our last one and the oldest open one.

        Otherwise, readers that are eager one after the other would together seal as often as they
        look.
        """
        between = oldest - self._last_sealed - 1
        return between == sum(self._last_sealed < bucket < oldest for bucket in scan.open)

    async def ripe(
        self, scan: Scan, *, has_found: bool, only_gaps: bool = False, by_proof: bool = False
    ) -> tuple[list[BucketNo], float | None]:
        """Return open buckets that may be sealed now, and the seconds until the next one may be.

        The latter is for the first other non-empty one, and for a call that has found nothing.

        Age is by this reader's own monotonic clock since it first saw a message there [R9]. An
        empty bucket waits for the gap timeout, by the oldest proof of its reservation [R11] [P5].
        With ``by_proof``, such a proof counts for the others as well: a reader sees a bucket once.
        """
        lane = self._lane
        now = lane.clock.monotonic()
        linger = lane.settings.linger_s
        # Buckets that others have sealed are not open any more, and R passes them.
        reader = scan.pointers.reader
        self._first_seen = {at: seen for at, seen in self._first_seen.items() if at >= reader}
        self._looked_at = {
            bucket: seen for bucket, seen in self._looked_at.items() if now - seen < linger
        }
        gap_us = int(lane.settings.gap_timeout_s * 1e6)
        now_us = lane.clock.now_us()
        is_old = {bucket: now_us - scan.oldest_later_us[bucket] >= gap_us for bucket in scan.open}
        to_look = [
            bucket
            for bucket in scan.open
            if bucket not in self._looked_at and (is_old[bucket] or not only_gaps)
        ][: SEALS_PER_CALL if only_gaps else None]
        # The answers of the look's peek are used once: a caller that waits asks again.
        has_messages = {at: scan.peeked.pop(at) for at in to_look if at in scan.peeked}
        away = self._scanner.away
        unknown = [at for at in to_look if at not in has_messages and at not in away]
        has_messages |= await Peek(self._lane, unknown, self._scanner.pass_over).answers()
        seen_at = self._ripe_at = lane.clock.monotonic()
        ripe = []
        filled = [
            bucket
            for bucket in scan.open
            if bucket in self._looked_at and bucket in self._first_seen and not only_gaps
        ]
        for bucket in has_messages:
            self._looked_at[bucket] = seen_at
            if has_messages[bucket]:
                self._first_seen.setdefault(bucket, seen_at)
                filled.append(bucket)
            elif is_old[bucket]:
                ripe.append(bucket)
        oldest_allowed = max(linger, YOUNG_PER_OPEN_S * len(filled) if has_found else 0.0)
        eager_in = math.inf
        if filled and not has_found and self._is_alone(scan, min(filled)):
            eager_in = max(0.0, self._eager_after - seen_at)
        ages = {bucket: seen_at - self._first_seen[bucket] for bucket in filled}
        if by_proof:
            proved_us = {bucket: now_us - scan.oldest_later_us[bucket] for bucket in filled}
            ages = {bucket: max(age, proved_us[bucket] / 1e6) for bucket, age in ages.items()}
        waits = {at: min(eager_in, linger - ages[at]) for at in filled}
        young = {at: wait for at, wait in waits.items() if wait > linger - oldest_allowed}
        ripe += [at for at in filled if at not in young]
        return ripe, max(0.0, min(young.values())) if young else None
