"""The buckets of a lane that are not sealed yet: open ones, and those of Spark's transactions.

`Peek` asks open buckets whether they hold messages. `Undecided` jumps over the blocks of
transactions that are under way. Holds I7, I9, I10.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from cassieq_spark.errors import CassieqError, RowCorrupt, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import OF_A_SINK, Bucket
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.outcome import Stored
from cassieq_spark.queue import roll_forward
from cassieq_spark.queue.get.claim import GRACE_S
from cassieq_spark.queue.lane import Lane, per_bucket

AGAIN: Final = 2
AGAIN_AFTER_S: Final = 0.001
"""A look peeks this often again, each time after this pause, into a bucket that was reserved just
before it and is empty. Usually its first write is on its way, and a whole look costs more."""

SEALS_PER_CALL: Final = 8
"""The maximum number of young buckets that one call seals [R10]."""

SHORT_LINGER_S: Final = 0.05
"""The longest ``linger`` for which a reader waits for young buckets although others' buckets have
messages: it leaves no visible message for longer."""

REMEMBERED_S: Final = 1.0
"""A block that is being written is jumped over this long without a look [P22]."""

EACH_S: Final = 2.0
"""A look waits this long for one key among many, for buckets that other rows decide."""

_logger = get_logger("queue")


class Peek:
    """A question to open buckets, all at once: whether they hold messages.

    None is waited for long (ADR 21).

    Args:
        pass_over: Called with each bucket that does not answer, and the error.

    Attributes:
        asked: The buckets.
    """

    def __init__(
        self,
        lane: Lane,
        buckets: Iterable[BucketNo],
        pass_over: Callable[[BucketNo, CassieqError], None],
    ) -> None:
        self._lane = lane
        self._pass_over = pass_over
        with lane.store.session.within(each_s=GRACE_S):
            self.asked = {bucket: lane.messages.begin_has_any(bucket) for bucket in buckets}

    async def answers(self, wanted: Collection[BucketNo] | None = None) -> dict[BucketNo, bool]:
        """Wait, and return which of the answering buckets hold messages. Call it once.

        Args:
            wanted: The buckets whose answers are still needed; None: all.
        """
        lane = self._lane
        said = {
            bucket: await has_any()
            for bucket, has_any in self.asked.items()
            if wanted is None or bucket in wanted
        }
        found = {bucket: has_any for bucket, has_any in said.items() if has_any is not None}
        # Side by side, so that many without an answer take no longer than one (I10).
        with lane.store.session.within(each_s=GRACE_S):
            more, failed = await per_bucket(lane, lane.messages.has_any, said.keys() - found.keys())
        for bucket, error in failed.items():
            if not isinstance(error, StoreError):
                raise error
            self._pass_over(bucket, error)
        return found | more

    async def answers_soon(self, wanted: Collection[BucketNo]) -> dict[BucketNo, bool]:
        """Return `answers`, but ask again if none of the buckets holds messages yet."""
        found = await self.answers(wanted)
        with self._lane.store.session.within(GRACE_S):
            for _ in range(AGAIN):
                if not found or any(found.values()):
                    break
                await self._lane.clock.sleep(AGAIN_AFTER_S)
                found = await Peek(self._lane, found, self._pass_over).answers()
        return found


class Undecided:
    """The blocks of one lane that one consumer jumps over.

    Args:
        pass_over: Called with each bucket of unknown state, and the error.
    """

    def __init__(self, lane: Lane, pass_over: Callable[[BucketNo, CassieqError], None]) -> None:
        self._lane = lane
        self._pass_over = pass_over
        self._jumps: dict[BucketNo, tuple[BucketNo, float]] = {}

    def forget(self) -> bool:
        """Look again at blocks that were being written. Return whether there are any."""
        had_some = bool(self)
        self._jumps.clear()
        return had_some

    def __bool__(self) -> bool:
        """Whether any block is jumped over, or was until a moment ago."""
        return bool(self._jumps)

    def refresh(self) -> None:
        """Forget blocks that were remembered for long enough."""
        now = self._lane.clock.monotonic()
        self._jumps = {bucket: jump for bucket, jump in self._jumps.items() if jump[1] > now}

    def end_of(self, bucket: BucketNo) -> BucketNo | None:
        """Return the first bucket after the block to jump over; None if the bucket is in none."""
        jump = self._jumps.get(bucket)
        return None if jump is None else jump[0]

    def has(self, bucket: BucketNo) -> bool:
        """Whether a bucket without a row is in such a block: then it is no gap [P22]."""
        return any(first <= bucket < end for first, (end, _) in self._jumps.items())

    def end_behind(self, buckets: Iterable[BucketNo], at: int) -> int:
        """Return the end of the last of these buckets' blocks, if it is beyond ``at``."""
        return max([at, *(self._jumps[bucket][0] for bucket in buckets if bucket in self._jumps)])

    async def settle(self, rows: dict[BucketNo, Stored[Bucket] | None]) -> set[BucketNo]:
        """Roll decided buckets forward.

        The others are undecided and jumped over for a second [P22].

        Args:
            rows: Receives the rows that have changed.

        Returns:
            The undecided buckets.
        """
        bulk = {
            bucket: row
            for bucket, row in rows.items()
            if row is not None and row.value.status in OF_A_SINK
        }
        if not bulk:
            return set()
        failed: dict[str, CassieqError] = {}
        with self._lane.store.session.within(each_s=EACH_S):
            changed = await roll_forward.settle_decided(self._lane, bulk, failed)
        rows.update(changed)
        for sink_id, error in failed.items():
            if not isinstance(error, StoreError):
                raise error  # a missing grant, for example: no later look would help
            event(
                _logger,
                "settling_failed",
                queue=self._lane.queue,
                sink=sink_id,
                error=str(error),
            )
        undecided = {
            bucket
            for bucket in bulk
            if (changed.get(bucket) or bulk[bucket]).value.status in OF_A_SINK
        }
        until = self._lane.clock.monotonic() + REMEMBERED_S
        for bucket in undecided:
            sink = bulk[bucket].value.sink
            if sink is not None:
                self._jumps[bucket] = (sink.block_end, until)
                why = failed.get(sink.sink_id)
                if why is not None and not isinstance(why, RowCorrupt):
                    self._pass_over(bucket, why)  # decided or not: "none" would be a guess [T21]
        return undecided
