"""Plan a micro-batch that an earlier run has logged: its messages, under this run's leases.

Open this to see what a restarted query does with a batch that was not committed, and when it goes
on without some of its messages. Holds I2, I4, I8 (design 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark import metrics
from cassieq_spark.errors import DataLoss, LeaseLost
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import EMPTY
from cassieq_spark.model.settlement import TakeOver, rejected
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.per_bucket import each_bucket
from cassieq_spark.queue.settle.batches import take_over

if TYPE_CHECKING:
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import Place
    from cassieq_spark.model.offset import LeasedRuns
    from cassieq_spark.options import SourceOptions
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.spark.source.renewal import Renewal
    from cassieq_spark.store.cas import Stored

_logger = get_logger("spark")


class Replay:
    """Replans the part of logged batches that is of one queue, for one run of a query."""

    def __init__(
        self,
        lane: Lane,
        options: SourceOptions,
        renewal: Renewal,
        *,
        run: UUID,
        visibility_us: int,
    ) -> None:
        self.lane = lane
        self._options = options
        self._renewal = renewal
        self._visibility_us = visibility_us
        self._ours = TakeOver(run=run, visibility_us=visibility_us)

    async def plan(self, leases: tuple[LeasedRuns, ...], seq: int) -> list[Planned]:
        """Take over what is still there of a logged batch: the messages to read again.

        Args:
            leases: The batch's leases of this queue.
            seq: The number of the batch, for the log.

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
                held = frozenset(lease.lease_id for lease in ours)
                until_us = min(lease.until_us for lease in ours)
                self._renewal.hold(
                    self.lane,
                    {place: held},
                    visibility_us=self._visibility_us,
                    until_us=until_us,
                )
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
                elif self._options.ack_mode == "commit" and not _is_rejected(row, leased):
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
        event(
            _logger,
            "batch_replayed",
            queue=self.lane.queue,
            seq=seq,
            messages=sum(planned.runs.count for planned in plan),
        )
        return plan

    def _lose(self, leased: LeasedRuns, *, is_gone: bool) -> None:
        """Leave out a lease that a replay names and that does not exist any more.

        Its messages were acked by somebody, or are somebody's later delivery: they are left out,
        and never claimed again under another id for this offset [P11]. A dropped bucket counts as
        acked: nothing was lost, and failing would fail every restart [P12].
        """
        metrics.LEASES_LOST.inc(self.lane.queue)
        event(
            _logger,
            "lease_lost_on_replay",
            **self._fields(leased.place),
            messages=leased.runs.count,
            dropped=is_gone,
        )
        if self._options.on_lease_lost == "fail" and not is_gone:
            raise LeaseLost(
                f"{leased.runs.count} messages of {self._title(leased.place)} were delivered to "
                "another consumer while this query was down for longer than its visibility "
                "timeout. Set onLeaseLost to 'skip' to go on without them (they are processed "
                "elsewhere), and set a longer visibilityTimeout"
            )

    def _fields(self, place: Place) -> dict[str, object]:
        return self.lane.sibling(place.lane).as_fields(place.bucket)

    def _title(self, place: Place) -> str:
        return self.lane.sibling(place.lane).bucket_title(place.bucket)

    def _purged(self, place: Place, messages: int) -> None:
        """Report that a purge has dropped messages of a batch that was not committed yet."""
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"queue {self.lane.queue!r} was purged while this query was down: {messages} "
                f"messages of {self._title(place)}, which are in the query's batch, are gone. "
                "Start with a new checkpoint, or set failOnDataLoss to false to go on without them"
            )
        event(_logger, "batch_purged", **self._fields(place), messages=messages)


def _is_rejected(row: Stored[Bucket] | None, leased: LeasedRuns) -> bool:
    """Whether the query's program has rejected all of it. No delivery of it comes any more."""
    return row is not None and leased.runs.issubset(rejected(row.value))
