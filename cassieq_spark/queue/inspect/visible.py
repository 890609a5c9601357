"""Find the messages that a get could deliver, without changing anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cassieq_spark.model.bucket import Returned, Status
from cassieq_spark.model.ids import EMPTY, BucketNo, Place, Runs
from cassieq_spark.model.lease import visible
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.inspect.stats import Sinks, is_due, live_rows
from cassieq_spark.queue.message import Message, read_messages
from cassieq_spark.queue.per_bucket import first_of
from cassieq_spark.queue.schedule import looked_at_lanes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from cassieq_spark.errors import CassieqError
    from cassieq_spark.queue.lane import Lane


async def peek(lane: Lane, at_most: int) -> list[Message]:
    """Return up to ``at_most`` visible messages, highest priority first.

    Raises:
        StoreError: Some buckets did not answer, and the others have no visible message.
    """
    plan: list[Planned] = []
    left = at_most
    away: dict[Place, CassieqError] = {}
    async for planned in plan_visible(lane, away=away):
        taken, _ = planned.runs.take(left)
        plan.append(replace(planned, runs=taken))
        left -= taken.count
        if left <= 0:
            break
    if away and not plan:
        raise first_of(away)
    found: list[Message] = []
    async for message in read_messages(lane, [(planned, None) for planned in plan]):
        found.append(message)
        if len(found) >= at_most:
            break
    return found


async def browse(lane: Lane) -> AsyncIterator[Message]:
    """Yield all visible messages by lane, bucket and id, planned when the first is asked for.

    Raises:
        StoreError: Some buckets did not answer; raised after the messages of all others.
    """
    away: dict[Place, CassieqError] = {}
    plan = [planned async for planned in plan_visible(lane, away=away)]
    async for message in read_messages(lane, [(planned, None) for planned in plan]):
        yield message
    if away:
        raise first_of(away)


async def plan_visible(
    lane: Lane,
    spans: Iterable[range] | None = None,
    *,
    away: dict[Place, CassieqError] | None = None,
) -> AsyncIterator[Planned]:
    """Plan all that a get could deliver: by lane, highest priority first, bucket, deliveries.

    Args:
        spans: Only these buckets of each lane.
        away: See `live_rows`.
    """
    sinks = Sinks(lane)
    for one in await looked_at_lanes(lane):
        missed: dict[BucketNo, CassieqError] | None = None if away is None else {}
        async for planned in plan_lane(one, spans, sinks, away=missed):
            yield planned
        if away is not None:
            away |= {one.place(bucket): error for bucket, error in (missed or {}).items()}


async def plan_lane(
    lane: Lane,
    spans: Iterable[range] | None,
    sinks: Sinks,
    *,
    away: dict[BucketNo, CassieqError] | None,
) -> AsyncIterator[Planned]:
    """Plan as `plan_visible` does, for one lane."""
    now_us = lane.clock.now_us()
    async for bucket, row, waiting in live_rows(lane, spans, away=away, sinks=sinks):
        due = EMPTY
        for chunk in waiting:
            if is_due(chunk, now_us):
                due |= Runs.span(chunk.first, chunk.last)
        parts = [Returned(deliveries=0, runs=due)]
        if row is not None and row.value.status is Status.SEALED:
            parts = visible(row.value, now_us)
        for part in parts:
            if part.runs:
                yield Planned(
                    lane=lane.lane_id,
                    bucket=bucket,
                    runs=part.runs,
                    delivery_count=part.deliveries,
                    lease_id=None,
                    revisions=() if row is None else row.value.revisions_of(part.runs),
                    is_look=True,
                )
