"""Renew the leases of a running micro-batch in the background (design 7). Holds I2."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from cassieq_spark import metrics
from cassieq_spark.errors import StreamFenced
from cassieq_spark.log import event, get_logger
from cassieq_spark.queue import settle
from cassieq_spark.queue.settle import Extended

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.lane import Lane

RENEWALS_PER_TIMEOUT = 3

_logger = get_logger("spark")


class Renewal:
    """Extends the held leases while the engine keeps calling and the parent process lives.

    Spark does not tell a planner that its query has ended, so a planner that nobody calls any more
    must let go by itself: after ``maxBatchDuration``, or when its parent is gone [P23].
    """

    def __init__(
        self,
        lane: Lane,
        *,
        run: UUID,
        visibility_us: int,
        give_up_after_s: float,
        is_settled_by_others: bool = False,
    ) -> None:
        self._lane = lane
        self._run = run
        self._visibility_us = visibility_us
        self._give_up_after_s = give_up_after_s
        self._is_settled_by_others = is_settled_by_others
        self._parent = os.getppid()
        self._lock = threading.Lock()
        self._held: dict[BucketNo, frozenset[UUID]] = {}
        self._fenced: StreamFenced | None = None
        self._called = lane.clock.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def touch(self) -> None:
        """The engine called.

        Raises:
            StreamFenced: A lease of ours was found under another run; it is never taken back [R17].
        """
        with self._lock:
            self._called = self._lane.clock.monotonic()
            if self._fenced is not None:
                raise self._fenced

    def hold(self, leases: Mapping[BucketNo, frozenset[UUID]], *, until_us: int) -> None:
        """Renew these from now on; ``until_us`` is when the first of them runs out."""
        with self._lock:
            for bucket, ids in leases.items():
                self._held[bucket] = self._held.get(bucket, frozenset()) | ids
            if self._held and self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="cassieq-renewal", daemon=True
                )
                self._thread.start()
        if until_us <= self._lane.clock.now_us():
            event(_logger, "lease_short", queue=self._lane.queue, until_us=until_us)

    def drop(self, leases: Mapping[BucketNo, Iterable[UUID]]) -> None:
        """Renew these no more: they are about to be acked."""
        with self._lock:
            for bucket, ids in leases.items():
                left = self._held.pop(bucket, frozenset()) - frozenset(ids)
                if left:
                    self._held[bucket] = left

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        period_s = pause_s = self._visibility_us / 1e6 / RENEWALS_PER_TIMEOUT
        while not self._ended.wait(pause_s):
            if os.getppid() != self._parent:
                return
            with self._lock:
                began = self._lane.clock.monotonic()
                idle_s = began - self._called
                held = dict(self._held)
            pause_s = period_s
            if idle_s > self._give_up_after_s:
                continue
            try:
                self._renew(held)
            except Exception as error:  # noqa: BLE001 - without this thread all later leases run out
                # The next period tries again; until the leases run out nothing is lost.
                event(_logger, "renewal_failed", queue=self._lane.queue, error=str(error))
            # One that an outage has held up has written an end that is near, or over (I2).
            pause_s = max(0.0, period_s - (self._lane.clock.monotonic() - began))

    def _renew(self, held: Mapping[BucketNo, frozenset[UUID]]) -> None:
        until_us = self._lane.clock.now_us() + self._visibility_us

        def one(bucket: BucketNo) -> Extended:
            return settle.extend(self._lane, bucket, held[bucket], until_us=until_us, run=self._run)

        results = dict(zip(held, self._lane.store.session.map(one, held), strict=True))
        metrics.LEASE_RENEWALS.inc(len(held))
        self._note_ended(results)
        taken_over = [result.taken_over for result in results.values() if result.taken_over]
        if taken_over:
            with self._lock:
                self._fenced = StreamFenced(
                    f"another run of this checkpoint, or a copy of it, has taken over "
                    f"{sum(len(ids) for ids in taken_over)} leases of queue {self._lane.queue!r}. "
                    "Two queries must not share a checkpoint: stop one of them"
                )
                self._held.clear()

    def _note_ended(self, results: Mapping[BucketNo, Extended]) -> None:
        """A held lease that ended ran out and was re-claimed: its messages go to two consumers.

        Unless it was acked just now: then it is held no more [P25]. Where the query's own program
        settles messages, that is how a lease ends, and whose was lost the program is told.
        """
        with self._lock:
            for bucket, result in results.items():
                lost = self._held.get(bucket, frozenset()) & result.ended
                if lost:
                    left = self._held.pop(bucket) - lost
                    if left:
                        self._held[bucket] = left
                    if self._is_settled_by_others:
                        continue
                    metrics.LEASES_LOST.inc(len(lost))
                    event(
                        _logger,
                        "lease_lost_in_batch",
                        queue=self._lane.queue,
                        bucket=bucket,
                        leases=len(lost),
                    )
