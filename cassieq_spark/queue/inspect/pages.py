"""Show visible messages page by page, by lane, bucket and id. They stay visible."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.ids import ID_LIMIT, LaneId, Runs, bucket_of, first_id, union
from cassieq_spark.queue.inspect.stats import Sinks
from cassieq_spark.queue.inspect.visible import plan_lane
from cassieq_spark.queue.message import read_messages
from cassieq_spark.queue.schedule import looked_at_lanes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cassieq_spark.queue.fetch import Planned
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.queue.message import Message


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
        spans = [range(first, ID_LIMIT)]
        together: list[Planned] = []
        async for planned in plan_lane(one, spans, sinks, away=None):
            if together and together[0].bucket != planned.bucket:
                yield together
                together = []
            together.append(planned)
        if together:
            yield together


def _shown(lane: Lane, one: Planned, after: Spot | None) -> Runs:
    """Return the offsets of a bucket that earlier pages have shown."""
    if after is None or one.lane != after.lane:
        return Runs.of()
    base = first_id(one.bucket, lane.bucket_size)
    return Runs.span(0, after.id - base) if after.id >= base else Runs.of()
