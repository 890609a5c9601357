"""Claim messages of sealed buckets: one LWT per bucket, whatever the count. Holds I2, I10.

`Budget` limits what one call may still claim, `Claimer` claims for one owner, and `Round` gathers
what the claims of many buckets come to. See docs/design/get-and-leases.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import UUID

from cassieq_spark import metrics
from cassieq_spark.errors import CasAmbiguous, CassieqError, ClientClosed, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import Bucket, Lease, Status
from cassieq_spark.model.ids import BucketNo, LaneId, Place, bucket_of
from cassieq_spark.model.lease import Terms, claimable, is_dying, visible
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.pointer import minute_of
from cassieq_spark.model.row_limits import LEASES_PER_CLAIM, RUNS_PER_LEASE
from cassieq_spark.model.rows.intents import Claim
from cassieq_spark.model.settlement import Release
from cassieq_spark.queue import seal
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.lane import Lane, LanePaused, named
from cassieq_spark.queue.seal import note_expired
from cassieq_spark.queue.settle.settle import settle_bucket
from cassieq_spark.store.call import present

Answer = tuple[list["Claimed"], Stored[Bucket] | None]

Rows = dict[BucketNo, "Stored[Bucket]"]

BUCKETS_PER_CALL: Final = 2_048
"""The maximum number of buckets that one call claims from: the offset that names its leases stays
small."""

GRACE_S: Final = 1.0
"""A call that has messages waits this long for unanswered claims, while its leases run."""

PATIENT_GRACE_S: Final = 5.0
"""A call that has no messages yet waits this long for each statement of a seal, and a call whose
messages are leased for their bodies. Then it goes on to other buckets (I10)."""

RUNS_PER_CALL: Final = 8_192
"""The maximum number of runs that one call claims. A batch's offset has an entry of about 60 bytes
for each run of ids, and Spark keeps a hundred offsets. The limit matters only if single messages
came back, bucket after bucket."""

_logger = get_logger("queue")


@dataclass(slots=True, kw_only=True)
class Holder:
    """The owner of the leases that one consumer takes, which all its readers share.

    Attributes:
        run: The run of a Spark query, which takes all it can, in the order of ids; None: a program.
        visibility_us: The duration of the leases of the next gets.
        below: Claims are from these lanes only, and of each only ids below the given one; None:
            from all.
    """

    owner: str
    run: UUID | None
    visibility_us: int
    below: Mapping[LaneId, int] | None = None

    @property
    def is_program(self) -> bool:
        """Whether it is a program, and not a Spark query."""
        return self.run is None

    def below_id(self, lane: Lane) -> int | None:
        """Return the id below which ids of a lane are claimed; None: all are."""
        return None if self.below is None else self.below.get(lane.lane_id)

    def offset_below(self, lane: Lane, bucket: BucketNo) -> int | None:
        """Return the offset in a bucket below which ids are claimed; None: all are."""
        below_id = self.below_id(lane)
        if below_id is None or bucket < bucket_of(below_id, lane.bucket_size):
            return None
        return max(0, below_id - bucket * lane.bucket_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A lease of ours, with its bucket's row as last seen."""

    lane: Lane
    bucket: BucketNo
    lease: Lease
    row: Stored[Bucket]

    @property
    def place(self) -> Place:
        """The bucket of its messages."""
        return self.lane.place(self.bucket)

    @property
    def planned(self) -> Planned:
        """The read that gets its messages."""
        return Planned(
            lane=self.lane.lane_id,
            bucket=self.bucket,
            runs=self.lease.runs,
            delivery_count=self.lease.delivery_count,
            lease_id=self.lease.lease_id,
            revisions=self.row.value.revisions_of(self.lease.runs),
        )


