"""Gather the claims of many buckets for a get, and do not wait for slow ones if others suffice.

Holds I10: messages that one bucket has granted are handed out, whatever happens to the claims of
others (ADR 21).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from cassieq_spark.errors import CasAmbiguous, CassieqError, StoreError, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.lease import claimable, is_dying
from cassieq_spark.queue.apart import named
from cassieq_spark.queue.get.claim import (
    GRACE_S,
    PATIENT_GRACE_S,
    Claimed,
    give_back,
    runs_there,
)
from cassieq_spark.queue.get.scan import BUCKETS_PER_CALL, offset_below
from cassieq_spark.store.side_by_side import present

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.get.claim import Budget
    from cassieq_spark.queue.get.look import Rows
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

    Answer = tuple[list[Claimed], Stored[Bucket] | None]

_logger = get_logger("queue")


@dataclass(slots=True)
class Gathered:
    """The outcome of some claims.

    Attributes:
        claimed: Our new claims.
        updated: The rows as they are now.
        failed: Buckets whose claim was not answered, or not yet.
    """

    claimed: list[Claimed] = field(default_factory=list)
    updated: dict[BucketNo, Stored[Bucket]] = field(default_factory=dict)
    failed: dict[BucketNo, CassieqError] = field(default_factory=dict)

    async def add(self, lane: Lane, bucket: BucketNo, claim: Awaitable[Answer]) -> None:
        """Add the outcome of one claim.

        Raises:
            CassieqError: An error of the queue as a whole.
        """
        try:
            got, now = await claim
        except StoreError as error:
            # An ambiguous claim may exist. It runs out by itself, and takes no other claim with it
            # [T22].
            self.failed[bucket] = named(error, lane, bucket)
            event(_logger, "bucket_unreachable", **lane.as_fields(bucket), error=str(error))
        else:
            self.claimed += got
            if now is not None:
                self.updated[bucket] = now

    def hand_over(self, updated: Rows, pass_over: Callable[[BucketNo, CassieqError], None]) -> None:
        """Add the current rows to ``updated``, and pass over buckets that did not answer."""
        updated.update(self.updated)
        for bucket, error in self.failed.items():
            pass_over(bucket, error)


async def gather(
    lane: Lane,
    claim: Callable[[BucketNo], Awaitable[Answer]],
    buckets: list[BucketNo],
    *,
    has_found: bool,
) -> Gathered:
    """Claim in all of these buckets, up to 16 at once.

    Args:
        has_found: Whether the caller has messages already.

    Raises:
        QueueDeleted: The lane is dead.
    """
    gathered = Gathered()
    if len(buckets) == 1 and not has_found:
        await gathered.add(lane, buckets[0], claim(buckets[0]))
        return gathered
    flights = {bucket: lane.store.session.begin(claim, bucket) for bucket in buckets}
    waiting = dict(flights)
    while waiting:
        is_enough = has_found or bool(gathered.claimed)
        with present().waiting():
            await asyncio.wait(
                waiting.values(),
                timeout=GRACE_S if is_enough else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        done = [bucket for bucket, flight in waiting.items() if flight.done()]
        for bucket in done:
            await gathered.add(lane, bucket, waiting.pop(bucket))
        if not done:
            break
    order = {bucket: at for at, bucket in enumerate(buckets)}
    gathered.claimed.sort(key=lambda one: order[one.bucket])
    for bucket, flight in waiting.items():
        event(_logger, "bucket_unreachable", **lane.as_fields(bucket), error="not yet")
        gathered.failed[bucket] = named(
            CasAmbiguous("a claim is not answered yet. The messages that it leases are given back"),
            lane,
            bucket,
        )
        flight.add_done_callback(partial(_give_back, lane, bucket), context=Context())
    return gathered


async def try_one(
    lane: Lane, bucket: BucketNo, claim: Awaitable[Answer], *, has_found: bool
) -> Gathered:
    """Run one step of several statements, without a long wait for any: other buckets follow."""
    gathered = Gathered()
    with lane.store.session.within(each_s=GRACE_S if has_found else PATIENT_GRACE_S):
        await gathered.add(lane, bucket, claim)
    return gathered


def _give_back(lane: Lane, bucket: BucketNo, flight: asyncio.Task[Answer]) -> None:
    """Give back a claim that was answered after its caller had gone, uncounted."""
    if flight.cancelled() or flight.exception() is not None:
        return
    claimed, _ = flight.result()
    if claimed:
        event(
            _logger,
            "claim_answered_late",
            **lane.as_fields(bucket),
            messages=sum(one.lease.runs.count for one in claimed),
        )
        with suppress(UsageError):  # it is closed: they come back when their leases run out
            lane.store.session.begin(give_back, claimed)


def share(
    lane: Lane,
    rows: Rows,
    budget: Budget,
    below_id: int | None,
    *,
    away: Mapping[BucketNo, CassieqError],
) -> list[tuple[BucketNo, int]]:
    """Plan (bucket, messages to take) until the budget is full.

    Args:
        rows: Buckets to claim from, in their order.
        budget: Planned messages are subtracted from it. A budget of no messages plans only buckets
            with dying messages.
        below_id: Only ids below this one; None: all.
        away: Buckets that did not answer lately: they are passed over.
    """
    shares: list[tuple[BucketNo, int]] = []
    now_us = lane.clock.now_us()
    for bucket, row in rows.items():
        if bucket in away:
            continue
        is_spent = budget.is_full and not budget.is_untouched
        if is_spent or len(shares) >= BUCKETS_PER_CALL:
            break
        below = offset_below(below_id, bucket, lane.bucket_size)
        limit = lane.max_deliveries
        dies = is_dying(row.value, now_us=now_us, max_deliveries=limit)
        available = claimable(row.value, now_us=now_us, below=below, max_deliveries=limit)
        count = budget.for_messages_of(row.value, available)
        if count > 0 or dies:
            shares.append((bucket, count))
            budget.take(row.value, count, runs=min(count, runs_there(row.value, now_us)))
        elif available > 0:
            budget.size_bytes = 0  # too small for the next message; none goes before it
            break
    return shares
