"""Work for many keys at once, so that one without an answer holds up no other (ADR 21)."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, TypeVar

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import CassieqError, StoreTimeout
from cassieq_spark.store.call import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

WIDTH: Final = 16
"""The most items under way at once, without those that wait for a silent key."""

SLOW_S: Final = 0.5
"""An item that takes longer than this waits for a key that does not answer. It goes on, and the
next item begins in its place."""

MOST_THREADS: Final = 128
"""The most threads, with those that wait. Beyond that most keys have no quorum, and all wait."""

T = TypeVar("T")
R = TypeVar("R")


class _Places:
    """A number of places; one that is held for longer than `SLOW_S` becomes free again.

    First come, first served: a call that begins many items, one after the other, waits for each as
    long as any other call does.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._line: deque[threading.Condition] = deque()
        self._taken: deque[list[float]] = deque()  # a list each, compared by identity

    def take(self) -> list[float]:
        """Wait for a place; return what `leave` needs."""
        with self._lock:
            if self._line or self._left_s() > 0:
                self._wait()
            mine = [self._clock.monotonic()]
            self._taken.append(mine)
            return mine

    def leave(self, mine: list[float]) -> None:
        """Give the place back; nothing happens if it has become free already."""
        with self._lock:
            for at, one in enumerate(self._taken):
                if one is mine:
                    del self._taken[at]
                    self._wake_first()
                    return

    def _wait(self) -> None:
        turn = threading.Condition(self._lock)
        self._line.append(turn)
        try:
            while self._line[0] is not turn:
                turn.wait()
            while (left_s := self._left_s()) > 0:
                turn.wait(left_s)
        finally:
            self._line.remove(turn)
            self._wake_first()

    def _wake_first(self) -> None:
        if self._line:
            self._line[0].notify()

    def _left_s(self) -> float:
        """The time until a place becomes free by itself; 0: one is free."""
        now = self._clock.monotonic()
        while self._taken and now - self._taken[0][0] >= SLOW_S:
            self._taken.popleft()
        return 0 if len(self._taken) < self._width else SLOW_S - (now - self._taken[0][0])


class SideBySide:
    """One session's threads for work that waits for Cassandra. Thread-safe."""

    def __init__(self) -> None:
        self._places = _Places(WIDTH)
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="cassieq-store")

    def begin(self, work: Callable[[T], R], item: T) -> Future[R]:
        """Begin one item under the caller's limits; it waits for a place, `SLOW_S` at most."""
        place = self._places.take()
        context = copy_context()

        def run() -> R:
            try:
                return context.run(work, item)
            finally:
                self._places.leave(place)

        try:
            return self._pool.submit(run)
        except BaseException:
            self._places.leave(place)
            raise

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Run all items; see `store.session.CqlSession.map`."""
        todo = list(items)
        if len(todo) <= 1:
            return [work(item) for item in todo]
        has_failed = threading.Event()

        def noting(item: T) -> R:
            try:
                return work(item)
            except BaseException:
                has_failed.set()
                raise

        futures = []
        for item in todo:
            if has_failed.is_set():
                break
            futures.append(self.begin(noting, item))
        with present().waiting():
            wait(futures)
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R | CassieqError]:
        """Run all items; see `store.session.CqlSession.each`."""

        def kept(item: T) -> R | CassieqError:
            try:
                return work(item)
            except CassieqError as error:
                return error

        return self.map(kept, items)

    def close(self) -> None:
        """Return when all that was begun has ended.

        An item that waits for a thread still runs, and finds its session closed: if it were
        cancelled in the queue, whoever waits for its future would never wake up.
        """
        self._pool.shutdown(wait=True)


LEAST_S: Final = 0.05
"""The least time that a statement is given to be answered."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of a block.

    Attributes:
        until: Nothing is sent again after this, by the session's monotonic clock.
        each_s: A statement is not sent again after it went unanswered for this long.
        call: The call that the block is a part of.
    """

    until: float = inf
    each_s: float = inf
    call: Call | None = None

    def left_s(self, now: float) -> float:
        """How long a statement that begins now may take; infinite if nobody set a limit."""
        return min(self.of_block_s(now), self.of_call_s)

    def of_block_s(self, began_s: float) -> float:
        """How long a statement may take by the block's limits, from its first sending."""
        return max(LEAST_S, min(self.until - began_s, self.each_s))

    @property
    def of_call_s(self) -> float:
        """How long its call may still wait."""
        return inf if self.call is None else max(LEAST_S, self.call.left_s)

    def waiting(self) -> AbstractContextManager[None]:
        """Count what a block takes as a wait of the call."""
        return nullcontext() if self.call is None else self.call.waiting()

    def heard(self) -> None:
        """Note that the store has answered the call."""
        if self.call is not None:
            self.call.heard()


_ALL_THE_TIME: Final = Patience()
_present: ContextVar[Patience] = ContextVar("cassieq_patience", default=_ALL_THE_TIME)


def present() -> Patience:
    """The limits in force here: of this thread, or of whoever began this item of work."""
    return _present.get()


@contextmanager
def limited(until: float, each_s: float) -> Iterator[None]:
    """Work under these limits, too: an inner block never waits for longer than the outer one."""
    outer = _present.get()
    token = _present.set(Patience(min(outer.until, until), min(outer.each_s, each_s), outer.call))
    try:
        yield
    finally:
        _present.reset(token)


@contextmanager
def one_call(most_s: float, *, waited_s: float = 0.0) -> Iterator[Call]:
    """Work as one `Call`; as a part of it if this is done in one already."""
    outer = _present.get()
    if outer.call is not None:
        yield outer.call
        return
    call = Call(most_s, waited_s=waited_s)
    token = _present.set(Patience(outer.until, outer.each_s, call))
    try:
        yield call
    finally:
        _present.reset(token)


@contextmanager
def in_turn(lock: threading.Lock, what: str, at_most_s: float) -> Iterator[None]:
    """Hold a lock that other calls hold while they wait for Cassandra.

    Args:
        what: What the others work on, for the error.

    Raises:
        StoreTimeout: It was not free in time. Those who wait would each wait for all before them.
    """
    with present().waiting():
        is_mine = lock.acquire(timeout=min(at_most_s, threading.TIMEOUT_MAX))
    if not is_mine:
        raise StoreTimeout(
            f"another call of this client works on {what}, and was not answered for "
            f"{at_most_s:.1f} s. Nothing was sent. Try again"
        )
    try:
        yield
    finally:
        lock.release()
