"""Write in bulk into buckets of one's own, from reservation to ``prepared``. Holds I7.

Each attempt has buckets of its own: it reserves them, writes them and names them in its result. The
buckets of an attempt that loses are not listed, so they become void [P8]. A task opens its buckets
one by one (`BulkWriter`); a driver opens all buckets of a batch (`open_buckets`). See
docs/design/sink.md.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError, SinkFenced
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Bucket, SinkRef, Status
from cassieq_spark.model.expiry import Life
from cassieq_spark.model.ids import FIRST_BUCKET, BucketNo, LaneId, Place, Runs
from cassieq_spark.model.outcome import Applied, Stored
from cassieq_spark.model.sink_txn import Costs
from cassieq_spark.queue.lane import Lane, LaneEnded
from cassieq_spark.queue.reserve import reserve
from cassieq_spark.store.tables.messages import ChunkRow, ChunkWriter

LARGEST_BLOCK = 64
"""The maximum number of buckets that are reserved at once, in all lanes together. All of them have
their rows long before the gap timeout. After it, a reader would take those without a row for gaps
[R11]."""

_logger = get_logger("queue")


@dataclass(slots=True, kw_only=True)
class OpenBucket:
    """A bucket that is being filled.

    Attributes:
        row: The row as this writer's CAS to ``writing`` left it.
        due_us: Due times by offset, only for delayed messages.
    """

    bucket: BucketNo
    row: Stored[Bucket]
    sink: SinkRef
    count: int = 0
    size_bytes: int = 0
    due_us: dict[int, int] = field(default_factory=dict)


async def insert_writing(lane: Lane, bucket: BucketNo, sink: SinkRef) -> Stored[Bucket] | None:
    """CAS from no row to ``writing``; return None if another client closed the bucket before [R11].

    The result means nothing until the repair pointer was read after it (G5) [P5].
    """
    outcome = await lane.buckets.insert(bucket, rules.writing(sink, now_us=lane.clock.now_us()))
    is_ours = isinstance(outcome, Applied) and outcome.now.value.status is Status.WRITING
    return outcome.now if is_ours else None


async def open_buckets(
    wanted: Sequence[tuple[Lane, int]], *, sink_id: str, epoch: int
) -> list[list[OpenBucket]]:
    """Open new buckets in lanes of a queue, all lanes side by side.

    It costs one LWT for each block, of up to 64 buckets in all lanes together, and one for each
    bucket.

    Args:
        wanted: Lanes, each with the number of buckets to open in it.

    Returns:
        For each lane its buckets, ascending, each with its ``writing`` row.

    Raises:
        QueueDeleted: The queue does not exist any more.
    """
    opened: dict[LaneId, list[OpenBucket]] = {lane.lane_id: [] for lane, _ in wanted}
    while True:
        todo = {lane: number - len(opened[lane.lane_id]) for lane, number in wanted}
        lanes = [lane for lane, number in todo.items() if number > 0][:LARGEST_BLOCK]
        if not lanes:
            return [opened[lane.lane_id] for lane, _ in wanted]
        session = lanes[0].store.session
        most = LARGEST_BLOCK // len(lanes)
        blocks = await session.map(partial(_reserve_some, todo, most), lanes)
        sink = partial(SinkRef, sink_id=sink_id, epoch=epoch)
        places = [
            (lane, BucketNo(bucket), sink(block_end=BucketNo(block.stop)))
            for lane, block in zip(lanes, blocks, strict=True)
            for bucket in block
        ]
        rows = await session.map(lambda place: insert_writing(*place), places)
        # Read each lane once, after the last row (G5): buckets below L are closed and dropped [P5].
        pointers = await session.map(lambda lane: lane.read_pointers(), lanes)
        dropped_below = {lane: one.repair for lane, one in zip(lanes, pointers, strict=True)}
        for (lane, bucket, ref), row in zip(places, rows, strict=True):
            if row is None or bucket < dropped_below[lane]:
                event(_logger, "reserved_bucket_lost", **lane.as_fields(bucket))
            else:
                opened[lane.lane_id].append(OpenBucket(bucket=bucket, row=row, sink=ref))


async def _reserve_some(wanted: Mapping[Lane, int], most: int, lane: Lane) -> range:
    return await reserve(lane, min(wanted[lane], most))


async def prepare(lane: Lane, filled: OpenBucket) -> tuple[Place, int]:
    """CAS ``writing`` to ``prepared`` with the manifest, once all chunks are stored.

    Returns:
        (its place, messages in it).

    Raises:
        IllegalMove: It holds more messages than a bucket has ids; nothing was changed.
        SinkFenced: Another client closed it while it was written: the transaction was aborted.
        QueueDeleted: It is gone, with its queue.
    """
    if filled.count > lane.bucket_size:
        # The surplus would have ids of the next bucket: two messages with one id (I6) [T1].
        raise rules.IllegalMove(
            f"{lane.bucket_title(filled.bucket)} has {lane.bucket_size} ids, but "
            f"{filled.count} messages were written into it"
        )
    now_us = lane.clock.now_us()
    outcome = await lane.buckets.fill(
        filled.bucket,
        filled.row,
        rules.prepared(
            filled.row.value,
            manifest=Runs.span(0, filled.count - 1),
            due_us=filled.due_us,
            size_bytes=filled.size_bytes,
            now_us=now_us,
            life=Life(put_us=now_us, retention_us=lane.retention_us),
        ),
    )
    if not isinstance(outcome, Applied):
        await lane.read_pointers()  # raises if the queue was deleted [R25]
        sink_id = filled.sink.sink_id
        raise SinkFenced(
            f"{lane.bucket_title(filled.bucket)} was closed while it was written: "
            f"the transaction of sink {sink_id!r} was aborted. Nothing of it is visible",
            sink_id=sink_id,
        )
    metrics.MESSAGES_PREPARED.inc(lane.queue, filled.count)
    return lane.place(filled.bucket), filled.count


MOST_AHEAD = 4
"""The maximum number of buckets that are opened ahead: each unneeded one costs two LWTs."""

LARGEST_BLOCK_OF_A_TASK = 8
"""A task's reservations grow 1, 2, 4, 8 buckets: few LWTs on the one monoton row for a large
partition, few unused buckets for a small one. If the number of needed buckets is known, the first
reservation takes that many."""

LAST_WORDS_S: Final = 2.0
"""A failed task waits this long for each statement that gives its empty buckets back."""

HALF = 0.5
LEAST_S = 1e-3

T = TypeVar("T")


class BulkWriter:
    """The chunks of one task attempt, in buckets of its own. Use it as a context manager.

    However many lanes it writes to, one limit holds for all statements that it has in flight.
    """

    def __init__(
        self,
        lane: Lane,
        *,
        sink_id: str,
        epoch: int,
        bucket_bytes: int,
        writes_in_flight: int,
    ) -> None:
        """Prepare; nothing is sent before a lane has its first chunk.

        Args:
            lane: Any lane of the queue.
        """
        self._lane = lane
        self._sink = partial(SinkRef, sink_id=sink_id, epoch=epoch)
        self._bucket_bytes = bucket_bytes
        self._chunks = lane.store.chunk_writer(writes_in_flight=writes_in_flight)
        self._lanes: dict[LaneId, LaneWriter] = {}

    def of(self, lane_id: LaneId) -> LaneWriter:
        """Return the writer into one lane of the queue; always the same one for a lane."""
        if lane_id not in self._lanes:
            self._lanes[lane_id] = LaneWriter(
                self._lane.sibling(lane_id), self._chunks, self._sink, self._bucket_bytes
            )
        return self._lanes[lane_id]

    async def finish(self) -> tuple[tuple[Place, int], ...]:
        """Prepare the last buckets, give back unneeded ones, and return the written ones.

        Returns:
            (place, messages in it) of every bucket.

        Raises:
            StoreTimeout, StoreUnavailable, SinkFenced: As `LaneWriter.add`.
        """
        writers = list(self._lanes.values())
        for writer in writers:
            await writer.close()
        # Runs beside the last chunks: no further chunk follows.
        given_back = [_begun(writer.give_back()) for writer in writers]
        await self._chunks.flush()
        written = [bucket for writer in writers for bucket in await writer.finish()]
        for one in given_back:
            await one
        return tuple(written)

    async def __aenter__(self) -> Self:
        """Return the writer. Work that it has begun ends with the block."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End all work that was begun.

        Without `finish` the buckets stay undecided, and become void later. Buckets without a chunk
        are given back now: the next attempt may commit at once, and readers would wait for these
        buckets until the gap timeout (I10).
        """
        for writer in self._lanes.values():
            await writer.rest()
        # After `finish`, nothing is left to give back.
        with suppress(CassieqError), self._lane.store.session.within(each_s=LAST_WORDS_S):
            for writer in self._lanes.values():
                await writer.give_back()


class LaneWriter:
    """Writes a task attempt's encoded chunks into one lane; made by `BulkWriter.of`.

    The next bucket is opened, and the last one prepared, while chunks of the current one are
    written: LWTs cost latency, not throughput.
    """

    def __init__(
        self,
        lane: Lane,
        chunks: ChunkWriter,
        sink: partial[SinkRef],
        bucket_bytes: int,
    ) -> None:
        """Prepare.

        Args:
            sink: Makes the transaction's reference, from the end of a block.
        """
        self._lane = lane
        self._chunks = chunks
        self._sink = sink
        self._bucket_bytes = bucket_bytes
        self._block_lock = asyncio.Lock()
        self._block = range(FIRST_BUCKET)
        self._block_size = 0
        self._expected = 0
        self._next: deque[asyncio.Task[OpenBucket]] = deque()
        self._filled = 0
        self._began = 0.0
        self._fills_s = self._opens_s = LEAST_S
        self._current: OpenBucket | None = None
        self._preparing: list[asyncio.Task[tuple[Place, int]]] = []

    async def begin(self, expected: int = 0) -> None:
        """Open the first bucket, because a chunk follows soon.

        Args:
            expected: The number of buckets that will probably be filled in all. As many are
                reserved at once, as far as that is allowed, and no more are opened ahead. 0 means
                unknown.
        """
        if self._current is None and not self._next:
            self._expected = expected
            self._next.append(_begun(self._open()))

    def capacity(self) -> int:
        """Return how many messages the current bucket still takes: 1 or more."""
        if self._current is None:
            return self._lane.bucket_size
        return self._lane.bucket_size - self._current.count

    async def add(self, payload: bytes, count: int, due_us: Sequence[int] | None = None) -> None:
        """Write one chunk of ``count`` messages, at most `capacity`.

        Args:
            due_us: The time from which each message may be delivered, in cluster µs; 0 or None: at
                once.

        Raises:
            ValueError: The bucket has no room for as many messages: the packer did not ask. Nothing
                is written.
            StoreTimeout, StoreUnavailable: A chunk could not be stored.
            SinkFenced: Another client closed a bucket of ours: the transaction was aborted.
        """
        if not 1 <= count <= self.capacity():
            # The ids after a bucket's last one belong to the next bucket [T1].
            raise ValueError(
                f"a chunk of {count} messages, where there is room for {self.capacity()}"
            )
        current = self._current
        is_full = current is not None and current.size_bytes + len(payload) > self._bucket_bytes
        if current is not None and current.count and is_full:
            await self.close()
            current = None
        if current is None:
            current = self._current = await (self._next.popleft() if self._next else self._open())
            self._began = self._lane.clock.monotonic()
        first = current.count
        await self._chunks.write(
            self._lane.place(current.bucket),
            ChunkRow(
                first=first,
                count=count,
                payload=payload,
                enqueued_us=self._lane.clock.now_us(),
            ),
        )
        if due_us is not None:
            current.due_us.update({first + at: due for at, due in enumerate(due_us) if due > 0})
        current.count += count
        current.size_bytes += len(payload)
        if current.count >= self._lane.bucket_size:
            await self.close()
        else:
            self._open_ahead(current)

    async def close(self) -> None:
        """Prepare the current bucket once its last chunk is stored.

        The next bucket's chunks are sent meanwhile; a later chunk opens another bucket.
        """
        current, self._current = self._current, None
        if current is None:
            return
        self._filled += 1
        self._fills_s = max(self._lane.clock.monotonic() - self._began, LEAST_S)

        async def begin_to_prepare() -> None:
            self._preparing.append(_begun(prepare(self._lane, current)))

        await self._chunks.after_these(begin_to_prepare)

    async def rest(self) -> None:
        """Wait until the preparations that were begun have ended."""
        if self._preparing:
            await asyncio.wait(self._preparing)

    async def finish(self) -> list[tuple[Place, int]]:
        """Wait for the prepared buckets, once all chunks are stored."""
        return [await one for one in self._preparing]

    def _open_ahead(self, current: OpenBucket) -> None:
        """Open buckets only so far ahead that no chunk waits for an LWT, by the times so far."""
        fullness = max(
            current.count / self._lane.bucket_size, current.size_bytes / self._bucket_bytes
        )
        is_slow = self._filled == 0 or self._fills_s > 2 * self._opens_s
        if is_slow and fullness < HALF:
            return
        wanted = math.ceil(self._opens_s / self._fills_s) if self._filled else 1
        most, left = MOST_AHEAD, self._expected - self._filled - 1
        if left >= 0:
            most = min(most, left)
        while len(self._next) < min(wanted, most):
            self._next.append(_begun(self._open()))

    async def _open(self) -> OpenBucket:
        """Insert ``writing``, then read L [P5].

        If the bucket is below L, or the insert is refused, the bucket was closed already, and
        another one is taken [R11].
        """
        lane = self._lane
        began = lane.clock.monotonic()
        while True:
            async with self._block_lock:
                if not self._block:
                    wanted = self._block_size * 2 or self._expected or 1
                    self._block_size = min(wanted, LARGEST_BLOCK_OF_A_TASK)
                    self._block = await reserve(lane, self._block_size)
                bucket, self._block = BucketNo(self._block[0]), self._block[1:]
                sink = self._sink(block_end=BucketNo(self._block.stop))
            row = await insert_writing(lane, bucket, sink)
            if row is not None and not await lane.is_dropped(bucket):
                self._opens_s = lane.clock.monotonic() - began
                return OpenBucket(bucket=bucket, row=row, sink=sink)
            event(_logger, "reserved_bucket_lost", **lane.as_fields(bucket))

    async def give_back(self) -> None:
        """Void unused buckets; otherwise readers wait for the gap timeout (I10).

        This is only to be tidy: readers and repair take care of those that fail here.
        """
        lane = self._lane
        unneeded: list[OpenBucket] = []
        waiting, self._next = self._next, deque()  # a second call has nothing more to do
        for future in waiting:
            try:
                unneeded.append(await future)
            except (CassieqError, LaneEnded) as error:
                event(_logger, "give_back_failed", **lane.as_fields(), error=str(error))
        # Nothing else is running in this lane: the block does not change any more.
        sink = self._sink(block_end=BucketNo(self._block.stop))
        unused = rules.unused(sink, now_us=lane.clock.now_us())
        todo: list[Callable[[], Awaitable[object]]] = [partial(self._void, one) for one in unneeded]
        todo += [partial(lane.buckets.insert, BucketNo(at), unused) for at in self._block]
        for outcome in await lane.store.session.each(lambda one: one(), todo):
            if isinstance(outcome, CassieqError):
                event(_logger, "give_back_failed", **lane.as_fields(), error=str(outcome))
        self._block = range(FIRST_BUCKET)

    async def _void(self, opened: OpenBucket) -> None:
        def change(row: Bucket, now_us: int, _: Callable[[], UUID]) -> Bucket | None:
            return rules.voided(row, now_us=now_us) if row.status is Status.WRITING else None

        await self._lane.change_bucket(opened.bucket, change, known=opened.row)


def _begun(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin work beside the chunks. The caller that keeps the task waits for it."""
    task = asyncio.get_running_loop().create_task(work)
    # A failure is raised where the task is awaited, if that ever happens.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


class Meter:
    """Measures costs from its creation on.

    It also counts other work of the same process; each Spark task has a process of its own.
    """

    def __init__(self) -> None:
        self._began = _counted()

    def read(self) -> Costs:
        """Return the costs since the creation."""
        began, now = self._began, _counted()
        return Costs(
            chunks=now.chunks - began.chunks,
            size_bytes=now.size_bytes - began.size_bytes,
            lwts=now.lwts - began.lwts,
            retries=now.retries - began.retries,
        )


def _counted() -> Costs:
    return Costs(
        chunks=metrics.CHUNKS_WRITTEN.value,
        size_bytes=metrics.BYTES_WRITTEN.value,
        lwts=metrics.CAS_APPLIED.value + metrics.CAS_REFUSED.value + metrics.CAS_UNKNOWN.value,
        retries=metrics.RETRIES.value,
    )
