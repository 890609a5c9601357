"""Tables ``message`` and ``overlay``: immutable rows of messages and updated bodies. Never LWT."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cassandra.query import UNSET_VALUE

from cassieq_spark import metrics
from cassieq_spark.clock import Clock
from cassieq_spark.errors import StoreError
from cassieq_spark.model.bucket_plan import split_parts
from cassieq_spark.model.ids import BucketNo, LaneId, Place, Runs
from cassieq_spark.model.sizes import (
    MAX_CHUNK_MESSAGES,
    WRITTEN_TOGETHER,
    WRITTEN_TOGETHER_BYTES,
)
from cassieq_spark.store import statements
from cassieq_spark.store.call import Sent
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.tables.table import Base, LaneTable

DROP_AHEAD_US: Final = 86_400_000_000
"""The time by which a drop is written ahead: writes that were sent before it and land after it
stay shadowed [P14]."""

UNREAD_BYTES: Final = 40 << 20
"""The most bytes that one client keeps, of all its queues: enough for a bucket that programs
have filled, unless its messages are very small."""

ROW_BYTES: Final = 300
"""The approximate memory of a chunk besides its payload."""

UNREAD_FOR_S: Final = 60.0
"""The time after which kept chunks are forgotten at the next read: other clients may have taken
their messages long since."""

_PARTITION: Final = 2
"""The number of first parameters of a write that name its partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRow:
    """A stored chunk, all its parts together.

    Attributes:
        first: The offset of its first message in the bucket.
        count: Messages in it: offsets first .. first + count - 1.
        payload: An Arrow IPC stream, see `store.chunk`.
        due_us: The cluster time before which none of its messages is delivered; None: at once.
        enqueued_us: The time of the put, by the writer's measured cluster time.
        expires_us: The whole minute at which their time to live ends; None if they have none.
        has_key: Whether its message was put with a deduplication key.
    """

    first: int
    count: int
    payload: bytes
    enqueued_us: int
    due_us: int | None = None
    expires_us: int | None = None
    has_key: bool = False

    @property
    def last(self) -> int:
        """The offset of its last message."""
        return self.first + self.count - 1


class ChunkWriter:
    """Writes chunk rows of any lanes, with one limit on writes in flight; for one task."""

    def __init__(self, session: CqlSession, *, writes_in_flight: int, bytes_in_flight: int) -> None:
        self._session = session
        self._writes = writes_in_flight
        # If one request were the whole limit, the next would wait for its answer.
        is_wide = writes_in_flight >= 2 * WRITTEN_TOGETHER
        self._together = WRITTEN_TOGETHER if is_wide else 1
        self._bytes = bytes_in_flight
        self._held: list[tuple[Any, ...]] = []
        self._held_bytes = 0
        self._sent: deque[tuple[Sequence[Sent], int] | Callable[[], Awaitable[None]]] = deque()
        self._sent_writes = 0
        self._sent_bytes = 0

    async def write(self, place: Place, chunk: ChunkRow) -> None:
        """Send one chunk, together with the next one of its bucket if that may follow soon.

        If too many writes are under way, wait for older ones first.

        Raises:
            StoreTimeout, StoreUnavailable: An older chunk could not be stored.
        """
        parts = split_parts(len(chunk.payload))
        for number, (start, end) in enumerate(parts):
            params = (
                place.lane,
                place.bucket,
                chunk.first,
                number,
                chunk.count,
                len(parts),
                chunk.payload[start:end],
                UNSET_VALUE if chunk.due_us is None else chunk.due_us,
                chunk.enqueued_us,
                UNSET_VALUE if chunk.expires_us is None else chunk.expires_us,
                UNSET_VALUE if chunk.expires_us is None else True,
                True if chunk.has_key else UNSET_VALUE,
            )
            await self._hold(params, end - start)
        metrics.CHUNKS_WRITTEN.inc()
        metrics.BYTES_WRITTEN.inc(len(chunk.payload))

    async def after_these(self, action: Callable[[], Awaitable[None]]) -> None:
        """Call ``action`` when all chunks so far are stored, without waiting for it."""
        await self._send_held()
        self._sent.append(action)

    async def flush(self) -> None:
        """Wait until everything written is stored at quorum."""
        await self._send_held()
        while self._sent:
            await self._finish_oldest()

    async def _hold(self, params: tuple[Any, ...], size: int) -> None:
        """Keep a row until another one of its partition can be sent with it, or none can."""
        if self._held and (
            self._held[0][:_PARTITION] != params[:_PARTITION]
            or self._held_bytes + size > WRITTEN_TOGETHER_BYTES
        ):
            await self._send_held()
        self._held.append(params)
        self._held_bytes += size
        if len(self._held) >= self._together or 2 * self._held_bytes > WRITTEN_TOGETHER_BYTES:
            await self._send_held()

    async def _send_held(self) -> None:
        if not self._held:
            return
        rows, size = self._held, self._held_bytes
        while self._sent_writes and (
            self._sent_writes + len(rows) > self._writes or self._sent_bytes + size > self._bytes
        ):
            await self._finish_oldest()
        self._sent.append((self._session.start_together(statements.WRITE_MESSAGE, rows), size))
        self._sent_writes += len(rows)
        self._sent_bytes += size
        self._held, self._held_bytes = [], 0

    async def _finish_oldest(self) -> None:
        oldest = self._sent.popleft()
        if callable(oldest):
            await oldest()
            return
        together, size = oldest
        self._sent_writes -= len(together)
        self._sent_bytes -= size
        for sent in together:
            await self._session.finish(sent)


