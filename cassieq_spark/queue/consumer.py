"""`Consumer` gives messages one by one at the price of hundreds: prefetch, grouped acks (design 5).

Three threads run beside the program: one claims ahead, one renews the leases of messages that wait
here, one sends acks. The last two never wait for a slow bucket.
Holds I2: it hands out nothing whose lease has run out. Holds I4: what is acked was handed out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final, Self

from cassieq_spark import tracing
from cassieq_spark.errors import CassieqError, QueueDeleted, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.settlement import Extend, Release
from cassieq_spark.options import arguments
from cassieq_spark.queue.failures import Failures
from cassieq_spark.queue.get.pace import Pace
from cassieq_spark.queue.get.poll import GetRequest, Getter
from cassieq_spark.queue.message import Message, time_of, us_of
from cassieq_spark.queue.settle.ack_buffer import RETRY_S, AckBuffer
from cassieq_spark.queue.settle.settle import settle_in_background
from cassieq_spark.store import portal
from cassieq_spark.store.process import OfOneProcess

if TYPE_CHECKING:
    from cassieq_spark.model.ids import Place
    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.queue.lane import Lane

CLOSE_S: Final = 20.0
"""`Consumer.close` returns within this time plus one request's timeout, whatever the store does."""

ROUNDS_PER_TIMEOUT: Final = 4
"""A renewal that is not answered within this fraction of a visibility timeout is given up and begun
again, so that there is time for another one before the lease runs out."""

_logger = get_logger("queue")


