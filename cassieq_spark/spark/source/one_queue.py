"""One queue of a streaming query: claim, replay and ack what the query has of it (design 7).

Holds I2, I4, I8. `planner` shares a batch among the query's queues, and remembers offsets.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.offset import by_bucket
from cassieq_spark.queue.get.claim import PATIENT_GRACE_S, RUNS_PER_CALL
from cassieq_spark.queue.get.queue_reader import QueueReader
from cassieq_spark.queue.schedule import looked_at_lanes
from cassieq_spark.queue.settle.batches import ack_leases, count_settled
from cassieq_spark.spark.source.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import Place, QueueName, Runs
    from cassieq_spark.model.offset import LeasedRuns
    from cassieq_spark.options import SourceOptions
    from cassieq_spark.queue.fetch import Planned
    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.spark.source.admission import Limits
    from cassieq_spark.spark.source.renewal import Renewal
    from cassieq_spark.store.cas import Stored

_logger = get_logger("spark")


class OneQueue:
    """What one run of a query does with one queue. Used by one thread at a time.

    Attributes:
        lane: The first lane of the queue.
        reader: Claims from its lanes.

    Args:
        at_least: Read only messages of this priority and higher ones.
    """

    def __init__(
        self,
        lane: Lane,
        options: SourceOptions,
        renewal: Renewal,
        *,
        run: UUID,
        at_least: int = 0,
    ) -> None:
        self.lane = lane
        self._renewal = renewal
        self._acks = options.ack_mode == "commit"
        visibility_s = options.visibility_timeout_s or lane.settings.visibility_timeout_s
        self._visibility_us = int(visibility_s * 1e6)
        self._at_least = at_least
        self.reader = QueueReader(
            lane,
            owner=options.consumer or f"spark:{run}",
            run=run,
            visibility_us=self._visibility_us,
        )
        self._replay = Replay(lane, options, renewal, run=run, visibility_us=self._visibility_us)
        self._rows: dict[Place, Stored[Bucket]] = {}

    @property
    def name(self) -> QueueName:
        """The queue's name."""
        return self.lane.queue

    async def aim_at_now(self) -> None:
        """Claim only ids that have been handed out so far (``Trigger.AvailableNow``).

        Raises:
            QueueDeleted: The queue is gone.
        """
        lanes = await looked_at_lanes(self.lane)
        monotons = await self.lane.store.session.map(lambda lane: lane.read_monoton(), lanes)
        self.reader.stop_at(
            {lane.lane_id: monoton.next_id for lane, monoton in zip(lanes, monotons, strict=True)}
        )

    async def may_find(self) -> bool:
        """Whether a claim may find something: two cheap reads a lane (I9)."""
        return await self.reader.may_find(at_least=self._at_least)

    async def count(self, enough: int) -> int | None:
        """About how many messages a claim would find, counted up to ``enough``.

        None: it has found none, but a part did not answer.
        """
        return await self.reader.count(enough, at_least=self._at_least)

    async def tidy(self) -> None:
        """Do what a claim that finds nothing does besides, and claim nothing; see `Reader.tidy`."""
        await self.reader.tidy(at_least=self._at_least)

    async def claim(self, limits: Limits) -> list[Claimed]:
        """Claim messages and hold their leases; the rows of the last batch's buckets are kept.

        Raises:
            StoreError: Nothing could be claimed, and a part did not answer.
            QueueDeleted: The queue is gone.
        """
        claimed: list[Claimed] = []
        while more := await self._get(limits, claimed):
            # Hold these from now on: the next step may wait for the store for long (I2) [T5].
            self._renewal.hold(
                self.lane,
                ids_by_bucket(more),
                visibility_us=self._visibility_us,
                until_us=min(one.lease.until_us for one in more),
            )
            # A get that has found something leaves the youngest messages; they were counted, too.
            claimed += more
            is_enough = messages(claimed) >= min(limits.at_least, limits.at_most)
            runs = sum(len(one.lease.runs.pairs) for one in claimed)
            if is_enough or limits.at_most_bytes or runs >= RUNS_PER_CALL:
                break
        return claimed

    async def look_ahead(self, limits: Limits) -> None:
        """Look now for what the next claim will find, while Spark works on this batch."""
        try:
            await self.reader.look_ahead(
                limits.at_most,
                at_least=self._at_least,
                at_most_bytes=limits.at_most_bytes,
            )
        except CassieqError as error:
            event(_logger, "look_ahead_failed", queue=self.name, error=str(error))

    def took(self, claimed: list[Claimed]) -> None:
        """These are the queue's part of the batch: their rows serve its ack."""
        self._rows = {one.place: one.row for one in claimed}

    def is_all_claimed(self, leases: tuple[LeasedRuns, ...]) -> bool:
        """Whether the buckets of a batch held nothing more to claim when it was claimed."""
        rows = [self._rows.get(leased.place) for leased in leases]
        return all(row is not None and row.value.is_behind_reader for row in rows)

    async def plan(self, leases: tuple[LeasedRuns, ...], seq: int) -> list[Planned]:
        """The messages of a batch that an earlier run has logged; see `Replay.plan`."""
        return await self._replay.plan(leases, seq)

    async def ack(self, leases: tuple[LeasedRuns, ...], delivered: Mapping[UUID, Runs]) -> None:
        """Ack the messages of a batch; with ``ackMode`` manual, count those that were settled.

        Args:
            delivered: What this run has delivered of each lease. An earlier run has delivered, and
                may have settled, the rest.
        """
        done = by_bucket(leases)
        held = self._renewal.drop(done)

        def unbroken() -> dict[UUID, Runs]:
            now_us = self.lane.clock.now_us()
            known = {lease_id for lease_id, until_us in held.items() if until_us > now_us}
            return {lease_id: runs for lease_id, runs in delivered.items() if lease_id in known}

        if self._acks:
            late = (await ack_leases(self.lane, done, known=self._rows, unbroken=unbroken)).late
            # Others are counted already: by their renewal, or by the run that lost them.
            lost = sum(len(held.keys() & leases.keys()) for leases in late.values())
            metrics.LEASES_LOST.inc(self.name, lost)
        else:
            ours = {
                place: some
                for place, ids in done.items()
                if (some := {one: delivered[one] for one in ids if one in delivered})
            }
            metrics.MESSAGES_ACKED.inc(self.name, await count_settled(self.lane, ours))
        self._rows = {}

    async def _get(self, limits: Limits, claimed: list[Claimed]) -> list[Claimed]:
        """Claim more than ``claimed``; if that fails, return what there is [T22]."""
        try:
            with self.lane.store.session.within(each_s=PATIENT_GRACE_S if claimed else inf):
                return await self.reader.get(
                    limits.at_most - messages(claimed),
                    at_least=self._at_least,
                    at_most_bytes=limits.at_most_bytes,
                )
        except StoreError as error:
            if not claimed:
                raise
            event(_logger, "bucket_unreachable", queue=self.name, error=str(error))
            return []


def ids_by_bucket(claimed: list[Claimed]) -> dict[Place, frozenset[UUID]]:
    """The leases of some claims."""
    found: dict[Place, frozenset[UUID]] = {}
    for one in claimed:
        found[one.place] = found.get(one.place, frozenset()) | {one.lease.lease_id}
    return found


def messages(claimed: list[Claimed]) -> int:
    """How many messages were claimed."""
    return sum(one.lease.runs.count for one in claimed)