@dataclass(slots=True, kw_only=True)
class _Bucket:
    """The kept chunks of one bucket, by their first offset, and those offsets in order."""

    kept_at: float = 0.0
    firsts: list[int] = field(default_factory=list)
    chunks: dict[int, ChunkRow] = field(default_factory=dict)

    def add(self, chunk: ChunkRow) -> int:
        """Add a chunk; return how many bytes more are kept."""
        if chunk.first in self.chunks:
            return 0
        insort(self.firsts, chunk.first)
        self.chunks[chunk.first] = chunk
        return _size_of(chunk)

    def remove(self, at: int) -> int:
        """Remove one by its position; return how many bytes less are kept."""
        return _size_of(self.chunks.pop(self.firsts.pop(at)))

    def of(self, runs: Runs) -> list[ChunkRow] | None:
        """Return the chunks that hold these offsets, in order; None if one of them is not here."""
        found: dict[int, ChunkRow] = {}
        for first, last in runs.pairs:
            position = bisect_right(self.firsts, first) - 1
            at = first
            while at <= last:
                if not 0 <= position < len(self.firsts):
                    return None
                chunk = self.chunks[self.firsts[position]]
                if not chunk.first <= at <= chunk.last:
                    return None
                found[chunk.first] = chunk
                at, position = chunk.last + 1, position + 1
        return list(found.values())

    def forget(self, runs: Runs) -> int:
        """Remove chunks whose last message is one of these; return how many bytes less are kept."""
        size = 0
        for first, last in runs.pairs:
            position = max(0, bisect_right(self.firsts, first) - 1)
            while position < len(self.firsts) and self.firsts[position] <= last:
                chunk = self.chunks[self.firsts[position]]
                if first <= chunk.last <= last:
                    size += self.remove(position)
                else:
                    position += 1
        return size


class Unread:
    """The chunks that one client has read and not handed out yet, of all its lanes.

    A seal reads its whole bucket, and a chunk of a bulk writer holds thousands of messages, while a
    program gets a hundred at a time. A stored row never changes, so a read chunk stays true. Only a
    message's lease decides whether it may be handed out (I2).
    """

    def __init__(self, *, clock: Callable[[], Clock]) -> None:
        self._clock = clock
        self._size = 0
        self._buckets: OrderedDict[Place, _Bucket] = OrderedDict()

    def keep(self, place: Place, chunks: Iterable[ChunkRow]) -> None:
        """Keep these chunks if there is room: the oldest bucket's go first, from its end."""
        now = self._clock().monotonic()
        for chunk in chunks:
            bucket = self._buckets.setdefault(place, _Bucket())
            bucket.kept_at = now
            self._size += bucket.add(chunk)
        if place in self._buckets:
            self._buckets.move_to_end(place)
        while self._buckets:
            oldest, bucket = next(iter(self._buckets.items()))
            if self._size <= UNREAD_BYTES and now - bucket.kept_at < UNREAD_FOR_S:
                break
            self._size -= bucket.remove(-1)
            self._drop_if_empty(oldest)

    def take(self, place: Place, runs: Runs) -> list[ChunkRow] | None:
        """Return the chunks that hold these messages; None unless all of them are here.

        A chunk whose last message is asked for is forgotten: ids are handed out in ascending order.
        """
        bucket = self._buckets.get(place)
        found = None if bucket is None else bucket.of(runs)
        self.forget(place, runs)
        return found

    def forget(self, place: Place, runs: Runs) -> None:
        """Forget chunks whose last message is among these, which were read."""
        if place in self._buckets:
            self._size -= self._buckets[place].forget(runs)
            self._drop_if_empty(place)

    def _drop_if_empty(self, place: Place) -> None:
        if not self._buckets[place].firsts:
            del self._buckets[place]