@dataclass(slots=True)
class _Held:
    """A message that waits to be handed out, with the end of its lease."""

    message: Message
    receipt: Receipt
    until_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How a consumer reaches its queue.

    Attributes:
        lane: Returns the lane with its current settings.
        receipts: Checks what a user passed and returns its receipts.
        wanted: What it asks for; ``at_most`` is how many messages may wait here.
    """

    lane: Callable[[], Lane]
    receipts: Callable[[Message | str | Iterable[Message | str]], list[Receipt]]
    wanted: GetRequest
    getter: Getter


class Consumer(OfOneProcess):
    """Messages of one queue, got ahead and acked in groups. Threads may share it.

    Use it in a ``with`` block: at its end, acks are stored, and messages that were got and not
    handed out are given back, uncounted.
    """

    def __init__(self, ways: Ways, *, idle_timeout_s: float | None) -> None:
        self._ways = ways
        # Messages are settled in the lane that delivered them, whatever becomes of the queue's row:
        # that is read again only to get more.
        self._lane = lane = ways.lane()
        self._clock = lane.clock
        self._home = lane.store.session.home
        self._prefetch = ways.wanted.at_most
        self._visibility_us = ways.wanted.visibility_us
        self._idle_timeout_s = idle_timeout_s
        self._lock = threading.RLock()
        # Of one lock, so that not every message and every ack wakes a thread.
        self._arrived, self._is_due, self._is_wanted = map(threading.Condition, [self._lock] * 3)
        self._waiting: deque[_Held] = deque()
        self._looks_begun = self._looks_ended = 0
        self._pace, self._failures = Pace(), Failures()
        self._is_closing = False
        self._acks = AckBuffer(
            lane,
            within_s=ways.wanted.visibility_us / 4e6,
            on_failure=self._tell,
        )
        # A get without an answer must not hold up a renewal or an ack.
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name="cassieq-consumer", daemon=True)
            for work in (self._get_ahead, self._keep_leased, self._acks.run)
        ]
        # When each thread has work to do, by the monotonic clock.
        self._renew_at = inf
        self._renewing: set[Place] = set()
        self._renew_again_at: dict[Place, float] = {}
        self._look_at, self._look_wanted = -inf, 0

    @property
    def stale(self) -> int:
        """How many acks changed nothing: they came too late, or name messages that never were."""
        return self._acks.stale

    def get(self, wait: float | timedelta | None = None) -> Message | None:
        """Return the next message.

        Args:
            wait: Seconds to wait for one; None: as long as it takes.

        Returns:
            None if no message came, or the consumer was closed.

        Raises:
            QueueDeleted: The queue is gone.
            CassieqError: Nothing could be got, or acks could not be stored; it retries by itself.
            UsageError: The consumer is not in its ``with`` block.
        """
        return self._get(None if wait is None else arguments.wait_s(wait))

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until none came for ``idle_timeout``, or the consumer was closed."""
        while (message := self._get(self._idle_timeout_s)) is not None:
            yield message

    def ack(self, messages: Message | str | Iterable[Message | str]) -> None:
        """Say that messages are done. Returns at once; they are stored within a tenth of a second.

        They come again if this process dies before that, or if their lease had ended.

        Raises:
            ReceiptInvalid: One is not a receipt of this queue; nothing was acked.
            UsageError: The consumer is closed.
        """
        self._home.check()
        self._acks.add(self._ways.receipts(messages))

    def flush(self) -> None:
        """Return when every ack so far is stored.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: For some it is unknown; they are tried again.
        """
        self._home.check()
        self._acks.flush()

    def close(self) -> None:
        """Store the acks, give back what was not handed out. Idempotent; takes `CLOSE_S` at most.

        A get that is still under way ends by itself, and gives back what it found.

        Raises:
            StoreError: That failed: the messages come back when their leases run out.
        """
        if not self._home.is_here:
            return None  # a forked child: what is left to do is the parent's
        if portal.is_here():
            return portal.apart(self.close)  # an iteration that nobody ended, found as garbage
        with self._lock:
            self._is_closing = True
            for condition in (self._arrived, self._is_due, self._is_wanted):
                condition.notify_all()
        # The flush stores what was acked before this, and nothing is accepted after it [T16].
        self._acks.close()
        until = self._clock.monotonic() + CLOSE_S
        with self._lane.store.session.within(CLOSE_S):
            try:
                # First of all: the fetching thread may wait for the store for long [T24].
                self._acks.flush(until=until)
            finally:
                for thread in self._threads if self._is_started else ():
                    thread.join(max(0.0, until - self._clock.monotonic()))
                self._give_back()

    def __enter__(self) -> Self:
        """Start to get messages.

        Raises:
            UsageError: It was entered before.
        """
        if self._is_started:
            raise UsageError(
                "a consumer works in one block only. Make another one with queue.consumer()"
            )
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Close; see `close`."""
        self.close()

    def __repr__(self) -> str:
        return f"Consumer({self._lane.queue!r})"

    def _get(self, wait_s: float | None) -> Message | None:
        if not self._is_started:
            raise UsageError(
                "a consumer works only inside its block. Write: with queue.consumer() as "
                "consumer: ..."
            )
        self._home.check()
        deadline = inf if wait_s is None else self._clock.monotonic() + wait_s
        last_look = None
        with self._lock:
            failures = self._failures.count
            while (message := self._next()) is None:
                self._failures.check(failures)
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0:
                    # Only a look that begins now may answer None: earlier ones may be long ago,
                    # since looks become rare on a quiet queue.
                    if last_look is None:
                        last_look = self._look_wanted = self._looks_begun + 1
                        self._look_at = -inf
                        self._is_wanted.notify()
                    left_s = inf
                is_over = last_look is not None and self._looks_ended >= last_look
                if self._is_closing or is_over:
                    return None
                self._arrived.wait(min(left_s, threading.TIMEOUT_MAX))
            return message

    def _next(self) -> Message | None:
        """Return the next message whose lease still runs. The caller holds the lock."""
        now_us = self._clock.now_us()
        while self._waiting:
            held = self._waiting.popleft()
            if len(self._waiting) == self._prefetch // 2:
                self._is_wanted.notify()
            if held.until_us > now_us:
                return held.message
        return None

    @property
    def _is_started(self) -> bool:
        return self._threads[-1].ident is not None

    @property
    def _has_room(self) -> bool:
        """Whether at most half of the prefetch waits here: then one claim takes many messages."""
        return len(self._waiting) <= self._prefetch // 2

    # --- the threads --------------------------------------------------------------------------

    def _get_ahead(self) -> None:
        while self._await(self._is_wanted, lambda: self._look_at if self._has_room else inf):
            if not self._attempt(self._fill):
                self._look_at = self._clock.monotonic() + RETRY_S

    def _keep_leased(self) -> None:
        while self._await(self._is_due, lambda: self._renew_at):
            self._renew()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is raised where the program waits
            self._note(error, is_end=True)

    def _await(self, condition: threading.Condition, due: Callable[[], float]) -> bool:
        """Wait until the time is due; False when the consumer closes."""
        with self._lock:
            while not self._is_closing:
                left_s = due() - self._clock.monotonic()
                if left_s <= 0:
                    return True
                condition.wait(min(left_s, threading.TIMEOUT_MAX))
            return False

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Try a step; return False if it failed, after the error was kept for the program."""
        try:
            step()
        except QueueDeleted:
            raise
        except CassieqError as error:
            self._tell(error)
            return False
        return True

    def _tell(self, error: Exception) -> None:
        """Raise the error where the program next waits; a final error is raised every time."""
        event(_logger, "consumer_failed", queue=self._lane.queue, error=str(error))
        self._note(error)

    def _note(self, failure: Exception, *, is_end: bool = False) -> None:
        with self._lock:
            self._failures.note(failure, is_end=is_end)
            self._arrived.notify_all()

    def _renew(self) -> None:
        """Renew the leases of all that waits here: the program may take long over what it has.

        Each bucket is renewed on its own, so that none waits for one without an answer (I10) [T5].
        """
        now = self._clock.monotonic()
        with self._lock:
            soon_us = self._clock.now_us() + self._visibility_us // 2
            self._renew_again_at = {at: s for at, s in self._renew_again_at.items() if s > now}
            by_place: dict[Place, dict[Receipt, _Held]] = {}
            for one in self._waiting:
                place = one.receipt.place
                is_due = one.until_us <= soon_us and place not in self._renew_again_at
                if is_due and place not in self._renewing:
                    by_place.setdefault(place, {})[one.receipt] = one
            self._renewing |= by_place.keys()
            self._plan_renewal()

        async def one_bucket(place: Place) -> None:
            failure: Exception | None = None
            try:
                await self._extend(by_place[place])
            except Exception as error:  # noqa: BLE001 - it is raised where the program waits
                failure = error
                self._tell(error)
            with self._lock:
                self._renewing.discard(place)
                self._renew_again_at.pop(place, None)
                if failure is not None:
                    self._renew_again_at[place] = self._clock.monotonic() + RETRY_S
                self._plan_renewal()
                self._is_due.notify()

        session = self._lane.store.session
        with session.within(self._visibility_us / 1e6 / ROUNDS_PER_TIMEOUT):
            portal.run(session.begin_each(one_bucket, by_place))

    async def _extend(self, held: dict[Receipt, _Held]) -> None:
        until_us = self._clock.now_us() + self._visibility_us  # or a moment later
        # A program may have got one of these just now, and have extended it for longer.
        longer = Extend(visibility_us=self._visibility_us, never_sooner=True)
        refused = set(await settle_in_background("extend", self._lane, held, longer))
        with self._lock:
            for receipt, waiting in held.items():
                waiting.until_us = 0 if receipt in refused else until_us
                waiting.message = replace(waiting.message, visible_until=time_of(until_us))
            self._waiting = deque(one for one in self._waiting if one.until_us)

    def _plan_renewal(self) -> None:
        """Set when to renew next; a renewal under way plans itself. The caller holds the lock."""
        now, now_us = self._clock.monotonic(), self._clock.now_us()
        self._renew_at = inf
        for held in self._waiting:
            place = held.receipt.place
            if place not in self._renewing:
                left_us = held.until_us - self._visibility_us // 2 - now_us
                at = max(now + left_us / 1e6, self._renew_again_at.get(place, -inf))
                self._renew_at = min(self._renew_at, at)

    def _fill(self) -> None:
        with self._lock:
            self._looks_begun += 1
        wanted = replace(self._ways.wanted, at_most=self._prefetch - len(self._waiting))
        lane = self._ways.lane()
        found = tracing.received(
            lane.queue, lambda: portal.run(self._ways.getter.get(lane, wanted))
        )
        held = map(_Held, found, self._ways.receipts(found), map(_until_us, found))
        with self._lock:
            self._looks_ended = self._looks_begun
            now, lanes = self._clock.monotonic(), self._ways.getter.lanes
            self._pace.note(now, has_found=bool(found), lanes=lanes)
            if found:
                self._waiting += held
                self._plan_renewal()
                self._is_due.notify()
            elif self._look_wanted <= self._looks_begun:
                self._look_at = now + self._pace.pause_s(now, lanes=lanes)
            self._failures.over()
            self._arrived.notify_all()
            is_late = self._is_closing
        if is_late:
            # `close` may have given up waiting for this, and gone [T24].
            self._give_back()

    def _give_back(self) -> None:
        """Give back what waits here. Nobody has seen it, so its delivery does not count."""
        with self._lock:
            left = [held.receipt for held in self._waiting]
            self._waiting.clear()
        if left:
            portal.run(settle_in_background("release", self._lane, left, Release(is_counted=False)))


def _until_us(message: Message) -> int:
    return 0 if message.visible_until is None else us_of(message.visible_until)
