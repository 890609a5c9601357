"""Remember a streaming query's state between Spark's calls, in its planner process (design 7).

Holds I2, I4, I8: one claim per start offset, one plan per batch and run, acks by lease id.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark import metrics
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CassieqError, DataLoss, LeaseLost, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import EMPTY, BucketNo
from cassieq_spark.model.offset import LeasedRuns, SourceOffset
from cassieq_spark.model.settlement import TakeOver
from cassieq_spark.queue.apart import each_bucket
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.get.budget import RUNS_PER_CALL
from cassieq_spark.queue.get.gather import PATIENT_GRACE_S, give_back
from cassieq_spark.queue.get.reader import Reader
from cassieq_spark.queue.settle.settle import ack_leases, count_settled, take_over
from cassieq_spark.spark.source.admission import Limits, Patience
from cassieq_spark.spark.source.lag import Lag
from cassieq_spark.spark.source.renewal import Renewal

if TYPE_CHECKING:
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.options import SourceOptions
    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored

_PLANS_KEPT: Final = 2

_logger = get_logger("spark")


class Planner:
    """One run of one streaming query. Spark calls it from one thread.

    Attributes:
        run: Fresh with each start of the query. Leases carry it, so that a copy of this checkpoint
            that runs elsewhere is noticed [P25].
        lag: How far the query is behind.
    """

    def __init__(self, lane: Lane, options: SourceOptions) -> None:
        self.lane = lane
        self.run: UUID = new_uuid()
        self._options = options
        self._acks = options.ack_mode == "commit"
        visibility_s = options.visibility_timeout_s or lane.settings.visibility_timeout_s
        self._visibility_us = int(visibility_s * 1e6)
        self._reader = Reader(
            lane,
            owner=options.consumer or f"spark:{self.run}",
            run=self.run,
            visibility_us=self._visibility_us,
        )
        self._renewal = Renewal(
            lane,
            run=self.run,
            visibility_us=self._visibility_us,
            give_up_after_s=options.max_batch_duration_s,
            is_settled_by_others=not self._acks,
        )
        self._aside = ThreadPoolExecutor(2, thread_name_prefix="cassieq-aside")
        self._looking: Future[None] | None = None
        self.lag = Lag(lane, self._reader, options)
        self._patience = Patience(lane.clock)
        self._target_id: int | None = None
        self._pending: tuple[str, SourceOffset] | None = None
        self._acked: tuple[UUID | None, int] = (None, 0)
        self._plans: dict[str, list[Planned]] = {}
        self._rows: dict[BucketNo, Stored[Bucket]] = {}

    def latest(self, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Ack ``start``, then claim; return ``start`` itself if there is nothing, or too little.

        While nothing new is there, a call is two reads (I9).

        The same ``start`` again gets the same answer, and claims nothing: no offset would ever name
        what the first answer claimed [P23].

        Raises:
            StreamFenced: Another run has taken over our leases.
            DataLoss: The queue was deleted, re-created or purged under the checkpoint.
            OffsetUnreadable: ``start`` is of another source or a later release.
        """
        self._renewal.touch()
        key = _key(start)
        offset = SourceOffset.from_json(start)
        if not self._is_of_this_lane(offset):
            offset = SourceOffset(stream=offset.stream, seq=offset.seq)
        if self._pending is not None and self._pending[0] == key:
            self._ack(offset)
            return self._pending[1].to_json()
        claimed = self._ack_and_claim(offset, limits)
        if not claimed:
            return start
        end = SourceOffset(
            stream=offset.stream or new_uuid(),
            lane=self.lane.lane_id,
            seq=offset.seq + 1,
            leases=tuple(
                LeasedRuns(bucket=one.bucket, lease_id=one.lease.lease_id, runs=one.lease.runs)
                for one in claimed
            ),
        )
        self._pending = (key, end)
        self._remember(_key(end.to_json()), [one.planned for one in claimed])
        self._rows = {one.bucket: one.row for one in claimed}
        if _messages(claimed) >= limits.at_most or limits.at_most_bytes:
            # There seems to be more: look for it while Spark works on this batch.
            self._looking = self._aside.submit(self._look_ahead, limits)
        return end.to_json()

    def aim_at_now(self) -> None:
        """Claim only ids that have been handed out so far (``Trigger.AvailableNow``).

        Raises:
            QueueDeleted: The queue is gone.
        """
        monoton = self.lane.monotons.read()
        if monoton is None:
            raise self.lane.deleted()
        self._target_id = monoton.value.next_id

    def plan(self, start: dict[str, Any], end: dict[str, Any]) -> list[Planned]:
        """The content of a batch, decided once per run and remembered [P11].

        A batch that this run has claimed is planned as claimed. A batch that an earlier run has
        logged is a replay: the leases it names that still exist are taken over, whatever their run.

        Raises:
            LeaseLost: A lease is somebody else's by now, and ``onLeaseLost`` is ``fail``.
            DataLoss, OffsetUnreadable, StreamFenced: See `latest`.
        """
        self._renewal.touch()
        if _key(start) == _key(end):
            return []
        key = _key(end)
        if key not in self._plans:
            self._remember(key, self._take_over(SourceOffset.from_json(end)))
        return self._plans[key]

    def ack(self, end: dict[str, Any]) -> None:
        """Ack a batch that Spark has committed."""
        self._renewal.touch()
        offset = SourceOffset.from_json(end)
        if self._is_of_this_lane(offset):
            self._ack(offset)

    def close(self) -> None:
        """End the threads."""
        self._aside.shutdown()
        self.lag.close()
        self._renewal.close()

    def _ack_and_claim(self, offset: SourceOffset, limits: Limits) -> list[Claimed]:
        """Ack and claim side by side, on different rows; both are done when this returns.

        If the ack were still under way when Spark logs the next offset, a crash would leave a batch
        that is committed and not acked, and no restart would ack it (I4).
        """
        aside = self._aside.submit(self._ack, offset) if self._is_all_claimed(offset) else None
        claimed: list[Claimed] = []
        try:
            if aside is None:
                self._ack(offset)
            claimed = self._claim(limits)
        finally:
            if aside is not None and (failure := aside.exception()) is not None:
                # No offset will name what was claimed meanwhile [T22].
                self._renewal.drop(_ids_by_bucket(claimed))
                give_back(self.lane, claimed)
                raise failure
        return claimed

    def _look_ahead(self, limits: Limits) -> None:
        try:
            self._reader.look_ahead(
                limits.at_most, below_id=self._target_id, at_most_bytes=limits.at_most_bytes
            )
        except CassieqError as error:
            event(_logger, "look_ahead_failed", queue=self.lane.queue, error=str(error))

    def _claim(self, limits: Limits) -> list[Claimed]:
        if self._looking is not None:
            self._looking.result()
            self._looking = None
        if not self._reader.may_find():
            return []
        # Nothing new comes below AvailableNow's target: it would wait for ever.
        if self._target_id is None and self._patience.should_wait(self._reader, limits):
            return []
        claimed: list[Claimed] = []
        while more := self._get(limits, claimed):
            # Hold these from now on: the next step may wait for the store for long (I2) [T5].
            self._renewal.hold(
                _ids_by_bucket(more), until_us=min(one.lease.until_us for one in more)
            )
            # A get that has found something leaves the youngest messages; they were counted, too.
            claimed += more
            is_enough = _messages(claimed) >= min(limits.at_least, limits.at_most)
            runs = sum(len(one.lease.runs.pairs) for one in claimed)
            if is_enough or limits.at_most_bytes or runs >= RUNS_PER_CALL:
                break
        return claimed

    def _get(self, limits: Limits, claimed: list[Claimed]) -> list[Claimed]:
        """Claim more than ``claimed``; if that fails, return what there is [T22]."""
        try:
            with self.lane.store.session.within(each_s=PATIENT_GRACE_S if claimed else inf):
                return self._reader.get(
                    limits.at_most - _messages(claimed),
                    below_id=self._target_id,
                    at_most_bytes=limits.at_most_bytes,
                )
        except StoreError as error:
            if not claimed:
                raise
            event(_logger, "bucket_unreachable", queue=self.lane.queue, error=str(error))
            return []

    def _is_all_claimed(self, offset: SourceOffset) -> bool:
        """Whether the buckets of a batch held nothing more to claim when it was claimed."""
        rows = [self._rows.get(leased.bucket) for leased in offset.leases]
        return bool(rows) and all(row is not None and row.value.is_behind_reader for row in rows)

    def _ack(self, offset: SourceOffset) -> None:
        if not offset.leases or self._acked == (offset.stream, offset.seq):
            return
        by_bucket = offset.by_bucket()
        self._renewal.drop(by_bucket)
        if self._acks:
            ack_leases(self.lane, by_bucket, known=self._rows)
        elif _key(offset.to_json()) in self._plans:
            metrics.MESSAGES_ACKED.inc(count_settled(self.lane, by_bucket))
        self._acked = (offset.stream, offset.seq)
        self._rows = {}

    def _take_over(self, end: SourceOffset) -> list[Planned]:
        if not self._is_of_this_lane(end):
            return []
        by_bucket: dict[BucketNo, list[LeasedRuns]] = {}
        for leased in end.leases:
            by_bucket.setdefault(leased.bucket, []).append(leased)
        ours_now = TakeOver(run=self.run, visibility_us=self._visibility_us)

        def one(bucket: BucketNo) -> Stored[Bucket] | None:
            ids = frozenset(leased.lease_id for leased in by_bucket[bucket])
            row = take_over(self.lane, bucket, ids, ours_now)
            ours = [one for one in row.value.leases if one.lease_id in ids] if row else []
            if ours:
                # Hold them before the others are there: one may wait for the store for long (I2)
                # [T5].
                held = frozenset(lease.lease_id for lease in ours)
                until_us = min(lease.until_us for lease in ours)
                self._renewal.hold({bucket: held}, until_us=until_us)
            return row

        rows = each_bucket(self.lane, one, by_bucket)
        low = self.lane.read_pointers().repair
        # A row below the repair pointer is a ghost of a bucket that was dropped (G5, ADR 11).
        rows = {bucket: row if bucket >= low else None for bucket, row in rows.items()}
        self._renewal.drop({at: ids for at, ids in end.by_bucket().items() if at < low})
        plan: list[Planned] = []
        for leased in end.leases:
            row = rows[leased.bucket]
            lease = None if row is None else row.value.lease(leased.lease_id)
            runs = None if lease is None else lease.runs & leased.runs
            if row is None or lease is None or not runs:
                is_gone = leased.bucket < low
                purged = EMPTY if row is None else row.value.purged & leased.runs
                if purged:
                    self._purged(leased.bucket, purged.count)
                elif self._acks:
                    self._lose(leased, is_gone=is_gone)
                # Else what is missing was settled, before a crash kept Spark from committing.
                continue
            plan.append(
                Planned(
                    bucket=leased.bucket,
                    runs=runs,
                    delivery_count=lease.delivery_count,
                    lease_id=lease.lease_id,
                    revisions=row.value.revisions_of(runs),
                )
            )
        event(
            _logger,
            "batch_replayed",
            queue=self.lane.queue,
            seq=end.seq,
            messages=sum(planned.runs.count for planned in plan),
        )
        return plan

    def _lose(self, leased: LeasedRuns, *, is_gone: bool) -> None:
        """Leave out a lease that a replay names and that does not exist any more.

        Its messages were acked by somebody, or are somebody's later delivery: they are left out,
        and never claimed again under another id for this offset [P11]. A dropped bucket counts as
        acked: nothing was lost, and failing would fail every restart [P12].
        """
        metrics.LEASES_LOST.inc()
        event(
            _logger,
            "lease_lost_on_replay",
            queue=self.lane.queue,
            bucket=leased.bucket,
            messages=leased.runs.count,
            dropped=is_gone,
        )
        if self._options.on_lease_lost == "fail" and not is_gone:
            raise LeaseLost(
                f"{leased.runs.count} messages of bucket {leased.bucket} of queue "
                f"{self.lane.queue!r} were delivered to another consumer while this query was down "
                "longer than its visibility timeout. Set onLeaseLost to 'skip' to go on without "
                "them (they are processed elsewhere), and a longer visibilityTimeout"
            )

    def _purged(self, bucket: BucketNo, messages: int) -> None:
        """Report that somebody's purge has dropped a batch that was not committed yet."""
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"queue {self.lane.queue!r} was purged while this query was down: {messages} "
                f"messages of bucket {bucket} that its batch holds are gone. Start with a new "
                "checkpoint, or set failOnDataLoss to false to go on without them"
            )
        event(_logger, "batch_purged", queue=self.lane.queue, bucket=bucket, messages=messages)

    def _is_of_this_lane(self, offset: SourceOffset) -> bool:
        """Whether the queue is still the one that the checkpoint was written for.

        Raises:
            DataLoss: It is not, and ``failOnDataLoss`` is true.
        """
        if offset.lane in (None, self.lane.lane_id):
            return True
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"queue {self.lane.queue!r} was deleted and created again since this checkpoint "
                "was written: its messages of then are gone. Start with a new checkpoint, or set "
                "failOnDataLoss to false to go on with the new queue"
            )
        event(_logger, "queue_recreated", queue=self.lane.queue, seq=offset.seq)
        return False

    def _remember(self, key: str, plan: list[Planned]) -> None:
        self._plans[key] = plan
        while len(self._plans) > _PLANS_KEPT:
            del self._plans[next(iter(self._plans))]


def _key(offset: dict[str, Any]) -> str:
    return json.dumps(offset, sort_keys=True)


def _ids_by_bucket(claimed: list[Claimed]) -> dict[BucketNo, frozenset[UUID]]:
    found: dict[BucketNo, frozenset[UUID]] = {}
    for one in claimed:
        found[one.bucket] = found.get(one.bucket, frozenset()) | {one.lease.lease_id}
    return found


def _messages(claimed: list[Claimed]) -> int:
    return sum(one.lease.runs.count for one in claimed)
