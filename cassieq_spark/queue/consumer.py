"""`Consumer`: messages one at a time for the price of hundreds: prefetch, grouped acks (design 5).

Two threads beside the program: one claims ahead and keeps leased what waits here, one acks what is
done.
Holds I2: it hands out nothing whose lease has run out. Holds I4: what is acked was handed out.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Self

from cassieq_spark.errors import CassieqError, QueueDeleted, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.options import arguments
from cassieq_spark.queue import hold
from cassieq_spark.queue.acks_behind import RETRY_S, AcksBehind
from cassieq_spark.queue.get import Getter, Wanted, pause_after
from cassieq_spark.queue.message import Message, time_of, us_of
from cassieq_spark.queue.verdict import AckGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import timedelta

    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.queue.lane import Lane

_logger = get_logger("queue")


@dataclass(slots=True)
class _Held:
    """A message that waits to be handed out, and when its lease runs out."""

    message: Message
    receipt: Receipt
    until_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How a consumer reaches its queue.

    Attributes:
        lane: With the settings of now.
        receipts: Checked receipts of what a user passed.
        wanted: What it asks for; ``at_most``: so many lie here at a time.
    """

    lane: Callable[[], Lane]
    receipts: Callable[[Message | str | Iterable[Message | str]], list[Receipt]]
    wanted: Wanted
    getter: Getter
    acks: AckGroup


