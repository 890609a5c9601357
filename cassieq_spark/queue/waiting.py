"""Serve the calls of one client that wait for messages of a queue, with shared looks.

One look runs at a time, whatever the number of waiters: a thousand idle ones cost the reads of one.
A look is for the first waiter in the line, on its terms, and for all waiters with the same terms.

- A look that finds messages serves at least the first waiter that it was made for.
- The result "nothing" also counts for waiters that ask for a higher priority. All waiters for which
  it counts go to the end of the line, in their order. If any other is left, the next look begins at
  once.

So every look takes the first waiter out of the line or puts it behind all others. A waiter waits
for at most as many looks as there are waiters in front of it. On an empty queue, it waits for at
most as many as there are priorities that waiters ask for. A look that is not answered for `SLOW_S`
holds up no waiter behind it: the next one begins (ADR 21).
"""

from __future__ import annotations

import asyncio
import heapq
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf
from typing import Final

from cassieq_spark.entropy import Entropy
from cassieq_spark.errors import CassieqError, UsageError, copied
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.settlement import Release
from cassieq_spark.queue.get.getter import GetRequest, Getter, Pace
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Message
from cassieq_spark.queue.settle import settle
from cassieq_spark.queue.settle.settle import settle_in_background
from cassieq_spark.store import caller
from cassieq_spark.store.call import acting
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.side_by_side import SLOW_S, present

MOST_SHARED: Final = 200
"""The maximum number of messages of a look that makes several claims. All are in memory until the
last one is read."""

LAST_LOOK_S: Final = 0.8
"""If several callers wait, one whose time ends longer than this after its last look began gets a
look of its own: it misses no message that was visible for so long. The value is half of the longest
pause, so callers that end one after the other make at most twice as many looks. A single waiter
always gets such a look."""

_logger = get_logger("queue")


@dataclass(eq=False, slots=True, kw_only=True)
class _WaitingGet:
    """A get that waits.

    Attributes:
        terms: The arguments that it has in common with other waiters that one look serves.
        deadline: The time when it is answered with no message, by the event loop's clock.
        needs_look: Whether it may only be answered after a look that began later than the get.
        is_looked_for: Whether a look for it is running.
        looked_at: The begin of the last look whose result counted for it.
    """

    wanted: GetRequest
    terms: GetRequest
    account: str | None
    deadline: float
    needs_look: bool
    answer: asyncio.Future[list[Message]]
    is_looked_for: bool = False
    looked_at: float = -inf


