"""Limit the time of calls, of blocks in them, and of statements.

A `Call` of a client ends when it has waited too long without an answer. It may wait for its own
statement or for another call's: for a lock, a thread, or a group commit. So a call that finds
Cassandra away ends in time, however many others wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from cassieq_spark.clock import Cancellable, Clock, within
from cassieq_spark.errors import StoreTimeout
from cassieq_spark.store.statements import Statement

DEADLINE_S: Final = 20.0
"""The time for which one statement is retried."""

AFTERWARDS_S: Final = 4.0
"""The time that a call waits longer than one statement: its CAS may have to be settled."""

LONGEST_S: Final = DEADLINE_S + AFTERWARDS_S
"""The time that a call waits without an answer: callers learn within 30 s that Cassandra is
away."""

acting: ContextVar[str | None] = ContextVar("cassieq_acting", default=None)
"""The account of the present call, by its proof; None: no proof was checked. Waiting work is
served by turns of accounts."""


class Call:
    """The time that a call has waited since the last answer, in all of its tasks.

    An answer starts the count again. The call's own work does not count.
    """

    def __init__(self, most_s: float, clock: Clock, *, waited_s: float = 0.0) -> None:
        """Prepare.

        Args:
            waited_s: The time that it waited for others before it began.
        """
        self._most_s = most_s
        self._silent_s = waited_s
        self._clock = clock
        self._waits = 0
        self._since_s = 0.0

    @property
    def left_s(self) -> float:
        """The time that the call may still wait; less than 0 if it is over."""
        return self._most_s - self._silent_s - self._this_s()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of this block, once if several tasks wait at the same time."""
        if not self._waits:
            self._since_s = self._clock.monotonic()
        self._waits += 1
        try:
            yield
        finally:
            this_s = self._this_s()
            self._waits -= 1
            if not self._waits:
                self._silent_s += this_s

    def heard(self) -> None:
        """Note that the store has answered."""
        self._silent_s = 0.0
        self._since_s = self._clock.monotonic()

    def _this_s(self) -> float:
        return self._clock.monotonic() - self._since_s if self._waits else 0.0


LONGEST_WAIT_S: Final = 3_600.0
"""The longest wait that is asked of the loop; longer waits are begun again."""

LEAST_S: Final = 0.05
"""The least time that a statement gets for its answer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of a block.

    Attributes:
        until: Nothing is retried after this time of the session's monotonic clock.
        each_s: A statement that was unanswered for this long is not retried.
        call: The call that the block is a part of.
    """

    until: float = inf
    each_s: float = inf
    call: Call | None = None

    def left_s(self, now: float) -> float:
        """Return how long a statement that begins now may take; infinite without a limit."""
        return min(self.of_block_s(now), self.of_call_s)

    def of_block_s(self, began_s: float) -> float:
        """Return how long a statement may take by the block's limits, from its first sending."""
        return max(LEAST_S, min(self.until - began_s, self.each_s))

    def ends_s(self, began_s: float, most_s: float, now: float) -> float:
        """Return the monotonic time after which a statement is not retried.

        Args:
            began_s: The time of its first sending.
            most_s: The longest time of its retries, without these limits.
        """
        its_own = began_s + min(most_s, self.of_block_s(began_s))
        return min(its_own, now + self.of_call_s)

    @property
    def of_call_s(self) -> float:
        """The time that its call may still wait."""
        return inf if self.call is None else max(LEAST_S, self.call.left_s)

    def waiting(self) -> AbstractContextManager[None]:
        """Count the time of a block as a wait of the call."""
        return nullcontext() if self.call is None else self.call.waiting()

    def heard(self) -> None:
        """Note that the store has answered the call."""
        if self.call is not None:
            self.call.heard()


_ALL_THE_TIME: Final = Patience()
_present: ContextVar[Patience] = ContextVar("cassieq_patience", default=_ALL_THE_TIME)


def present() -> Patience:
    """Return the limits in force here: of this call, or of the item of work it belongs to."""
    return _present.get()


@contextmanager
def limited(until: float, each_s: float) -> Iterator[None]:
    """Work under these limits, too: an inner block never waits longer than the outer one."""
    outer = _present.get()
    token = _present.set(Patience(min(outer.until, until), min(outer.each_s, each_s), outer.call))
    try:
        yield
    finally:
        _present.reset(token)