@dataclass(slots=True, kw_only=True)
class Budget:
    """The rest of a call's limits.

    Attributes:
        messages: The number of messages that may still be claimed.
        size_bytes: The bytes that may still be claimed, by the mean of each bucket; None: no limit.
        is_untouched: Whether nothing was taken yet. Then one message fits, however large it is;
            otherwise a queue of large messages would stand still (I10).
        runs: About how many runs may still be claimed: the claim of the last bucket may exceed it.
    """

    messages: int
    size_bytes: float | None = None
    is_untouched: bool = True
    runs: int = field(default_factory=lambda: RUNS_PER_CALL)

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits."""
        if self.is_untouched:
            return self.messages <= 0
        has_bytes = self.size_bytes is None or self.size_bytes > 0
        return self.messages <= 0 or self.runs <= 0 or not has_bytes

    def for_messages_of(self, row: Bucket, available: int) -> int:
        """Return how many of the available messages of this bucket fit."""
        count = min(self.messages, available)
        each = mean_bytes(row)
        if self.size_bytes is None or not each or not count:
            return count
        fitting = int(max(0.0, self.size_bytes) / each)
        return min(count, max(fitting, 1 if self.is_untouched else 0))

    def take(self, row: Bucket, count: int, *, runs: int) -> None:
        """Subtract messages of this bucket. A rest of bytes too small for one message becomes 0."""
        self.messages -= count
        self.runs -= runs
        if count and self.size_bytes is not None:
            self.size_bytes -= count * mean_bytes(row)
            if self.size_bytes < mean_bytes(row):
                self.size_bytes = 0
        self.is_untouched &= not count

    def give_back(self, before: Budget) -> None:
        """Take back what was subtracted since: what was claimed was given back."""
        self.messages, self.size_bytes = before.messages, before.size_bytes
        self.is_untouched, self.runs = before.is_untouched, before.runs

    def take_claimed(self, claimed: list[Claimed]) -> None:
        """Subtract claimed messages."""
        for one in claimed:
            self.take(one.row.value, one.lease.runs.count, runs=len(one.lease.runs.pairs))


@dataclass(slots=True, kw_only=True)
class Round:
    """A round of a get in one lane: its limits, and what its claims and seals have come to.

    Messages that one bucket has granted are handed out, whatever happens to the claims of others
    (ADR 21).

    Attributes:
        budget: Claimed messages are subtracted from it.
        pass_over: Called with each bucket that did not answer, and the error.
        claimed: Our new claims.
        rows: The rows that were changed, by us or by others, as they are now.
        has_sealed: Whether a seal changed a row; the number of such rounds is limited.
        young_for_s: How long the first message is too young to be taken; None if there is none, or
            it was waited for.
        more_in_s: The time until open buckets may have more than this round has taken; None if no
            more was seen.
    """

    lane: Lane
    budget: Budget
    pass_over: Callable[[BucketNo, CassieqError], None]
    claimed: list[Claimed] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    has_sealed: bool = False
    young_for_s: float | None = None
    more_in_s: float | None = None

    async def try_all(
        self, claim: Callable[[BucketNo], Awaitable[Answer]], buckets: list[BucketNo]
    ) -> list[Claimed]:
        """Claim in all of these buckets, up to 16 at once; do not wait long if some suffice.

        Raises:
            QueueDeleted: The lane is dead.
        """
        if len(buckets) == 1 and not self.claimed:
            return await self.add(buckets[0], claim(buckets[0]))
        lane, before = self.lane, len(self.claimed)
        waiting = {bucket: lane.store.session.begin(claim, bucket) for bucket in buckets}
        while waiting:
            with present().waiting():
                await asyncio.wait(
                    waiting.values(),
                    timeout=GRACE_S if self.claimed else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            done = [bucket for bucket, flight in waiting.items() if flight.done()]
            for bucket in done:
                await self.add(bucket, waiting.pop(bucket))
            if not done:
                break
        order = {bucket: at for at, bucket in enumerate(buckets)}
        won = sorted(self.claimed[before:], key=lambda one: order[one.bucket])
        self.claimed[before:] = won
        for bucket, flight in waiting.items():
            event(_logger, "bucket_unreachable", **lane.as_fields(bucket), error="not yet")
            late = CasAmbiguous(
                "a claim is not answered yet. The messages that it leases are given back"
            )
            self.pass_over(bucket, named(late, lane, bucket))
            flight.add_done_callback(partial(_give_back, lane, bucket), context=Context())
        return won

    async def add(self, bucket: BucketNo, claim: Awaitable[Answer]) -> list[Claimed]:
        """Add the outcome of one claim.

        Raises:
            CassieqError: An error of the queue as a whole.
        """
        lane = self.lane
        try:
            got, now = await claim
        except StoreError as error:
            # An ambiguous claim may exist. It runs out by itself, and takes no other claim with it
            # [T22].
            self.pass_over(bucket, named(error, lane, bucket))
            event(_logger, "bucket_unreachable", **lane.as_fields(bucket), error=str(error))
            return []
        if now is not None:
            self.rows[bucket] = now
        self.claimed += got
        self.budget.take_claimed(got)
        return got


def _give_back(lane: Lane, bucket: BucketNo, flight: asyncio.Task[Answer]) -> None:
    """Give back a claim that was answered after its caller had gone, uncounted."""
    if flight.cancelled() or flight.exception() is not None:
        return
    claimed, _ = flight.result()
    if claimed:
        _note_late(lane, bucket, sum(one.lease.runs.count for one in claimed))
        with suppress(ClientClosed):  # they come back when their leases run out
            lane.store.session.begin(give_back, claimed)


def _note_late(lane: Lane, bucket: BucketNo, messages: int) -> None:
    event(_logger, "claim_answered_late", **lane.as_fields(bucket), messages=messages)


@dataclass(frozen=True, slots=True)
class Claimer:
    """Claims messages of a lane."""

    lane: Lane
    holder: Holder

    def share(
        self, rows: Rows, budget: Budget, *, away: Collection[BucketNo]
    ) -> dict[BucketNo, int]:
        """Plan how many messages to take from each bucket, until the budget is full.

        Args:
            rows: Buckets to claim from, in their order.
            budget: Planned messages are subtracted from it. A budget of no messages plans only
                buckets with dying messages.
            away: Buckets that did not answer lately: they are passed over.
        """
        shares: dict[BucketNo, int] = {}
        now_us, limit = self.lane.clock.now_us(), self.lane.max_deliveries
        for bucket, row in rows.items():
            if bucket in away:
                continue
            is_spent = budget.is_full and not budget.is_untouched
            if is_spent or len(shares) >= BUCKETS_PER_CALL:
                break
            below = self.holder.offset_below(self.lane, bucket)
            dies = is_dying(row.value, now_us=now_us, max_deliveries=limit)
            available = claimable(row.value, now_us=now_us, below=below, max_deliveries=limit)
            count = budget.for_messages_of(row.value, available)
            if count > 0 or dies:
                shares[bucket] = count
                budget.take(row.value, count, runs=min(count, runs_there(row.value, now_us)))
            elif available > 0:
                budget.size_bytes = 0  # too small for the next message; none goes before it
                break
        return shares

    def terms(self, at_most: int, bucket: BucketNo) -> Terms:
        """Return the terms of a claim that is sent now (G6) [P18]."""
        now_us = self.lane.clock.now_us()
        return Terms(
            at_most=at_most,
            owner=self.holder.owner,
            run=self.holder.run,
            now_us=now_us,
            until_us=self._until_us(now_us),
            below=self.holder.offset_below(self.lane, bucket),
            max_deliveries=self.lane.max_deliveries,
            expired_die=self.lane.expired_die,
        )

    def _until_us(self, now_us: int) -> int:
        return now_us + max(self.holder.visibility_us, self.lane.store.sender.spare_us)

    async def hint(self, buckets: Iterable[BucketNo]) -> None:
        """Write the expiry hints of claims that are about to be sent."""
        now_us = self.lane.clock.now_us()
        until_us = self._until_us(now_us)
        hints = [(bucket, until_us) for bucket in buckets]
        await self.lane.hints.write(hints, now_us=now_us, is_sure=False)

    async def claim(
        self,
        bucket: BucketNo,
        row: Stored[Bucket],
        at_most: int,
        *,
        fresh_first: bool = False,
    ) -> Answer:
        """Try once, on the row as last seen.

        Returns:
            Our new claims (none if the race was lost), and the row as it is now.

        Raises:
            CasAmbiguous: The lease may exist. It then runs out by itself; do not claim again.
        """
        lane = self.lane
        wanted = Claim(
            at_most=at_most,
            owner=self.holder.owner,
            visibility_us=self.holder.visibility_us,
            run=self.holder.run,
            below=self.holder.offset_below(self.lane, bucket),
            max_deliveries=lane.max_deliveries,
            expired_die=lane.expired_die,
            fresh_first=fresh_first,
        )
        answer = await lane.apply(bucket, wanted, known=row)
        given: Any = answer.result
        now: Any = answer.row
        if given is None:
            return [], now
        note_expired(lane, bucket, given.gone)
        return [
            Claimed(lane=lane, bucket=bucket, lease=lease, row=now) for lease in given.leases
        ], now

    async def close(
        self,
        bucket: BucketNo,
        *,
        budget: Budget | None,
        is_filled: bool,
        is_left_to_winner: bool,
        helps: bool,
    ) -> Answer:
        """Seal an open bucket, and claim within the budget, by the same CAS if possible.

        Args:
            budget: None: only seal the bucket.
            is_filled: Whether a message was seen in it.
            is_left_to_winner: Whether to leave the bucket to a client that has sealed it and
                claimed in it meanwhile (ADR 35).
            helps: See `seal.close`.

        Returns:
            As `claim`; no row if the bucket was dropped long ago. The row is not sealed yet if
            another client's seal was left alone.
        """
        lane = self.lane
        # Its size is known once it is sealed. Under a limit of bytes, the claim comes after that.
        at_once = budget is not None and budget.size_bytes is None
        terms = self.terms(budget.messages, bucket) if budget is not None and at_once else None
        closed = await seal.close(lane, bucket, terms, is_filled=is_filled, helps=helps)
        if closed is None:
            return [], None
        row = closed.row.value
        is_lost = row.status is Status.SEALING or (bool(row.leases) and not closed.is_ours)
        if is_lost and is_left_to_winner:
            return [], closed.row
        manifest = row.manifest
        event(_logger, "bucket_sealed", **lane.as_fields(bucket), messages=manifest.count)
        if self.holder.is_program:
            lane.messages.keep(bucket, closed.chunks)  # for Spark, executors read them
        got = held(lane, bucket, closed.row, closed.leases)
        if got or budget is None:
            return got, closed.row
        at_most = budget.for_messages_of(row, budget.messages)
        if not at_most and budget.size_bytes is not None:
            budget.size_bytes = 0  # the rest is too small for the next message
        got, now = await self.claim(bucket, closed.row, at_most)
        return got, now or closed.row

    async def confirm(self, claimed: list[Claimed]) -> list[Claimed]:
        """Return the claims of one call that are real and came in time. Call it after all of them.

        A row below the repair pointer is a ghost: a statement that was sent twice has landed again
        after the drop, and messages claimed from it were acked long ago (G5, ADR 11). A claim that
        is answered after its own end is given back without counting [P18]. If the time pointer has
        passed the minute of a hint while its CAS was on the way, the hint is written again where
        the pointer has not been: at the current minute, or beyond a pointer that is ahead of now
        [P17, T7].

        Raises:
            LanePaused: The lane is paused; all was given back (`queue.pause`).
        """
        if not claimed:
            return []
        try:
            return await self._confirmed(claimed)
        except CassieqError:
            await give_back(claimed)  # no consumer gets to see them [T22]
            raise

    async def _confirmed(self, claimed: list[Claimed]) -> list[Claimed]:
        lane, gate = self.lane, self.lane.gate
        beside = None if gate is lane else gate.begin_pointers()
        pointers = await lane.read_pointers()
        if (pointers if beside is None else await beside()).is_paused:
            raise LanePaused
        claimed = [one for one in claimed if one.bucket >= pointers.repair]
        now_us = lane.clock.now_us()
        in_time = [one for one in claimed if one.lease.until_us > now_us]
        too_late = [one for one in claimed if one.lease.until_us <= now_us]
        if too_late:
            await give_back(too_late)
            for late in too_late:
                _note_late(lane, late.bucket, late.lease.runs.count)
        passed = pointers.time
        await lane.hints.write(
            [(one.bucket, now_us) for one in in_time if minute_of(one.lease.until_us) < passed],
            now_us=now_us,
        )
        metrics.MESSAGES_CLAIMED.inc(lane.queue, sum(one.lease.runs.count for one in in_time))
        again = (one.lease for one in in_time if one.lease.delivery_count > 1)
        metrics.REDELIVERED.inc(lane.queue, sum(lease.runs.count for lease in again))
        return in_time


def held(
    lane: Lane, bucket: BucketNo, row: Stored[Bucket] | None, leases: Iterable[Lease]
) -> list[Claimed]:
    """Return our new leases that are in the row."""
    if row is None:
        return []
    return [
        Claimed(lane=lane, bucket=bucket, lease=lease, row=row)
        for lease in leases
        if row.value.lease(lease.lease_id) is not None
    ]


async def give_back(claimed: list[Claimed]) -> None:
    """Release messages that nobody will get, uncounted. Unreleased leases run out by themselves.

    It takes at most `GRACE_S` per statement: its caller has an error to report.
    """
    if not claimed:
        return
    session = claimed[0].lane.store.session
    release = Release(count_delivery=False)  # by its runs: others may hold others of the lease (I2)
    with session.within(each_s=GRACE_S):
        released = await session.each(
            lambda one: settle_bucket(
                one.lane, one.bucket, {one.lease.lease_id: {release: one.lease.runs}}
            ),
            claimed,
        )
    for one, failure in zip(claimed, released, strict=True):
        if isinstance(failure, CassieqError):
            event(
                _logger,
                "bucket_unreachable",
                **one.lane.as_fields(one.bucket),
                error=str(failure),
            )


def mean_bytes(row: Bucket) -> float:
    """Return the mean size of a message of a sealed bucket; 0 if it was not counted."""
    return row.size_bytes / max(1, row.manifest.count)


def runs_there(row: Bucket, now_us: int) -> int:
    """Return the maximum number of runs that a claim may take here, by delivery counts."""
    there: Counter[int] = Counter()
    for part in visible(row, now_us):
        there[part.deliveries] += len(part.runs.pairs)
    return sum(sorted(min(RUNS_PER_LEASE, runs) for runs in there.values())[-LEASES_PER_CLAIM:])
