"""Renew the leases of a running micro-batch in the background (design 7). Holds I2, I10.

Each bucket has rounds of its own: a round without an answer is given up before its next one is
due, and no other bucket waits for it (ADR 21) [T5].
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cassieq_spark import metrics
from cassieq_spark.errors import StreamFenced
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.settlement import Extend
from cassieq_spark.queue.settle.settle import of_leases, settle_bucket
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import Place
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.store import Store

RENEWALS_PER_TIMEOUT = 3

ROUND_PART = 0.9
"""A round that is not answered after this part of its period is given up: the next one is due, and
computes the end of the leases anew."""

IDLE_S = 60.0
"""The longest sleep of a thread that holds nothing. It is woken up when there is something."""

_logger = get_logger("spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """The leases that are renewed in one bucket, and for how long each time.

    Attributes:
        until_us: Until then none of them has run out, at any time since they were granted; 0: one
            may have.
    """

    lane: Lane
    ids: frozenset[UUID]
    visibility_us: int
    until_us: int = 0

    @property
    def period_s(self) -> float:
        """The time between two rounds."""
        return self.visibility_us / 1e6 / RENEWALS_PER_TIMEOUT


class Renewal:
    """Extends the held leases while the engine keeps calling and the parent process lives.

    Spark does not tell a planner that its query has ended, so a planner that nobody calls any more
    must let go by itself: after ``maxBatchDuration``, or when its parent is gone [P23].
    """

    def __init__(
        self,
        store: Store,
        *,
        run: UUID,
        give_up_after_s: float,
        is_settled_by_others: bool = False,
    ) -> None:
        self._session = store.session
        self._clock = store.clock
        self._run = run
        self._give_up_after_s = give_up_after_s
        self._is_settled_by_others = is_settled_by_others
        self._parent = os.getppid()
        self._lock = threading.Lock()
        self._is_due = threading.Condition(self._lock)
        self._held: dict[Place, _Held] = {}
        self._due: dict[Place, float] = {}
        self._under_way: set[Place] = set()
        self._failed: set[Place] = set()
        self._fenced: StreamFenced | None = None
        self._called = self._clock.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def touch(self) -> None:
        """Note that the engine has called.

        Raises:
            StreamFenced: Another run holds a lease of ours; it is never taken back [R17].
        """
        with self._lock:
            self._called = self._clock.monotonic()
            if self._fenced is not None:
                raise self._fenced

    def hold(
        self,
        lane: Lane,
        leases: Mapping[Place, frozenset[UUID]],
        *,
        visibility_us: int,
        until_us: int,
    ) -> None:
        """Renew these from now on.

        Args:
            lane: Any lane of their queue.
            visibility_us: For how long, each time.
            until_us: When the first of them ends.
        """
        left_s = max(0, until_us - self._clock.now_us()) / 1e6
        with self._lock:
            for place, ids in leases.items():
                known = self._held.get(place)
                held = self._held[place] = _Held(
                    lane=lane.sibling(place.lane),
                    ids=ids if known is None else known.ids | ids,
                    visibility_us=visibility_us,
                    until_us=until_us if known is None else min(known.until_us, until_us),
                )
                # After a slow CAS they have less than a whole timeout left.
                due = self._clock.monotonic() + min(held.period_s, left_s / 2)
                self._due[place] = min(self._due.get(place, due), due)
            self._is_due.notify()
            if self._held and self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="cassieq-renewal", daemon=True
                )
                self._thread.start()
        if not left_s:
            event(_logger, "lease_short", queue=lane.queue, until_us=until_us)

    def drop(self, leases: Mapping[Place, Iterable[UUID]]) -> dict[UUID, int]:
        """Stop to renew these: they are about to be acked.

        Returns:
            Each that was renewed, with its `_Held.until_us`.
        """
        found: dict[UUID, int] = {}
        with self._lock:
            for place, ids in leases.items():
                held = self._held.get(place)
                until_us = 0 if held is None else held.until_us
                found |= dict.fromkeys(self._drop(place, frozenset(ids)), until_us)
        return found

    def close(self) -> None:
        """End the thread. A round that is under way ends by itself, before the next. Idempotent."""
        with self._lock:
            self._ended.set()
            self._is_due.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (due := self._await_due()) is not None:
            portal.run(self._begin(due))

    async def _begin(self, due: dict[Place, _Held]) -> None:
        for place, held in due.items():
            with self._session.within(held.period_s * ROUND_PART):
                try:
                    self._session.begin(lambda at: self._round(*at), (place, held))
                except Exception as error:  # noqa: BLE001 - the others' rounds must begin
                    self._end_round(place, held, error)

    def _await_due(self) -> dict[Place, _Held] | None:
        """Wait for buckets whose round is due; None: the renewal is closed."""
        with self._lock:
            while not self._ended.is_set() and os.getppid() == self._parent:
                due, pause_s = self._next()
                if due:
                    return due
                self._is_due.wait(pause_s)
            return None

    def _next(self) -> tuple[dict[Place, _Held], float]:
        """Return (buckets due now, seconds until the next one). The caller holds the lock."""
        now = self._clock.monotonic()
        shortest_s = min((held.period_s for held in self._held.values()), default=IDLE_S)
        if now - self._called > self._give_up_after_s:
            return {}, shortest_s
        waiting = self._held.keys() - self._under_way
        due = [place for place in waiting if self._due[place] <= now]
        # Buckets that did not answer come last: they may still be away, and the others are not.
        due.sort(key=lambda place: (place in self._failed, self._due[place]))
        self._under_way.update(due)
        self._due.update({place: now + self._held[place].period_s for place in due})
        pause_s = min([shortest_s, *(self._due[place] - now for place in waiting)])
        return {place: self._held[place] for place in due}, pause_s

    async def _round(self, place: Place, held: _Held) -> None:
        """Renew one bucket's leases, whatever becomes of the others."""
        failure: Exception | None = None
        try:
            with self._lock:
                now = self._held.get(place)
            if now is not None:
                await self._renew(place, now)
        except Exception as error:  # noqa: BLE001 - without a next round its leases run out
            failure = error
        self._end_round(place, held, failure)

    def _end_round(self, place: Place, held: _Held, failure: Exception | None) -> None:
        if failure is not None:
            # The next round tries again; nothing is lost until the leases run out.
            fields = held.lane.as_fields(place.bucket)
            event(_logger, "renewal_failed", **fields, error=str(failure))
        with self._lock:
            self._under_way.discard(place)
            # One that was dropped meanwhile has no next round, which would end this.
            has_failed = failure is not None and place in self._held
            (self._failed.add if has_failed else self._failed.discard)(place)
            # A round that was held up has set an end that is near, or over (I2): its next is due.
            self._is_due.notify()

    async def _renew(self, place: Place, held: _Held) -> None:
        longer = Extend(visibility_us=held.visibility_us, of_run=self._run)
        row = (await settle_bucket(held.lane, place.bucket, of_leases(held.ids, longer))).row
        metrics.LEASE_RENEWALS.inc()
        runs = {} if row is None else {one.lease_id: one.run for one in row.value.leases}
        self._note_ended(place, held.ids - runs.keys())
        if row is not None:
            self._note_renewed(place, held, row.value)
        taken_over = [one for one in held.ids if one in runs and runs[one] != self._run]
        if taken_over:
            with self._lock:
                self._fenced = StreamFenced(
                    f"another run of this checkpoint, or a copy of it, has taken over "
                    f"{len(taken_over)} leases of {held.lane.bucket_title(place.bucket)}. "
                    "Two queries must not share a checkpoint: stop one of them"
                )
                self._held.clear()

    def _note_renewed(self, place: Place, renewed: _Held, row: Bucket) -> None:
        """Note the new end of these leases, unless they have run out before."""
        until_us = min(
            (one.until_us for one in row.leases if one.lease_id in renewed.ids), default=0
        )
        with self._lock:
            held = self._held.get(place)
            if held is not None and held.ids <= renewed.ids:
                is_unbroken = held.until_us > self._clock.now_us()
                self._held[place] = replace(held, until_us=until_us if is_unbroken else 0)

    def _drop(self, place: Place, ids: frozenset[UUID]) -> frozenset[UUID]:
        """Hold these leases of a bucket no longer; return those that were held.

        The caller holds the lock.
        """
        held = self._held.get(place)
        if held is None:
            return frozenset()
        left = held.ids - ids
        if left:
            self._held[place] = replace(held, ids=left)
        else:
            del self._held[place]
            self._due.pop(place, None)
            self._failed.discard(place)
        return held.ids & ids

    def _note_ended(self, place: Place, ended: frozenset[UUID]) -> None:
        """Report held leases that ran out and were re-claimed: two consumers get their messages.

        A lease that was just acked is not held any more [P25]. One that has not run out was ended
        by its own receipts. Where the query's own program settles all messages, settling reports
        those that it had lost.
        """
        with self._lock:
            held = self._held.get(place)
            lost = self._drop(place, ended)
        has_run_out = held is not None and held.until_us <= self._clock.now_us()
        if held is not None and lost and has_run_out and not self._is_settled_by_others:
            metrics.LEASES_LOST.inc(held.lane.queue, len(lost))
            event(
                _logger,
                "lease_lost_in_batch",
                **held.lane.as_fields(place.bucket),
                leases=len(lost),
            )
