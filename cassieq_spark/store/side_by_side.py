"""Work for many keys at once, so that one without an answer holds up no other (ADR 21)."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, TypeVar

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import CassieqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
    """A number of places; one that is held for longer than `SLOW_S` becomes free again."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._clock = SystemClock()
        self._is_free = threading.Condition()
        self._taken: deque[list[float]] = deque()  # a list each, compared by identity

    def take(self) -> list[float]:
        """Wait for a place; return what `leave` needs."""
        with self._is_free:
            while True:
                now = self._clock.monotonic()
                while self._taken and now - self._taken[0][0] >= SLOW_S:
                    self._taken.popleft()
                if len(self._taken) < self._width:
                    mine = [now]
                    self._taken.append(mine)
                    return mine
                self._is_free.wait(SLOW_S - (now - self._taken[0][0]))

    def leave(self, mine: list[float]) -> None:
        """Give the place back; nothing happens if it has become free already."""
        with self._is_free:
            for at, one in enumerate(self._taken):
                if one is mine:
                    del self._taken[at]
                    self._is_free.notify()
                    return


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
    """

    until: float = inf
    each_s: float = inf

    def left_s(self, now: float) -> float:
        """How long a statement that begins now may take; infinite if nobody set a limit."""
        return max(LEAST_S, min(self.until - now, self.each_s))


_ALL_THE_TIME: Final = Patience()
_present: ContextVar[Patience] = ContextVar("cassieq_patience", default=_ALL_THE_TIME)


def present() -> Patience:
    """The limits in force here: of this thread, or of whoever began this item of work."""
    return _present.get()


@contextmanager
def limited(until: float, each_s: float) -> Iterator[None]:
    """Work under these limits, too: an inner block never waits for longer than the outer one."""
    outer = _present.get()
    token = _present.set(Patience(min(outer.until, until), min(outer.each_s, each_s)))
    try:
        yield
    finally:
        _present.reset(token)
