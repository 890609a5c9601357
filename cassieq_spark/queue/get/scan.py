"""Scan a lane for claimable messages, open buckets, and how far the pointers may move.

It only reads, except that it rolls decided transactions forward. Each consumer has one `Scanner`,
which remembers for a moment what it need not look at again. See docs/design/get-and-leases.md and
docs/design/returns-and-hints.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import FINISHED, MEANS_NOTHING_ALONE, Bucket, Status
from cassieq_spark.model.ids import BucketNo, bucket_of
from cassieq_spark.model.lease import claimable, is_crowded, is_dying
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.queue.apart import named
from cassieq_spark.queue.get.begin import Beginning
from cassieq_spark.queue.get.choosing import seen
from cassieq_spark.queue.get.claim import GRACE_S, mean_bytes
from cassieq_spark.queue.get.finished import Finished
from cassieq_spark.queue.get.look import FIRST_WINDOW, Rows, Scan
from cassieq_spark.queue.get.peek import Beside, Peek
from cassieq_spark.queue.get.time_pointer import TimePointer, begin_advance, still_due
from cassieq_spark.queue.get.undecided import Undecided

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from cassieq_spark.model.choice import Chooser
    from cassieq_spark.queue.get.time_pointer import Hints
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

AWAY_REMEMBERED_S = 5.0
"""A bucket that did not answer is passed over this long without a look (ADR 21)."""

BUCKETS_PER_CALL = 2_048
"""The maximum number of buckets that one call claims from: the offset that names its leases stays
small."""

PEEKS = 8
"""The number of open buckets that a look peeks into at once, before it is known which may be
sealed."""

WINDOWS_BEHIND_OTHERS = 2
"""The number of further windows that a look reads when it has found enough only together with
buckets where other consumers are at work (I9)."""

_LARGEST_WINDOW = 64

_logger = get_logger("queue")


class Scanner:
    """Scans a lane for one consumer.

    Args:
        goes_on: See `Beginning`.
    """

    def __init__(self, lane: Lane, *, goes_on: bool = False) -> None:
        self._lane = lane
        self._corrupt: set[BucketNo] = set()
        self._finished = Finished(lane)
        self._undecided = Undecided(lane, self.pass_over)
        self._time = TimePointer(lane)
        self._beginning = Beginning(lane, self._time, self._finished, goes_on=goes_on)
        self._away: dict[BucketNo, tuple[CassieqError, float]] = {}
        self._passed_over: dict[BucketNo, CassieqError] = {}
        self._chooser: Chooser | None = None
        self._is_by_id = False

    def pass_over(self, bucket: BucketNo, error: CassieqError) -> None:
        """Skip a bucket that did not answer for a while, and look only at others [T5] [T22]."""
        self._away[bucket] = (error, self._lane.clock.monotonic() + AWAY_REMEMBERED_S)
        self._passed_over[bucket] = error

    @property
    def passed_over(self) -> dict[BucketNo, CassieqError]:
        """The buckets that were not read since the last look began, each with the error.

        For these buckets, "none" would be a guess (I10). This is not `away`, which may have been
        forgotten since.
        """
        return dict(self._passed_over)

    @property
    def away(self) -> dict[BucketNo, CassieqError]:
        """The buckets that the next look passes over, for the rest of their five seconds."""
        now = self._lane.clock.monotonic()
        self._away = {bucket: one for bucket, one in self._away.items() if one[1] > now}
        return {bucket: error for bucket, (error, _) in self._away.items()}

    def forget_away(self) -> None:
        """Look at the buckets of `away` again."""
        self._away.clear()

    async def scan(
        self,
        want: int,
        *,
        below_id: int | None = None,
        want_bytes: float | None = None,
        peeks: bool = False,
        sealed_singly: BucketNo | None = None,
        chooser: Chooser | None = None,
        is_by_id: bool = False,
    ) -> Scan:
        """Find up to ``want`` claimable messages with ids below ``below_id``.

        Fewer are enough if they have ``want_bytes`` together, but at least one.

        It costs at least two reads (pointers, monoton) and one per hour since the time pointer,
        unless they have just been read (`Beginning`). Then it reads the bucket rows from the reader
        pointer on, until it has found enough.

        Args:
            peeks: Whether to look into open buckets if sealed ones have no message.
            sealed_singly: See `OpenBuckets`: the next bucket is probably open.
            chooser: The chooser of a consumer that has met others. The scan goes on past buckets of
                others for some windows, but no further.
            is_by_id: Whether only fresh messages count towards ``want``, from the reader pointer
                on, and not those that hints have led to.

        Raises:
            QueueDeleted: The lane is dead.
        """
        lane = self._lane
        self._passed_over = {}
        self._chooser = chooser
        self._is_by_id = is_by_id
        begun = await self._beginning.begin()
        scan = begun.scan
        await self._look_at_hints(scan, begun.hints, below_id, now_us=begun.now_us)
        beside: Beside | None = None
        is_next = sealed_singly is not None and begun.fresh.start == sealed_singly + 1
        if peeks and is_next and not scan.available and below_id is None:
            beside = Beside.begin(lane, begun.fresh[:PEEKS], self.away, self.pass_over)
        silent, times = await self._look_ahead(
            scan, want, math.inf if want_bytes is None else max(1.0, want_bytes), below_id
        )
        await self._sort_out_silent(scan, silent, times, beside, peeks=peeks and not scan.available)
        return scan

    async def advance(self, scan: Scan, updated: Rows) -> None:
        """Move the reader pointer over buckets without fresh messages: at most one plain write.

        Args:
            updated: Rows that our own claims have changed since the scan.
        """
        await self.begin_advance(scan, updated)()

    def begin_advance(self, scan: Scan, updated: Rows) -> Callable[[], Awaitable[object]]:
        """Begin to `advance`, without waiting. Call the returned function once, to wait."""
        reader = scan.pointers.reader
        known = {**scan.candidates, **updated}
        end = bucket_of(scan.monoton.next_id, self._lane.bucket_size)
        while reader < end and (
            reader in self._finished or (reader in known and known[reader].value.is_behind_reader)
        ):
            reader = BucketNo(reader + 1)
        if reader == scan.pointers.reader:
            return _nothing
        scan.pointers = replace(scan.pointers, reader=reader)
        return begin_advance(self._lane, Pointer.READER, reader)

    def is_quiet_after(self, scan: Scan) -> bool:
        """Whether `has_news` will notice every message that becomes visible after this look."""
        return scan.is_settled and not (
            scan.open or scan.half_sealed or self._undecided or self._passed_over
        )

    async def has_news(self, scan: Scan) -> bool:
        """Ask `Beginning.has_news`."""
        return await self._beginning.has_news(scan)

    def forget_news(self) -> None:
        """Call `Beginning.forget_news`."""
        self._beginning.forget_news()

    def forget_jumps(self) -> bool:
        """Look again at blocks that were being written. Return whether there are any."""
        return self._undecided.forget()

    async def _look_at_hints(
        self, scan: Scan, hints: Hints, below_id: int | None, *, now_us: int
    ) -> None:
        """Find messages that came back or fell due by now, wherever the reader pointer is."""
        hinted = {bucket for _, bucket in hints if bucket >= scan.pointers.repair}
        reader = scan.pointers.reader
        self._finished.forget(reader, hinted)
        rows: dict[BucketNo, Stored[Bucket] | None] = {}
        away = self.away
        wanted = {bucket for bucket in hinted if bucket not in self._finished}
        to_read = [bucket for bucket in sorted(wanted) if not self._is_passed_over(bucket, away)]
        for at in range(0, len(to_read), _LARGEST_WINDOW):
            rows |= await self._read(to_read[at : at + _LARGEST_WINDOW])
        for bucket, row in rows.items():
            if row is not None:
                self._consider(scan, bucket, row, now_us, below_id)
        # A bucket that this look did not read may have due messages: only its hint finds them
        # (R12).
        unread = wanted - rows.keys()
        await self._learn(self._finished.to_learn(reader, hinted))

        def is_due(bucket: BucketNo, minute: int) -> bool:
            return bucket in unread or still_due(rows.get(bucket), minute)

        scan.pointers = await self._time.advance(scan.pointers, hints, is_due, now_us=now_us)
        await self._time.carry_over(scan.pointers, hints, self._finished, now_us=now_us)

    async def _learn(self, buckets: Iterable[BucketNo]) -> None:
        """Read whether these are finished. This only saves reads, so the wait is short."""
        away = self.away
        asked = [bucket for bucket in buckets if bucket not in away]
        with self._lane.store.session.within(each_s=GRACE_S):
            found, _ = await self._lane.buckets.read_some(asked)
        for bucket, row in found.items():
            if row is not None and row.value.status in FINISHED:
                self._finished.add(bucket)

    async def _look_ahead(
        self, scan: Scan, want: int, want_bytes: float, below_id: int | None
    ) -> tuple[dict[BucketNo, bool], dict[BucketNo, int]]:
        """Read from the reader pointer to the monoton id, in growing windows.

        Returns:
            The buckets that mean nothing alone, and whether they have a row; times of rows.
        """
        lane = self._lane
        size = lane.bucket_size
        end_id = scan.monoton.next_id if below_id is None else min(below_id, scan.monoton.next_id)
        end = -(-end_id // size)
        at: int = scan.pointers.reader
        window = FIRST_WINDOW
        times: dict[BucketNo, int] = {}
        silent: dict[BucketNo, bool] = {}
        more_windows = WINDOWS_BEHIND_OTHERS if self._chooser else math.inf
        fresh = 0
        while (
            at < end
            and more_windows > 0
            and (fresh if self._is_by_id else scan.available) < want
            and scan.available_bytes < want_bytes
            and scan.claimable < BUCKETS_PER_CALL
        ):
            buckets, at = self._window(at, end, window)
            window = min(window * 2, _LARGEST_WINDOW)
            rows = await self._read(buckets)
            undecided = await self._undecided.settle(rows)
            now_us = lane.clock.now_us()
            for bucket in buckets:
                if bucket not in rows:
                    continue  # it did not answer
                row = rows[bucket]
                if row is not None and row.value.status is not Status.CORRUPT:
                    times[bucket] = row.value.changed_us
                if row is None or row.value.status in MEANS_NOTHING_ALONE:
                    silent[bucket] = row is not None
                elif bucket not in undecided:
                    self._consider(scan, bucket, row, now_us, below_id)
                    fresh += row.value.fresh.count
            at = self._undecided.end_behind(undecided, at)
            more_windows -= scan.available + scan.available_in_crowds >= want
        return silent, times

    async def _sort_out_silent(
        self,
        scan: Scan,
        silent: dict[BucketNo, bool],
        times: dict[BucketNo, int],
        beside: Beside | None,
        *,
        peeks: bool,
    ) -> None:
        """Read L once after all rows, to tell which silent buckets were dropped (G5) [P2] [R10].

        An L that was read beside the rows tells less: it may miss that a bucket is being dropped
        just now. The seal reads L again, and so does every claim (G5).
        """
        if not silent:
            return
        open_ = [at for at, has_row in silent.items() if not (has_row or self._undecided.has(at))]
        if beside is not None and all(at in beside.fresh for at in silent):
            low = (await beside.low()).repair
            scan.peeked = await beside.peek.answers_soon(open_ if peeks else ())
        else:
            low_read = self._lane.begin_pointers()
            peeked = Peek(self._lane, open_[: PEEKS if peeks else 0], self.pass_over)
            low = (await low_read()).repair
            scan.peeked = await peeked.answers()
        oldest = scan.monoton.reserved_us
        later = sorted(times, reverse=True)
        for bucket in sorted(silent, reverse=True):
            while later and later[0] > bucket:
                oldest = min(oldest, times[later.pop(0)])
            scan.oldest_later_us[bucket] = oldest
        for bucket, has_row in silent.items():
            if bucket >= low and not self._undecided.has(bucket):
                if has_row:
                    scan.half_sealed[bucket] = times[bucket]
                else:
                    scan.open.append(bucket)

    def _window(self, at: int, end: int, size: int) -> tuple[list[BucketNo], int]:
        """Return the next buckets to read, without finished and jumped ones, and where to go on."""
        self._undecided.refresh()
        buckets: list[BucketNo] = []
        away = self.away
        while at < end and len(buckets) < size:
            bucket = BucketNo(at)
            jump_to = self._undecided.end_of(bucket)
            if jump_to is not None:
                at = max(at + 1, jump_to)
                continue
            if bucket not in self._finished and not self._is_passed_over(bucket, away):
                buckets.append(bucket)
            at += 1
        return buckets, at

    def _is_passed_over(self, bucket: BucketNo, away: Mapping[BucketNo, CassieqError]) -> bool:
        """Whether it did not answer a moment ago. If so, note that this look has not read it.

        Args:
            away: The value at the time when the look went through these buckets.
        """
        if bucket in away:
            self._passed_over[bucket] = away[bucket]
        return bucket in away

    def _consider(
        self,
        scan: Scan,
        bucket: BucketNo,
        row: Stored[Bucket],
        now_us: int,
        below_id: int | None,
    ) -> None:
        if row.value.status in FINISHED:
            self._finished.add(bucket)
            return
        if row.value.status is Status.CORRUPT:
            # It is neither a candidate nor finished: the reader pointer stays below it (I1) [T21].
            if bucket not in self._corrupt:
                self._corrupt.add(bucket)
                event(_logger, "bucket_row_corrupt", **self._lane.as_fields(bucket))
            return
        if bucket in scan.candidates:
            return
        below = offset_below(below_id, bucket, self._lane.bucket_size)
        limit = self._lane.max_deliveries
        available = claimable(row.value, now_us=now_us, below=below, max_deliveries=limit)
        dies = is_dying(row.value, now_us=now_us, max_deliveries=limit)
        if available or dies or row.value.is_behind_reader:
            scan.candidates[bucket] = row
            chooser = self._chooser
            is_theirs = chooser is not None and chooser.is_others(bucket, seen(row), now_us)
            if is_theirs or is_crowded(row.value, now_us=now_us):
                scan.available_in_crowds += available
            else:
                scan.available += available
                scan.available_bytes += available * mean_bytes(row.value)
            scan.claimable += bool(available)
        scan.is_settled &= row.value.is_behind_reader and not (available or dies)

    async def _read(self, buckets: Iterable[BucketNo]) -> dict[BucketNo, Stored[Bucket] | None]:
        """Read the rows that answer. Pass over the others, so that no look waits for them twice."""
        lane = self._lane
        found, unread = await lane.buckets.read_some(buckets)
        for bucket, error in unread.items():
            self.pass_over(bucket, named(error, lane, bucket))
            event(_logger, "bucket_unreachable", **lane.as_fields(bucket), error=str(error))
        return found


def offset_below(below_id: int | None, bucket: BucketNo, bucket_size: int) -> int | None:
    """Return the offset in this bucket below which ids are below ``below_id``; None if all are."""
    if below_id is None or bucket < bucket_of(below_id, bucket_size):
        return None
    return max(0, below_id - bucket * bucket_size)


async def _nothing() -> None:
    """Wait for nothing, because nothing was sent."""