@contextmanager
def one_call(most_s: float, clock: Clock, *, waited_s: float = 0.0) -> Iterator[Call]:
    """Work as one `Call`, or as a part of the present one."""
    outer = _present.get()
    if outer.call is not None:
        yield outer.call
        return
    call = Call(most_s, clock, waited_s=waited_s)
    token = _present.set(Patience(outer.until, outer.each_s, call))
    try:
        yield call
    finally:
        _present.reset(token)


class Turn:
    """A lock that calls hold while they wait for Cassandra; see `in_turn`.

    Attributes:
        users: The number of calls that hold it, or wait for it.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


@asynccontextmanager
async def in_turn(turn: Turn, what: str, at_most_s: float, clock: Clock) -> AsyncIterator[None]:
    """Hold a lock that other calls hold while they wait for Cassandra.

    Args:
        what: The subject of the others' work, for the error.

    Raises:
        StoreTimeout: It was not free in time. Each waiter would wait for all before it.
    """
    is_free, turn.users = not turn.users, turn.users + 1
    try:
        if is_free:  # which is usual: there is no wait, so none needs a limit
            await turn.lock.acquire()
        else:
            await _acquire(turn.lock, what, at_most_s, clock)
        try:
            yield
        finally:
            turn.lock.release()
    finally:
        turn.users -= 1


async def _acquire(lock: asyncio.Lock, what: str, at_most_s: float, clock: Clock) -> None:
    try:
        with present().waiting():
            async with within(min(at_most_s, LONGEST_WAIT_S), clock):
                await lock.acquire()
    except TimeoutError:
        raise StoreTimeout(
            f"another call of this client works on {what}, and was not answered for "
            f"{at_most_s:.1f} s. Nothing was sent. Try again"
        ) from None


@dataclass(slots=True)
class Sent:
    """A statement that `CqlSession.start` has sent.

    Attributes:
        began_s: The monotonic time at which it was sent.
        limits: The limits of the block in which it was sent.
        answer: The rows, or the driver's error.
        times: How often it was sent.
        failed_s: The monotonic time at which its first sending failed without an answer.
    """

    statement: Statement
    params: tuple[Any, ...]
    began_s: float
    limits: Patience
    answer: asyncio.Future[list[Any] | BaseException]
    times: int = 1
    failed_s: float = inf

    def rest(self, now: float) -> float:
        """Leave the time since the failure out of the count: nobody waited. Return its length."""
        rested_s = max(0.0, now - self.failed_s)
        self.began_s += rested_s
        return rested_s


class Timer:
    """Calls a function once its time has come; for the event loop's thread.

    Attributes:
        at: The monotonic time of the call; infinite: never.
    """

    def __init__(self, clock: Clock, call: Callable[[], object]) -> None:
        self._clock = clock
        self._call = call
        self._handle: Cancellable | None = None
        self._until = inf  # the time of the handle
        self.at = inf

    def set(self, at: float) -> None:
        """Set the time of the call, in place of the former one.

        A timer that is put off stays in the loop, and is set again when it is over: most are put
        off again and again.
        """
        self.at = at
        if self._handle is not None:
            if self._until <= at < inf:
                return
            self._handle.cancel()
            self._handle = None
        if at < inf:
            now = self._clock.monotonic()
            self._until = min(max(now, at), now + LONGEST_WAIT_S)
            self._handle = self._clock.call_later(self._until - now, self._over)

    def _over(self) -> None:
        self._handle = None
        if self.at > self._clock.monotonic():
            self.set(self.at)
        else:
            self.at = inf
            self._call()


@asynccontextmanager
async def repeating(work: Callable[[], Awaitable[object]], period_s: float) -> AsyncIterator[None]:
    """Do some work after each period while the block runs, as a task of its own.

    The block ends when work that is running has ended.
    """
    ended = asyncio.Event()

    async def run() -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), period_s)
            if ended.is_set():
                return
            await work()

    task = asyncio.get_running_loop().create_task(run())
    try:
        yield
    finally:
        ended.set()
        await task
