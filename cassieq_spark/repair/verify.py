"""Read everything and report broken invariants; change nothing (docs/invariants.md).

The queue may be in use: half-done work is not a finding, and a missing message is looked for again
before it counts as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from cassieq_spark.errors import CassieqError, QueueDeleted, RowCorrupt, StoreError
from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.ids import EMPTY, BucketNo, LaneId, Place, Runs, union
from cassieq_spark.model.integrity import (
    BEYOND_BUCKET,
    beyond,
    broken,
    stored_twice,
)
from cassieq_spark.model.lease import held_by_nobody
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.row_limits import limit_of
from cassieq_spark.queue.get.hints import TimePointer
from cassieq_spark.queue.lane import Lane, by_lane, live_buckets, named, read_rows, windows
from cassieq_spark.queue.schedule import every_lane
from cassieq_spark.repair.report import ROW_CORRUPT, Finding, OnProgress, Tracker, VerifyReport
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
    there: dict[LaneId, _LaneCheck] = {}
    for lane in lanes:
        before = len(report.findings), len(report.problems)
        try:
            sinks: set[str] = set()
            its_lanes = lane.all
            with _noting(report):
                its_lanes = await every_lane(lane)
            checks = {one.lane_id: _LaneCheck(one, report) for one in its_lanes}
            await tracker.begin(lane.queue, len(checks))
            for check in checks.values():
                with _noting(report):
                    sinks |= await check.run(tracker)
            for sink_id in sorted(sinks):
                with _noting(report):
                    await _verify_list(lane, sink_id, checks, report)
        except QueueDeleted:
            # A deletion was removing these rows.
            del report.findings[before[0] :], report.problems[before[1] :]
        else:
            report.queues += 1
            there |= checks
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


class _LaneCheck:
    """The check of one lane, which remembers the buckets that did not answer."""

    def __init__(self, lane: Lane, report: VerifyReport) -> None:
        self.lane = lane
        self._report = report
        self._away: dict[BucketNo, CassieqError] = {}

    def found(self, kind: str, bucket: BucketNo | None, what: str) -> None:
        """Report a finding."""
        lane = self.lane
        its_lane = str(lane.lane_id) if lane.fixed.has_others(lane.lane_id) else None
        self._report.findings.append(
            Finding(queue=lane.queue, kind=kind, bucket=bucket, what=what, lane=its_lane)
        )

    async def read(
        self, buckets: Iterable[BucketNo]
    ) -> tuple[dict[BucketNo, Stored[Bucket] | None], int]:
        """Return rows, and the repair pointer read after them; report each unanswered one once."""
        said = frozenset(self._away)
        rows = await read_rows(self.lane, buckets, self._away)
        low = (await self.lane.read_pointers()).repair
        self._report.problems += [
            error.message
            for bucket, error in self._away.items()
            if bucket >= low and bucket not in said
        ]
        return rows, low

    async def run(self, tracker: Tracker) -> set[str]:
        """Check the lane; return the sinks that its buckets name."""
        lane = self.lane
        pointers = await lane.read_pointers()
        if pointers.is_deleted:
            return set()  # a due lane that is finished, and still in the schedule
        if pointers.repair > pointers.reader:
            what = f"repair pointer {pointers.repair}, reader pointer {pointers.reader}"
            self.found("pointer_backwards", None, what)
        sinks: set[str] = set()
        came_back: dict[BucketNo, Runs] = {}
        live = await live_buckets(lane)
        reach = await tracker.lane(live)
        for window in windows(live, WINDOW):
            rows, low = await self.read(window)
            for bucket, row in rows.items():
                await reach(bucket - 1)
                if bucket < low:
                    continue
                self._report.buckets += 1
                with _noting(self._report, lane, bucket):
                    await self._check_bucket(bucket, row, pointers.reader)
                if row is not None and row.value.sink is not None:
                    sinks.add(row.value.sink.sink_id)
                if bucket < pointers.reader and (back := self._back(row)):
                    came_back[bucket] = back
            await reach(window[-1])
        with _noting(self._report):
            await self._check_hints(came_back)
        return sinks

    async def _check_bucket(
        self, bucket: BucketNo, row: Stored[Bucket] | None, reader: BucketNo
    ) -> None:
        lane, report = self.lane, self._report
        if row is None:
            report.messages += await lane.messages.count(bucket, now_us=lane.clock.now_us())
            if bucket < reader and not await lane.is_dropped(bucket):
                what = f"the reader pointer is {reader}, but nobody has sealed this bucket"
                self.found("reader_ahead", bucket, what)
            return
        if row.value.status is Status.CORRUPT:
            try:
                await lane.buckets.read(bucket)
            except RowCorrupt as error:  # it still cannot be read
                self.found(ROW_CORRUPT, bucket, error.message)
            return
        for kind, what in broken(row.value):
            self.found(kind, bucket, what)
        if row.value.status is Status.SEALED:
            report.unacked += row.value.unacked.count
            report.messages += row.value.manifest.count
            self._check_sealed(bucket, row.value, reader)
            await self._check_stored(bucket, row.value)

    def _check_sealed(self, bucket: BucketNo, row: Bucket, reader: BucketNo) -> None:
        size = self.lane.bucket_size
        if (outside := beyond(row, bucket_size=size)) is not None:
            self.found(BEYOND_BUCKET, bucket, outside)
        if (size_bytes := size_of(row)) > (limit := limit_of(size)):
            what = f"its row has {size_bytes:,} bytes, but the limit is {limit:,}"
            self.found("row_too_large", bucket, what)
        if bucket < reader and row.fresh:
            what = (
                f"the reader pointer is {reader}, but {row.fresh.count} messages were "
                "never delivered"
            )
            self.found("reader_ahead", bucket, what)

    async def _check_stored(self, bucket: BucketNo, row: Bucket) -> None:
        lane = self.lane
        spans = [Runs.span(chunk.first, chunk.last) for chunk in await lane.messages.scan(bucket)]
        stored = union(spans)
        if twice := stored_twice(spans):
            what = f"{twice.count} messages are in two stored rows, first offset {twice.first}"
            self.found("id_stored_twice", bucket, what)
        self._report.litter += (stored - row.manifest).count
        missing = row.unacked - stored
        # They may have been acked just now, or dropped by a repair.
        now = await lane.buckets.read(bucket) if missing else None
        if now is not None and now.value.unacked & missing and not await lane.is_dropped(bucket):
            what = f"{missing.count} messages are not stored whole, first offset {missing.first}"
            self.found("manifest_without_rows", bucket, what)

    def _back(self, row: Stored[Bucket] | None) -> Runs:
        """Return the messages that came back by now; behind the reader, only a hint finds them."""
        if row is None or row.value.status is not Status.SEALED:
            return EMPTY
        return union(part.runs for part in held_by_nobody(row.value, self.lane.clock.now_us()))

    async def _check_hints(self, came_back: dict[BucketNo, Runs]) -> None:
        """Check that a get would read each of these buckets; hints are read after their rows."""
        if not came_back:
            return
        lane = self.lane
        pointers = await lane.read_pointers()
        hints = await TimePointer(lane).begin_hints(pointers, lane.clock.now_us())()
        silent = came_back.keys() - {bucket for _, bucket in hints}
        rows, low = await self.read(sorted(silent))
        for bucket, row in rows.items():
            # Leave out messages that were got, acked or dropped since: they were under a hint of
            # their own.
            left = self._back(row) & came_back[bucket]
            if left and bucket >= low:
                what = (
                    f"{left.count} messages came back, first offset {left.first}, and no hint "
                    "says so"
                )
                self.found("visible_without_hint", bucket, what)


async def _verify_list(
    lane: Lane, sink_id: str, checks: dict[LaneId, _LaneCheck], report: VerifyReport
) -> None:
    """Check that all buckets of the last commit are visible or about to be, and complete."""
    try:
        stored = await lane.store.sinks.read(sink_id)
    except RowCorrupt:
        return  # `_verify_sinks` reports it
    if stored is None or stored.value.lane != lane.first.lane_id:
        return
    listed = dict(stored.value.listed)
    for lane_id, buckets in by_lane(listed).items():
        check = checks.get(lane_id) or _LaneCheck(lane.sibling(lane_id), report)
        rows, low = await check.read(buckets)
        for bucket, row in rows.items():
            status = "open" if row is None else row.value.status.value
            count = 0 if row is None else row.value.manifest.count
            wanted = listed[Place(lane_id, bucket)]
            if bucket >= low and (status not in LISTED or count != wanted):
                what = (
                    f"sink {sink_id!r} lists it with {wanted} messages, but it is "
                    f"{status} and has {count}"
                )
                check.found("list_without_bucket", bucket, what)


async def _verify_outside(
    store: Store, lanes: dict[LaneId, _LaneCheck], report: VerifyReport
) -> None:
    """Find rows below the repair pointers, and rows above all ids."""
    for every in (store.everything.buckets, store.everything.messages):
        found: dict[LaneId, list[BucketNo]] = {}
        with _noting(report):
            found = by_lane(one for one in await every() if one[0] in lanes)
        for lane_id, buckets in found.items():
            with _noting(report), suppress(QueueDeleted):
                # After the scan: buckets that it cannot have seen are not a finding.
                live = await live_buckets(lanes[lane_id].lane)
                report.ghosts += sum(bucket < live.start for bucket in buckets)
                for bucket in buckets:
                    if bucket >= max(live.start, live.stop):
                        what = f"ids end with bucket {live.stop - 1}"
                        lanes[lane_id].found("id_ahead", bucket, what)


async def _verify_sinks(
    store: Store, lanes: dict[LaneId, _LaneCheck], report: VerifyReport, *, has_all: bool
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
                    lanes[lane_id].found(ROW_CORRUPT, None, error.message)
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
