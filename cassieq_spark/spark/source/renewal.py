"""Renew the leases of a running micro-batch in the background. Holds I2, I10.

See docs/design/source.md.

Each bucket has rounds of its own: a round without an answer is given up before its next one is
due, and no other bucket waits for it (ADR 21) [T5].
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from math import inf
from uuid import UUID

from cassieq_spark import metrics
from cassieq_spark.errors import StreamFenced
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import Bucket, Lease
from cassieq_spark.model.ids import Place
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.settlement import Extend
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.settle.settle import of_leases, settle_bucket
from cassieq_spark.store.store import Store

RENEWALS_PER_TIMEOUT = 3

ROUND_PART = 0.9
"""A round that is not answered after this part of its period is given up: the next one is due, and
computes the end of the leases anew."""

IDLE_S = 60.0
"""The longest pause of a task that holds nothing. It is woken up when there is something."""

_logger = get_logger("spark")


@dataclass(slots=True, kw_only=True)
class _Held:
    """The leases that are renewed in one bucket.

    Attributes:
        visibility_us: For how long each time.
        until_us: Until then none of them has run out, at any time since they were granted; 0: one
            may have.
        due_s: When the next round begins, by the monotonic clock.
        is_under_way: Whether a round has begun and not ended.
        has_failed: Whether the last round did.
    """

    lane: Lane
    visibility_us: int
    until_us: int
    ids: frozenset[UUID] = frozenset()
    due_s: float = inf
    is_under_way: bool = False
    has_failed: bool = False

    @property
    def period_s(self) -> float:
        """The time between two rounds."""
        return self.visibility_us / 1e6 / RENEWALS_PER_TIMEOUT


class Renewal:
    """Extends the held leases while the engine keeps calling and the parent process lives.

    Spark does not tell a planner that its query has ended, so a planner that nobody calls any more
    must let go by itself: after ``maxBatchDuration``, or when its parent is gone [P23]. Used in the
    engine's event loop only.
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
        self._held: dict[Place, _Held] = {}
        self._fenced: StreamFenced | None = None
        self._called = self._clock.monotonic()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._renewing: asyncio.Task[None] | None = None

    def touch(self) -> None:
        """Note that the engine has called.

        Raises:
            StreamFenced: Another run holds a lease of ours; it is never taken back [R17].
        """
        self._called = self._clock.monotonic()
        if self._fenced is not None:
            raise self._fenced

    def hold(
        self, lane: Lane, leases: Sequence[tuple[Place, Lease]], *, visibility_us: int
    ) -> None:
        """Renew these from now on.

        Args:
            lane: Any lane of their queue.
            leases: One or more.
            visibility_us: For how long, each time.
        """
        now_us, now_s = self._clock.now_us(), self._clock.monotonic()
        for place, lease in leases:
            if (held := self._held.get(place)) is None:
                held = self._held[place] = _Held(
                    lane=lane.sibling(place.lane),
                    visibility_us=visibility_us,
                    until_us=lease.until_us,
                )
            held.ids |= {lease.lease_id}
            held.visibility_us = visibility_us
            held.until_us = min(held.until_us, lease.until_us)
            # After a slow CAS they have less than a whole timeout left.
            left_s = max(0, lease.until_us - now_us) / 1e6
            held.due_s = min(held.due_s, now_s + min(held.period_s, left_s / 2))
        self._changed.set()
        if self._renewing is None:
            # In a context of its own: no limit of the present call ends a round.
            self._renewing = asyncio.get_running_loop().create_task(
                self._renew_all(), context=Context()
            )
        until_us = min(lease.until_us for _, lease in leases)
        if until_us <= now_us:
            event(_logger, "lease_short", queue=lane.queue, until_us=until_us)

    def drop(self, leases: Mapping[Place, Iterable[UUID]]) -> dict[UUID, int]:
        """Stop to renew these: they are about to be acked, or they are gone.

        Returns:
            Each that was renewed, with its `_Held.until_us`.
        """
        found: dict[UUID, int] = {}
        for place, some in leases.items():
            held, ids = self._held.get(place), frozenset(some)
            if held is not None:
                found |= dict.fromkeys(held.ids & ids, held.until_us)
                held.ids -= ids
                if not held.ids:
                    del self._held[place]
        return found

    async def close(self) -> None:
        """End the task. A round that is under way ends by itself, before the next. Idempotent."""
        self._is_closed = True
        self._changed.set()
        if self._renewing is not None:
            await self._renewing

    async def _renew_all(self) -> None:
        while not self._is_closed and os.getppid() == self._parent:
            self._changed.clear()
            due, pause_s = self._next()
            for place, held in due:
                with self._session.within(held.period_s * ROUND_PART):
                    try:
                        self._session.begin(lambda at: self._round(*at), (place, held))
                    except Exception as error:  # noqa: BLE001 - the others' rounds must begin
                        self._end_round(place, held, error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause_s)

    def _next(self) -> tuple[list[tuple[Place, _Held]], float]:
        """Return (buckets whose round begins now, seconds until the next one)."""
        now = self._clock.monotonic()
        shortest_s = min((held.period_s for held in self._held.values()), default=IDLE_S)
        if now - self._called > self._give_up_after_s:
            return [], shortest_s
        waiting = [one for one in self._held.items() if not one[1].is_under_way]
        due = [(place, held) for place, held in waiting if held.due_s <= now]
        # Buckets that did not answer come last: they may still be away, and the others are not.
        due.sort(key=lambda one: (one[1].has_failed, one[1].due_s))
        for _, held in due:
            held.is_under_way, held.due_s = True, now + held.period_s
        return due, min([shortest_s, *(held.due_s - now for _, held in waiting)])

    async def _round(self, place: Place, held: _Held) -> None:
        """Renew one bucket's leases, whatever becomes of the others."""
        failure: Exception | None = None
        try:
            if self._held.get(place) is held:
                await self._renew(place, held)
        except Exception as error:  # noqa: BLE001 - without a next round its leases run out
            failure = error
        self._end_round(place, held, failure)

    def _end_round(self, place: Place, held: _Held, failure: Exception | None) -> None:
        if failure is not None:
            # The next round tries again; nothing is lost until the leases run out.
            fields = held.lane.as_fields(place.bucket)
            event(_logger, "renewal_failed", **fields, error=str(failure))
        held.is_under_way, held.has_failed = False, failure is not None
        # A round that was held up has set an end that is near, or over (I2): its next is due.
        self._changed.set()

    async def _renew(self, place: Place, held: _Held) -> None:
        ids = held.ids
        row = await self._extended(place, held)
        metrics.LEASE_RENEWALS.inc()
        found = {} if row is None else {one.lease_id: one for one in row.value.leases}
        self._note_ended(place, held, ids - found.keys())
        ours = [found[one] for one in ids if one in found]
        if row is not None and held.ids <= ids:
            # Their new end, unless one of them had run out before.
            is_unbroken = held.until_us > self._clock.now_us()
            until_us = min((one.until_us for one in ours), default=0)
            held.until_us = until_us if is_unbroken else 0
        taken_over = sum(one.run != self._run for one in ours)
        if taken_over:
            self._fenced = StreamFenced(
                f"another run of this checkpoint, or a copy of it, has taken over "
                f"{taken_over} leases of {held.lane.bucket_title(place.bucket)}. "
                "Two queries must not share a checkpoint: stop one of them"
            )
            self._held.clear()

    async def _extended(self, place: Place, held: _Held) -> Stored[Bucket] | None:
        """Extend one bucket's leases; return its row, or None if it is gone."""
        longer = Extend(visibility_us=held.visibility_us, of_run=self._run)
        return (await settle_bucket(held.lane, place.bucket, of_leases(held.ids, longer))).row

    def _note_ended(self, place: Place, held: _Held, ended: frozenset[UUID]) -> None:
        """Report held leases that ran out and were re-claimed: two consumers get their messages.

        A lease that was just acked is not held any more [P25]. One that has not run out was ended
        by its own receipts. Where the query's own program settles all messages, settling reports
        those that it had lost.
        """
        lost = self.drop({place: ended})
        has_run_out = held.until_us <= self._clock.now_us()
        if lost and has_run_out and not self._is_settled_by_others:
            metrics.LEASES_LOST.inc(held.lane.queue, len(lost))
            fields = held.lane.as_fields(place.bucket)
            event(_logger, "lease_lost_in_batch", **fields, leases=len(lost))