def _size_of(chunk: ChunkRow) -> int:
    return ROW_BYTES + len(chunk.payload)


class Messages(LaneTable):
    """The message rows of one lane."""

    def __init__(self, store: Base, lane: LaneId, unread: Unread) -> None:
        super().__init__(store, lane)
        self._unread = unread

    def keep(self, bucket: BucketNo, chunks: Iterable[ChunkRow]) -> None:
        """Keep chunks of this bucket for reads that go on with them."""
        self._unread.keep(Place(self._lane, bucket), chunks)

    async def scan(self, bucket: BucketNo) -> list[ChunkRow]:
        """Read every whole chunk of a bucket: all columns, by quorum, paged [P4].

        A chunk with a part missing does not exist [R15].
        """
        return await self.begin_scan(bucket)()

    def begin_scan(self, bucket: BucketNo) -> Callable[[], Awaitable[list[ChunkRow]]]:
        """Send the read of `scan` without waiting; call the returned function, once, to wait."""
        params = (self._lane, bucket)
        return self._session.ask(statements.SCAN_MESSAGES, params, lambda rows: list(_whole(rows)))

    async def has_any(self, bucket: BucketNo) -> bool:
        """Whether anything was written into a bucket; decides nothing."""
        return await self._session.one(statements.PEEK_BUCKET, (self._lane, bucket)) is not None

    def begin_has_any(self, bucket: BucketNo) -> Callable[[], Awaitable[bool | None]]:
        """Send the read of `has_any` once, without waiting; call the returned function, once.

        It returns None if the read was not answered.
        """
        sent = self._session.start(statements.PEEK_BUCKET, (self._lane, bucket))

        async def answered() -> bool | None:
            rows = await self._session.answer(sent)
            return None if isinstance(rows, StoreError) else bool(rows)

        return answered

    async def has(self, bucket: BucketNo, offset: int) -> bool:
        """Whether one message is stored whole; every later quorum read finds it, too [P20]."""
        chunks = await self._begin_read(bucket, Runs.span(offset, offset), goes_on=False)()
        return any(chunk.first <= offset <= chunk.last for chunk in chunks)

    async def has_row(self, bucket: BucketNo, first: int) -> bool:
        """Whether a message that begins a row is stored whole: it reads no other row."""
        params = (self._lane, bucket, first, first)
        return any(_whole(await self._session.run(statements.READ_MESSAGES, params)))

    async def count(self, bucket: BucketNo, *, now_us: int, due_by_us: int | None = None) -> int:
        """Return about how many messages of a bucket are due; decide nothing, read no payload.

        Args:
            due_by_us: Count the messages that are due by then; default: now.
        """
        by_us = now_us if due_by_us is None else due_by_us
        rows = await self._session.run(statements.COUNT_MESSAGES, (self._lane, bucket))
        # A torn row reports fewer messages than it holds [P4].
        return sum(
            row.count or 0
            for row in rows
            if row.part == 0
            and (row.due_us is None or row.due_us <= by_us)
            and (row.expires_us is None or row.expires_us > now_us)
        )

    async def has_expired(self, bucket: BucketNo, *, now_us: int, retention_us: int | None) -> bool:
        """Whether something in an open bucket has expired, or may have; decides nothing.

        Retention counts from the oldest message; a seal of the bucket then gives the exact answer.
        This takes one read of one row, and for a bucket with times to live another that reads no
        payload.
        """
        oldest = await self._session.one(statements.OLDEST_MESSAGE, (self._lane, bucket))
        if oldest is None:
            return False
        if retention_us is not None and (oldest.enqueued_us or 0) + retention_us <= now_us:
            return True
        found = (self._lane, bucket, now_us)
        return bool(oldest.has_ttl) and (
            await self._session.one(statements.EXPIRED_MESSAGE, found) is not None
        )

    async def drop(self, bucket: BucketNo) -> None:
        """Drop one bucket's partition, a day ahead, so that late writes stay shadowed [P14]."""
        stamp = self._session.clock.now_us() + DROP_AHEAD_US
        await self._session.run(statements.DROP_MESSAGES, (stamp, self._lane, bucket))

    async def read(
        self,
        wanted: Iterable[tuple[BucketNo, Runs]],
        *,
        in_flight: int = 4,
        goes_on: bool = False,
    ) -> AsyncIterator[tuple[int, list[ChunkRow]]]:
        """Yield (position in ``wanted``, the whole chunks that hold its runs), in order.

        The next few buckets are read while the caller works on one.

        Args:
            goes_on: Whether the caller will ask for the rest of these chunks: then the rest is
                kept, and kept chunks are not read again.
        """
        begun: deque[tuple[int, Callable[[], Awaitable[list[ChunkRow]]]]] = deque()
        for position, (bucket, runs) in enumerate(wanted):
            if len(begun) >= in_flight:
                at, read = begun.popleft()
                yield at, await read()
            begun.append((position, self._begin_read(bucket, runs, goes_on=goes_on)))
        while begun:
            at, read = begun.popleft()
            yield at, await read()

    def _begin_read(
        self, bucket: BucketNo, runs: Runs, *, goes_on: bool
    ) -> Callable[[], Awaitable[list[ChunkRow]]]:
        place = Place(self._lane, bucket)
        kept = self._unread.take(place, runs) if goes_on else None
        if kept is not None:

            async def found() -> list[ChunkRow]:
                return kept

            return found
        params = (self._lane, bucket, runs.first, runs.last)
        sent = self._session.start(statements.READ_MESSAGES, params)

        async def received() -> list[ChunkRow]:
            chunks = await self._received(sent)
            if goes_on:
                rest = [one for one in chunks if one.last > runs.last]
                self._unread.keep(place, rest)
                # Another part of this read may have kept chunks of it.
                self._unread.forget(place, runs)
            return chunks

        return received

    async def _received(self, sent: Sent) -> list[ChunkRow]:
        rows = await self._session.finish(sent)
        lane, bucket, first, _ = sent.params
        if first > 0 and not (rows and rows[0].first == first):
            # The key of a chunk row is its first offset. So the row that holds our offset begins
            # before it, by less than the largest chunk.
            before = (lane, bucket, max(0, first - MAX_CHUNK_MESSAGES + 1), first - 1)
            rows = await self._session.run(statements.READ_MESSAGES, before) + rows
        return list(_whole(rows))


