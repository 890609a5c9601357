"""Keep the lease of a message while a program works on it, and settle the message afterwards.

The engine's loop renews leases, so a program that blocks its own thread or loop keeps its message.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import Context
from math import inf
from typing import Any, Final, Self

from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.moments import us_of
from cassieq_spark.model.settlement import Extend
from cassieq_spark.queue.handling import Failure, Reject, Retry, about
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Delivery, proof_of
from cassieq_spark.queue.settle.ack_buffer import RETRY_S
from cassieq_spark.queue.settle.settle import settle_in_background
from cassieq_spark.store import portal
from cassieq_spark.store.call import Timer

RENEWED_AT: Final = 3
"""A lease is renewed when this fraction of it is left."""

LONG: Final = 10
"""The visibility timeouts after which a running function is reported, and again each time that
their number has doubled."""

_logger = get_logger("worker")


class Kept:
    """The lease of one message, renewed until `let_go`; a long run is reported.

    The function may hang, and its message is kept from others. Any thread may make it and let go.

    Args:
        lane: Any lane of the message's queue.
        visibility_s: The length of a renewed lease.
    """

    def __init__(self, lane: Lane, message: Delivery, visibility_s: float) -> None:
        self._lane = lane
        self.about = about(lane.queue, message)
        self._receipt = proof_of(message)
        self._visibility_s = visibility_s
        self._is_over = False
        self._began = now = lane.clock.monotonic()
        left_s = (us_of(message.visible_until) - lane.clock.now_us()) / 1e6
        self._renew_at = now + left_s - visibility_s / RENEWED_AT
        self._tell_at = now + LONG * visibility_s
        self._timer = Timer(lane.clock, self._see_to)
        self._soon(self._plan)

    def let_go(self) -> None:
        """Renew the lease no more. Idempotent."""
        self._is_over = True
        self._soon(self._plan)

    def _soon(self, call: Callable[[], object]) -> None:
        portal.portal().loop.call_soon_threadsafe(call, context=Context())

    # --- in the event loop --------------------------------------------------------------------

    def _plan(self) -> None:
        self._timer.set(inf if self._is_over else min(self._renew_at, self._tell_at))

    def _see_to(self) -> None:
        """Do what is due."""
        now = self._lane.clock.monotonic()
        if now >= self._tell_at:
            age_s = now - self._began
            event(_logger, "worker_function_runs", **self.about, age_s=round(age_s, 1))
            self._tell_at = now + age_s
        if now >= self._renew_at:
            self._renew_at = inf
            session = self._lane.store.session
            try:
                # There is time for another try before the lease runs out.
                with session.within(self._visibility_s / RENEWED_AT / 2):
                    session.begin(self._renew, None)
            except CassieqError:  # the client is closed
                self._is_over = True
        self._plan()

    async def _renew(self, _: None) -> None:
        clock, visibility_us = self._lane.clock, round(self._visibility_s * 1e6)
        # The program may have extended it for longer.
        longer = Extend(visibility_us=visibility_us, never_sooner=True)
        try:
            refused = await settle_in_background("extend", self._lane, [self._receipt], longer)
        except CassieqError as error:
            # Some further tries fit into what is left of a short lease.
            pause_s = min(RETRY_S, self._visibility_s / RENEWED_AT / 4)
            self._renew_at = clock.monotonic() + pause_s
            if not self._is_over:
                event(_logger, "worker_lease_failed", **self.about, error=str(error))
        else:
            if not refused:
                self._renew_at = clock.monotonic() + self._visibility_s * (1 - 1 / RENEWED_AT)
            elif not self._is_over:
                event(_logger, "worker_lease_lost", **self.about)
        self._plan()


class Processing:
    """A block in which a program works on one message; ``with`` or ``async with``.

    Args:
        keep: Begins to keep the lease.
        settle: Settles the message; None: the block has ended without an error.
    """

    def __init__(
        self,
        keep: Callable[[], Kept],
        settle: Callable[[Failure | None], Coroutine[Any, Any, object]],
    ) -> None:
        self._keep, self._settle = keep, settle

    async def _end(self, error: BaseException | None) -> bool:
        """Settle the message. Return whether the error was only a wish about it."""
        self._kept.let_go()
        if error is None:
            await self._settle(None)
            return False
        failure = Failure.of(error)
        if not isinstance(error, Exception):
            failure = Failure(error=failure.error, after_s=0.0)  # the program ends: another goes on
        try:
            await self._settle(failure)
        except CassieqError as another:
            event(_logger, "worker_not_settled", **self._kept.about, error=str(another))
        return isinstance(error, Retry | Reject)

    def __enter__(self) -> Self:
        """Keep the lease from now on."""
        self._kept = self._keep()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Settle the message."""
        return portal.run(self._end(error))

    async def __aenter__(self) -> Self:
        """Keep the lease from now on."""
        self._kept = self._keep()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Settle the message."""
        return await portal.asked(self._end(error))
