"""Scan a lane for claimable messages, open buckets, and how far the pointers may move.

A scan only reads, except that it rolls decided transactions forward. Each consumer has one
`Scanner`, which remembers for a moment what it need not look at again; `FirstReads` makes the first
reads of a look, as few as the look before it allows. Holds I9, I10. See
docs/design/get-and-leases.md and docs/design/returns-and-hints.md.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import FINISHED, MEANS_NOTHING_ALONE, Bucket, Status
from cassieq_spark.model.choice import Chooser, others_until_us
from cassieq_spark.model.ids import BucketNo, bucket_of
from cassieq_spark.model.lease import claimable, is_crowded, is_dying
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.pointer import Pointer, Pointers
from cassieq_spark.queue.get.choice import seen
from cassieq_spark.queue.get.claim import BUCKETS_PER_CALL, GRACE_S, Holder, Rows, mean_bytes
from cassieq_spark.queue.get.hints import Finished, Hints, TimePointer, begin_advance, still_due
from cassieq_spark.queue.get.unsealed import SEALS_PER_CALL, SHORT_LINGER_S, Peek, Undecided
from cassieq_spark.queue.lane import Lane, LanePaused, named
from cassieq_spark.store.tables.lanes import Monoton

FIRST_WINDOW: Final = 8
"""The number of bucket rows that a look reads at once at first."""

LARGEST_WINDOW: Final = 64
"""The number that a look reads at once at last: each window is twice as large as the one before."""

AWAY_REMEMBERED_S: Final = 5.0
"""A bucket that did not answer is passed over this long without a look (ADR 21)."""

PEEKS: Final = 8
"""The number of open buckets that a look peeks into at once, before it is known which may be
sealed."""

WINDOWS_BEHIND_OTHERS: Final = 2
"""The number of further windows that a look reads when it has found enough only together with
buckets where other consumers are at work (I9)."""

NEWS_FOR_S: Final = 0.1
"""A look may begin this long with the reads of `FirstReads.has_news`, which the same call has
made."""

POINTERS_FOR_S: Final = 0.5
"""A program's looks go on this long with the pointers that one of them has read (ADR 37)."""

_logger = get_logger("queue")


@dataclass(slots=True, kw_only=True)
class Scan:
    """The result of one look.

    Attributes:
        pointers: As read at the start or before, and as moved on since.
        monoton: As read at the start.
        hints: As read at the start, by the time ``now_us``.
        fresh: The buckets that were reserved since the previous look, if that left none open.
        looked_at: The time when the pointers were read, by the monotonic clock.
        is_begun: Whether it began with the reads of `FirstReads.has_news`, and with older pointers.
        candidates: Sealed rows with something to claim: returned messages first, then by id.
        open: Reserved buckets without a row, oldest first. L was read after them, or beside them.
            In the latter case a bucket that is being dropped may be among them. Its seal reads L
            again (G5).
        half_sealed: Buckets whose seal has begun, with the time (cluster time). L was read as for
            ``open``.
        peeked: Whether an open bucket holds messages, for some of the open buckets.
        oldest_later_us: Per open bucket: some later bucket or the monoton row is at least this old,
            so this bucket was reserved before that (cluster time) [R11].
        available: Messages in ``candidates``, without those in the next field.
        available_in_crowds: Messages in ``candidates`` of buckets that come last: they have so many
            leases that others are preferred [R6], or other consumers are at work in them.
        available_bytes: The size of the available messages as stored, by the mean of each bucket.
        claimable: The number of buckets in ``candidates`` that hold claimable messages.
        is_cut: Whether it ended early, as enough open buckets hold messages: "none" would be a
            guess if there are fewer now (I10).
        is_settled: Whether every bucket that was looked at waits only for time, or for nothing: the
            next message has a new id, or a hint.
    """

    pointers: Pointers
    monoton: Monoton
    looked_at: float
    hints: Hints = field(default_factory=list)
    now_us: int = 0
    fresh: range = range(0)
    is_begun: bool = False
    candidates: Rows = field(default_factory=dict)
    open: list[BucketNo] = field(default_factory=list)
    half_sealed: dict[BucketNo, int] = field(default_factory=dict)
    peeked: dict[BucketNo, bool] = field(default_factory=dict)
    oldest_later_us: dict[BucketNo, int] = field(default_factory=dict)
    available: int = 0
    available_in_crowds: int = 0
    available_bytes: float = 0
    claimable: int = 0
    is_cut: bool = False
    is_settled: bool = True


