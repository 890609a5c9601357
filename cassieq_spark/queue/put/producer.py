"""Put messages so that each acknowledged one is delivered (docs/design/put.md). Holds I1, I6.

  reserve ids (1 LWT)  ->  write rows at quorum  ->  read the bucket row: is it still open?

If that read saw no ``sealing``, no seal's scan can have begun before the rows were complete, so the
client that seals the bucket finds them. If it saw one, the manifest says which rows are in; the
others go again, under new ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from cassieq_spark import metrics
from cassieq_spark.errors import (
    CassieqError,
    ClientClosed,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    UsageError,
)
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.expiry import minute_after
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.sizes import BUCKET_BYTES
from cassieq_spark.queue import seal
from cassieq_spark.queue.lane import Lane, LaneEnded
from cassieq_spark.queue.put.dedup import Keys
from cassieq_spark.queue.put.encode import Packed
from cassieq_spark.queue.put.results import Outcome, Placed
from cassieq_spark.queue.reserve import ALWAYS, FirstRead, Reserver
from cassieq_spark.store.call import Turn, in_turn
from cassieq_spark.store.tables.lanes import Monoton
from cassieq_spark.store.tables.messages import ChunkRow

Otherwise = Callable[[Sequence["Packed"]], Awaitable[Outcome]]

LOOK_S: Final = 1.0
"""A producer waits this long to learn whether its bucket is still open. Then it takes another
one."""

KEYS_AT_ONCE: Final = 256
"""The maximum number of keys that are taken before their messages are written."""

WRITES_IN_FLIGHT: Final = 8
"""The maximum number of writes in flight of one call. A bulk writer has the same."""

_logger = get_logger("queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The state of a bucket as found after writes into it.

    Attributes:
        kept: The offsets that are delivered if they were written; None if that is unknown.
        is_open: Whether the bucket was still open, so that more can be put into it.
        failure: The error because of which it is unknown.
    """

    kept: Runs | None
    is_open: bool = False
    failure: CassieqError | None = None


@dataclass(slots=True, kw_only=True)
class _Block:
    """The bucket that belongs to this producer: no other client's messages cause its seal [P15].

    Attributes:
        next: The next free offset.
        size_bytes: Bytes written or about to be written.
        proven_at: The begin of the last read that saw it open, in monotonic seconds.
    """

    bucket: BucketNo
    proven_at: float
    next: int = 0
    size_bytes: int = 0

    def fits(self, packed: Packed, bucket_size: int) -> bool:
        """Whether a row still fits into it; the first one always does."""
        has_room = self.next == 0 or self.size_bytes + len(packed.payload) <= BUCKET_BYTES
        return self.next + packed.count <= bucket_size and has_room


