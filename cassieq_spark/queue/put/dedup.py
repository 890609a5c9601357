"""Put each key once within the queue's window (docs/design/deduplication.md). Holds I1, I4.

  reserve an id  ->  make the key's entry name it (1 LWT)  ->  put as always

If an entry names another put, the first question is whether that put happened. Only then its age
counts [U13]. A client that puts again under a new id makes the entry name that id first [U4]. So at
most one put of a key happens in its window, whichever client dies, at whatever step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from uuid import UUID

from cassieq_spark import metrics
from cassieq_spark.model.dedup import (
    Entry,
    PutState,
    Until,
    by_manifest,
    entry_ttl_s,
    is_over,
    judged,
)
from cassieq_spark.model.ids import BucketNo, message_id_of
from cassieq_spark.model.outcome import Stored
from cassieq_spark.queue import seal
from cassieq_spark.queue.lane import Lane
from cassieq_spark.store.rows import RACE_PAUSE_S

YOUNG_US: Final = 500_000
"""A put that began less than this ago may still be running. To close its bucket would only make it
begin again."""

WAITS: Final = 8
"""The minimum number of looks at a put within the time for which it is left alone."""

LONGEST_YOUNG_US: Final = 16_000_000
"""A producer that has closed a bucket leaves the next one of the key alone for twice as long, up to
this. So of two slow writers, one gets in."""


class Keys:
    """The keys of one put. `take` may be called for different keys at once.

    Args:
        until: How long a former put of a key stands for it, within the window.
    """

    def __init__(self, window_us: int, until: Until) -> None:
        self._window_us = window_us
        self._until = until
        self._mine: dict[bytes, Stored[Entry]] = {}
        self._young_us: dict[bytes, int] = {}

    async def take(
        self, lane: Lane, key: bytes, bucket: BucketNo, offset: int, chosen: bytes | None
    ) -> UUID | None:
        """Make the entry of a key name this id. Nothing may be written under the id before.

        Args:
            chosen: The message id that its producer chose.

        Returns:
            The message id of an earlier put of the key within the window; then nothing is to be
            put.

        Raises:
            QueueDeleted, StoreError: Nothing was put. The entry may name this id or another one.
        """
        number = bucket * lane.bucket_size + offset
        mine = Entry(
            lane=lane.lane_id,
            bucket=bucket,
            offset=offset,
            message_id=UUID(message_id_of(lane.lane_id, number, chosen)),
            put_us=0,
        )
        # The entry of a former try of this call: the manifest says that the try never happened.
        known = self._mine.get(key)
        async for _ in lane.attempts():
            # Set anew for each try: the window of a put begins after the put that it follows.
            mine = replace(mine, put_us=lane.clock.now_us())
            outcome = await lane.store.dedup.take(
                lane.lanes[0], key, known, mine, ttl_s=entry_ttl_s(self._window_us)
            )
            known = outcome.now
            if known is None:
                continue  # the entry has expired since
            # Whether the CAS was applied says less: its answer may have been lost, and others may
            # have settled and taken the entry since [U3].
            if known.value.place == mine.place:
                self._mine[key] = known
                return None
            # Settle the other put first: a put that never happened is no duplicate, however young
            # it is [U13].
            young_us = self._young_us.get(key, YOUNG_US)
            if await happened(lane, known.value, young_us=young_us):
                age_us = lane.clock.now_us() - known.value.put_us
                if age_us < self._window_us and not await self._is_over(lane, known.value):
                    metrics.MESSAGES_DUPLICATE.inc(lane.queue)
                    return known.value.message_id
            else:
                self._young_us[key] = min(2 * young_us, LONGEST_YOUNG_US)
        raise lane.contended(f"the entry of a deduplication key in {lane.title}")

    async def _is_over(self, lane: Lane, entry: Entry) -> bool:
        """Whether the message of a put that happened keeps the key no longer: two reads."""
        if self._until is Until.WINDOW:
            return False  # without the reads
        its_lane = lane.sibling(entry.lane)
        stored = await its_lane.buckets.read(entry.bucket)
        if await its_lane.is_dropped(entry.bucket):  # read after the row (G5)
            return True
        row = None if stored is None else stored.value
        return is_over(self._until, row, entry.offset, now_us=lane.clock.now_us())


async def happened(lane: Lane, entry: Entry, *, young_us: int = YOUNG_US) -> bool:
    """Find out whether the put that an entry names happened; if not, make sure that it never will.

    Args:
        lane: Any lane of the queue.
        young_us: How long a put may take, before its bucket is closed.

    Raises:
        QueueDeleted: The queue is gone.
        StoreError: It is unknown.
    """
    its_lane = lane.sibling(entry.lane)
    async for attempt in lane.attempts():
        # Read in this order: message, bucket, L [U3] (G5).
        is_stored = await its_lane.messages.has_row(entry.bucket, entry.offset)
        stored = await its_lane.buckets.read(entry.bucket)
        row = None if stored is None else stored.value
        low = (await its_lane.read_pointers()).repair
        verdict = judged(entry, is_stored=is_stored, row=row, low=low)
        if verdict is PutState.KEPT:
            verdict = by_manifest(entry, await its_lane.kept.read(entry.bucket))
        if verdict is not PutState.OPEN:
            return verdict is PutState.HAPPENED
        if row is None and lane.clock.now_us() - entry.put_us < young_us:
            pause_s = lane.store.entropy.jitter(RACE_PAUSE_S, attempt)
            await lane.clock.sleep(min(pause_s, young_us / WAITS / 1e6))
        else:
            await seal.close(its_lane, entry.bucket)
    raise lane.contended(its_lane.bucket_title(entry.bucket))