class FirstReads:
    """Begins the looks of one consumer: pointers, ids and hints.

    A look may begin with older pointers, as a slow look does: they only save reads, and L is read
    again where it decides. If much has happened since, it reads them anew (I9).

    Args:
        goes_on: Whether looks that follow each other share their pointers.
    """

    def __init__(self, lane: Lane, time: TimePointer, finished: Finished, *, goes_on: bool) -> None:
        self._lane = lane
        self._time = time
        self._finished = finished
        self._goes_on = goes_on
        self._last: Scan | None = None
        self._news: Scan | None = None
        self._news_until = -math.inf

    async def begin(self) -> Scan:
        """Read what was not just read: two reads, or three in two steps.

        Raises:
            QueueDeleted, LanePaused: The lane is dead, or paused.
        """
        begun, self._news = self._news, None
        if begun is None or self._lane.clock.monotonic() >= self._news_until:
            begun = await self._from_last() or await self._anew()
        self._last = begun if self._goes_on else None
        return begun

    def forget_news(self) -> None:
        """Begin the next look anew: what an earlier call has read serves no other (I10)."""
        self._news = None

    async def has_news(self, scan: Scan) -> bool:
        """Whether there may be something new since a look that left nothing open. Two reads.

        A new message has an id that was not handed out then, and messages that come back have a
        hint; hinted messages of a drained bucket never come back. A look that follows at once
        begins with these reads, but not two such looks in a row.
        """
        self.forget_news()
        begun = await self._after(scan)
        if begun is None:
            return True
        has_some = begun.monoton.next_id != scan.monoton.next_id or any(
            bucket >= scan.pointers.repair and bucket not in self._finished
            for _, bucket in begun.hints
        )
        if not self._is_near(begun):
            self._last = None
        elif has_some and not scan.is_begun:
            begun.is_begun = True
            self._news = begun
            self._news_until = self._lane.clock.monotonic() + NEWS_FOR_S
        return has_some

    async def _from_last(self) -> Scan | None:
        """Begin with the pointers of the last look. Ids and hints are read in any case (I10)."""
        last = self._last
        if last is None or self._lane.clock.monotonic() >= last.looked_at + POINTERS_FOR_S:
            return None
        begun = await self._after(last) if self._is_near(last) else None
        return begun if begun and self._is_near(begun) else None

    async def _after(self, scan: Scan) -> Scan | None:
        """Read ids and hints, side by side; None if the lane was closed or deleted since."""
        lane = self._lane
        now_us = lane.clock.now_us()
        hints = self._begin_hints(scan.pointers, now_us)
        monoton = await lane.monotons.find()
        if monoton is None or monoton.value.is_closed != scan.monoton.is_closed:
            return None
        first, end = (
            bucket_of(one.next_id, lane.bucket_size) for one in (scan.monoton, monoton.value)
        )
        return Scan(
            pointers=scan.pointers,
            monoton=monoton.value,
            looked_at=scan.looked_at,
            hints=await hints(),
            now_us=now_us,
            fresh=range(first, end),
        )

    async def _anew(self) -> Scan:
        lane = self._lane
        looked_at = lane.clock.monotonic()
        pointers = await lane.read_pointers()
        if pointers.is_paused:
            raise LanePaused
        # Both reads come after the pointers, and at once: they say nothing about each other.
        now_us = lane.clock.now_us()
        hints, monoton = self._begin_hints(pointers, now_us), await lane.read_monoton()
        return Scan(
            pointers=pointers,
            monoton=monoton,
            looked_at=looked_at,
            hints=await hints(),
            now_us=now_us,
        )

    def _begin_hints(self, pointers: Pointers, now_us: int) -> Callable[[], Awaitable[Hints]]:
        return self._time.begin_hints(pointers, now_us, self._finished.end(pointers.repair))

    def _is_near(self, scan: Scan) -> bool:
        """Whether one window covers all buckets ahead of R.

        A closed lane's pointers tell its end.
        """
        end = bucket_of(scan.monoton.next_id, self._lane.bucket_size)
        return end - scan.pointers.reader <= FIRST_WINDOW and not scan.monoton.is_closed


