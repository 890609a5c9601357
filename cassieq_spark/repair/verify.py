"""Read everything and report broken invariants; change nothing (docs/invariants.md).

The queue may be in use: half-done work is not a finding, and a missing message is looked for again
before it counts as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from cassieq_spark.errors import CassieqError, QueueDeleted, RowCorrupt, StoreError
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.ids import EMPTY, BucketNo, LaneId, Runs, union
from cassieq_spark.model.integrity import (
    BEYOND_BUCKET,
    beyond,
    broken,
    stored_twice,
)
from cassieq_spark.model.lease import held_by_nobody
from cassieq_spark.model.pointer import Pointers
from cassieq_spark.model.row_limits import limit_of
from cassieq_spark.queue.get.hints import TimePointer
from cassieq_spark.queue.lane import Lane, live_buckets, windows
from cassieq_spark.queue.per_bucket import named, read_rows
from cassieq_spark.queue.schedule import every_lane
from cassieq_spark.repair.progress import OnProgress, Tracker
from cassieq_spark.repair.report import ROW_CORRUPT, Finding, VerifyReport
from cassieq_spark.store.cas import Stored
from cassieq_spark.store.store import Store
from cassieq_spark.store.tables.buckets import size_of

WINDOW: Final = 64

LISTED: Final = frozenset({Status.PREPARED, Status.SEALED, Status.DRAINED})


async def verify(
    store: Store,
    lanes: list[Lane],
    *,
    has_all: bool = False,
    on_progress: OnProgress | None = None,
) -> VerifyReport:
    """Check all of these queues, and the rows outside their pointers.

    It reads every stored message that is not dropped. A queue that is deleted meanwhile is left
    out. A read that is not answered is among the problems, and all others go on.

    Args:
        has_all: Whether these are all existing queues: then rows that belong to none of them are
            findings, too.
        on_progress: Called with the progress of the pass.
    """
    report = VerifyReport()
    tracker = Tracker(on_progress, len(lanes))
    there: dict[LaneId, Lane] = {}
    for lane in lanes:
        before = len(report.findings), len(report.problems)
        try:
            sinks: set[str] = set()
            away: dict[LaneId, dict[BucketNo, CassieqError]] = defaultdict(dict)
            its_lanes = lane.all
            with _noting(report):
                its_lanes = await every_lane(lane)
            await tracker.begin(lane.queue, len(its_lanes))
            for one in its_lanes:
                with _noting(report):
                    sinks |= await _verify_lane(one, report, away[one.lane_id], tracker)
            for sink_id in sorted(sinks):
                with _noting(report):
                    await _verify_list(lane, sink_id, report, away)
        except QueueDeleted:
            # A deletion was removing these rows.
            del report.findings[before[0] :], report.problems[before[1] :]
        else:
            report.queues += 1
            there |= {one.lane_id: one for one in its_lanes}
    await tracker.begin_rest()
    await _verify_outside(store, there, report)
    await _verify_sinks(store, there, report, has_all=has_all)
    return report


@contextmanager
def _noting(
    report: VerifyReport, lane: Lane | None = None, at: BucketNo | None = None
) -> Iterator[None]:
    """Report a read that is not answered, and go on with everything else [T5]."""
    try:
        yield
    except StoreError as error:
        if lane is not None and at is not None:
            named(error, lane, at)
        report.problems.append(error.message)


async def _read(
    lane: Lane,
    buckets: Iterable[BucketNo],
    report: VerifyReport,
    away: dict[BucketNo, CassieqError],
) -> tuple[dict[BucketNo, Stored[Bucket] | None], int]:
    """Return rows, and the repair pointer read after them; report each unanswered one once."""
    said = frozenset(away)
    rows = await read_rows(lane, buckets, away)
    low = (await lane.read_pointers()).repair
    report.problems += [
        error.message for bucket, error in away.items() if bucket >= low and bucket not in said
    ]
    return rows, low


async def _verify_lane(
    lane: Lane, report: VerifyReport, away: dict[BucketNo, CassieqError], tracker: Tracker
) -> set[str]:
    """Check one lane; return the sinks that its buckets name."""
    pointers = await lane.read_pointers()
    if pointers.is_deleted:
        return set()  # a due lane that is finished, and still in the schedule
    if pointers.repair > pointers.reader:
        what = f"repair pointer {pointers.repair}, reader pointer {pointers.reader}"
        report.findings.append(_finding(lane, "pointer_backwards", None, what))
    sinks: dict[str, set[BucketNo]] = defaultdict(set)
    came_back: dict[BucketNo, Runs] = {}
    live = await live_buckets(lane)
    reach = await tracker.lane(live)
    for window in windows(live, WINDOW):
        rows, low = await _read(lane, window, report, away)
        for bucket, row in rows.items():
            await reach(bucket - 1)
            if bucket < low:
                continue
            report.buckets += 1
            with _noting(report, lane, bucket):
                await _verify_bucket(lane, bucket, row, pointers, report)
            if row is not None and row.value.sink is not None:
                sinks[row.value.sink.sink_id].add(bucket)
            if row is not None and bucket < pointers.reader and (back := _back(lane, row.value)):
                came_back[bucket] = back
        await reach(window[-1])
    with _noting(report):
        await _verify_hints(lane, came_back, report, away)
    return set(sinks)


async def _verify_bucket(
    lane: Lane,
    bucket: BucketNo,
    row: Stored[Bucket] | None,
    pointers: Pointers,
    report: VerifyReport,
) -> None:
    if row is None:
        report.messages += await lane.messages.count(bucket, now_us=lane.clock.now_us())
        if bucket < pointers.reader and not await lane.is_dropped(bucket):
            what = f"the reader pointer is {pointers.reader}, but nobody has sealed this bucket"
            report.findings.append(_finding(lane, "reader_ahead", bucket, what))
        return
    value = row.value
    if value.status is Status.CORRUPT:
        report.findings += await _unreadable(lane, bucket)
        return
    report.findings += [_finding(lane, kind, bucket, what) for kind, what in broken(value)]
    if value.status is not Status.SEALED:
        return
    report.unacked += value.unacked.count
    report.messages += value.manifest.count
    if (outside := beyond(value, bucket_size=lane.bucket_size)) is not None:
        report.findings.append(_finding(lane, BEYOND_BUCKET, bucket, outside))
    if (size := size_of(value)) > (limit := limit_of(lane.bucket_size)):
        what = f"its row has {size:,} bytes, but the limit is {limit:,}"
        report.findings.append(_finding(lane, "row_too_large", bucket, what))
    if bucket < pointers.reader and value.fresh:
        what = (
            f"the reader pointer is {pointers.reader}, but {value.fresh.count} messages were "
            "never delivered"
        )
        report.findings.append(_finding(lane, "reader_ahead", bucket, what))
    spans = [Runs.span(chunk.first, chunk.last) for chunk in await lane.messages.scan(bucket)]
    stored = union(spans)
    if twice := stored_twice(spans):
        what = f"{twice.count} messages are in two stored rows, first offset {twice.first}"
        report.findings.append(_finding(lane, "id_stored_twice", bucket, what))
    report.litter += (stored - value.manifest).count
    missing = value.unacked - stored
    if missing and await _still_holds(lane, bucket, missing):
        what = f"{missing.count} messages are not stored whole, first offset {missing.first}"
        report.findings.append(_finding(lane, "manifest_without_rows", bucket, what))


async def _still_holds(lane: Lane, bucket: BucketNo, missing: Runs) -> bool:
    """Whether messages are still missing, and were not just acked or dropped by a repair."""
    now = await lane.buckets.read(bucket)
    return (
        now is not None and bool(now.value.unacked & missing) and not await lane.is_dropped(bucket)
    )


async def _unreadable(lane: Lane, bucket: BucketNo) -> list[Finding]:
    """Return why a row cannot be read, if it still cannot."""
    try:
        await lane.buckets.read(bucket)
    except RowCorrupt as error:
        return [_finding(lane, ROW_CORRUPT, bucket, error.message)]
    return []


def _back(lane: Lane, row: Bucket) -> Runs:
    """Return the messages that came back by now: behind the reader, only their hint finds them."""
    if row.status is not Status.SEALED:
        return EMPTY
    return union(part.runs for part in held_by_nobody(row, lane.clock.now_us()))


async def _verify_hints(
    lane: Lane,
    came_back: dict[BucketNo, Runs],
    report: VerifyReport,
    away: dict[BucketNo, CassieqError],
) -> None:
    """Check that a get would read each of these buckets; hints are read after their rows."""
    if not came_back:
        return
    pointers = await lane.read_pointers()
    hints = await TimePointer(lane).begin_hints(pointers, lane.clock.now_us())()
    silent = came_back.keys() - {bucket for _, bucket in hints}
    rows, low = await _read(lane, sorted(silent), report, away)
    for bucket, row in rows.items():
        # Leave out messages that were got, acked or dropped since: they were under a hint of their
        # own.
        left = EMPTY if row is None else _back(lane, row.value) & came_back[bucket]
        if left and bucket >= low:
            what = (
                f"{left.count} messages came back, first offset {left.first}, and no hint says so"
            )
            report.findings.append(_finding(lane, "visible_without_hint", bucket, what))


async def _verify_list(
    lane: Lane,
    sink_id: str,
    report: VerifyReport,
    away: dict[LaneId, dict[BucketNo, CassieqError]],
) -> None:
    """Check that all buckets of the last commit are visible or about to be, and complete."""
    try:
        stored = await lane.store.sinks.read(sink_id)
    except RowCorrupt:
        return  # `_verify_sinks` reports it
    if stored is None or stored.value.lane != lane.first.lane_id:
        return
    by_lane: dict[LaneId, dict[BucketNo, int]] = defaultdict(dict)
    for place, count in stored.value.listed:
        by_lane[place.lane][place.bucket] = count
    for lane_id, listed in by_lane.items():
        rows, low = await _read(lane.sibling(lane_id), listed, report, away[lane_id])
        live = {bucket: row for bucket, row in rows.items() if bucket >= low}
        _verify_listed(lane.sibling(lane_id), sink_id, listed, live, report)


def _verify_listed(
    lane: Lane,
    sink_id: str,
    listed: dict[BucketNo, int],
    rows: dict[BucketNo, Stored[Bucket] | None],
    report: VerifyReport,
) -> None:
    for bucket, row in rows.items():
        status = "open" if row is None else row.value.status.value
        count = 0 if row is None else row.value.manifest.count
        if status not in LISTED or count != listed[bucket]:
            what = (
                f"sink {sink_id!r} lists it with {listed[bucket]} messages, but it is {status} "
                f"and has {count}"
            )
            report.findings.append(_finding(lane, "list_without_bucket", bucket, what))


async def _verify_outside(store: Store, lanes: dict[LaneId, Lane], report: VerifyReport) -> None:
    """Find rows below the repair pointers, and rows above all ids."""
    for every in (store.everything.buckets, store.everything.messages):
        found: dict[LaneId, list[BucketNo]] = defaultdict(list)
        with _noting(report):
            for lane_id, bucket in await every():
                if lane_id in lanes:
                    found[lane_id].append(bucket)
        for lane_id, buckets in found.items():
            lane = lanes[lane_id]
            live: range | None = None
            with _noting(report), suppress(QueueDeleted):
                live = await live_buckets(
                    lane
                )  # after the scan: buckets that it cannot have seen are not a finding
            if live is None:
                continue
            report.ghosts += sum(bucket < live.start for bucket in buckets)
            report.findings += [
                _finding(lane, "id_ahead", bucket, f"ids end with bucket {live.stop - 1}")
                for bucket in buckets
                if bucket >= max(live.start, live.stop)
            ]


async def _verify_sinks(
    store: Store, lanes: dict[LaneId, Lane], report: VerifyReport, *, has_all: bool
) -> None:
    """Find sinks whose row or long list is unreadable, and lists of sinks that are gone (ADR 3)."""
    sinks: list[tuple[str, LaneId]] = []
    with _noting(report):
        sinks += await store.sinks.every()
    for sink_id, lane_id in sinks:
        if lane_id in lanes:
            with _noting(report):
                try:
                    await store.sinks.read(sink_id)
                except RowCorrupt as error:
                    found = _finding(lanes[lane_id], ROW_CORRUPT, None, error.message)
                    report.findings.append(found)
    if not has_all:
        return
    lists: list[str] = []
    with _noting(report):
        lists += await store.sinks.lists()
    for sink_id in lists:
        with _noting(report), suppress(RowCorrupt):
            if await store.sinks.read(sink_id) is None:
                what = f"of sink {sink_id!r}"
                found = Finding(queue="", kind="list_without_sink", bucket=None, what=what)
                report.findings.append(found)


def _finding(lane: Lane, kind: str, bucket: BucketNo | None, what: str) -> Finding:
    named = str(lane.lane_id) if lane.fixed.has_others(lane.lane_id) else None
    return Finding(queue=lane.queue, kind=kind, bucket=bucket, what=what, lane=named)