class Waiting:
    """All gets of one client that wait for messages of one queue. For the engine's event loop.

    Attributes:
        getter: Makes the looks.
    """

    def __init__(self, entropy: Entropy) -> None:
        self.getter = Getter()
        self._lane: Lane | None = None  # with the newest settings
        # All waiters in their order, and those for which no look is running, in the same order.
        self._waiters: dict[_WaitingGet, None] = {}
        self._line: dict[_WaitingGet, None] = {}
        # A heap, so that an arrival costs the same beside ten thousand waiters.
        self._deadlines: list[tuple[float, int, _WaitingGet]] = []
        self._numbers = count()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._pace = Pace(entropy)
        self._look_at = -inf
        self._is_draining = False

    async def get(self, lane: Lane, wanted: GetRequest) -> list[Message]:
        """Lease messages, after waiting for the first one if necessary.

        Raises:
            CassieqError: A look failed; see `Getter.look`.
        """
        limits = present()
        if wanted.wait_s <= 0 and min(limits.until, limits.each_s) < inf:
            return await self.getter.look(lane, wanted)  # its limits are nobody else's
        loop = asyncio.get_running_loop()
        self._lane = lane
        waiter = _WaitingGet(
            wanted=wanted,
            terms=replace(wanted, at_most=1, wait_s=0),
            account=acting.get(),
            deadline=loop.time() + (0 if self._is_draining else wanted.wait_s),
            needs_look=wanted.wait_s <= 0,
            answer=loop.create_future(),
        )

        with caller.when_left(lambda: self._answer(waiter, [])):
            self._add(waiter)
            return await waiter.answer

    @property
    def count(self) -> int:
        """The number of waiters. Any thread may ask."""
        return len(self._waiters)

    def look_soon(self) -> None:
        """Look now, because a message was put."""
        self._pace.look_soon()
        self._look_at = -inf
        self._changed.set()

    async def drain(self) -> None:
        """Answer every waiter with no message. From now on, no get waits."""
        now = asyncio.get_running_loop().time()
        self._is_draining = True
        for waiter in self._waiters:
            waiter.deadline = min(waiter.deadline, now)
            waiter.needs_look = False
        self._line_up()
        self._changed.set()
        # What a look finds after its waiter has left is given back before the client closes.
        while under_way := {*self._under_way, *([self._task] if self._task else [])}:
            await asyncio.wait(under_way)

    def _add(self, waiter: _WaitingGet) -> None:
        self._waiters[waiter] = self._line[waiter] = None
        self._note_deadline(waiter)
        if waiter.needs_look:
            self._look_at = -inf
        self._changed.set()
        if self._task is None:
            # The task looks for all waiters, so it must not run in the deadlines and the trace span
            # of one.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())

    async def _run(self) -> None:
        try:
            while self._answer_the_late():
                await self._until_due()
                if self._answer_the_late() and self._is_due():
                    # A waiter that needs a look and comes while this one is running makes another
                    # one due.
                    self._look_at = inf
                    acting.set(next(iter(self._line)).account)
                    session = self._newest.store.session
                    look = session.looks.begin(self._one_look, session)
                    self._hold(look)
                    await asyncio.wait({look}, timeout=SLOW_S)
                    if not look.done():
                        self._look_at = -inf
        finally:
            self._task = None

    def _hold(self, task: asyncio.Task[None]) -> None:
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    @property
    def _newest(self) -> Lane:
        """The lane of the latest get; there is one."""
        assert self._lane is not None  # noqa: S101 - a look is for a get
        return self._lane

    def _is_due(self) -> bool:
        return self._look_at <= asyncio.get_running_loop().time() and bool(self._line)

    def _note_deadline(self, waiter: _WaitingGet) -> None:
        heapq.heappush(self._deadlines, (waiter.deadline, next(self._numbers), waiter))

    def _line_up(self) -> None:
        """Line up all waiters for which no look is running, after a look has begun or ended."""
        self._line = {one: None for one in self._waiters if not one.is_looked_for}
        self._deadlines = [(one.deadline, next(self._numbers), one) for one in self._line]
        heapq.heapify(self._deadlines)

    def _answer(self, waiter: _WaitingGet, found: list[Message]) -> None:
        """Answer a waiter, unless it was answered before."""
        self._waiters.pop(waiter, None)
        self._line.pop(waiter, None)
        if not waiter.answer.done():
            waiter.answer.set_result(found)

    def _answer_the_late(self) -> bool:
        """Answer waiters whose time is over. Return whether any waiter is left."""
        now = asyncio.get_running_loop().time()
        is_alone = len(self._waiters) == 1
        while self._deadlines and self._deadlines[0][0] <= now:
            waiter = heapq.heappop(self._deadlines)[-1]
            if waiter not in self._line:
                continue  # it was answered, or is lined up again when its look has ended
            was_looked = not is_alone and waiter.deadline - waiter.looked_at <= LAST_LOOK_S
            if waiter.looked_at < waiter.deadline and not was_looked and not self._is_draining:
                waiter.needs_look = True
                self._look_at = -inf
            if not waiter.needs_look:
                self._answer(waiter, [])
        return bool(self._waiters)

    async def _until_due(self) -> None:
        """Wait for the next look, for a deadline, or for a change."""
        loop = asyncio.get_running_loop()
        self._changed.clear()
        due = min([self._look_at if self._line else inf, *(at for at, *_ in self._deadlines[:1])])
        if due > loop.time():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if due == inf else due):
                    await self._changed.wait()

    async def _one_look(self, session: CqlSession) -> None:
        loop = asyncio.get_running_loop()
        waiting = list(self._line)
        if not waiting:
            return  # they have left
        first, terms = waiting[0], waiting[0].terms
        asked = [one for one in waiting if one.terms == terms]
        for one in asked:
            one.is_looked_for = True
        self._line_up()
        began_at = loop.time()
        wanted = min(MOST_SHARED, sum(one.wanted.at_most for one in asked))
        at_most = max(wanted, first.wanted.at_most)
        lane = self._newest
        try:
            found = await self.getter.look(lane, replace(terms, at_most=at_most))
        except Exception as error:  # noqa: BLE001 - it is raised in the waiters
            found, told, is_over = [], [], self._fail(terms, error)
        else:
            empty = range(terms.priority_at_least, lane.settings.priorities)
            told = asked if found else self._put_behind(waiting, empty)
            is_over = bool(found) or not self._is_left(empty)
        finally:
            for waiter in asked:
                waiter.is_looked_for = False
        for waiter in told:
            waiter.needs_look, waiter.looked_at = False, began_at
        left = self._hand_out(terms, found)
        self._line_up()
        if left:
            self._hold(session.begin(partial(give_back, lane), settle.checked(lane, left)))
        now = loop.time()
        if is_over:
            self._pace.note(now, has_found=bool(found), lanes=self.getter.lanes)
            now += self._pace.pause_s(now, lanes=self.getter.lanes)
        self._look_at = min(self._look_at, now)
        self._changed.set()

    def _put_behind(self, waiting: list[_WaitingGet], empty: range) -> list[_WaitingGet]:
        """Put waiters for which the result "nothing" counts at the end of the line; return them."""
        told = [one for one in waiting if one.wanted.priority_at_least in empty]
        for one in told:
            if one in self._waiters:
                del self._waiters[one]
                self._waiters[one] = None
        return told

    def _is_left(self, empty: range) -> bool:
        """Whether a waiter asks for a lower priority, or for a wrong one, which gets an error."""
        return any(one.wanted.priority_at_least not in empty for one in self._line)

    def _fail(self, terms: GetRequest, error: Exception) -> bool:
        """Raise an error in the waiters. Return whether it concerns the whole queue.

        In that case, waiters that came since get it, too: each would wait for a look of its own
        that fails.
        """
        is_of_terms = isinstance(error, UsageError)
        for waiter in list(self._waiters):
            if waiter.terms == terms or not is_of_terms:
                if not waiter.answer.done():
                    waiter.answer.set_exception(copied(error))
                self._answer(waiter, [])
        return not is_of_terms

    def _hand_out(self, terms: GetRequest, found: list[Message]) -> list[Message]:
        """Give messages to the waiters, in their order; return those that no waiter is left for."""
        for waiter in [one for one in self._waiters if found and one.terms == terms]:
            if not found:
                break
            if not waiter.answer.done():
                mine, found = found[: waiter.wanted.at_most], found[waiter.wanted.at_most :]
                self._answer(waiter, mine)
        return found


async def give_back(lane: Lane, held: list[Receipt]) -> None:
    """Release messages that nobody will get, uncounted. Unanswered ones come back by themselves."""
    if not held:
        return
    try:
        await settle_in_background("release", lane, held, Release(is_counted=False))
    except CassieqError as error:
        # They come back when their leases run out.
        event(_logger, "give_back_unanswered", queue=lane.queue, error=str(error))
