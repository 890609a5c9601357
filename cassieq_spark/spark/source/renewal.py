"""Renew the leases of a running micro-batch in the background (design 7). Holds I2, I10.

Each bucket has rounds of its own: a round without an answer is given up before its next one is
due, and no other bucket waits for it (ADR 21) [T5].
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from cassieq_spark import metrics
from cassieq_spark.errors import StreamFenced
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.settlement import Extend
from cassieq_spark.queue.settle.settle import of_leases, settle_bucket

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from cassieq_spark.model.ids import Place
    from cassieq_spark.queue.lane import Lane

RENEWALS_PER_TIMEOUT = 3

ROUND_PART = 0.9
"""A round that is not answered after this part of its period is given up: the next one is due, and
computes the end of the leases anew."""

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
        self._is_due = threading.Condition(self._lock)
        self._period_s = visibility_us / 1e6 / RENEWALS_PER_TIMEOUT
        self._held: dict[Place, frozenset[UUID]] = {}
        self._due: dict[Place, float] = {}
        self._under_way: set[Place] = set()
        self._failed: set[Place] = set()
        self._fenced: StreamFenced | None = None
        self._called = lane.clock.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def touch(self) -> None:
        """Note that the engine has called.

        Raises:
            StreamFenced: Another run holds a lease of ours; it is never taken back [R17].
        """
        with self._lock:
            self._called = self._lane.clock.monotonic()
            if self._fenced is not None:
                raise self._fenced

    def hold(self, leases: Mapping[Place, frozenset[UUID]], *, until_us: int) -> None:
        """Renew these from now on; ``until_us`` is when the first of them ends."""
        left_s = max(0, until_us - self._lane.clock.now_us()) / 1e6
        with self._lock:
            # After a slow CAS they have less than a whole timeout left.
            due = self._lane.clock.monotonic() + min(self._period_s, left_s / 2)
            for place, ids in leases.items():
                self._held[place] = self._held.get(place, frozenset()) | ids
                self._due[place] = min(self._due.get(place, due), due)
            self._is_due.notify()
            if self._held and self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="cassieq-renewal", daemon=True
                )
                self._thread.start()
        if not left_s:
            event(_logger, "lease_short", queue=self._lane.queue, until_us=until_us)

    def drop(self, leases: Mapping[Place, Iterable[UUID]]) -> None:
        """Stop to renew these: they are about to be acked."""
        with self._lock:
            for place, ids in leases.items():
                self._keep(place, self._held.get(place, frozenset()) - frozenset(ids))

    def close(self) -> None:
        """End the thread. A round that is under way ends by itself, before the next. Idempotent."""
        with self._lock:
            self._ended.set()
            self._is_due.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        session = self._lane.store.session
        while (due := self._await_due()) is not None:
            with session.within(self._period_s * ROUND_PART):
                for place in due:
                    try:
                        session.begin(self._round, place)
                    except Exception as error:  # noqa: BLE001 - the others' rounds must begin
                        self._end_round(place, error)

    def _await_due(self) -> list[Place] | None:
        """Wait for buckets whose round is due; None: the renewal is closed."""
        with self._lock:
            while not self._ended.is_set() and os.getppid() == self._parent:
                due, pause_s = self._next()
                if due:
                    return due
                self._is_due.wait(pause_s)
            return None

    def _next(self) -> tuple[list[Place], float]:
        """Return (buckets due now, seconds until the next one). The caller holds the lock."""
        now = self._lane.clock.monotonic()
        if now - self._called > self._give_up_after_s:
            return [], self._period_s
        waiting = self._held.keys() - self._under_way
        due = [place for place in waiting if self._due[place] <= now]
        # Buckets that did not answer come last: they may still be away, and the others are not.
        due.sort(key=lambda place: (place in self._failed, self._due[place]))
        self._under_way.update(due)
        self._due.update(dict.fromkeys(due, now + self._period_s))
        return due, min([self._period_s, *(self._due[place] - now for place in waiting)])

    def _round(self, place: Place) -> None:
        """Renew one bucket's leases, whatever becomes of the others."""
        failure: Exception | None = None
        try:
            with self._lock:
                held = self._held.get(place, frozenset())
            if held:
                self._renew(place, held)
        except Exception as error:  # noqa: BLE001 - without a next round its leases run out
            failure = error
        self._end_round(place, failure)

    def _end_round(self, place: Place, failure: Exception | None) -> None:
        if failure is not None:
            # The next round tries again; nothing is lost until the leases run out.
            event(_logger, "renewal_failed", **self._fields(place), error=str(failure))
        with self._lock:
            self._under_way.discard(place)
            (self._failed.discard if failure is None else self._failed.add)(place)
            # A round that was held up has set an end that is near, or over (I2): its next is due.
            self._is_due.notify()

    def _renew(self, place: Place, held: frozenset[UUID]) -> None:
        longer = Extend(visibility_us=self._visibility_us, of_run=self._run)
        lane = self._lane.sibling(place.lane)
        row = settle_bucket(lane, place.bucket, of_leases(held, longer)).row
        metrics.LEASE_RENEWALS.inc()
        runs = {} if row is None else {one.lease_id: one.run for one in row.value.leases}
        self._note_ended(place, held - runs.keys())
        taken_over = [one for one in held if one in runs and runs[one] != self._run]
        if taken_over:
            with self._lock:
                self._fenced = StreamFenced(
                    f"another run of this checkpoint, or a copy of it, has taken over "
                    f"{len(taken_over)} leases of {lane.bucket_title(place.bucket)}. "
                    "Two queries must not share a checkpoint: stop one of them"
                )
                self._held.clear()

    def _fields(self, place: Place) -> dict[str, object]:
        return self._lane.sibling(place.lane).as_fields(place.bucket)

    def _keep(self, place: Place, left: frozenset[UUID]) -> None:
        """Keep only these leases of a bucket. The caller holds the lock."""
        if left:
            self._held[place] = left
        else:
            self._held.pop(place, None)
            self._due.pop(place, None)
            self._failed.discard(place)

    def _note_ended(self, place: Place, ended: frozenset[UUID]) -> None:
        """Report held leases that ran out and were re-claimed: two consumers get their messages.

        A lease that was just acked is not held any more [P25]. Where the query's own program
        settles messages, leases end that way, and settling reports those it had lost.
        """
        with self._lock:
            held = self._held.get(place, frozenset())
            lost = held & ended
            if not lost:
                return
            self._keep(place, held - lost)
        if not self._is_settled_by_others:
            metrics.LEASES_LOST.inc(len(lost))
            event(
                _logger,
                "lease_lost_in_batch",
                **self._fields(place),
                leases=len(lost),
            )
