"""The part of one queue in a streaming query: claim, replay and ack what the query has of it.

See docs/design/source.md.

Open this to see what a restarted query does with a batch that was not committed, and when it goes
on without some of its messages. Holds I2, I4, I8. `planner` shares a batch among the query's
queues, and remembers offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from uuid import UUID

from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError, DataLoss, LeaseLost, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.bucket import Bucket, Lease
from cassieq_spark.model.ids import EMPTY, ID_LIMIT, Place, QueueName, Runs
from cassieq_spark.model.offset import LeasedRuns, by_bucket
from cassieq_spark.model.outcome import Stored
from cassieq_spark.model.settlement import TakeOver, rejected
from cassieq_spark.options import SourceOptions
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.get.claim import PATIENT_GRACE_S, RUNS_PER_CALL, Claimed, Holder
from cassieq_spark.queue.get.queue_reader import QueueReader
from cassieq_spark.queue.lane import Lane, each_bucket
from cassieq_spark.queue.schedule import looked_at_lanes
from cassieq_spark.queue.settle.batches import ack_leases, count_settled, take_over
from cassieq_spark.spark.source.renewal import Renewal

_logger = get_logger("spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one micro-batch.

    Attributes:
        at_most: The most messages.
        at_most_bytes: The most bytes, as stored; None: no limit.
        at_least: Wait until this many are visible, or ``wait_s`` since some are; 0: do not wait.
    """

    at_most: int = ID_LIMIT
    at_most_bytes: int | None = None
    at_least: int = 0
    wait_s: float = 0