class Producer:
    """Puts messages into a lane for one client."""

    def __init__(self) -> None:
        self._turn = Turn()  # held to find places, which may wait for Cassandra
        self._block: _Block | None = None
        self._reserver = Reserver()
        self._times_closed = 0
        self._looked: Callable[[], Awaitable[tuple[Mapping[BucketNo, object], object]]] | None = (
            None
        )

    async def put(
        self,
        lane: Lane,
        rows: Sequence[Packed],
        otherwise: Otherwise | None = None,
        keys: Keys | None = None,
    ) -> Outcome:
        """Store rows, and make sure that they stay: three round trips if the bucket is our own.

        It makes one write per row, or per two rows, then for each bucket one read of its row and
        one of the repair pointer. A fresh bucket costs an LWT. Two more reads are needed if the
        last put was longer ago than half of ``linger``, or than half of the time for which repair
        leaves a bucket alone [R2, T12].

        Args:
            otherwise: Puts the rows that a due lane does not take any more.
            keys: The keys of this call, if rows have some. Each costs one more LWT.

        Returns:
            The outcome of each of ``rows``.

        Raises:
            QueueDeleted: The lane is dead.
        """
        found = Outcome()
        numbered = list(enumerate(rows))
        # A bucket may be closed while keys are taken, and then it rests only a while before it is
        # dropped. The writes and their proof have to come before that [R2].
        size = KEYS_AT_ONCE if keys is not None else max(1, len(numbered))
        for start in range(0, len(numbered), size):
            some = dict(numbered[start : start + size])
            try:
                todo, found.failure = await self._put(lane, some, keys, found)
            except LaneEnded:
                if otherwise is None:
                    raise
                await _elsewhere(rows, otherwise, found)
                break
            if todo and found.failure is None:
                found.failure = lane.contended(f"every bucket of this producer in {lane.title}")
            if todo or found.unsettled:
                break
        if found.failure is None and found.rest(len(rows)):
            found.failure = StoreTimeout(
                f"put into queue {lane.queue!r}: messages that were put just before are of unknown "
                "outcome, so these were not sent. Put them again"
            )
        mine = [one for one in found.done.values() if one.lane == lane.lane_id]
        metrics.MESSAGES_PUT.inc(
            lane.queue, sum(one.packed.count for one in mine if one.put_before is None)
        )
        return found

    async def _put(
        self, lane: Lane, todo: dict[int, Packed], keys: Keys | None, found: Outcome
    ) -> tuple[dict[int, Packed], CassieqError | None]:
        """Put rows until each is done or unsettled.

        Return the rows that are neither, and the error.
        """
        async for _ in lane.attempts():
            try:
                placed = await self.place(lane, todo)
                if keys is not None:
                    placed = await _without_put_before(lane, placed, keys, found.done)
            except StoreError as error:
                return todo, error
            kept = await self.store(lane, placed, found)
            todo = {}
            for at, one in placed.items():
                manifest = kept[one.bucket]
                if manifest is None:
                    found.unsettled[at] = one
                elif one.runs.issubset(manifest):
                    found.done[at] = one
                else:
                    todo[at] = one.packed
            if not todo:
                break
        return todo, None

    async def place(self, lane: Lane, todo: dict[int, Packed]) -> dict[int, Placed]:
        """Reserve offsets for each row, in their order, in as few buckets as possible."""
        placed: dict[int, Placed] = {}
        async with in_turn(self._turn, lane.title, lane.store.session.left_s(), lane.clock):
            first_read = await self._leave_a_stale_bucket(lane)
            for at, packed in todo.items():
                block = self._block
                if block is None or not block.fits(packed, lane.bucket_size):
                    fresh = await self._reserver.reserve(lane, 1, first_read=first_read)
                    first_read = None
                    block = _Block(bucket=BucketNo(fresh.start), proven_at=lane.clock.monotonic())
                    self._block = block
                placed[at] = Placed(
                    lane=lane.lane_id, bucket=block.bucket, first=block.next, packed=packed
                )
                block.next += packed.count
                block.size_bytes += len(packed.payload)
        return placed

    async def _leave_a_stale_bucket(self, lane: Lane) -> FirstRead | None:
        """Leave a bucket that a reader may have sealed, or repair dropped, before writing [R2].

        If the bucket always was closed, as when messages come singly, no put waits for this look
        (ADR 29).

        Returns:
            The first read of the next reservation, if it is running or known.
        """
        block = self._block
        if block is None:
            return None
        began = lane.clock.monotonic()
        # A bucket that was closed since then rests before it is dropped. Within half of that time,
        # the write and its proof come in time, however long ``linger`` is [T12]. And half of
        # ``linger`` is enough for a reader of single messages to seal the bucket (ADR 29).
        if began - block.proven_at <= min(lane.settings.linger_s, lane.rest_s) / 2:
            return None
        looked, self._looked = self._looked, None
        if looked is not None and not any((await looked())[0].values()):
            self._times_closed = 0  # the last bucket was left in vain, or the look had no answer
        likely = self._reserver.likely
        if self._times_closed >= ALWAYS and likely is not None:
            with lane.store.session.within(each_s=LOOK_S):
                self._looked = lane.buckets.begin_read_some([block.bucket])
            self._leave(block.bucket)
            return partial(_known, likely)
        first_read = lane.monotons.begin_read() if self._times_closed >= ALWAYS else None
        # Nothing was written there since the last proof, so a bucket that does not answer is left
        # as well. It holds up only this put, for a moment (I10).
        with lane.store.session.within(each_s=LOOK_S):
            found, _ = await lane.buckets.read_some([block.bucket])
        is_open = block.bucket in found and found[block.bucket] is None
        if is_open and not await lane.is_dropped(block.bucket):
            block.proven_at = began
            self._times_closed = 0
            return None
        self._leave(block.bucket)
        self._times_closed = self._times_closed + 1 if block.bucket in found else 0
        return first_read

    def _leave(self, bucket: BucketNo) -> None:
        if self._block is not None and self._block.bucket == bucket:
            self._block = None

    async def store(
        self, lane: Lane, placed: dict[int, Placed], found: Outcome
    ) -> dict[BucketNo, Runs | None]:
        """Write all rows, then prove each bucket. Return its offsets that stay, or None."""
        by_bucket: dict[BucketNo, list[Placed]] = {}
        for one in placed.values():
            by_bucket.setdefault(one.bucket, []).append(one)
        kept = {}
        for bucket, some in by_bucket.items():
            proof = await self._proven(lane, bucket, some)
            found.doubt = found.doubt or proof.failure
            kept[bucket] = proof.kept
        return kept

    async def _proven(self, lane: Lane, bucket: BucketNo, some: Iterable[Placed]) -> Proof:
        """Write rows of one bucket, and prove it."""
        is_written = await write(lane, bucket, some)
        began = lane.clock.monotonic()
        proof = await prove(lane, bucket, is_written=is_written)
        if not proof.is_open:
            self._leave(bucket)
        elif self._block is not None and self._block.bucket == bucket:
            self._block.proven_at = max(self._block.proven_at, began)
        return proof


