"""Find the messages that a get could deliver, and show them, also page by page.

They stay visible.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import NamedTuple

from cassieq_spark.errors import CassieqError, OptionInvalid
from cassieq_spark.model.bucket import Bucket, Returned, Status
from cassieq_spark.model.ids import (
    ID_LIMIT,
    BucketNo,
    LaneId,
    Place,
    Runs,
    bucket_of,
    first_id,
    union,
)
from cassieq_spark.model.lease import visible
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.inspect.facts import Sinks, is_due, live_rows
from cassieq_spark.queue.lane import Lane, first_of
from cassieq_spark.queue.message import Message, read_messages
from cassieq_spark.queue.schedule import looked_at_lanes
from cassieq_spark.store.tables.messages import ChunkRow


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
    return [one async for one in read_messages(lane, [(planned, None) for planned in plan])]


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
        async for together in _plan_lane(one, spans, sinks, away=missed):
            for planned in together:
                yield planned
        if away is not None:
            away |= {one.place(bucket): error for bucket, error in (missed or {}).items()}


async def _plan_lane(
    lane: Lane,
    spans: Iterable[range] | None,
    sinks: Sinks,
    *,
    away: dict[BucketNo, CassieqError] | None,
) -> AsyncIterator[list[Planned]]:
    """Plan as `plan_visible` does, for one lane, bucket by bucket."""
    now_us = lane.clock.now_us()
    async for bucket, stored, waiting in live_rows(lane, spans, away=away, sinks=sinks):
        row = None if stored is None else stored.value
        due = runs_of(chunk for chunk in waiting if is_due(chunk, now_us))
        parts = [Returned(deliveries=0, runs=due)]
        if row is not None and row.status is Status.SEALED:
            parts = visible(row, now_us)
        if together := looks_at(lane, bucket, row, parts):
            yield together


def looks_at(
    lane: Lane, bucket: BucketNo, row: Bucket | None, parts: Iterable[Returned]
) -> list[Planned]:
    """Plan to read messages of one bucket without a lease: those that are gone are skipped."""
    return [
        Planned(
            lane=lane.lane_id,
            bucket=bucket,
            runs=part.runs,
            delivery_count=part.deliveries,
            lease_id=None,
            revisions=() if row is None else row.revisions_of(part.runs),
            is_look=True,
        )
        for part in parts
        if part.runs
    ]


def runs_of(chunks: Iterable[ChunkRow]) -> Runs:
    """Return the offsets of the messages of some stored rows."""
    return Runs.of(*((chunk.first, chunk.last) for chunk in chunks))


class Spot(NamedTuple):
    """A message's place in the order of the pages."""

    lane: LaneId
    id: int


async def page(lane: Lane, at_most: int, *, after: Spot | None = None) -> list[Message]:
    """Return the first ``at_most`` visible messages, or those after a spot.

    No bucket row before the spot is read. Messages that are claimed meanwhile are not shown.
    Messages that come back before the spot are not shown again.

    Raises:
        OptionInvalid: The spot is in no lane of this queue.
        QueueDeleted: The queue is gone.
        StoreError: Some buckets did not answer; nothing is shown of the others.
    """
    if after is not None and not lane.fixed.has(after.lane):
        raise OptionInvalid(
            f"lane {after.lane} is not of queue {lane.queue!r}. Begin at the first page"
        )
    plan: list[Planned] = []
    left = at_most
    async for together in _buckets(lane, after):
        wanted = union(one.runs for one in together)
        taken, _ = (wanted - _shown(lane, together[0], after)).take(left)
        plan += [replace(one, runs=one.runs & taken) for one in together if one.runs & taken]
        left -= taken.count
        if left <= 0:
            break
    order = {one.lane: at for at, one in enumerate(plan)}
    found = [one async for one in read_messages(lane, [(one, None) for one in plan])]
    return sorted(found, key=lambda one: (order[one.lane], one.id))


async def _buckets(lane: Lane, after: Spot | None) -> AsyncIterator[list[Planned]]:
    """Yield the visible messages of each bucket that has any, from the spot's bucket on."""
    sinks = Sinks(lane)
    for one in await looked_at_lanes(lane):
        first = 0
        if after is not None:
            if one.fixed.rank(one.lane_id) < one.fixed.rank(after.lane):
                continue
            if one.lane_id == after.lane:
                first = bucket_of(after.id, one.bucket_size)
        async for together in _plan_lane(one, [range(first, ID_LIMIT)], sinks, away=None):
            yield together


def _shown(lane: Lane, one: Planned, after: Spot | None) -> Runs:
    """Return the offsets of a bucket that earlier pages have shown."""
    if after is None or one.lane != after.lane:
        return Runs.of()
    base = first_id(one.bucket, lane.bucket_size)
    return Runs.span(0, after.id - base) if after.id >= base else Runs.of()
