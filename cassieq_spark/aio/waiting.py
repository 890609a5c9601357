"""Long polls: one poller for each queue hands messages to its waiters.

A thousand idle waiters cost the store no more than one, whatever they ask for: only the poller
looks, at the pace of an idle `Queue.get`. Whoever went away gets nothing: what was leased for them
goes to the next waiter, or back to the queue without a delivery being counted.

Waiters stand in a line. A look is for the first one, on its terms, and for all who have the same.

- A look that finds messages serves the first waiter, at least.
- One that finds nothing tells the same to all who ask for as high a priority or a higher one: these
  go to the end of the line, in their order. If anybody is left, the next look is at once.

So every look takes the first waiter out of the line or puts it behind all others. Nobody waits for
more looks than there are waiters in front of it, and on a queue without messages for no more than
there are priorities that they ask for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from cassieq_spark import tracing
from cassieq_spark.aio import linger
from cassieq_spark.aio.pool import Busy
from cassieq_spark.errors import CassieqError, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.queue.get.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cassieq_spark.queue.handle import Queue
    from cassieq_spark.queue.message import Message

T = TypeVar("T")

MOST_AT_ONCE: Final = 200
"""The most messages that one look claims, as they are all in memory until they are sent."""

LAST_LOOK_S: Final = 0.8
"""Whoever waited longer than this since the last look began gets a look of his own at his end, so
that he misses nothing that was visible for so long. It is half of the longest pause: waiters that
end one after the other make looks no more than twice as many."""

TIMES: Final = 2.0
"""A look lingers twice as long as the last one took: its waiters ack before they ask again."""

POLLERS: Final = 1_000
"""Idle pollers beyond this number are forgotten. They only know when they looked last."""

_logger = get_logger("aio")


class _Terms(NamedTuple):
    """What the waiters of one look have in common."""

    visibility_s: float | None
    priority_at_least: int
    consumer: str | None


@dataclass(eq=False, slots=True, kw_only=True)
class _Waiter:
    """A request that waits.

    Attributes:
        deadline: When it is answered with nothing, by the event loop's clock.
        needs_look: It may only be answered after a look that began later than the request.
        looked_at: When the last look began that told it something.
    """

    terms: _Terms
    at_most: int
    deadline: float
    needs_look: bool
    answer: asyncio.Future[list[Message]]
    looked_at: float = -inf


class OnQueue(Protocol):
    """How a blocking call on a queue is made."""

    async def on_queue(self, name: str, work: Callable[[Queue], T]) -> T:
        """Run it in a thread with the open handle of the queue."""


class Waiting:
    """All pollers of a process. For one event loop.

    Args:
        consumer: The name that ``stats`` shows, unless a get has one of its own.
        most_at_once: The most messages that one look claims.
    """

    def __init__(
        self, backend: OnQueue, *, consumer: str | None, most_at_once: int = MOST_AT_ONCE
    ) -> None:
        self._backend = backend
        self._consumer = consumer
        self._most_at_once = most_at_once
        self._pollers: dict[str, _Poller] = {}
        self._is_draining = False
        self._giving_back: set[asyncio.Task[None]] = set()

    async def receive(
        self,
        queue: str,
        *,
        at_most: int,
        visibility_s: float | None,
        wait_s: float,
        priority_at_least: int = 0,
        consumer: str | None = None,
    ) -> list[Message]:
        """Lease messages, after waiting for the first one if necessary.

        Raises:
            QueueNotFound: No queue has that name.
            CassieqError, Busy: A look failed; nothing is leased.
        """
        loop = asyncio.get_running_loop()
        name = self._consumer if consumer is None else consumer
        waiter = _Waiter(
            terms=_Terms(visibility_s, priority_at_least, name),
            at_most=at_most,
            deadline=loop.time() + (0 if self._is_draining else wait_s),
            needs_look=wait_s <= 0,
            answer=loop.create_future(),
        )
        self._poller(queue).add(waiter)
        try:
            found = await waiter.answer
        except asyncio.CancelledError:
            # It may have been answered in the same turn of the loop.
            if waiter.answer.done() and not waiter.answer.cancelled():
                with suppress(Exception):
                    self.give_back(queue, waiter.answer.result())
            raise
        tracing.link_current(found)
        return found

    @property
    def count(self) -> int:
        """How many requests wait; any thread may ask."""
        return sum(one.count for one in list(self._pollers.values()))

    def put(self, queue: str) -> None:
        """Say that messages were put here: the poller of the queue need not wait for its turn."""
        if poller := self._pollers.get(queue):
            poller.look_soon()

    def give_back(self, queue: str, messages: Sequence[Message]) -> None:
        """Release, uncounted, what nobody will see; it happens in the background."""
        if messages:
            task = asyncio.get_running_loop().create_task(self._release(queue, messages))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    def drain(self) -> None:
        """Answer everybody who waits, with nothing; from now on nobody waits."""
        self._is_draining = True
        for poller in self._pollers.values():
            poller.drain()

    async def close(self) -> None:
        """Wait until everything is given back, and end the pollers."""
        for poller in self._pollers.values():
            await poller.close()
        if self._giving_back:
            await asyncio.wait(self._giving_back)

    async def _release(self, queue: str, messages: Sequence[Message]) -> None:
        def release(handle: Queue) -> None:
            handle.release(messages, is_counted=False)

        try:
            await self._backend.on_queue(queue, release)
        except (CassieqError, Busy) as error:
            # They come back when their leases run out.
            event(_logger, "give_back_unanswered", queue=queue, error=str(error))

    def _poller(self, queue: str) -> _Poller:
        if queue not in self._pollers:
            if len(self._pollers) >= POLLERS:
                self._pollers = {at: one for at, one in self._pollers.items() if not one.is_idle}
            self._pollers[queue] = _Poller(
                partial(self._look, queue), partial(self.give_back, queue), self._most_at_once
            )
        return self._pollers[queue]

    async def _look(self, queue: str, terms: _Terms, at_most: int) -> _Found:
        def get(handle: Queue) -> _Found:
            found = handle.get(
                at_most,
                visibility_timeout=terms.visibility_s,
                consumer=terms.consumer,
                priority_at_least=terms.priority_at_least,
            )
            lanes = handle._work.getter.lanes  # noqa: SLF001 - for the pace of this poller
            return found, lanes, handle.settings.priorities

        return await self._backend.on_queue(queue, get)


class _Poller:
    """Looks for messages while somebody waits for them."""

    def __init__(self, look: _Look, give_back: _GiveBack, most_at_once: int) -> None:
        self._look = look
        self._most_at_once = most_at_once
        self._give_back = give_back
        self._waiters: deque[_Waiter] = deque()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pace = Pace()
        self._lanes = 1
        self._look_at = -inf
        self._served = 0
        self._lingers_until = -inf
        self._is_draining = False

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits."""
        return self._task is None

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def add(self, waiter: _Waiter) -> None:
        """Let somebody wait."""
        self._waiters.append(waiter)
        if waiter.needs_look:
            self._look_at = -inf
        self._changed.set()
        if self._task is None:
            # It looks for everybody, so its spans belong to no request.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())

    def look_soon(self) -> None:
        """Look now, as something was put."""
        self._pace.look_soon()
        self._look_at = -inf
        self._changed.set()

    def drain(self) -> None:
        """Answer everybody with what is at hand: nothing."""
        now = asyncio.get_running_loop().time()
        self._is_draining = True
        for waiter in self._waiters:
            waiter.deadline = min(waiter.deadline, now)
            waiter.needs_look = False
        self._changed.set()

    async def close(self) -> None:
        """End; whoever still waits gets nothing."""
        self.drain()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._answer_the_late():
                await self._until_due()
                await self._until_as_many()
                if self._answer_the_late() and self._is_due():
                    await self._one_look()
        finally:
            self._task = None
            for waiter in self._waiters:  # only after an error of ours
                waiter.answer.cancel()
            self._waiters.clear()

    def _is_due(self) -> bool:
        return self._look_at <= asyncio.get_running_loop().time()

    def _answer_the_late(self) -> bool:
        """Answer those whose time is over; return whether anybody still waits."""
        now = asyncio.get_running_loop().time()
        left: deque[_Waiter] = deque()
        for waiter in self._waiters:
            if waiter.answer.done():
                continue  # it went away
            was_looked = waiter.deadline - waiter.looked_at <= LAST_LOOK_S
            if waiter.deadline <= now and not was_looked and not self._is_draining:
                waiter.needs_look = True
                self._look_at = -inf
            if waiter.deadline <= now and not waiter.needs_look:
                waiter.answer.set_result([])
            else:
                left.append(waiter)
        self._waiters = left
        return bool(left)

    async def _until_due(self) -> None:
        """Wait for the next look, for somebody's deadline, or for a change."""
        loop = asyncio.get_running_loop()
        self._changed.clear()
        deadlines = [one.deadline for one in self._waiters if not one.needs_look]
        due = min([self._look_at, *deadlines])
        if due > loop.time():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._changed.wait()

    async def _until_as_many(self) -> None:
        """Wait a moment for the waiters that the last look served, if it served several."""
        if self._served > 1 and self._is_due():
            await linger.as_many(self._has_as_many, self._changed, self._lingers_until)
        self._served = 0

    def _has_as_many(self) -> bool:
        return self._is_draining or len(self._waiters) >= self._served

    async def _one_look(self) -> None:
        loop = asyncio.get_running_loop()
        waiting = [one for one in self._waiters if not one.answer.done()]
        terms = waiting[0].terms
        asked = [one for one in waiting if one.terms == terms]
        began_at = loop.time()
        # Whoever needs a look and comes while this one is under way makes another one due.
        self._look_at = inf
        try:
            found, self._lanes, priorities = await self._look(
                terms, min(self._most_at_once, sum(one.at_most for one in asked))
            )
        except Exception as error:  # noqa: BLE001 - it is raised where the requests wait
            found, told, is_over = [], [], self._fail(terms, error)
        else:
            empty = range(terms.priority_at_least, priorities)
            told = asked if found else self._put_behind(waiting, empty)
            is_over = bool(found) or not self._is_left(empty)
        for waiter in told:
            waiter.needs_look, waiter.looked_at = False, began_at
        if left := self._hand_out(terms, found):
            self._give_back(left)
        now = loop.time()
        self._lingers_until = linger.until_s(began_s=began_at, ended_s=now, times=TIMES)
        if is_over:
            self._pace.note(now, has_found=bool(found), lanes=self._lanes)
            now += self._pace.pause_s(now, lanes=self._lanes)
        self._look_at = min(self._look_at, now)

    def _put_behind(self, waiting: list[_Waiter], empty: range) -> list[_Waiter]:
        """Put those at the end of the line who know now that there is nothing; return them."""
        told = [one for one in waiting if one.terms.priority_at_least in empty]
        behind = set(told)
        self._waiters = deque([*(one for one in self._waiters if one not in behind), *told])
        return told

    def _is_left(self, empty: range) -> bool:
        """Whether somebody asks for a lower priority, or for a wrong one: that gets an error."""
        return any(one.terms.priority_at_least not in empty for one in self._waiters)

    def _fail(self, terms: _Terms, error: Exception) -> bool:
        """Raise an error where requests wait; return whether it is one of the whole queue.

        Then also for those who came since: each would wait for a look of its own that fails.
        """
        is_of_terms = isinstance(error, UsageError)
        for waiter in self._waiters:
            if not waiter.answer.done() and (waiter.terms == terms or not is_of_terms):
                waiter.answer.set_exception(error)
        return not is_of_terms

    def _hand_out(self, terms: _Terms, found: list[Message]) -> list[Message]:
        """Give messages to the waiters in their order; return what nobody is left for."""
        for waiter in self._waiters:
            if not found:
                break
            if not waiter.answer.done() and waiter.terms == terms:
                mine, found = found[: waiter.at_most], found[waiter.at_most :]
                waiter.answer.set_result(mine)
                self._served += 1
        return found


if TYPE_CHECKING:
    from collections.abc import Awaitable

    _Found = tuple[list[Message], int, int]
    """Messages, how many lanes were looked at, and how many priorities the queue has."""
    _Look = Callable[[_Terms, int], Awaitable[_Found]]
    _GiveBack = Callable[[Sequence[Message]], None]
