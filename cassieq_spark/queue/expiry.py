"""What comes with time: hints for messages that come back, and messages that expire.

Hints are written so that a get finds such messages wherever the reader is:

  hint, at its time or now  ->  CAS  ->  if that came late: hint again, now

Any time may pass between a hint and its CAS, and the time pointer may pass the hint's minute [T4].
A claim has a rule of its own for this (`claim.confirm`) [P17]. See
docs/design/returns-and-hints.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from cassieq_spark import metrics
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.expiry import kept_until
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.pointer import LATE_AFTER_US, is_passable, minute_of
from cassieq_spark.queue.lane import Lane
from cassieq_spark.store.tables.messages import ChunkRow

_logger = get_logger("queue")


class ExpiryHintWriter:
    """The hints of one bucket's CAS. Call `hint` before each try, and `confirm` after the last."""

    def __init__(self, lane: Lane, bucket: BucketNo) -> None:
        self._lane = lane
        self._bucket = bucket
        self._hinted_us: list[int] = []
        self._begun: tuple[int, Callable[[], Awaitable[None]]] | None = None

    async def begin_hint(self, time_us: int) -> None:
        """Begin to write one hint of the next try, without waiting, while its row is not known yet.

        `hint` waits for it.
        """
        now_us = self._lane.clock.now_us()
        wait = await self._lane.hints.begin_write([(self._bucket, time_us)], now_us=now_us)
        self._begun = time_us, wait

    async def hint(self, times_us: Iterable[int]) -> None:
        """Write a hint for each of these times. Messages whose time is over come back now [R12].

        A hint that `begin_hint` has written for this try is awaited, and not written again.
        """
        begun_us: int | None = None
        if self._begun is not None:
            begun_us, wait = self._begun
            self._begun = None
            await wait()
        now_us = self._lane.clock.now_us()
        self._hinted_us = [max(time_us, now_us) for time_us in times_us]
        # If the begun time is over by now, it was replaced by now, and is written.
        await self._write([time_us for time_us in self._hinted_us if time_us != begun_us], now_us)

    async def confirm(self) -> None:
        """Hint again, now, if a minute may have been passed before the CAS was answered.

        It reads nothing, and writes only if the CAS took half a minute or more. If a client dies
        before this, repair writes the hint, as for a claimer [P17].
        """
        now_us = self._lane.clock.now_us()
        if any(
            is_passable(minute_of(time_us), now_us=now_us + LATE_AFTER_US)
            for time_us in self._hinted_us
        ):
            await self._write([now_us], now_us)

    async def _write(self, times_us: Iterable[int], now_us: int) -> None:
        lane = self._lane
        await lane.hints.write([(self._bucket, time_us) for time_us in times_us], now_us=now_us)


def alive(lane: Lane, waiting: Sequence[ChunkRow]) -> list[ChunkRow]:
    """Leave out the messages of an unsealed bucket that a seal by now would find expired.

    Args:
        waiting: All messages of the bucket: retention counts from the latest.
    """
    if not waiting:
        return []
    now_us = lane.clock.now_us()
    put_us = max(chunk.enqueued_us for chunk in waiting)
    due_us = [chunk.due_us for chunk in waiting if chunk.due_us is not None]
    until_us = kept_until(put_us, due_us, lane.retention_us)
    if until_us is not None and until_us <= now_us:
        return []
    return [one for one in waiting if one.expires_us is None or one.expires_us > now_us]


def note_expired(lane: Lane, bucket: BucketNo, gone: Runs) -> None:
    """Count expired messages that a CAS has removed, after that CAS took effect."""
    if not gone:
        return
    metrics.MESSAGES_EXPIRED.inc(lane.queue, gone.count)
    event(
        _logger,
        "messages_expired",
        **lane.as_fields(bucket),
        messages=gone.count,
        dead=lane.expired_die,
    )
