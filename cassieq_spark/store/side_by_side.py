"""Work for many keys at once, so that one without an answer holds up no other (ADR 21)."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, TypeVar

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import CassieqError, StoreTimeout
from cassieq_spark.model.lines import Lines
from cassieq_spark.model.shares import Shares
from cassieq_spark.store.call import Call, acting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

WIDTH: Final = 16
"""The most items under way at once, without those that wait for a silent key."""

SLOW_S: Final = 0.5
"""An item that takes longer than this waits for a key that does not answer. It goes on, and the
next item begins in its place."""

MOST_THREADS: Final = 128
"""The most threads, with those that wait. Beyond that most keys have no quorum, and all wait, but
not for items of one account: see `_Places`."""

T = TypeVar("T")
R = TypeVar("R")

_is_item: ContextVar[bool] = ContextVar("cassieq_is_item", default=False)
"""Whether this is done for an item, which has a thread."""


class _Places:
    """A number of places; one that is held for longer than `SLOW_S` becomes free again.

    Accounts have their turns (`Lines`), and first come, first served in each: a call that begins
    many items, one after the other, waits for each as long as any other does.

    Whoever has a place holds a thread, to the end. Of these an account gets no more than stay free
    (`Shares`): if a part of Cassandra does not answer, accounts that need it leave threads to the
    others.
    """

    def __init__(self, width: int, threads: int) -> None:
        self._width = width
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._lines: Lines[_Turn] = Lines()
        self._taken: deque[_Place] = deque()
        self._threads = Shares(threads)

    def take(self, account: str | None, *, is_inner: bool = False) -> _Place | None:
        """Wait for a place.

        Args:
            is_inner: An item asks that has a thread itself. It must not wait for another's: its
                account's threads could all wait like this.

        Returns:
            What `leave` needs; None: an inner item has to do the work itself.
        """
        with self._lock:
            self._serve()
            if self._admits(account) and not self._lines.waits(account):
                return self._place(account)
            turn = _Turn(threading.Condition(self._lock))
            self._lines.add(account, turn)
            try:
                while turn.place is None and (self._has_thread(account) or not is_inner):
                    # What it waits for may become free without a word.
                    turn.condition.wait(self._left_s() or SLOW_S)
                    self._serve()
            finally:
                self._lines.forget(account, turn)
            return turn.place

    def leave(self, mine: _Place) -> None:
        """Give the place and its thread back."""
        with self._lock:
            self._threads.change(mine.account, -1)
            # It may have become free already.
            with suppress(ValueError):
                self._taken.remove(mine)
            self._serve()

    def _serve(self) -> None:
        """Give places to those whose turn it is."""
        while found := self._lines.next(self._admits):
            account, turn = found
            turn.place = self._place(account)
            turn.condition.notify()

    def _place(self, account: str | None) -> _Place:
        found = _Place(account, self._clock.monotonic())
        self._taken.append(found)
        self._threads.change(account, 1)
        return found

    def _admits(self, account: str | None) -> bool:
        return self._left_s() == 0 and self._has_thread(account)

    def _has_thread(self, account: str | None) -> bool:
        """Whether an account may have another thread.

        What belongs to no account has no share. It waits for a thread once it has a place.
        """
        return account is None or self._threads.admits(account)

    def _left_s(self) -> float:
        """The time until a place becomes free by itself; 0: one is free."""
        now = self._clock.monotonic()
        while self._taken and now - self._taken[0].since_s >= SLOW_S:
            self._taken.popleft()
        return 0 if len(self._taken) < self._width else SLOW_S - (now - self._taken[0].since_s)


@dataclass(eq=False, slots=True)
class _Place:
    """A place, and the thread of the item that has it."""

    account: str | None
    since_s: float


@dataclass(eq=False, slots=True)
class _Turn:
    """A call that waits for a place."""

    condition: threading.Condition
    place: _Place | None = None


class SideBySide:
    """One session's threads for work that waits for Cassandra. Thread-safe."""

    def __init__(self) -> None:
        self._places = _Places(WIDTH, MOST_THREADS)
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="cassieq-store")

    def begin(self, work: Callable[[T], R], item: T) -> Future[R]:
        """Begin one item under the caller's limits; it waits for a place, `SLOW_S` at most.

        If its account has no thread left, it waits for that, too, and an item does an inner one
        itself.
        """
        with present().waiting():
            place = self._places.take(acting.get(), is_inner=_is_item.get())
        context = copy_context()
        context.run(_is_item.set, True)
        if place is None:
            done: Future[R] = Future()
            _do(done, partial(context.run, work, item))
            return done

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


def _do(done: Future[R], work: Callable[[], R]) -> None:
    """Do the work of a future here and now."""
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
        done.set_exception(error)


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
