"""`Consumer` gives messages one by one at the cost of batches: prefetch and grouped acks.

It belongs to the blocking API. `Ahead` does the work, for `AsyncConsumer`, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from typing import Any, Final, Self

from cassieq_spark import tracing
from cassieq_spark.errors import CassieqError, QueueDeleted, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import Place
from cassieq_spark.model.moments import us_of
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.settlement import Extend, Release
from cassieq_spark.options import arguments
from cassieq_spark.queue.get.getter import GetRequest, Getter, Pace
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Delivery
from cassieq_spark.queue.pause import still_paused
from cassieq_spark.queue.settle.ack_buffer import RETRY_S, AckBuffer
from cassieq_spark.queue.settle.settle import settle_in_background
from cassieq_spark.queue.shelf import Held, Shelf, doors
from cassieq_spark.queue.waiting import give_back
from cassieq_spark.store import caller, portal
from cassieq_spark.store.call import Timer
from cassieq_spark.store.process import OfOneProcess


class Consumer(OfOneProcess):
    """Messages of one queue, prefetched and acked in groups. Threads may share it.

    Use it in a ``with`` block. At its end, acks are stored, and messages that were prefetched and
    not handed out are given back, uncounted.
    """

    def __init__(self, ways: ConsumerContext, *, idle_timeout_s: float | None) -> None:
        self._ways = ways
        self._idle_timeout_s = idle_timeout_s
        self._ahead = Ahead(ways, portal.run(ways.lane()))
        self._is_started = False

    @property
    def stale(self) -> int:
        """The number of acks that changed nothing: they came too late, or named no real message."""
        return self._ahead.acks.stale

    def get(self, wait: float | timedelta | None = None) -> Delivery | None:
        """Return the next message.

        Args:
            wait: Seconds to wait for one; None waits as long as it takes.

        Returns:
            None if no message came, or the consumer was closed.

        Raises:
            QueueDeleted: The queue is gone.
            CassieqError: A get failed, or acks could not be stored. The consumer retries by itself.
            UsageError: The consumer is not in its ``with`` block.
        """
        return self._get(None if wait is None else arguments.wait_s(wait))

    def __iter__(self) -> Iterator[Delivery]:
        """Yield messages until none came for ``idle_timeout``, or the consumer was closed."""
        while (message := self._get(self._idle_timeout_s)) is not None:
            yield message

    def ack(self, messages: Delivery | str | Iterable[Delivery | str]) -> None:
        """Mark messages as done. Returns at once; acks are stored within a tenth of a second.

        The messages come again if this process dies before that, or if their lease had ended.

        Raises:
            ReceiptInvalid: An entry is not a receipt of this queue; nothing was acked.
            ClientClosed: The consumer is closed.
        """
        self._ahead.home.check()
        self._ahead.acks.add(self._ways.receipts(messages))

    def flush(self) -> None:
        """Wait until every ack so far is stored.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: For some acks it is unknown whether they are stored; they are retried.
        """
        self._ahead.home.check()
        portal.run(self._ahead.acks.flush())

    def close(self) -> None:
        """Store the acks, and give back messages that were not handed out. Idempotent.

        It takes `CLOSE_S` at most. A get that is still running ends by itself, and gives back what
        it found.

        Raises:
            StoreError: Acks or releases failed. The messages come back when their leases run out.
        """
        if not self._ahead.home.is_here:
            return  # a forked child: the parent does what is left to do
        if portal.is_here() or doors.is_mine:
            portal.apart(self.close)  # an unfinished iteration, collected as garbage
        else:
            portal.run(self._ahead.close())

    def __enter__(self) -> Self:
        """Start to get messages.

        Raises:
            UsageError: The consumer was entered before.
        """
        if self._is_started:
            raise UsageError(
                "a consumer works in one block only. Make another one with queue.consumer()"
            )
        self._is_started = True
        self._ahead.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        """Close; see `close`."""
        self.close()

    def __repr__(self) -> str:
        return f"Consumer({self._ways.queue!r})"

    def _get(self, wait_s: float | None) -> Delivery | None:
        if not self._is_started:
            raise UsageError(
                "a consumer works only inside its block. Write: with queue.consumer() as "
                "consumer: ..."
            )
        ahead = self._ahead
        ahead.home.check()
        deadline = ahead.deadline(wait_s)
        while True:
            held = ahead.shelf.take() or portal.run(ahead.next(deadline))
            if held is None or ahead.shelf.taken(held):
                return None if held is None else held.message


CLOSE_S: Final = 20.0
"""`Ahead.close` returns within this time plus one request's timeout, whatever the store does."""

ROUNDS_PER_TIMEOUT: Final = 4
"""A renewal that is not answered within this fraction of a visibility timeout is given up and begun
again, so that there is time for another one before the lease runs out."""

PAUSE_LOOK_S: Final = 4.0
"""While messages wait here, the registers of their priorities are read this often. So what waits
goes back within this time and two statements after a pause; a prefetched message of a paused queue
would else be handed out for as long as its lease is renewed."""