class OneQueue:
    """The work of one run of a query on one queue. Used in the engine's event loop only.

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
        self._options = options
        self._acks = options.ack_mode == "commit"
        visibility_s = options.visibility_timeout_s or lane.settings.visibility_timeout_s
        self._visibility_us = int(visibility_s * 1e6)
        self._at_least = at_least
        owner = options.consumer or f"spark:{run}"
        holder = Holder(owner=owner, run=run, visibility_us=self._visibility_us)
        self.reader = QueueReader(lane, holder)
        self._ours = TakeOver(run=run, visibility_us=self._visibility_us)
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
        self.reader.holder.below = {
            lane.lane_id: monoton.next_id for lane, monoton in zip(lanes, monotons, strict=True)
        }

    async def may_find(self) -> bool:
        """Whether a claim may find something: two cheap reads a lane (I9)."""
        return await self.reader.may_find(at_least=self._at_least)

    async def count(self, enough: int) -> int | None:
        """Estimate how many messages a claim would find, counted up to ``enough``.

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
            self._hold([(one.place, one.lease) for one in more])
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
        """Note the queue's part of the batch: its rows serve the ack."""
        self._rows = {one.place: one.row for one in claimed}

    def is_all_claimed(self, leases: tuple[LeasedRuns, ...]) -> bool:
        """Whether the buckets of a batch held nothing more to claim when it was claimed."""
        rows = [self._rows.get(leased.place) for leased in leases]
        return all(row is not None and row.value.is_behind_reader for row in rows)

    async def plan(self, leases: tuple[LeasedRuns, ...], seq: int) -> list[Planned]:
        """Take over what is still there of a batch that an earlier run has logged.

        Args:
            leases: The batch's leases of this queue.
            seq: The number of the batch, for the log.

        Returns:
            The messages to read again, under this run's leases.

        Raises:
            LeaseLost: A lease is somebody else's by now, and ``onLeaseLost`` is ``fail``.
            DataLoss: The queue was purged, and ``failOnDataLoss`` is true.
        """
        by_place: dict[Place, list[LeasedRuns]] = {}
        for leased in leases:
            by_place.setdefault(leased.place, []).append(leased)

        async def one(place: Place) -> Stored[Bucket] | None:
            ids = frozenset(leased.lease_id for leased in by_place[place])
            row = await take_over(self.lane.sibling(place.lane), place.bucket, ids, self._ours)
            ours = [one for one in row.value.leases if one.lease_id in ids] if row else []
            if ours:
                # Before the others are there: one may wait for the store for long (I2) [T5].
                self._hold([(place, lease) for lease in ours])
            return row

        rows = await each_bucket(self.lane, one, by_place)
        lanes = {place.lane for place in by_place} or {self.lane.lane_id}
        low = {lane: (await self.lane.sibling(lane).read_pointers()).repair for lane in lanes}
        # A row below the repair pointer is a ghost of a bucket that was dropped (G5, ADR 11).
        rows = {at: row if at.bucket >= low[at.lane] else None for at, row in rows.items()}
        self._renewal.drop(
            {
                at: [one.lease_id for one in some]
                for at, some in by_place.items()
                if at.bucket < low[at.lane]
            }
        )
        plan: list[Planned] = []
        for leased in leases:
            row = rows[leased.place]
            lease = None if row is None else row.value.lease(leased.lease_id)
            runs = None if lease is None else lease.runs & leased.runs
            if row is None or lease is None or not runs:
                is_gone = leased.place.bucket < low[leased.place.lane]
                purged = EMPTY if row is None else row.value.purged & leased.runs
                if purged:
                    self._purged(leased.place, purged.count)
                elif self._acks and not _is_rejected(row, leased):
                    self._lose(leased, is_gone=is_gone)
                # Else what is missing was settled, before a crash kept Spark from committing.
                continue
            plan.append(
                Planned(
                    lane=leased.place.lane,
                    bucket=leased.place.bucket,
                    runs=runs,
                    delivery_count=lease.delivery_count,
                    lease_id=lease.lease_id,
                    revisions=row.value.revisions_of(runs),
                )
            )
        count = sum(planned.runs.count for planned in plan)
        event(_logger, "batch_replayed", queue=self.name, seq=seq, messages=count)
        return plan

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

    def _hold(self, leases: list[tuple[Place, Lease]]) -> None:
        self._renewal.hold(self.lane, leases, visibility_us=self._visibility_us)

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

    def _lose(self, leased: LeasedRuns, *, is_gone: bool) -> None:
        """Leave out a lease that a replay names and that does not exist any more.

        Its messages were acked by somebody, or are somebody's later delivery: they are left out,
        and never claimed again under another id for this offset [P11]. A dropped bucket counts as
        acked: nothing was lost, and failing would fail every restart [P12].
        """
        metrics.LEASES_LOST.inc(self.lane.queue)
        lane, bucket = self.lane.sibling(leased.place.lane), leased.place.bucket
        event(
            _logger,
            "lease_lost_on_replay",
            **lane.as_fields(bucket),
            messages=leased.runs.count,
            dropped=is_gone,
        )
        if self._options.on_lease_lost == "fail" and not is_gone:
            raise LeaseLost(
                f"{leased.runs.count} messages of {lane.bucket_title(bucket)} were delivered to "
                "another consumer while this query was down for longer than its visibility "
                "timeout. Set onLeaseLost to 'skip' to go on without them (they are processed "
                "elsewhere), and set a longer visibilityTimeout"
            )

    def _purged(self, place: Place, messages: int) -> None:
        """Report that a purge has dropped messages of a batch that was not committed yet."""
        lane = self.lane.sibling(place.lane)
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"queue {self.lane.queue!r} was purged while this query was down: {messages} "
                f"messages of {lane.bucket_title(place.bucket)}, which are in the query's batch, "
                "are gone. Start with a new checkpoint, or set failOnDataLoss to false to go on "
                "without them"
            )
        event(_logger, "batch_purged", **lane.as_fields(place.bucket), messages=messages)


def messages(claimed: list[Claimed]) -> int:
    """Return the number of messages that were claimed."""
    return sum(one.lease.runs.count for one in claimed)


def _is_rejected(row: Stored[Bucket] | None, leased: LeasedRuns) -> bool:
    """Whether the query's program has rejected all of it. No delivery of it comes any more."""
    return row is not None and leased.runs.issubset(rejected(row.value))
