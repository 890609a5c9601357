"""Look at a queue and change nothing: what is visible, and what `stats` counts (design 11).

Everything is counted from bucket rows: no counter that could drift.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.lease import is_expired
from cassieq_spark.queue.fetch import Planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

_WINDOW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """What is in a queue, in messages; the first four are disjoint.

    Attributes:
        visible: A get would deliver them now; messages of open buckets count too.
        invisible: Under a lease.
        delayed: Not due yet.
        dead: Out of deliveries, waiting for repair to move them.
        buckets: Bucket rows by status, from the repair pointer on; ``open`` = without a row.
        applied_lwts: LWTs that made these rows, by their own count: each row carries it (G3).
    """

    visible: int = 0
    invisible: int = 0
    delayed: int = 0
    dead: int = 0
    buckets: dict[str, int] = field(default_factory=dict)
    applied_lwts: int = 0


def stats(lane: Lane) -> QueueStats:
    """Count a queue: one read per bucket from the repair pointer on, a scan per open one."""
    now_us = lane.clock.now_us()
    visible = invisible = delayed = dead = lwts = 0
    buckets: Counter[str] = Counter()
    monoton = lane.store.monotons.read(lane.lane_id)
    lwts += 0 if monoton is None else monoton.version.row_version
    for bucket, row in _rows(lane):
        if row is None or row.value.status is Status.SEALING:
            waiting = lane.store.messages.scan(lane.lane_id, bucket)
            is_due = [chunk.due_us is None or chunk.due_us <= now_us for chunk in waiting]
            visible += sum(chunk.count for chunk, due in zip(waiting, is_due, strict=True) if due)
            delayed += sum(
                chunk.count for chunk, due in zip(waiting, is_due, strict=True) if not due
            )
        if row is None:
            buckets["open"] += 1
            continue
        value = row.value
        buckets[value.status.value] += 1
        lwts += row.version.row_version
        if value.status is not Status.SEALED:
            continue
        visible += sum(runs.count for _, runs in _visible(value, now_us))
        invisible += sum(
            lease.runs.count for lease in value.leases if not is_expired(lease, now_us)
        )
        delayed += sum(group.runs.count for group in value.delayed if group.due_us > now_us)
        dead += sum(part.runs.count for part in value.dead)
    return QueueStats(
        visible=visible,
        invisible=invisible,
        delayed=delayed,
        dead=dead,
        buckets=dict(buckets),
        applied_lwts=lwts,
    )


def plan_visible(lane: Lane) -> list[Planned]:
    """Everything a get could deliver at this moment, by bucket and delivery count so far."""
    now_us = lane.clock.now_us()
    plan: list[Planned] = []
    for bucket, row in _rows(lane):
        if row is None or row.value.status is Status.SEALING:
            parts = [(0, Runs.span(0, lane.bucket_size - 1))]
        elif row.value.status is Status.SEALED:
            parts = _visible(row.value, now_us)
        else:
            continue
        plan += [
            Planned(
                bucket=bucket,
                runs=runs,
                delivery_count=deliveries,
                lease_id=None,
                visible_at_us=now_us,
            )
            for deliveries, runs in parts
            if runs
        ]
    return plan


def _visible(row: Bucket, now_us: int) -> list[tuple[int, Runs]]:
    """(deliveries so far, offsets) of what a claim could take."""
    return [
        (0, row.fresh),
        *((part.deliveries, part.runs) for part in row.returned),
        *((0, group.runs) for group in row.delayed if group.due_us <= now_us),
        *((lease.delivery_count, lease.runs) for lease in row.leases if is_expired(lease, now_us)),
    ]


def _rows(lane: Lane) -> Iterator[tuple[BucketNo, Stored[Bucket] | None]]:
    """Every bucket from the repair pointer to the monoton id; dropped ones are left out (G5)."""
    monoton = lane.store.monotons.read(lane.lane_id)
    if monoton is None:
        raise lane.deleted()
    low = lane.pointers().repair
    end = -(-monoton.value.next_id // lane.bucket_size)
    for start in range(low, end, _WINDOW):
        window = [BucketNo(number) for number in range(start, min(start + _WINDOW, end))]
        rows = lane.store.buckets.read_many(lane.lane_id, window)
        low = lane.pointers().repair
        yield from ((bucket, row) for bucket, row in rows.items() if bucket >= low)