_logger = get_logger("queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerContext:
    """The functions by which a consumer reaches its queue.

    Attributes:
        queue: The queue's name.
        lane: Returns the lane with its current settings; may raise `QueueDeleted`.
        receipts: Checks what a user passed and returns its receipts.
        wanted: Checks the arguments of the consumer against the lane's settings. ``at_most`` is the
            prefetch.
    """

    queue: str
    lane: Callable[[], Coroutine[Any, Any, Lane]]
    receipts: Callable[[Delivery | str | Iterable[Delivery | str]], list[Receipt]]
    wanted: Callable[[Lane], GetRequest]
    getter: Getter


class Ahead:
    """The work of one consumer.

    Any thread may use `shelf` and ``acks.add``; all else is for the event loop.

    Args:
        lane: Messages are settled in the lane that delivered them, whatever happens to the queue's
            row. That row is read again only to get more messages.

    Attributes:
        home: The process that it works in.
    """

    def __init__(self, ways: ConsumerContext, lane: Lane) -> None:
        self._ways = ways
        self._lane = lane
        self._clock = lane.clock
        self.home = lane.store.session.home
        self._wanted = wanted = ways.wanted(lane)
        self._loop = portal.portal().loop
        self.shelf = Shelf(lane.clock, wanted.at_most, self._wake)
        self.acks = AckBuffer(lane, within_s=wanted.visibility_us / 4e6, on_failure=self._tell)
        self._pace = Pace(lane.store.entropy)
        self._look_at = inf  # by the monotonic clock; infinite if not begun, or over
        self._look_timer = Timer(lane.clock, self._begin_look)
        self._looking: asyncio.Task[None] | None = None
        self._renewal_timer = Timer(lane.clock, self._renew)
        self._pause_timer = Timer(lane.clock, self._begin_to_let_go)
        self._asked_at = -inf
        self._renewing: set[Place] = set()
        self._renew_again_at: dict[Place, float] = {}
        self._is_over = False

    def begin(self) -> None:
        """Begin to get messages."""
        self._look_at = -inf
        self._wake()

    async def close(self) -> None:
        """Store the acks, and give back messages that were not handed out; see `Consumer.close`."""
        until = self._clock.monotonic() + CLOSE_S
        self.shelf.close()
        self._look_timer.set(inf)
        # The flush stores acks that came before this, and no ack is accepted after it [T16].
        self.acks.close()
        with self._lane.store.session.within(CLOSE_S):
            try:
                # The flush comes first: a look may wait for the store for long [T24]. What waits
                # here is renewed until it is given back: it was not delivered, so it must not run
                # out, and count.
                await self.acks.flush(until=until)
            finally:
                if self._looking is not None:
                    left_s = max(0.0, until - self._clock.monotonic())
                    await asyncio.wait([self._looking], timeout=left_s)
                self._is_over = True
                self._renewal_timer.set(inf)
                self._pause_timer.set(inf)
                await self._give_back()

    def deadline(self, wait_s: float | None) -> float:
        """Return when a wait that begins now is over, for `next`. Any thread may call this."""
        return inf if wait_s is None else self.home.monotonic() + wait_s

    async def next(self, deadline: float) -> Held | None:
        """Wait for the next message; None if no message came, or the consumer was closed.

        Raises:
            Exception: See `Shelf.ask`.
        """
        answer: asyncio.Future[Held | None] = self._loop.create_future()
        caller.if_left(self._put_back)
        self.shelf.ask(answer)
        with caller.when_left(lambda: self.shelf.leave(answer)):
            if deadline < inf:
                left_s = max(0.0, deadline - self.home.monotonic())
                await asyncio.wait([answer], timeout=left_s)
                self.shelf.look_for(answer)
            return await answer

    async def _put_back(self, held: Held | None) -> None:
        if held is not None:
            self.shelf.put_back(held)

    def _wake(self) -> None:
        """Wake the event loop, because something has changed. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._go_on, context=Context())

    def _go_on(self) -> None:
        if not self.shelf.is_closed:
            self._plan_look()
            self._plan_renewal()
        elif self._is_over:
            with suppress(CassieqError):  # the client is closed, too: the lease runs out
                # The caller that was given a message has left it only now.
                self._lane.store.session.begin(lambda _: self._give_back_late(), None)

    def _tell(self, error: Exception) -> None:
        """Raise the error where the program waits next. A final error is raised every time."""
        event(_logger, "consumer_failed", queue=self._lane.queue, error=str(error))
        self.shelf.fail(error)

    # --- looks --------------------------------------------------------------------------------

    def _plan_look(self) -> None:
        """Set the time of the next look. A look that is running plans the next one itself."""
        if self._looking is None and not self.shelf.is_closed:
            is_wanted = self._look_at < inf and self.shelf.needs_look
            at = -inf if is_wanted else self._look_at
            self._look_timer.set(at if self.shelf.has_room else inf)

    def _begin_look(self) -> None:
        if self.shelf.has_room:  # messages may have come back
            self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        try:
            await self._fill()
        except QueueDeleted as error:
            self._end(error)
        except CassieqError as error:
            self._tell(error)
            self._look_at = self._clock.monotonic() + RETRY_S
        except Exception as error:  # noqa: BLE001 - it is raised where the program waits
            self._end(error)
        try:
            if self.shelf.is_closed:
                # `close` may have stopped waiting for this look, and returned [T24].
                await self._give_back_late()
        finally:
            self._looking = None
            self._plan_look()

    def _end(self, error: Exception) -> None:
        self._look_at = inf
        self.shelf.fail(error, is_end=True)

    async def _fill(self) -> None:
        wanted = replace(self._wanted, at_most=self.shelf.begin_look())
        lane, getter = await self._ways.lane(), self._ways.getter
        found = await tracing.received(lane.queue, getter.look(lane, wanted))
        ends_us = [us_of(one.visible_until) for one in found]
        held = list(map(Held, found, self._ways.receipts(found), ends_us))
        now = self._clock.monotonic()
        if not self.shelf.waiting() and self._asked_at < inf:
            self._asked_at = now  # what comes now is confirmed
        self._pace.note(now, has_found=bool(found), lanes=getter.lanes)
        self._look_at = now + self._pace.pause_s(now, lanes=getter.lanes)
        self.shelf.end_look(held)
        self._plan_renewal()

    async def _give_back(self) -> None:
        """Give back the messages that wait here, uncounted, as no consumer has seen them."""
        if left := self.shelf.clear():
            await settle_in_background("release", self._lane, left, Release(count_delivery=False))

    async def _give_back_late(self) -> None:
        await give_back(self._lane, self.shelf.clear())

    # --- pauses -------------------------------------------------------------------------------

    def _begin_to_let_go(self) -> None:
        self._asked_at = inf  # until it has ended
        with suppress(CassieqError):  # the client is closed
            self._lane.store.session.begin(lambda _: self._let_paused_go(), None)

    async def _let_paused_go(self) -> None:
        """Give back what waits here of paused priorities, uncounted (`queue.pause`)."""
        here = {one.receipt.place.lane for one in self.shelf.waiting()}
        priorities = {lane_id: self._lane.sibling(lane_id).priority for lane_id in here}
        try:
            paused = await still_paused(self._lane, set(priorities.values()))
            lanes = [lane_id for lane_id in here if priorities[lane_id] in paused]
            await give_back(self._lane, self.shelf.clear(lanes))
        except Exception as error:  # noqa: BLE001 - it is raised where the program waits
            self._tell(error)
        finally:
            self._asked_at = self._clock.monotonic()
            self._go_on()

    # --- renewals -----------------------------------------------------------------------------

    def _renew(self) -> None:
        """Renew the leases of all messages that wait here.

        The program may be slow with the messages that it has. Each bucket is renewed on its own, so
        that none waits for one without an answer (I10) [T5].
        """
        now = self._clock.monotonic()
        soon_us = self._clock.now_us() + self._wanted.visibility_us // 2
        self._renew_again_at = {at: s for at, s in self._renew_again_at.items() if s > now}
        by_place: dict[Place, dict[Receipt, Held]] = {}
        for one in self.shelf.waiting():
            place = one.receipt.place
            is_due = one.until_us <= soon_us and place not in self._renew_again_at
            if is_due and place not in self._renewing:
                by_place.setdefault(place, {})[one.receipt] = one
        self._renewing |= by_place.keys()
        self._plan_renewal()

        async def one_bucket(place: Place) -> None:
            try:
                await self._extend(by_place[place])
            except Exception as error:  # noqa: BLE001 - it is raised where the program waits
                self._tell(error)
                self._renew_again_at[place] = self._clock.monotonic() + RETRY_S
            finally:
                self._renewing.discard(place)
                self._plan_renewal()

        session = self._lane.store.session
        try:
            with session.within(self._wanted.visibility_us / 1e6 / ROUNDS_PER_TIMEOUT):
                for place in by_place:
                    session.begin(one_bucket, place)
        except CassieqError as error:
            self._end(error)  # the client is closed

    async def _extend(self, held: dict[Receipt, Held]) -> None:
        visibility_us = self._wanted.visibility_us
        until_us = self._clock.now_us() + visibility_us  # or a moment later
        # A program may just have got one of these messages, and extended it for longer.
        longer = Extend(visibility_us=visibility_us, never_sooner=True)
        refused = await settle_in_background("extend", self._lane, held, longer)
        self.shelf.renewed(held, set(refused), until_us)
        self._plan_look()  # refused receipts make room

    def _plan_renewal(self) -> None:
        """Set the time of the next renewal. A renewal that is running plans the next one itself."""
        if self._is_over:
            return
        now, now_us = self._clock.monotonic(), self._clock.now_us()
        at = inf
        waiting = self.shelf.waiting()
        self._pause_timer.set(self._asked_at + PAUSE_LOOK_S if waiting else inf)
        for held in waiting:
            place = held.receipt.place
            if place not in self._renewing:
                left_us = held.until_us - self._wanted.visibility_us // 2 - now_us
                at = min(at, max(now + left_us / 1e6, self._renew_again_at.get(place, -inf)))
        self._renewal_timer.set(at)
