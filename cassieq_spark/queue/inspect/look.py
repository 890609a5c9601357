"""Look at the buckets and leases of a queue's lanes, for a picture: at a part of a long one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cassieq_spark.model.bucket import Status
from cassieq_spark.queue.inspect.facts import BucketFacts, LeaseFacts, bucket_facts, lease_facts
from cassieq_spark.queue.inspect.stats import Sinks, live_rows
from cassieq_spark.queue.lane import live_buckets
from cassieq_spark.queue.schedule import as_read, every_lane

if TYPE_CHECKING:
    from cassieq_spark.errors import CassieqError
    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.lane import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLook:
    """One lane.

    Attributes:
        shard: None for a lane of scheduled messages.
        due_us: When the period of a lane of scheduled messages begins; None for others.
        reader: The bucket that R names: none below it has anything fresh.
        repair: The bucket that L names: every one below it is dropped.
        live: How many buckets there are from L on.
        buckets: Those that were looked at, ascending.
        away: Those of them that did not answer.
    """

    lane: str
    priority: int
    shard: int | None
    due_us: int | None
    reader: int
    repair: int
    live: int
    buckets: tuple[BucketFacts, ...]
    leases: tuple[LeaseFacts, ...]
    away: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLook:
    """The lanes that were looked at, the highest class first, and scheduled messages last.

    Attributes:
        left_out: How many lanes were not looked at.
        now_us: The time of the look.
    """

    lanes: tuple[LaneLook, ...]
    left_out: int
    now_us: int


def look(lane: Lane, *, most_lanes: int, most_buckets: int) -> QueueLook:
    """Look at a queue: one read per bucket, and a scan per open one.

    Args:
        most_buckets: In each lane; of a longer one, the buckets from L on, around R and at the end.

    Raises:
        QueueDeleted: The queue is gone.
        StoreError: The pointers or the schedule did not answer.
    """
    # What is scheduled comes last: there may be a lane for each hour of a year.
    lanes = sorted(as_read(every_lane(lane)), key=lambda one: one.due is not None)
    sinks = Sinks(lane)
    return QueueLook(
        lanes=tuple(_look(one, most_buckets, sinks) for one in lanes[:most_lanes]),
        left_out=max(0, len(lanes) - most_lanes),
        now_us=lane.clock.now_us(),
    )


def _look(lane: Lane, most: int, sinks: Sinks) -> LaneLook:
    live = live_buckets(lane)
    pointers = lane.read_pointers()
    now_us = lane.clock.now_us()
    away: dict[BucketNo, CassieqError] = {}
    buckets: list[BucketFacts] = []
    leases: list[LeaseFacts] = []
    spans = spans_of(live, pointers.reader, most)
    for bucket, row, waiting in live_rows(lane, spans, away=away, sinks=sinks):
        buckets.append(bucket_facts(lane, bucket, row, waiting, now_us=now_us))
        if row is not None and row.value.status is Status.SEALED:
            leases += lease_facts(lane, bucket, row.value, now_us=now_us)
    due = lane.due
    return LaneLook(
        lane=str(lane.lane_id),
        priority=lane.priority,
        shard=None if due is not None else lane.fixed.class_and_shard(lane.lane_id)[1],
        due_us=None if due is None else due.begins_us(lane.settings.period_us),
        reader=pointers.reader,
        repair=pointers.repair,
        live=len(live),
        buckets=tuple(buckets),
        leases=tuple(leases),
        away=tuple(sorted(away)),
    )


def spans_of(live: range, reader: int, most: int) -> list[range]:
    """Choose at most ``most`` buckets: all, or a third each from the start, at R, and at the end.

    Returns:
        Spans, ascending, which have no bucket in common.
    """
    if len(live) <= most:
        return [live]
    third = most // 3
    middle = max(live.start, min(reader - third // 2, live.stop - third))
    starts = (live.start, middle, live.stop - (most - 2 * third))
    found: list[range] = []
    for start, count in zip(starts, (third, third, most - 2 * third), strict=True):
        first = max(start, found[-1].stop) if found else start
        if first < start + count:
            found.append(range(first, start + count))
    return found