class Overlays(LaneTable):
    """The updated bodies of one lane.

    A revision is a number that nobody else draws. So two updates of one message never share a row,
    and one that lands late cannot change what the other has stored (I5).
    """

    async def write(self, bucket: BucketNo, offset: int, revision: int, body: bytes) -> None:
        """Store one body, before the CAS that names its revision."""
        cuts = split_parts(len(body))
        for number, (start, end) in enumerate(cuts):
            await self._session.run(
                statements.WRITE_OVERLAY,
                (self._lane, bucket, offset, revision, number, len(cuts), body[start:end]),
            )

    async def read(
        self,
        bucket: BucketNo,
        revisions: Iterable[tuple[int, int]],
    ) -> dict[int, bytes]:
        """Read bodies by offset, for (offset, revision) of a bucket row.

        All are read at once; `fetch` limits their number.

        Returns:
            The bodies that exist. A missing one was replaced or dropped since, or is lost: only its
                row can tell.
        """
        sent: list[tuple[int, Sent]] = []
        for offset, revision in revisions:
            params = (self._lane, bucket, offset, revision)
            sent.append((offset, self._session.start(statements.READ_OVERLAY, params)))
        found: dict[int, bytes] = {}
        for offset, one in sent:
            rows = await self._session.finish(one)
            if rows and len(rows) == rows[0].parts:
                found[offset] = b"".join(row.payload or b"" for row in rows)
        return found

    async def drop_one(self, bucket: BucketNo, offset: int, revision: int) -> None:
        """Drop one body that no row will ever name again: its revision was replaced or refused."""
        stamp = self._session.clock.now_us() + DROP_AHEAD_US
        await self._session.run(
            statements.DROP_OVERLAY, (stamp, self._lane, bucket, offset, revision)
        )

    async def drop(self, bucket: BucketNo) -> None:
        """Drop all bodies of one bucket, by partition."""
        stamp = self._session.clock.now_us() + DROP_AHEAD_US
        await self._session.run(statements.DROP_OVERLAYS, (stamp, self._lane, bucket))


def _whole(rows: Iterable[Any]) -> Iterator[ChunkRow]:
    """Put parts together; rows come ordered by (first, part)."""
    parts: list[Any] = []
    for row in rows:
        if parts and parts[0].first != row.first:
            yield from _together(parts)
            parts = []
        parts.append(row)
    if parts:
        yield from _together(parts)


def _together(parts: list[Any]) -> Iterator[ChunkRow]:
    head = parts[0]
    if len(parts) == head.parts and all(part.payload is not None for part in parts):
        yield ChunkRow(
            first=head.first,
            count=head.count,
            payload=head.payload if len(parts) == 1 else b"".join(part.payload for part in parts),
            enqueued_us=head.enqueued_us,
            due_us=head.due_us,
            expires_us=head.expires_us,
            has_key=bool(head.has_key),
        )
