"""Gather acks for a moment, and store them together: one LWT per bucket.

If this client claims in the same bucket before that, the acks go with the claim, and cost no LWT.
Holds I4: an ack is kept until it is stored, also across a Ctrl-C. Holds I10: a bucket that cannot
be reached does not hold up the acks of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark import tracing
from cassieq_spark.errors import (
    CassieqError,
    ClientClosed,
    QueueDeleted,
    ReceiptExpired,
    StoreError,
    StoreTimeout,
)
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import Place
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.rows.events import Answer
from cassieq_spark.model.rows.intents import ACK
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.settle import settle
from cassieq_spark.queue.settle.settle import AckResult
from cassieq_spark.queue.shelf import doors
from cassieq_spark.store import portal
from cassieq_spark.store.call import Timer
from cassieq_spark.store.rows import Company

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    Flight = asyncio.Future[BaseException | None]

ACK_WITHIN_S: Final = 0.1
"""The time that an ack waits for others to share its LWT."""

RETRY_S: Final = 1.0
"""The time that acks wait after an error of the store."""

_logger = get_logger("queue")


class AckBuffer:
    """Gather receipts and ack them, bucket by bucket.

    Any thread may call `add` and `close`. All else happens in the event loop, which is woken once
    for all acks of a bucket that go together.

    Attributes:
        stale: The number of messages whose ack came too late.
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
        self._loop = portal.portal().loop
        self._gathered: dict[Place, list[Receipt]] = {}
        self._asked_in: dict[Receipt, SpanContext] = {}
        self._flying: dict[Place, Flight] = {}
        self._riding: set[Place] = set()  # their acks go with another change
        self._timer = Timer(lane.clock, self._store_all)
        self._is_closing = False
        self.stale = 0

    def add(self, receipts: list[Receipt]) -> None:
        """Add receipts to be stored soon.

        Raises:
            ClientClosed: `close` was called, so the receipts would never be stored [T16].
        """
        span = tracing.current()
        with doors.lock:
            if self._is_closing:
                raise ClientClosed("this consumer is closed. Use queue.ack() instead")
            new = {receipt.place for receipt in receipts} - self._gathered.keys()
            if new:
                # First of all: a Ctrl-C may end this at any line, and what was taken is stored.
                self._loop.call_soon_threadsafe(self._expect, new, context=Context())
            for receipt in receipts:
                self._gathered.setdefault(receipt.place, []).append(receipt)
            if span is not None:
                self._asked_in |= dict.fromkeys(receipts, span)

    def close(self) -> None:
        """Accept no more receipts. A last `flush` stores those that are here."""
        with doors.lock:
            self._is_closing = True

    async def flush(self, *, until: float = inf) -> None:
        """Store all acks that have gathered.

        Args:
            until: The deadline, by the monotonic clock. A CAS that is still running then ends by
                itself.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: The outcome of some acks is unknown. They are kept, and due again after
                `RETRY_S`.
        """
        clock, failures = self._lane.clock, []
        with self._lane.store.session.call() as call:
            self._timer.set(inf)
            # Each bucket goes by itself, whatever happens to the others [T5].
            late = {self._loop.create_task(self._stored(place)) for place in self._places()}
            while late:
                left_s = max(0.0, min(until - clock.monotonic(), call.left_s))
                with call.waiting():
                    landed, late = await asyncio.wait(
                        late, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                    )
                if not landed:
                    break
                found = [one.result() for one in landed]
                failures += [failure for failure in found if failure is not None]
                if len(failures) < len(found):
                    call.heard()
        if failures:
            # A queue that is gone says more than a missing answer.
            raise min(failures, key=lambda one: isinstance(one, StoreError))
        if late:
            raise StoreTimeout(
                f"acks of {len(late)} buckets of queue {self._lane.queue!r} are not answered yet. "
                "They may be stored, or their messages will be delivered again"
            )

    # --- in the event loop --------------------------------------------------------------------

    def _places(self) -> list[Place]:
        with doors.lock:
            return list(self._flying.keys() | self._gathered.keys())

    def _expect(self, places: Set[Place]) -> None:
        """Note that acks have begun to gather for these buckets."""
        with doors.lock:  # so that `add` has ended
            places &= self._gathered.keys()
        for place in places:
            self._lane.store.rows.offer(place, partial(self._company, place))
        self._plan(self._within_s)

    def _plan(self, in_s: float) -> None:
        """Store the gathered acks after this time, unless that is planned for an earlier one."""
        at = self._lane.clock.monotonic() + in_s
        if at < self._timer.at and not self._is_closing:
            self._timer.set(at)

    def _store_all(self) -> None:
        """Begin to store the gathered acks. Acks that gather during a bucket's CAS follow it."""
        for place in self._places():
            if place not in self._flying:
                self._store(place, tells=True)

    async def _stored(self, place: Place) -> BaseException | None:
        """Store all acks that have gathered for a bucket until now. Return the failure, if any."""
        while (flight := self._flying.get(place)) is not None:
            # The CAS may have been sent before the last acks came, and acks that ride may be left
            # behind.
            is_all = place not in self._gathered and place not in self._riding
            await asyncio.wait([flight])
            if is_all:
                return flight.result()
        return await self._store(place, tells=False) if place in self._gathered else None

    def _store(self, place: Place, *, tells: bool) -> Flight:
        """Begin to store the acks that have gathered for a bucket without a running CAS.

        Args:
            tells: Whether nobody waits for the result, so that ``on_failure`` gets failures.
        """
        receipts, flight = self._taken(place)

        async def store() -> None:
            left: list[Receipt] = receipts
            failure: BaseException | None = None
            try:
                with self._settling(receipts):
                    verdicts, _, failure = await settle.settle_receipts(self._lane, receipts, ACK)
                    left = self._noted(receipts, verdicts, failure)
            except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
                failure = error
            if isinstance(failure, QueueDeleted) or (tells and isinstance(failure, Exception)):
                self._on_failure(failure)
            self._land(place, left, flight, failure)

        try:
            self._lane.store.session.begin(lambda _: store(), place)
        except CassieqError as error:
            self._land(place, receipts, flight, error)
        return flight

    def _taken(self, place: Place) -> tuple[list[Receipt], Flight]:
        """Move the acks that have gathered for a bucket into a flight."""
        with doors.lock:
            receipts = self._gathered.pop(place)
        flight = self._flying[place] = self._loop.create_future()
        return receipts, flight

    def _company(self, place: Place) -> Company | None:
        """Return the acks that have gathered for a bucket, to go with a change of its row."""
        if place in self._flying or place not in self._gathered:
            return None
        receipts, flight = self._taken(place)
        self._riding.add(place)

        def tell(answer: Answer | None) -> None:
            left: list[Receipt] = receipts
            try:
                # Refused acks are asked again, in a task of their own: to find the reason may need
                # a read.
                judged: Any = None if answer is None else answer.result
                if judged is not None:
                    settle.count(self._lane, judged)
                if judged is not None and judged.is_whole:
                    with self._settling(receipts):
                        left = self._noted(receipts, [AckResult.ACKED] * len(receipts), None)
            finally:
                self._land(place, left, flight, None, retry_s=0.0)

        return Company(settle.wanted(settle.by_lease(receipts, ACK)), tell)

    @contextmanager
    def _settling(self, receipts: list[Receipt]) -> Iterator[None]:
        """Ack receipts in a span that is linked to the spans in which they were acked."""
        with doors.lock:
            # A second try has no links: those spans may have ended long ago.
            asked_in = [self._asked_in.pop(one) for one in receipts if one in self._asked_in]
        with tracing.settling("ack", self._lane.queue, len(receipts), asked_in):
            yield

    def _noted(
        self, receipts: list[Receipt], verdicts: list[AckResult], failure: CassieqError | None
    ) -> list[Receipt]:
        """Note the outcome of receipts. Return those whose outcome is unknown."""
        stale = verdicts.count(AckResult.STALE) + verdicts.count(AckResult.INVALID)
        if failure is not None or stale:
            tracing.failed(ReceiptExpired if failure is None else type(failure))
        if stale:
            self.stale += stale
            event(_logger, "acks_expired", queue=self._lane.queue, messages=stale)
        pairs = zip(receipts, verdicts, strict=True)
        return [one for one, verdict in pairs if verdict is AckResult.UNKNOWN]

    def _land(
        self,
        place: Place,
        left: list[Receipt],
        flight: Flight,
        failure: BaseException | None,
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        """End a flight. Keep unknown acks: a second ack is harmless, a lost one is not."""
        self._flying.pop(place, None)
        self._riding.discard(place)
        with doors.lock:
            has_more = place in self._gathered
            if left:
                self._gathered[place] = left + self._gathered.get(place, [])
        if not isinstance(failure, QueueDeleted) and (left or has_more):
            self._plan(retry_s if left else 0.0)
        flight.set_result(failure)
