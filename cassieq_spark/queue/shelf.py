"""`Shelf` connects messages that wait for the program with calls that wait for messages.

  look  ->  Held, Held, ...  ->  callers in threads or tasks, in the order of asking

A caller takes a message that is here without a trip to the event loop; otherwise it waits there. So
no caller waits while a message is here. Holds I2: no message is handed out after its
lease has run out.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cassieq_spark.clock import Clock
from cassieq_spark.errors import CassieqError, QueueDeleted
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.moments import time_of
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.queue.message import Delivery
from cassieq_spark.store.caller import copied


@dataclass(eq=False, slots=True)
class Held:
    """A message that waits to be handed out, with the end of its lease."""

    message: Delivery
    receipt: Receipt
    until_us: int


Answer = asyncio.Future[Held | None]
"""A caller's place in the line for a message."""


class _Doors:
    """The lock of all consumers of the process, which their callers and the event loop take.

    A signal handler or the garbage collector may close a consumer in a thread that holds it. That
    thread must not wait for the event loop then, which would wait for the lock: see `is_mine`.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    @property
    def is_mine(self) -> bool:
        """Whether the present thread holds the lock."""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001 - as `threading.Condition` asks

    def _renew(self) -> None:
        self.lock = threading.RLock()


doors: Final = _Doors()


class Shelf:
    """The waiting messages of one consumer, and the callers that wait for one. Thread-safe.

    Args:
        prefetch: The number of messages that may wait here.
        wake: Called when there is room, when a caller needs a look, and when a message comes back
            after the end.

    Attributes:
        is_closed: Whether the consumer was closed, so that no caller gets a message any more.
    """

    def __init__(self, clock: Clock, prefetch: int, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._prefetch = prefetch
        self._wake = wake
        self._held: deque[Held] = deque()
        # Each with whether its time is over: then a look that begins now may answer it with None.
        self._waiting: dict[Answer, bool] = {}
        self._looking_for: list[Answer] = []
        self._untold: Exception | None = None
        self._end: Exception | None = None
        self.is_closed = False

    # --- for callers, in any thread -----------------------------------------------------------

    def take(self) -> Held | None:
        """Take the next message, if one is here; see `ask` for what else there is to know."""
        with doors.lock:
            return None if self.is_closed else self._next()

    def taken(self, held: Held) -> bool:
        """Whether the lease of a message runs still, when the caller that was given it takes it."""
        with doors.lock:
            return held.until_us > self._clock.now_us()

    # --- for the event loop -------------------------------------------------------------------

    def ask(self, answer: Answer) -> None:
        """Answer with the next message, when one is here; None if no message came.

        Raises:
            Exception: The failure of a look, an ack or a renewal that no caller was told yet, or
                that has ended the consumer.
        """
        with doors.lock:
            if (held := self.take()) is not None:
                answer.set_result(held)
                return
            failure, self._untold = self._untold or self._end, None
            if failure is not None:
                raise copied(failure)
            if self.is_closed:
                answer.set_result(None)
            else:
                self._waiting[answer] = False

    def look_for(self, answer: Answer) -> None:
        """Answer a caller whose time is over after one more look.

        The answer is None if that look finds nothing. It must be a look that begins now: the last
        one may be long ago, as looks become rare on a quiet queue.
        """
        if answer in self._waiting:
            self._waiting[answer] = True
            self._wake()

    def leave(self, answer: Answer) -> None:
        """Do not wait any more, because the caller has left; see `put_back`."""
        if self._waiting.pop(answer, None) is not None:
            answer.set_result(None)

    def put_back(self, held: Held) -> None:
        """Give the message of a caller that has left to the next one."""
        with doors.lock:
            self._held.appendleft(held)
            self._serve()
            self._wake()  # it is to be renewed, or given back

    @property
    def has_room(self) -> bool:
        """Whether at most half of the prefetch waits here. Then one claim takes many messages."""
        return len(self._held) <= self._prefetch // 2

    @property
    def needs_look(self) -> bool:
        """Whether a caller waits whose time is over."""
        return any(self._waiting.values())

    def waiting(self) -> list[Held]:
        """Return the messages that wait to be handed out."""
        with doors.lock:
            return list(self._held)

    def begin_look(self) -> int:
        """Begin a look, and return the number of messages that it may bring."""
        with doors.lock:
            self._looking_for = [one for one, is_late in self._waiting.items() if is_late]
            return self._prefetch - len(self._held)

    def end_look(self, found: Sequence[Held]) -> None:
        """Hand out the messages that a look has found, or its answer that there are none.

        After a look that worked, a failure that no caller was told yet is dropped.
        """
        with doors.lock:
            self._untold = None
            self._held += found
            self._serve()
            for answer in () if found else self._looking_for:
                self.leave(answer)

    def fail(self, failure: Exception, *, is_end: bool = False) -> None:
        """Raise a failure in all callers that wait, or else in the next caller.

        If only one caller were told, each of the others would wait for a failure of its own, one
        after the other.

        Args:
            is_end: Whether the failure has ended the consumer. Then it is raised every time, as is
                a deletion or a bug.
        """
        with doors.lock:
            if is_end or isinstance(failure, QueueDeleted) or not isinstance(failure, CassieqError):
                self._end = failure
            self._untold = None if self._waiting else failure
            for answer in self._waiting:
                answer.set_exception(copied(failure))
            self._waiting.clear()

    def renewed(
        self, held: Mapping[Receipt, Held], refused: Collection[Receipt], until_us: int
    ) -> None:
        """Note that leases end later. Forget refused messages: they are no longer ours."""
        with doors.lock:
            for receipt, one in held.items():
                one.until_us = 0 if receipt in refused else until_us
                one.message = replace(one.message, visible_until=time_of(until_us))
            if refused:
                self._held = deque(one for one in self._held if one.until_us)

    def close(self) -> None:
        """Answer every caller that waits, and every later caller, with None."""
        with doors.lock:
            self.is_closed = True
            for answer in list(self._waiting):
                self.leave(answer)

    def clear(self, lanes: Collection[LaneId] | None = None) -> list[Receipt]:
        """Take messages that wait here, to give them back: those of these lanes; None: all."""
        with doors.lock:
            held, self._held = self._held, deque()
            left: list[Receipt] = []
            for one in held:
                if lanes is None or one.receipt.place.lane in lanes:
                    left.append(one.receipt)
                else:
                    self._held.append(one)
            return left

    # --- parts; the caller holds the lock -----------------------------------------------------

    def _next(self) -> Held | None:
        """Take the next message whose lease still runs."""
        now_us = self._clock.now_us()
        while self._held:
            held = self._held.popleft()
            if len(self._held) == self._prefetch // 2:
                self._wake()
            if held.until_us > now_us:
                return held
        return None

    def _serve(self) -> None:
        """Hand out messages to the callers that wait, in their order."""
        while self._waiting and (held := self._next()) is not None:
            answer = next(iter(self._waiting))
            del self._waiting[answer]
            answer.set_result(held)