class Consumer:
    """Messages of one queue, got ahead and acked behind. Threads may share it.

    Use it in a ``with`` block: at its end acks are stored, and what was got and not handed out is
    given back, uncounted.
    """

    def __init__(self, ways: Ways, *, idle_timeout_s: float | None) -> None:
        self._ways = ways
        lane = ways.lane()
        self._name = lane.queue
        self._clock = lane.clock
        self._prefetch = ways.wanted.at_most
        self._visibility_us = ways.wanted.visibility_us
        self._idle_timeout_s = idle_timeout_s
        self._lock = threading.RLock()
        # Conditions of one lock: no thread is woken by every message and every ack.
        self._arrived = threading.Condition(self._lock)
        self._is_due = threading.Condition(self._lock)
        self._waiting: deque[_Held] = deque()
        self._looks_begun = self._looks_ended = self._empty_looks = 0
        self._failure: Exception | None = None  # told once
        self._end: Exception | None = None  # told to everybody: the thread is gone
        self._is_closing = False
        # An ack that is not answered must not hold up a renewal.
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name="cassieq-consumer", daemon=True)
            for work in (self._get_ahead, self._ack_behind)
        ]
        # When the threads are to do what, by the monotonic clock.
        self._renew_at = inf
        self._look_at = -inf
        self._look_wanted = 0
        self._acks = AcksBehind(
            ways.lane,
            ways.acks,
            at_most=self._prefetch,
            within_s=ways.wanted.visibility_us / 4e6,
        )

    @property
    def stale(self) -> int:
        """How many acks came too late: their receipts had expired, and changed nothing."""
        return self._acks.stale

    def get(self, wait: float | timedelta | None = None) -> Message | None:
        """The next message.

        Args:
            wait: Seconds to wait for one; None: as long as it takes.

        Returns:
            None if none came, or the consumer was closed.

        Raises:
            QueueDeleted: The queue is gone.
            CassieqError: Nothing could be got, or acks could not be stored; it goes on by itself.
            UsageError: The consumer is not in its ``with`` block.
        """
        return self._get(None if wait is None else arguments.wait_s(wait))

    def __iter__(self) -> Iterator[Message]:
        """Messages, until none came for ``idle_timeout``, or the consumer was closed."""
        while (message := self._get(self._idle_timeout_s)) is not None:
            yield message

    def ack(self, messages: Message | str | Iterable[Message | str]) -> None:
        """Say that messages are done. Returns at once; stored within a tenth of a second.

        If this process dies before that, they come again; so they do if their lease had ended.

        Raises:
            ReceiptInvalid: One is no receipt of this queue; nothing was acked.
            UsageError: The consumer is closed.
        """
        receipts = self._ways.receipts(messages)
        if self._is_closing:
            raise UsageError("this consumer is closed: ack by the queue itself")
        self._acks.add(receipts)

    def flush(self) -> None:
        """Return when every ack so far is stored.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: It is unknown of some; they are tried again.
        """
        self._acks.flush()

    def close(self) -> None:
        """Store the acks, give back what was not handed out. Idempotent.

        Raises:
            StoreError: That failed: the messages come back when their leases run out.
        """
        with self._lock:
            self._is_closing = True
            self._arrived.notify_all()
            self._is_due.notify()
        self._acks.close()
        for thread in self._threads if self._is_started else ():
            thread.join()
        with self._lock:
            left = [held.receipt for held in self._waiting]
            self._waiting.clear()
        try:
            self._acks.flush()
        finally:
            if left:
                # Nobody has seen them: their delivery does not count.
                hold.release(self._ways.lane(), left, is_counted=False)

    def __enter__(self) -> Self:
        """Begin to get.

        Raises:
            UsageError: It was entered before.
        """
        if self._is_started:
            raise UsageError("a consumer is for one block: make another one by queue.consumer()")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """See `close`."""
        self.close()

    def _get(self, wait_s: float | None) -> Message | None:
        if not self._is_started:
            raise UsageError(
                "a consumer works in its block: with queue.consumer() as consumer: ..."
            )
        deadline = inf if wait_s is None else self._clock.monotonic() + wait_s
        last_look = None
        with self._lock:
            while (message := self._next()) is None:
                self._raise_failure()
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0:
                    # None is the answer only of a look that was begun now: those before may have
                    # been long ago, they become rare on a quiet queue.
                    if last_look is None:
                        last_look = self._look_wanted = self._looks_begun + 1
                        self._look_at = -inf
                        self._is_due.notify()
                    left_s = inf
                is_over = last_look is not None and self._looks_ended >= last_look
                if self._is_closing or is_over:
                    return None
                self._arrived.wait(min(left_s, threading.TIMEOUT_MAX))
            return message

    def _next(self) -> Message | None:
        """Caller holds the lock. What ran out while it waited here is others' now."""
        now_us = self._clock.now_us()
        while self._waiting:
            held = self._waiting.popleft()
            if len(self._waiting) == self._prefetch // 2:
                self._is_due.notify()
            if held.until_us > now_us:
                return held.message
        return None

    @property
    def _is_started(self) -> bool:
        return self._threads[-1].ident is not None

    @property
    def _has_room(self) -> bool:
        """Half of what lies here at most: so a claim takes as much again, and not one by one."""
        return len(self._waiting) <= self._prefetch // 2

    def _raise_failure(self) -> None:
        """Caller holds the lock."""
        failure, self._failure = self._failure, self._end
        if failure is not None:
            raise failure

    # --- the threads --------------------------------------------------------------------------

    def _get_ahead(self) -> None:
        while self._await_look_or_renewal():
            now = self._clock.monotonic()
            if now >= self._renew_at and not self._attempt(self._renew):
                self._renew_at = self._clock.monotonic() + RETRY_S
            if now >= self._look_at and self._has_room and not self._attempt(self._fill):
                self._look_at = self._clock.monotonic() + RETRY_S

    def _ack_behind(self) -> None:
        while self._acks.wait():
            self._attempt(self._acks.flush)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is raised where the program waits
            with self._lock:
                self._failure = self._end = error
                self._arrived.notify_all()

    def _await_look_or_renewal(self) -> bool:
        """Until one of them is due; False: this is the end."""
        with self._lock:
            while not self._is_closing:
                due = min(self._renew_at, self._look_at if self._has_room else inf)
                left_s = due - self._clock.monotonic()
                if left_s <= 0:
                    return True
                self._is_due.wait(min(left_s, threading.TIMEOUT_MAX))
            return False

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Whether it succeeded; if not, the program is told, and it is to be tried again."""
        try:
            step()
        except QueueDeleted:
            raise
        except CassieqError as error:
            event(_logger, "consumer_failed", queue=self._name, error=str(error))
            with self._lock:
                self._failure = error
                self._arrived.notify_all()
            return False
        return True

    def _renew(self) -> None:
        """Let nothing run out that waits here: the program may take long over what it has.

        A bucket that cannot be reached does not hold up the others (I10).
        """
        with self._lock:
            soon_us = self._clock.now_us() + self._visibility_us // 2
            held = {one.receipt: one for one in self._waiting if one.until_us <= soon_us}
        until_us = self._clock.now_us() + self._visibility_us
        by_bucket: dict[BucketNo, list[Receipt]] = {}
        for receipt in held:
            by_bucket.setdefault(receipt.bucket, []).append(receipt)
        lane = self._ways.lane()
        errors: list[CassieqError] = []

        def one(bucket: BucketNo) -> None:
            asked = by_bucket[bucket]
            try:
                # A program may have got one of them just now, and have extended it for longer.
                refused = set(hold.extend(lane, asked, until_us=until_us, never_sooner=True))
            except CassieqError as error:
                errors.append(error)
                return
            with self._lock:
                for receipt in asked:
                    waiting = held[receipt]
                    waiting.until_us = 0 if receipt in refused else until_us
                    waiting.message = replace(waiting.message, visible_until=time_of(until_us))

        lane.store.session.map(one, by_bucket)
        with self._lock:
            self._waiting = deque(one for one in self._waiting if one.until_us)
            self._plan_renewal()
        if errors:
            raise errors[0]

    def _plan_renewal(self) -> None:
        """Caller holds the lock."""
        first_us = min((held.until_us for held in self._waiting), default=None)
        if first_us is None:
            self._renew_at = inf
        else:
            left_us = first_us - self._visibility_us // 2 - self._clock.now_us()
            self._renew_at = self._clock.monotonic() + left_us / 1e6

    def _fill(self) -> None:
        with self._lock:
            self._looks_begun += 1
        wanted = replace(self._ways.wanted, at_most=self._prefetch - len(self._waiting))
        found = self._ways.getter.get(self._ways.lane(), wanted)
        held = map(_Held, found, self._ways.receipts(found), map(_until_us, found))
        with self._lock:
            self._looks_ended = self._looks_begun
            if found:
                self._empty_looks = 0
                self._waiting += held
                self._plan_renewal()
            else:
                self._empty_looks += 1
                if self._look_wanted <= self._looks_begun:
                    self._look_at = self._clock.monotonic() + pause_after(self._empty_looks)
            self._failure = self._end  # what was wrong is over
            self._arrived.notify_all()


def _until_us(message: Message) -> int:
    return 0 if message.visible_until is None else us_of(message.visible_until)