async def write(lane: Lane, bucket: BucketNo, some: Iterable[Placed]) -> bool:
    """Write rows at quorum: step 2 of the handshake. Return whether all writes were answered."""
    writer = lane.store.chunk_writer(writes_in_flight=WRITES_IN_FLIGHT)
    now_us = lane.clock.now_us()
    try:
        for one in some:
            times = one.packed.times
            due_us = now_us + times.delay_us if times.delay_us else times.due_us
            await writer.write(
                lane.place(bucket),
                ChunkRow(
                    first=one.first,
                    count=one.packed.count,
                    payload=one.packed.payload,
                    enqueued_us=now_us,
                    due_us=due_us,
                    expires_us=minute_after((due_us or now_us) + times.ttl_us)
                    if times.ttl_us
                    else None,
                    has_key=one.packed.key is not None,
                ),
            )
        await writer.flush()
    except (StoreTimeout, StoreUnavailable, ClientClosed) as error:
        event(_logger, "put_unanswered", **lane.as_fields(bucket), error=str(error))
        return False
    return True


async def prove(lane: Lane, bucket: BucketNo, *, is_written: bool) -> Proof:
    """Find the offsets of a bucket that stay: step 3 of the handshake.

    A write that was not answered closes the bucket first. Then the seal says what is in it, and
    nothing else can come in any more [P5] [P6].
    """
    try:
        if is_written:
            row = await lane.buckets.read(bucket)
            if row is None:
                # Read the repair pointer after an absent row: only it explains the absence (G5)
                # [P2]. What is gone is never put again: it may have been delivered [P6].
                is_gone = await lane.is_dropped(bucket)
                everything = Runs.span(0, lane.bucket_size - 1)
                return Proof(kept=None if is_gone else everything, is_open=not is_gone)
            closed = await seal.finish(lane, bucket, row)
        else:
            closed = await seal.close(lane, bucket)
        # Check a sealed row, too: it may be a ghost of a bucket that was dropped (G5, ADR 11).
        is_gone = closed is None or await lane.is_dropped(bucket)
    except (StoreError, UsageError, ClientClosed) as error:  # if it is refused, too, rows may stay
        event(_logger, "put_unproven", **lane.as_fields(bucket), error=str(error))
        return Proof(kept=None, failure=error)
    return Proof(kept=None if closed is None or is_gone else closed.row.value.manifest)


async def _without_put_before(
    lane: Lane, placed: dict[int, Placed], keys: Keys, done: dict[int, Placed]
) -> dict[int, Placed]:
    """Take the keys of all rows. Rows that were put before are done; return the rest."""

    async def take(one: Placed) -> Placed:
        packed = one.packed
        if packed.key is None:
            return one
        earlier = await keys.take(lane, packed.key, one.bucket, one.first, packed.message_ids[0])
        return replace(one, put_before=earlier)

    taken = dict(zip(placed, await lane.store.session.map(take, placed.values()), strict=True))
    done.update({at: one for at, one in taken.items() if one.put_before is not None})
    return {at: one for at, one in taken.items() if one.put_before is None}


async def _elsewhere(rows: Sequence[Packed], otherwise: Otherwise, found: Outcome) -> None:
    """Put the rest into an ordinary lane."""
    rest = found.rest(len(rows))
    try:
        there = await otherwise([rows[at] for at in rest])
    except CassieqError as error:
        if len(rest) == len(rows):
            raise
        found.failure = error
        return
    found.failure, found.doubt = there.failure, found.doubt or there.doubt
    found.done |= {rest[at]: one for at, one in there.done.items()}
    found.unsettled |= {rest[at]: one for at, one in there.unsettled.items()}


async def _known(row: Stored[Monoton]) -> Stored[Monoton]:
    return row
