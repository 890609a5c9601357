"""Store acks a moment later, together: one LWT per bucket for all that have gathered (design 5).

If this client claims in the same bucket before that, they go with the claim: then they cost none.
Holds I4: an ack is kept until it is stored, also across a Ctrl-C. Holds I10: a bucket that cannot
be reached holds up no other's acks.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from cassieq_spark import tracing
from cassieq_spark.errors import (
    CassieqError,
    QueueDeleted,
    ReceiptExpired,
    StoreError,
    StoreTimeout,
    UsageError,
)
from cassieq_spark.log import event, get_logger
from cassieq_spark.queue.settle import acks
from cassieq_spark.queue.settle.acks import Verdict
from cassieq_spark.store import portal
from cassieq_spark.store.row_port import Company

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from opentelemetry.trace import SpanContext

    from cassieq_spark.model.ids import Place
    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.model.rows.events import Answer
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.call import Call

    Flight = Future[BaseException | None]

ACK_WITHIN_S: Final = 0.1
"""How long an ack waits for others to share its LWT."""

RETRY_S: Final = 1.0
"""How long acks wait after an error of the store."""

_logger = get_logger("queue")


class AckBuffer:
    """Gathers receipts and acks them, bucket by bucket, in threads of the session. Thread-safe.

    Attributes:
        stale: Messages whose ack came too late.
    """

    def __init__(
        self,
        lane: Lane,
        *,
        within_s: float,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._lane = lane
        self._within_s = min(ACK_WITHIN_S, within_s)
        self._on_failure = on_failure
        self._clock = lane.clock
        self._is_due = threading.Condition()
        self._gathered: dict[Place, list[Receipt]] = {}
        self._asked_in: dict[Receipt, SpanContext] = {}
        self._flying: dict[Place, Flight] = {}
        self._riding: set[Place] = set()  # of these, those that go with somebody's change
        self._at = inf
        self._is_closing = False
        self._end: QueueDeleted | None = None
        self.stale = 0

    def add(self, receipts: list[Receipt]) -> None:
        """Add receipts to be stored soon.

        Raises:
            UsageError: `close` was called: nobody would store them [T16].
        """
        span = tracing.current()
        with self._is_due:
            if self._is_closing:
                raise UsageError("this consumer is closed. Use queue.ack() instead")
            offered = {receipt.place for receipt in receipts} - self._gathered.keys()
            for receipt in receipts:
                self._gathered.setdefault(receipt.place, []).append(receipt)
            if span is not None:
                self._asked_in |= dict.fromkeys(receipts, span)
            for place in offered:
                self._lane.store.rows.offer(place, partial(self._company, place))
            self._plan(self._within_s)

    def run(self) -> None:
        """Begin to store what is due, again and again, until `close`; it waits for no answer.

        Raises:
            QueueDeleted: The queue is gone.
        """
        while self._wait():
            self._begin(tells=True)

    def flush(self, *, until: float = inf) -> None:
        """Store everything that has gathered.

        Args:
            until: By the monotonic clock. What is under way then ends by itself.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: For some it is unknown; they are kept, and due again after `RETRY_S`.
        """
        with self._lane.store.session.call() as call:
            begun, behind = self._begin()
            while behind:
                # A CAS under way there may have been sent before the last acks came. Theirs follows
                # when that one is answered, whatever becomes of other buckets [T5].
                landed = self._landed(behind.values(), call, until)
                if not landed:
                    break
                ready = {place for place, flight in behind.items() if flight in landed}
                more, again = self._begin(ready)
                begun += more
                behind = {place: behind[place] for place in behind.keys() - ready} | again
            late = set(begun)
            while late and (landed := self._landed(late, call, until)):
                late -= landed
        failures = [
            failure
            for flight in begun
            if flight not in late and (failure := flight.result()) is not None
        ]
        if failures:
            # A queue that is gone says more than an answer that is not there.
            raise min(failures, key=lambda one: isinstance(one, StoreError))
        if late or behind:
            raise StoreTimeout(
                f"acks of {len(late) or len(behind)} buckets of queue {self._lane.queue!r} are "
                "not answered yet. They may be stored, or their messages will be delivered again"
            )

    def _landed(self, flights: Collection[Flight], call: Call, until: float) -> set[Flight]:
        """Wait for the first of these; none: the time is over."""
        with call.waiting():
            left_s = max(0.0, min(until - self._clock.monotonic(), call.left_s))
            landed, _ = wait(flights, left_s, FIRST_COMPLETED)
        if any(flight.result() is None for flight in landed):
            call.heard()
        return landed

    def close(self) -> None:
        """Accept no more, and let `run` end; a last `flush` stores what is there."""
        with self._is_due:
            self._is_closing = True
            self._is_due.notify_all()

    def _wait(self) -> bool:
        """Wait until some are due; False: `close` was called."""
        with self._is_due:
            while not self._is_closing:
                if self._end is not None:
                    raise self._end
                left_s = self._at - self._clock.monotonic()
                if left_s <= 0:
                    return True
                self._is_due.wait(min(left_s, threading.TIMEOUT_MAX))
            return False

    def _begin(
        self, only: Collection[Place] | None = None, *, tells: bool = False
    ) -> tuple[list[Flight], dict[Place, Flight]]:
        """Begin to store what has gathered; one CAS of a bucket is under way at a time.

        Args:
            only: Only these buckets.
            tells: Nobody waits for the result: ``on_failure`` gets failures.

        Returns:
            What carries all that was there; and what is under way for buckets that have more.
        """
        carrying: list[Flight] = []
        behind: dict[Place, Flight] = {}
        new: list[tuple[Place, list[Receipt], Flight]] = []
        with self._is_due:
            self._at = inf if only is None else self._at
            for place in dict.fromkeys([*self._flying, *self._gathered]):
                flight = self._flying.get(place)
                if only is not None and place not in only:
                    continue
                if flight is None:
                    receipts, flight = self._taken(place)
                    new.append((place, receipts, flight))
                elif place in self._riding or (place in self._gathered and only is None):
                    behind[place] = flight
                    continue
                carrying.append(flight)
        for at, one in enumerate(new):
            try:
                self._send(*one, tells=tells)
            except BaseException as error:
                for place, receipts, flight in new[at:]:
                    self._land(place, receipts, flight, error)
                raise
        return carrying, behind

    def _taken(self, place: Place) -> tuple[list[Receipt], Flight]:
        """Take what has gathered for a bucket into a flight. The caller holds the lock."""
        receipts = self._gathered.pop(place)
        flight = self._flying[place] = Future()
        return receipts, flight

    def _company(self, place: Place) -> Company | None:
        """What has gathered for a bucket, to go with a change of it that somebody makes now."""
        with self._is_due:
            if place in self._flying or place not in self._gathered:
                return None
            receipts, flight = self._taken(place)
            self._riding.add(place)

        def tell(answer: Answer | None) -> None:
            left: list[Receipt] = receipts
            try:
                # What was refused is asked again, in a thread of its own: the reason may be a read.
                if answer is not None and acks.are_done(self._lane, answer):
                    with self._settling(receipts):
                        left = self._noted(receipts, [Verdict.ACKED] * len(receipts), None)
            finally:
                self._land(place, left, flight, None, retry_s=0.0)

        return Company(acks.wanted(receipts), tell)

    def _send(self, place: Place, receipts: list[Receipt], flight: Flight, *, tells: bool) -> None:
        async def store(_: Place) -> None:
            left: list[Receipt] = receipts
            failure: BaseException | None = None
            try:
                with self._settling(receipts):
                    verdicts, failure = await acks.ack(self._lane, receipts)
                    left = self._noted(receipts, verdicts, failure)
            except BaseException as error:  # noqa: BLE001 - also Ctrl-C: who waits for it hears it
                failure = error
            if tells and isinstance(failure, Exception):
                self._on_failure(failure)
            self._land(place, left, flight, failure)

        async def begin() -> None:
            try:
                self._lane.store.session.begin(store, place)
            except CassieqError as error:
                self._land(place, receipts, flight, error)

        portal.start(begin())

    @contextmanager
    def _settling(self, receipts: list[Receipt]) -> Iterator[None]:
        """Ack receipts in a span that is linked to those they were acked in."""
        with self._is_due:
            # A second try has no links: the spans may have ended long ago.
            asked_in = [self._asked_in.pop(one) for one in receipts if one in self._asked_in]
        with tracing.settling("ack", self._lane.queue, len(receipts), asked_in):
            yield

    def _noted(
        self, receipts: list[Receipt], verdicts: list[Verdict], failure: CassieqError | None
    ) -> list[Receipt]:
        """Note what became of receipts; return those whose outcome is unknown."""
        stale = verdicts.count(Verdict.STALE) + verdicts.count(Verdict.INVALID)
        if failure is not None or stale:
            tracing.failed(ReceiptExpired if failure is None else type(failure))
        if stale:
            with self._is_due:
                self.stale += stale
            event(_logger, "acks_stale", queue=self._lane.queue, messages=stale)
        pairs = zip(receipts, verdicts, strict=True)
        return [one for one, verdict in pairs if verdict is Verdict.UNKNOWN]

    def _land(
        self,
        place: Place,
        left: list[Receipt],
        flight: Flight,
        failure: BaseException | None,
        *,
        retry_s: float | None = None,
    ) -> None:
        """End a flight and keep what is unknown: a second ack is harmless, a lost one is not."""
        with self._is_due:
            self._flying.pop(place, None)
            self._riding.discard(place)
            has_more = place in self._gathered
            if left:
                self._gathered[place] = left + self._gathered.get(place, [])
            if isinstance(failure, QueueDeleted):
                self._end = failure
                self._is_due.notify_all()
            elif left:
                self._plan(RETRY_S if retry_s is None else retry_s)
            elif has_more:
                self._plan(0.0)
        if not flight.done():
            flight.set_result(failure)

    def _plan(self, in_s: float) -> None:
        """Plan the next store; wake `run` unless one is due earlier. The caller holds the lock."""
        at = self._clock.monotonic() + in_s
        if at < self._at:
            self._at = at
            self._is_due.notify()
