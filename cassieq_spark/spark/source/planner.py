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
from cassieq_spark.errors import CassieqError, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.offset import LeasedRuns, SourceOffset
from cassieq_spark.options import arguments
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.get.claim import PATIENT_GRACE_S, RUNS_PER_CALL, give_back
from cassieq_spark.queue.get.lanes import NO_LIMITS, Readers
from cassieq_spark.queue.schedule import looked_at_lanes
from cassieq_spark.queue.settle.settle import ack_leases, count_settled
from cassieq_spark.spark.source.admission import Limits, Patience
from cassieq_spark.spark.source.lag import Lag
from cassieq_spark.spark.source.renewal import Renewal
from cassieq_spark.spark.source.replay import Replay

if TYPE_CHECKING:
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import LaneId, Place
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
        self._acks = options.ack_mode == "commit"
        visibility_s = options.visibility_timeout_s or lane.settings.visibility_timeout_s
        self._visibility_us = int(visibility_s * 1e6)
        self._at_least = arguments.priority(
            "minPriority", options.min_priority, lane.settings.priorities
        )
        self._reader = Readers(
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
        self._replay = Replay(
            lane, options, self._renewal, run=self.run, visibility_us=self._visibility_us
        )
        self._aside = ThreadPoolExecutor(2, thread_name_prefix="cassieq-aside")
        self._looking: Future[None] | None = None
        self.lag = Lag(lane, self._reader, options)
        self._patience = Patience(lane.clock)
        self._target: dict[LaneId, int] | None = None
        self._pending: tuple[str, SourceOffset] | None = None
        self._acked: tuple[UUID | None, int] = (None, 0)
        self._plans: dict[str, list[Planned]] = {}
        self._rows: dict[Place, Stored[Bucket]] = {}

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
        if not self._replay.is_of_this_lane(offset):
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
                LeasedRuns(place=one.place, lease_id=one.lease.lease_id, runs=one.lease.runs)
                for one in claimed
            ),
        )
        self._pending = (key, end)
        self._remember(_key(end.to_json()), [one.planned for one in claimed])
        self._rows = {one.place: one.row for one in claimed}
        if _messages(claimed) >= limits.at_most or limits.at_most_bytes:
            # There seems to be more: look for it while Spark works on this batch.
            self._looking = self._aside.submit(self._look_ahead, limits)
        return end.to_json()

    def aim_at_now(self) -> None:
        """Claim only ids that have been handed out so far (``Trigger.AvailableNow``).

        Raises:
            QueueDeleted: The queue is gone.
        """
        lanes = looked_at_lanes(self.lane)
        monotons = self.lane.store.session.map(lambda lane: lane.read_monoton(), lanes)
        self._target = {
            lane.lane_id: monoton.next_id for lane, monoton in zip(lanes, monotons, strict=True)
        }

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
            self._remember(key, self._replay.plan(SourceOffset.from_json(end)))
        return self._plans[key]

    def ack(self, end: dict[str, Any]) -> None:
        """Ack a batch that Spark has committed."""
        self._renewal.touch()
        offset = SourceOffset.from_json(end)
        if self._replay.is_of_this_lane(offset):
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
                give_back(claimed)
                raise failure
        return claimed

    def _look_ahead(self, limits: Limits) -> None:
        try:
            self._reader.look_ahead(
                limits.at_most,
                at_least=self._at_least,
                below=self._target or NO_LIMITS,
                at_most_bytes=limits.at_most_bytes,
            )
        except CassieqError as error:
            event(_logger, "look_ahead_failed", queue=self.lane.queue, error=str(error))

    def _claim(self, limits: Limits) -> list[Claimed]:
        if self._looking is not None:
            self._looking.result()
            self._looking = None
        if not self._reader.may_find(at_least=self._at_least):
            return []
        # Nothing new comes below AvailableNow's target: it would wait for ever.
        if self._target is None and self._patience.should_wait(self._reader, limits):
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
                    at_least=self._at_least,
                    below=self._target or NO_LIMITS,
                    at_most_bytes=limits.at_most_bytes,
                )
        except StoreError as error:
            if not claimed:
                raise
            event(_logger, "bucket_unreachable", queue=self.lane.queue, error=str(error))
            return []

    def _is_all_claimed(self, offset: SourceOffset) -> bool:
        """Whether the buckets of a batch held nothing more to claim when it was claimed."""
        rows = [self._rows.get(leased.place) for leased in offset.leases]
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

    def _remember(self, key: str, plan: list[Planned]) -> None:
        self._plans[key] = plan
        while len(self._plans) > _PLANS_KEPT:
            del self._plans[next(iter(self._plans))]


def _key(offset: dict[str, Any]) -> str:
    return json.dumps(offset, sort_keys=True)


def _ids_by_bucket(claimed: list[Claimed]) -> dict[Place, frozenset[UUID]]:
    found: dict[Place, frozenset[UUID]] = {}
    for one in claimed:
        found[one.place] = found.get(one.place, frozenset()) | {one.lease.lease_id}
    return found


def _messages(claimed: list[Claimed]) -> int:
    return sum(one.lease.runs.count for one in claimed)
