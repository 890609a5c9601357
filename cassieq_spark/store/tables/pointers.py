"""Tables ``pointer`` and ``expiry``: the max registers of a lane, and its hints by time.

Pointers are written without LWT (G4), and hold I6. Hints name, by minute, the buckets that have
messages that come back (docs/design/returns-and-hints.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from cassieq_spark.model.ids import FIRST_BUCKET, BucketNo, LaneId
from cassieq_spark.model.pointer import (
    LATE_AFTER_US,
    MINUTE_US,
    Pointer,
    Pointers,
    Slice,
    hint_minutes,
    hint_ttl_s,
    hour_of,
    minute_of,
    slices,
)
from cassieq_spark.store import statements
from cassieq_spark.store.call import Sent
from cassieq_spark.store.statements import Statement
from cassieq_spark.store.tables.table import Base, LaneTable

Hint = tuple[LaneId, int, BucketNo]
"""Lane, minute, bucket."""

WRITES_AT_ONCE: Final = 256
"""The most writes under way at once: a row may have 4,000 delays, a lane as many buckets."""

READS_AT_ONCE: Final = 8
"""The most hours that are read at once: mostly there are one or two."""

FEW_MINUTES: Final = 8
"""The number of minutes above which all hints are read. Cassandra seeks each minute's first hint
by itself, and some clusters refuse a statement with many minutes."""

KEPT_HINTS: Final = 1_024
"""The number of written hints that a client remembers."""


@dataclass(slots=True, weakref_slot=True)
class Seen:
    """The facts that one client remembers of a lane.

    Attributes:
        time: The time pointer as last read.
        is_begun: Whether its queue is known to be in use; see `queue.reserve`. Only for first
            lanes.
    """

    time: int = 0
    is_begun: bool = False


_KNOWN: Final = frozenset(Pointer)
"""The kinds of pointers, which are the fields of `Pointers`; a newer release may have more."""


class PointerTable(LaneTable):
    """The pointers of one lane."""

    def __init__(self, store: Base, lane: LaneId, seen: Seen) -> None:
        super().__init__(store, lane)
        self.seen = seen

    async def read(self) -> Pointers:
        """Read all pointers of a lane by one quorum read; an absent one is 0."""
        return await self.begin_read()()

    def begin_read(self) -> Callable[[], Awaitable[Pointers]]:
        """Send the read of `read` without waiting; call the returned function, once, to wait."""
        return self._session.ask(statements.READ_POINTERS, (self._lane,), self._pointers)

    def _pointers(self, rows: Iterable[Any]) -> Pointers:
        values: dict[str, Any] = {row.kind: row.value or 0 for row in rows if row.kind in _KNOWN}
        found = Pointers(**values)
        self.seen.time = found.time
        return found

    def time_seen(self) -> int:
        """Return the time pointer as this client last read it; it may be further by now."""
        return self.seen.time

    async def advance(self, pointer: Pointer, value: int) -> None:
        """Move a pointer up; a value below the present one changes nothing.

        It is answered at quorum, so the work that the new value permits may begin (G4). The value
        is its own write timestamp, so the largest wins, whoever writes last.

        Raises:
            ValueError: The value is below 1, which no timestamp may be.
            StoreTimeout: Not answered: nothing may be destroyed because of it.
        """
        await self._session.run(statements.ADVANCE_POINTER, self._moved(pointer, value))

    def begin_advance(self, pointer: Pointer, value: int) -> Callable[[], Awaitable[object]]:
        """Send the write of `advance` without waiting; call the returned function, once."""
        return self._session.ask(statements.ADVANCE_POINTER, self._moved(pointer, value), bool)

    def _moved(self, pointer: Pointer, value: int) -> tuple[object, ...]:
        if value < 1:
            raise ValueError(f"a pointer's value is 1 or more, not {value}")
        return value, value, self._lane, pointer.value


class WrittenHints:
    """The last hints that one client wrote, in all lanes, each answered at quorum.

    Writing one again would change nothing: nobody removes a hint, and its time to live ends at the
    same moment, whenever it is written. (That holds by one clock: a hint that was written by a
    clock far ahead may go too soon, and then repair finds the message.) Without this, a program
    that claims some messages of a bucket at a time would write the same hint at each get, for a
    minute.
    """

    def __init__(self) -> None:
        self._written: dict[Hint, None] = {}

    def without(self, hints: Iterable[Hint]) -> list[Hint]:
        """Return the hints that this client has not written."""
        return [hint for hint in hints if hint not in self._written]

    def add(self, hints: Iterable[Hint]) -> None:
        """Note hints that were answered."""
        self._written.update(dict.fromkeys(hints))
        while len(self._written) > KEPT_HINTS:
            del self._written[next(iter(self._written))]


class Hints(LaneTable):
    """The expiry hints of one lane. They save a look at every row; the bucket row is the truth."""

    def __init__(
        self, store: Base, lane: LaneId, pointers: PointerTable, written: WrittenHints
    ) -> None:
        super().__init__(store, lane)
        self._pointers = pointers
        self._written = written

    def passed(self) -> int:
        """Return the time pointer's minute as this client last read it; it may be further now."""
        return self._pointers.time_seen()

    async def write(
        self, hints: Iterable[tuple[BucketNo, int]], *, now_us: int, is_sure: bool = True
    ) -> None:
        """Write one hint per bucket and minute, for (bucket, time of the messages' return in µs).

        If the time pointer is ahead of now, as far as this client has seen, write one more. Write a
        hint again if its write took so long that the pointer may have passed its minute meanwhile
        [T7].

        Args:
            is_sure: False: hints that this client has written before are left out. Repair, which
                mends lost hints, always writes all.
        """
        sent = await self.begin_write(hints, now_us=now_us, is_sure=is_sure)
        await sent()

    async def begin_write(
        self, hints: Iterable[tuple[BucketNo, int]], *, now_us: int, is_sure: bool = True
    ) -> Callable[[], Awaitable[None]]:
        """Send the writes of `write` without waiting; call the returned function, once, to wait."""
        due = list(hints)
        began_s = self._store.clock.monotonic()
        now, passed = minute_of(now_us), self.passed()
        wanted = {
            (self._lane, minute, bucket)
            for bucket, until_us in due
            for minute in hint_minutes(minute_of(until_us), now=now, passed=passed)
        }
        new = sorted(wanted) if is_sure else self._written.without(sorted(wanted))
        flights: deque[Sent] = deque()
        for _, minute, bucket in new:
            if len(flights) >= WRITES_AT_ONCE:
                await self._session.finish(flights.popleft())
            ttl_s = hint_ttl_s((minute + 1) * MINUTE_US, now_us=now_us)
            params = (self._lane, hour_of(minute), minute, bucket, ttl_s)
            flights.append(self._session.start(statements.WRITE_HINT, params))

        async def wait() -> None:
            while flights:
                await self._session.finish(flights.popleft())
            self._written.add(new)
            took_us = round((self._store.clock.monotonic() - began_s) * 1e6)
            if took_us > LATE_AFTER_US:
                later_us = now_us + took_us
                late = [(bucket, until_us) for bucket, until_us in due if until_us < later_us]
                await self.write(late, now_us=later_us)

        return wait

    async def read(self, first: int, last: int) -> list[tuple[int, BucketNo]]:
        """Return (minute, bucket) hinted in these minutes, both included, oldest first."""
        return await self.begin_read(first, last)()

    def begin_read(
        self, first: int, last: int, from_bucket: BucketNo = FIRST_BUCKET
    ) -> Callable[[], Awaitable[list[tuple[int, BucketNo]]]]:
        """Send the reads of `read`, without waiting; call the returned function, once, to wait.

        Of a long time, the first hours are read together, and the others one by one.

        Args:
            from_bucket: Hints of buckets below it may be left out, and are if the time is short.
        """
        asked = [self._part(part, from_bucket) for part in slices(first, last)]
        sent = [self._session.start(*one) for one in asked[:READS_AT_ONCE]]

        async def found() -> list[tuple[int, BucketNo]]:
            rows = [row for one in sent for row in await self._session.finish(one)]
            for one in asked[READS_AT_ONCE:]:
                rows += await self._session.run(*one)
            return [(row.minute, BucketNo(row.bucket)) for row in rows]

        return found

    def _part(self, part: Slice, from_bucket: BucketNo) -> tuple[Statement, tuple[object, ...]]:
        minutes = range(part.first, part.last + 1)
        if len(minutes) > FEW_MINUTES:
            return statements.READ_OLD_HINTS, (self._lane, part.hour, part.first, part.last)
        return statements.READ_HINTS, (self._lane, part.hour, list(minutes), from_bucket)
