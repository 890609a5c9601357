"""Serve the calls of one client that wait for messages of a queue, with shared looks.

One look runs at a time, whatever the number of waiters: a thousand idle ones cost the reads of one.
Waiters with the same terms are a party. A look is for the first party in the line, which then goes
behind all others. It serves the party's waiters in their order.

- A look that finds messages says nothing to those whom it does not serve: they get another one.
- The result "nothing" also counts for parties that ask for a higher priority, and they go to the
  end of the line, too. If any other is left, the next look begins at once.

So a waiter waits for at most as many looks as there are parties, for each look that its party needs
to come to it. On an empty queue, it waits for at most as many as there are priorities that waiters
ask for. A look that is not answered for `SLOW_S` holds up no other party, and none that comes
meanwhile: the next one begins (ADR 21). What a look costs beside the messages does not grow with
the number of waiters.
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
from cassieq_spark.errors import CassieqError, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.settlement import Release
from cassieq_spark.queue.get.getter import GetRequest, Getter, Pace
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Delivery
from cassieq_spark.queue.put.together import Together
from cassieq_spark.queue.settle import settle
from cassieq_spark.queue.settle.settle import settle_in_background
from cassieq_spark.store import caller
from cassieq_spark.store.call import acting, present
from cassieq_spark.store.caller import copied
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.side_by_side import SLOW_S

QUEUES: Final = 1_000
"""The number of queues without an open handle whose `Work` a client keeps."""

MOST_SHARED: Final = 200
"""The maximum number of messages of a look that makes several claims. All are in memory until the
last one is read."""

LAST_LOOK_S: Final = 0.8
"""The time before its end after which a waiter's last look is too old, if several callers wait: it
then gets a look of its own. So it misses no message that was visible for so long. The value is half
of the longest pause, so callers that end one after the other make at most twice as many looks. A
single waiter always gets such a look."""

FEW: Final = 64
"""The number of departed waiters' deadlines up to which none is swept out."""

_logger = get_logger("queue")


@dataclass(eq=False, slots=True, kw_only=True)
class _WaitingGet:
    """A get that waits.

    Attributes:
        came_at, deadline: When it came, and when it is answered with no message, by the event
            loop's clock. A deadline of -inf: without any look.
    """

    wanted: GetRequest
    account: str | None
    came_at: float
    deadline: float
    answer: asyncio.Future[list[Delivery]]
    party: _Party


class _Party:
    """The waiters that one look serves, in their order.

    Attributes:
        terms: The arguments that they have in common.
        wanted: The number of messages that they want, together.
        looked_at: The begin of the last look with the result "nothing" that counted for it.
    """

    def __init__(self, terms: GetRequest) -> None:
        self.terms = terms
        self.waiters: dict[_WaitingGet, None] = {}
        self.wanted = 0
        self.looked_at = -inf

    def add(self, waiter: _WaitingGet) -> None:
        self.waiters[waiter] = None
        self.wanted += waiter.wanted.at_most
        waiter.party = self

    def discard(self, waiter: _WaitingGet) -> None:
        if waiter in self.waiters:
            del self.waiters[waiter]
            self.wanted -= waiter.wanted.at_most


