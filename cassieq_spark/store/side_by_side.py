"""Work for many keys at once, where one key that cannot be reached holds up no other (ADR 21)."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, TypeVar

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import CassieqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WIDTH: Final = 16
"""Items under way at once, of those that get on."""

SLOW_S: Final = 0.5
"""Who is under way for longer than this waits for a key that does not answer. It goes on, and the
next item begins in its place."""

MOST_THREADS: Final = 128
"""With those that wait. Beyond that there is no quorum for most keys, and all wait."""

T = TypeVar("T")
R = TypeVar("R")


class _Places:
    """So many at once; a place that is held for longer than `SLOW_S` is free again."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._clock = SystemClock()
        self._is_free = threading.Condition()
        self._taken: deque[list[float]] = deque()  # one entry each, so that each is its own

    def take(self) -> list[float]:
        """Wait for a place; what `leave` wants."""
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
        """Give it back; nothing happens if it was too old to be kept."""
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
        """Begin one item, in the patience of the caller; waits for a place, `SLOW_S` at most."""
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
        """See `store.session.CqlSession.map`."""
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
        """See `store.session.CqlSession.each`."""

        def kept(item: T) -> R | CassieqError:
            try:
                return work(item)
            except CassieqError as error:
                return error

        return self.map(kept, items)

    def close(self) -> None:
        """Return when all that was begun has ended.

        What waits for a thread still runs, and finds its session closed: who waits for a future
        that was cancelled in the queue would never be woken.
        """
        self._pool.shutdown(wait=True)