class Scanner:
    """Scans a lane for one consumer.

    Args:
        holder: The consumer.

    Attributes:
        first_reads: Tells whether a look would find anything new.
        undecided: The blocks of transactions that are jumped over.
        passed_over: The buckets that were not read since the last look began, each with the error:
            for these, "none" would be a guess (I10). This is not `away`, which may have been
            forgotten since.
        filled_at: The open buckets that hold messages, with the time (monotonic) when that was seen
            first. They keep them: whoever takes any seals the bucket first.
    """

    def __init__(self, lane: Lane, holder: Holder) -> None:
        self._lane = lane
        self._holder = holder
        self._corrupt: set[BucketNo] = set()
        self._finished = Finished(lane)
        self.undecided = Undecided(lane, self.pass_over)
        self._time = TimePointer(lane)
        self._away: dict[BucketNo, tuple[CassieqError, float]] = {}
        self._chooser: Chooser | None = None
        self.first_reads = FirstReads(lane, self._time, self._finished, goes_on=holder.is_program)
        self.passed_over: dict[BucketNo, CassieqError] = {}
        self.filled_at: dict[BucketNo, float] = {}
        self._others_until: dict[BucketNo, int] = {}

    def pass_over(self, bucket: BucketNo, error: CassieqError) -> None:
        """Skip a bucket that did not answer for a while, and look only at others [T5] [T22]."""
        self._away[bucket] = (error, self._lane.clock.monotonic() + AWAY_REMEMBERED_S)
        self.passed_over[bucket] = error

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
        want_bytes: float | None = None,
        peeks: bool = False,
        sealed_singly: BucketNo | None = None,
        chooser: Chooser | None = None,
    ) -> Scan:
        """Find up to ``want`` claimable messages.

        Fewer are enough if they have ``want_bytes`` together, but at least one.

        It costs at least two reads (pointers, monoton) and one per hour since the time pointer,
        unless they have just been read (`FirstReads`). Then it reads the bucket rows from the
        reader pointer on, until it has found enough.

        Args:
            peeks: Whether to look into open buckets if sealed ones have no message.
            sealed_singly: See `OpenBuckets`: the next bucket is probably open.
            chooser: The chooser of a program's get. If it has met others, the scan goes on past
                their buckets for some windows, but no further. If it is by id, only fresh messages
                count towards ``want``, from the reader pointer on, and not those that hints have
                led to.

        Raises:
            QueueDeleted: The lane is dead.
        """
        lane = self._lane
        self.passed_over = {}
        self._chooser = chooser
        scan = await self.first_reads.begin()
        await self._look_at_hints(scan)
        beside: tuple[Callable[[], Awaitable[Pointers]], Peek] | None = None
        is_next = sealed_singly is not None and scan.fresh.start == sealed_singly + 1
        if peeks and is_next and not scan.available and self._holder.below is None:
            # L, and whether the fresh buckets hold messages, are read beside their rows: it is
            # likely that none has a row.
            away = self.away
            fresh = [BucketNo(at) for at in scan.fresh[:PEEKS] if at not in away]
            beside = (lane.begin_pointers(), Peek(lane, fresh, self.pass_over)) if fresh else None
        silent, times = await self._look_ahead(
            scan, want, math.inf if want_bytes is None else max(1.0, want_bytes)
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
            scan.is_cut or scan.open or scan.half_sealed or self.undecided or self.passed_over
        )

    async def _look_at_hints(self, scan: Scan) -> None:
        """Find messages that came back or fell due by now, wherever the reader pointer is."""
        now_us, hints = scan.now_us, scan.hints
        hinted = {bucket for _, bucket in hints if bucket >= scan.pointers.repair}
        reader = scan.pointers.reader
        self._finished.forget(reader, hinted)
        rows: dict[BucketNo, Stored[Bucket] | None] = {}
        away = self.away
        wanted = {bucket for bucket in hinted if bucket not in self._finished}
        to_read = [bucket for bucket in sorted(wanted) if not self._is_passed_over(bucket, away)]
        for at in range(0, len(to_read), LARGEST_WINDOW):
            rows |= await self._read(to_read[at : at + LARGEST_WINDOW])
        for bucket, row in rows.items():
            if row is not None:
                self._consider(scan, bucket, row, now_us)
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
        self, scan: Scan, want: int, want_bytes: float
    ) -> tuple[dict[BucketNo, bool], dict[BucketNo, int]]:
        """Read from the reader pointer to the monoton id, in growing windows.

        Returns:
            The buckets that mean nothing alone, and whether they have a row; times of rows.
        """
        lane = self._lane
        size = lane.bucket_size
        end_id = scan.monoton.next_id
        if (below_id := self._holder.below_id(lane)) is not None:
            end_id = min(below_id, end_id)
        end = -(-end_id // size)
        at: int = scan.pointers.reader
        window = FIRST_WINDOW
        times: dict[BucketNo, int] = {}
        silent: dict[BucketNo, bool] = {}
        chooser = self._chooser
        more_windows = WINDOWS_BEHIND_OTHERS if chooser and chooser.keeps_apart else math.inf
        is_by_id = chooser is not None and chooser.is_by_id
        fresh = 0
        others = self._left_to_others(scan)
        left_out = frozenset(others)
        while (
            (at < end or others)
            and more_windows > 0
            and (fresh if is_by_id else scan.available) < want
            and scan.available_bytes < want_bytes
            and scan.claimable < BUCKETS_PER_CALL
            and not scan.is_cut
        ):
            if at < end:
                buckets, at = self._window(at, end, window, left_out)
            else:
                buckets, others = others[:window], others[window:]
            window = min(window * 2, LARGEST_WINDOW)
            rows = await self._read(buckets)
            undecided = await self.undecided.settle(rows)
            now_us = lane.clock.now_us()
            for bucket in (at for at in buckets if at in rows):  # the others did not answer
                row = rows[bucket]
                if row is not None and row.value.status is not Status.CORRUPT:
                    times[bucket] = row.value.changed_us
                if row is None or row.value.status in MEANS_NOTHING_ALONE:
                    silent[bucket] = row is not None
                elif bucket not in undecided:
                    self._consider(scan, bucket, row, now_us)
                    fresh += row.value.fresh.count
            at = self.undecided.end_behind(undecided, at)
            more_windows -= scan.available + scan.available_in_crowds >= want
            if chooser is not None and (at < end or others):
                scan.is_cut = await self._has_enough_open(scan, silent)
        return silent, times

    async def _has_enough_open(self, scan: Scan, silent: Mapping[BucketNo, bool]) -> bool:
        """Whether enough open buckets hold messages: a get need not see those behind them.

        They are as many as it seals, and all may be sealed within `SHORT_LINGER_S`.
        """
        open_ = self._open_in(silent)
        unknown = [at for at in open_ if not (at in self.filled_at or at in scan.peeked)]
        self.learn_filled(found := await Peek(self._lane, unknown, self.pass_over).answers())
        scan.peeked |= found
        clock, linger_s = self._lane.clock, self._lane.settings.linger_s
        seen_by = clock.monotonic() - linger_s + SHORT_LINGER_S
        ripe = sum(self.filled_at.get(bucket, math.inf) <= seen_by for bucket in open_)
        return ripe >= SEALS_PER_CALL

    def _open_in(self, silent: Mapping[BucketNo, bool]) -> list[BucketNo]:
        """Return the buckets without a row, except those of transactions."""
        return [at for at, has_row in silent.items() if not (has_row or self.undecided.has(at))]

    def learn_filled(self, peeked: Mapping[BucketNo, bool]) -> None:
        """Remember which open buckets hold messages, and since when."""
        now = self._lane.clock.monotonic()
        for bucket, has_any in peeked.items():
            if has_any:
                self.filled_at.setdefault(bucket, now)

    async def _sort_out_silent(
        self,
        scan: Scan,
        silent: dict[BucketNo, bool],
        times: dict[BucketNo, int],
        beside: tuple[Callable[[], Awaitable[Pointers]], Peek] | None,
        *,
        peeks: bool,
    ) -> None:
        """Read L once after all rows, to tell which silent buckets were dropped (G5) [P2] [R10].

        An L that was read beside the rows tells less: it may miss that a bucket is being dropped
        just now. The seal reads L again, and so does every claim (G5).
        """
        if not silent:
            return
        open_ = self._open_in(silent)
        if beside is not None and silent.keys() <= beside[1].asked.keys():
            low = (await beside[0]()).repair
            scan.peeked = await beside[1].answers_soon(open_ if peeks else ())
        else:
            low_read = self._lane.begin_pointers()
            known = self.filled_at.keys() | scan.peeked.keys()
            unknown = [at for at in open_[: PEEKS if peeks else 0] if at not in known]
            peeked = Peek(self._lane, unknown, self.pass_over)
            low = (await low_read()).repair
            scan.peeked |= await peeked.answers()
        oldest = scan.monoton.reserved_us
        later = sorted(times, reverse=True)
        for bucket in sorted(silent, reverse=True):
            while later and later[0] > bucket:
                oldest = min(oldest, times[later.pop(0)])
            scan.oldest_later_us[bucket] = oldest
        for bucket, has_row in silent.items():
            if bucket >= low and not self.undecided.has(bucket):
                if has_row:
                    scan.half_sealed[bucket] = times[bucket]
                else:
                    scan.open.append(bucket)

    def _left_to_others(self, scan: Scan) -> list[BucketNo]:
        """Return the buckets that are read only if this look finds too little in all others.

        Each still belongs to another client, as last read. What comes back there has a hint.
        """
        chooser, known = self._chooser, self._others_until
        now_us = self._lane.clock.now_us()
        self._others_until = {
            at: until_us
            for at, until_us in known.items()
            if now_us < until_us and at >= scan.pointers.reader
        }
        if chooser is None or not chooser.keeps_apart:
            return []
        away = self.away
        return [
            at
            for at in self._others_until
            if not (at in chooser.mine or at in away or at in self._finished)
        ]

    def _window(
        self, at: int, end: int, size: int, left_out: frozenset[BucketNo]
    ) -> tuple[list[BucketNo], int]:
        """Return the next buckets to read, without finished and jumped ones, and where to go on."""
        self.undecided.refresh()
        buckets: list[BucketNo] = []
        away = self.away
        while at < end and len(buckets) < size:
            bucket = BucketNo(at)
            jump_to = self.undecided.end_of(bucket)
            if jump_to is not None:
                at = max(at + 1, jump_to)
                continue
            if not (
                bucket in self._finished or bucket in left_out or self._is_passed_over(bucket, away)
            ):
                buckets.append(bucket)
            at += 1
        return buckets, at

    def _is_passed_over(self, bucket: BucketNo, away: Mapping[BucketNo, CassieqError]) -> bool:
        """Whether it did not answer a moment ago. If so, note that this look has not read it.

        Args:
            away: The value at the time when the look went through these buckets.
        """
        if bucket in away:
            self.passed_over[bucket] = away[bucket]
        return bucket in away

    def _consider(
        self,
        scan: Scan,
        bucket: BucketNo,
        row: Stored[Bucket],
        now_us: int,
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
        below = self._holder.offset_below(self._lane, bucket)
        limit = self._lane.max_deliveries
        available = claimable(row.value, now_us=now_us, below=below, max_deliveries=limit)
        dies = is_dying(row.value, now_us=now_us, max_deliveries=limit)
        if available or dies or row.value.is_behind_reader:
            scan.candidates[bucket] = row
            chooser = self._chooser
            is_theirs = chooser is not None and chooser.is_others(bucket, seen(row), now_us)
            if is_theirs:
                self._others_until[bucket] = others_until_us(row.value, now_us)
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


async def _nothing() -> None:
    """Wait for nothing, because nothing was sent."""
