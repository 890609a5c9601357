"""`Together` joins puts of several callers: they share bucket, chunk, write and proof (ADR 43).

  first     |--- its put ---|
  second        ... gathers |--- their put ---|
  third            .........|

- Puts of one kind share: the same lane, delay and time to live, all with deduplication keys or all
  without.
- One put of a kind runs at a time. Puts that come meanwhile gather for the next one. No put waits
  to be joined. A put without an answer for `SLOW_S` holds up no other: the next one begins
  (ADR 21).
- Puts that come in one turn of the event loop share, also if none is running. A shared put runs
  under the limits of no single caller, for as long as the caller with the most time left may wait.
- Each caller gets the result of its own messages: stored, unknown, or not stored and why.
- A caller that leaves before its messages are sent takes them along. A caller whose time is over
  before that gets an error: nothing was stored. Later, all callers get the result of their put.
- Puts that are large, or that have limits of their own (`session.within`), are not shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from cassieq_spark.errors import CassieqError, StoreTimeout, copied
from cassieq_spark.model.ids import LaneId
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.put import encode
from cassieq_spark.queue.put.encode import Times
from cassieq_spark.queue.put.results import Puts
from cassieq_spark.recent import Recent
from cassieq_spark.store import caller
from cassieq_spark.store.call import Patience, acting, one_call, present
from cassieq_spark.store.chunk import Row
from cassieq_spark.store.side_by_side import Places, begin_for_all

Put = Callable[[Sequence["Asked"]], Awaitable[Puts]]

MOST_MESSAGES: Final = 2_000
MOST_BYTES: Final = 8_388_608
"""The maximum size of a shared put: its messages are in memory, and each caller waits for all."""

KINDS: Final = 1_000
"""The number of idle kinds that are remembered."""


class Kind(NamedTuple):
    """The properties that messages of a shared put have in common.

    Attributes:
        due: The due lane that takes them; None if ``lane`` does.
    """

    lane: LaneId
    due: LaneId | None
    due_in_us: int
    ttl_us: int
    has_keys: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """The put of one caller.

    Attributes:
        keys: The deduplication key of each message; None if no message has one.
        limits: The caller's time limits.
        account: The caller's account.
        is_there: Returns whether the caller still waits.
        answer: The result of its messages, if they go with others.
    """

    kind: Kind
    lane: Lane
    due: Lane | None
    times: Times
    rows: Sequence[Row]
    keys: Sequence[str | None] | None
    limits: Patience = field(default_factory=present)
    account: str | None = field(default_factory=acting.get)
    is_there: Callable[[], bool] = field(default_factory=caller.is_there)
    answer: asyncio.Future[Puts] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def left_s(self) -> float:
        """The time that the call may still wait."""
        return inf if self.limits.call is None else self.limits.call.left_s

    def fail(self, error: BaseException) -> None:
        """Raise an error in the caller, if it waits."""
        if not self.answer.done():
            self.answer.set_exception(copied(error) if isinstance(error, CassieqError) else error)


class _Batch:
    """The puts that gather for one shared put."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._count = self._bytes = 0

    def add(self, asked: Asked, size: int) -> bool:
        """Add a put, unless it would be too much. Return whether it was added."""
        count, size = self._count + len(asked.rows), self._bytes + size
        if count > MOST_MESSAGES or size > MOST_BYTES:
            return False
        self.asked.append(asked)
        self._count, self._bytes = count, size
        return True

    def begin(self) -> list[Asked]:
        """Return the puts whose callers still wait.

        Fail those that have left or whose time is over.
        """
        for one in self.asked:
            if not one.is_there() or one.left_s <= 0:
                one.fail(
                    StoreTimeout(
                        f"put into queue {one.lane.queue!r}: other puts of this client were not "
                        "answered in time. Nothing was sent. Try again"
                    )
                )
        return [one for one in self.asked if not one.answer.done()]


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Line:
    """The puts of one kind.

    Attributes:
        place: The place of the put that is running.
        last: The batch that others may still join.
    """

    place: Places
    last: _Batch | None = None


class Together:
    """Join the puts of all callers of one client and queue."""

    def __init__(self) -> None:
        self._lines: Recent[Kind, _Line] = Recent(KINDS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, asked: Asked, put: Put) -> Puts:
        """Put the messages of one caller, together with those of others.

        Args:
            put: Puts the messages of several callers of one kind.

        Returns:
            The results of the caller's own messages.

        Raises:
            CassieqError: The error of ``put``: nothing was stored, or the queue is gone.
            StoreTimeout: The caller's time was over before anything was sent.
        """
        rows, limits = asked.rows, asked.limits
        if len(rows) > MOST_MESSAGES or min(limits.until, limits.each_s) < inf:
            return await put([asked])
        entries = encode.entries_of(rows) - len(rows)  # a message without headers takes no time
        size = await caller.off_loop(lambda: sum(map(encode.size, rows)), entries=entries)
        if size > MOST_BYTES:
            return await put([asked])
        clock = asked.lane.store.session.clock
        line = self._lines.get_or_make(asked.kind, lambda: _Line(Places(1, clock)))
        if line.last is None or not line.last.add(asked, size):
            batch = line.last = _Batch()
            batch.add(asked, size)
            begin_for_all(self._share(line, batch, put), self._tasks)
        with asked.limits.waiting():
            found = await asked.answer
        asked.limits.heard()
        return found

    async def _share(self, line: _Line, batch: _Batch, put: Put) -> None:
        """Put the gathered messages when their turn comes, and give each caller its results."""
        place = await line.place.take(None)
        if line.last is batch:
            line.last = None
        try:
            if together := batch.begin():
                acting.set(together[0].account)  # the account in whose turn keys are taken
                clock = together[0].lane.store.session.clock
                with one_call(max(one.left_s for one in together), clock):
                    found = await put(together)
                end = 0
                for one in together:
                    start, end = end, end + len(one.rows)
                    if not one.answer.done():
                        one.answer.set_result(found.chosen(range(start, end)))
        except BaseException as error:  # noqa: BLE001 - the waiting callers get it
            for one in batch.asked:
                one.fail(error)
        finally:
            line.place.leave(place)