class Waiting:
    """All gets of one client that wait for messages of one queue. For the engine's event loop.

    Attributes:
        getter: Makes the looks.
    """

    _lane: Lane  # that of the latest get, with the newest settings

    def __init__(self, entropy: Entropy) -> None:
        self.getter = Getter()
        self._waiters: dict[_WaitingGet, None] = {}
        self._line: dict[GetRequest, _Party] = {}  # by their terms; without those looked for
        # A heap, so that an arrival costs the same beside ten thousand waiters.
        self._deadlines: list[tuple[float, int, _WaitingGet]] = []
        self._late: list[_WaitingGet] = []  # they are asked again when a look has ended
        self._numbers = count()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._pace = Pace(entropy)
        self._look_at = -inf
        self._is_draining = False

    async def get(self, lane: Lane, wanted: GetRequest) -> list[Delivery]:
        """Lease messages, after waiting for the first one if necessary.

        Raises:
            CassieqError: A look failed; see `Getter.look`.
        """
        limits = present()
        if wanted.wait_s <= 0 and min(limits.until, limits.each_s) < inf:
            return await self.getter.look(lane, wanted)  # its limits are nobody else's
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._lane = lane
        terms = replace(wanted, at_most=1, wait_s=0)
        waiter = _WaitingGet(
            wanted=wanted,
            account=acting.get(),
            came_at=now,
            deadline=-inf if self._is_draining and wanted.wait_s > 0 else now + wanted.wait_s,
            answer=loop.create_future(),
            party=self._line.get(terms) or _Party(terms),
        )
        try:
            with caller.when_left(lambda: self._answer(waiter, [])):
                self._add(waiter)
                return await waiter.answer
        finally:
            self._answer(waiter, [])

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
        self._is_draining = True
        for waiter in self._waiters:
            waiter.deadline = -inf
        self._line_up()
        self._changed.set()
        # What a look finds after its waiter has left is given back before the client closes.
        while under_way := {*self._under_way, *([self._task] if self._task else [])}:
            await asyncio.wait(under_way)

    def _add(self, waiter: _WaitingGet) -> None:
        self._waiters[waiter] = None
        party = self._line.setdefault(waiter.party.terms, waiter.party)
        party.add(waiter)
        self._note_deadline(waiter)
        self._changed.set()
        if self._task is None:
            # The task looks for all waiters, so it must not run in the deadlines and the trace span
            # of one.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._answer_the_late():
                await self._until_due()
                if self._answer_the_late() and self._line and self._look_at <= loop.time():
                    # A waiter that needs a look and comes while this one is running makes another
                    # one due.
                    self._look_at = inf
                    acting.set(next(iter(self._first.waiters)).account)
                    session = self._lane.store.session
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
    def _first(self) -> _Party:
        """The party that the next look is for; there is one."""
        return next(iter(self._line.values()))

    def _note_deadline(self, waiter: _WaitingGet) -> None:
        heapq.heappush(self._deadlines, (waiter.deadline, next(self._numbers), waiter))
        if len(self._deadlines) > 2 * len(self._waiters) + FEW:
            self._line_up()

    def _line_up(self) -> None:
        """Note the deadlines of those who wait, and of nobody else."""
        self._late.clear()
        self._deadlines = [(one.deadline, next(self._numbers), one) for one in self._waiters]
        heapq.heapify(self._deadlines)

    def _answer(self, waiter: _WaitingGet, found: list[Delivery]) -> None:
        """Answer a waiter, unless it was answered before."""
        self._waiters.pop(waiter, None)
        party = waiter.party
        party.discard(waiter)
        if not party.waiters and self._is_in_line(party):
            del self._line[party.terms]
        if not waiter.answer.done():
            waiter.answer.set_result(found)

    def _is_in_line(self, party: _Party) -> bool:
        return self._line.get(party.terms) is party

    def _answer_the_late(self) -> bool:
        """Answer waiters whose time is over. Return whether any waiter is left."""
        now = asyncio.get_running_loop().time()
        is_alone = len(self._waiters) == 1
        while self._deadlines and self._deadlines[0][0] <= now:
            waiter = heapq.heappop(self._deadlines)[-1]
            if waiter not in self._waiters:
                continue  # it was answered
            if not self._is_in_line(waiter.party):
                self._late.append(waiter)  # a look for it is running
            elif self._has_looked(waiter, is_alone=is_alone):
                self._answer(waiter, [])
            else:
                self._late.append(waiter)
                self._look_at = -inf
        return bool(self._waiters)

    @staticmethod
    def _has_looked(waiter: _WaitingGet, *, is_alone: bool) -> bool:
        """Whether a waiter may be told at its deadline that nothing is visible."""
        looked_at = waiter.party.looked_at
        if looked_at < waiter.came_at:
            return waiter.deadline == -inf
        earliest = waiter.deadline if is_alone else waiter.deadline - LAST_LOOK_S
        return looked_at >= earliest

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
        if not self._line:  # they left while this waited for its place
            self._end_look(loop.time())
            return
        party, lane, began_at = self._first, self._lane, loop.time()
        del self._line[party.terms]
        at_most = max(min(MOST_SHARED, party.wanted), next(iter(party.waiters)).wanted.at_most)
        behind, pause_s = [party], 0.0
        found: list[Delivery] = []
        left: list[Delivery] = []
        try:
            found = await self.getter.look(lane, replace(party.terms, at_most=at_most))
        except BaseException as error:  # noqa: BLE001 - it is raised in the waiters
            is_over = self._fail(party.terms, error)
        else:
            is_over = bool(found)
            # Not to those who came meanwhile: the queue may have been paused before.
            left = self._hand_out(party, found)
            if not found:
                empty = range(party.terms.min_priority, lane.settings.priorities)
                line = self._line.values()
                others = [one for one in line if one.terms.min_priority in empty]
                is_over = len(others) == len(line)
                behind += others
                for one in behind:
                    one.looked_at = max(one.looked_at, began_at)
        finally:
            for one in behind:
                self._put_behind(one)
        if left:
            self._hold(session.begin(partial(give_back, lane), settle.checked(lane, left)))
        now = loop.time()
        if is_over:
            self._pace.note(now, has_found=bool(found), lanes=self.getter.lanes)
            pause_s = self._pace.pause_s(now, lanes=self.getter.lanes)
        self._end_look(now + pause_s)

    def _end_look(self, look_again_at: float) -> None:
        late, self._late = self._late, []
        for waiter in late:
            self._note_deadline(waiter)
        self._look_at = min(self._look_at, look_again_at)
        self._changed.set()

    def _put_behind(self, party: _Party) -> None:
        """Put a party at the end of the line, with those of its terms that came meanwhile."""
        newer = self._line.pop(party.terms, None)
        if newer is not None and newer is not party:
            party.looked_at = max(party.looked_at, newer.looked_at)
            for waiter in newer.waiters:
                party.add(waiter)
        if party.waiters:
            self._line[party.terms] = party

    def _fail(self, terms: GetRequest, error: BaseException) -> bool:
        """Raise an error in the waiters. Return whether it concerns the whole queue.

        In that case, waiters that came since get it, too: each would wait for a look of its own
        that fails.
        """
        is_of_terms = isinstance(error, UsageError)
        for waiter in list(self._waiters):
            if waiter.party.terms == terms or not is_of_terms:
                if not waiter.answer.done():
                    waiter.answer.set_exception(copied(error))
                self._answer(waiter, [])
        return not is_of_terms

    def _hand_out(self, party: _Party, found: list[Delivery]) -> list[Delivery]:
        """Give messages to the waiters, in their order; return those that no waiter is left for."""
        while found and party.waiters:
            waiter = next(iter(party.waiters))
            mine, found = found[: waiter.wanted.at_most], found[waiter.wanted.at_most :]
            self._answer(waiter, mine)
        return found


async def give_back(lane: Lane, held: list[Receipt]) -> None:
    """Release messages that nobody will get, uncounted. Unanswered ones come back by themselves."""
    if not held:
        return
    try:
        await settle_in_background("release", lane, held, Release(count_delivery=False))
    except CassieqError as error:
        # They come back when their leases run out.
        event(_logger, "give_back_unanswered", queue=lane.queue, error=str(error))


class Work:
    """The state that one client keeps for one queue, shared by all its handles.

    Everything that works on the queue holds it.
    """

    def __init__(self, entropy: Entropy) -> None:
        self.waiting = Waiting(entropy)
        self.puts = Together(entropy, self.waiting.look_soon)
