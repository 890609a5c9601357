"""Remember a streaming query's state between Spark's calls, in its planner process (design 7).

Holds I2, I4, I8: one claim per start offset, one plan per batch and run, acks by lease id.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cassieq_spark.errors import CassieqError, QueueDeleted
from cassieq_spark.model.offset import LeasedRuns, SourceOffset
from cassieq_spark.queue.get.claim import give_back
from cassieq_spark.spark.source.admission import Patience
from cassieq_spark.spark.source.claiming import Claiming
from cassieq_spark.spark.source.lag import Lag
from cassieq_spark.spark.source.one_queue import ids_by_bucket
from cassieq_spark.spark.source.renewal import Renewal
from cassieq_spark.spark.source.subscription import Subscription
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from cassieq_spark.model.ids import QueueName
    from cassieq_spark.options import SourceOptions
    from cassieq_spark.queue.fetch import Planned
    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.spark.source.admission import Limits
    from cassieq_spark.spark.source.one_queue import OneQueue
    from cassieq_spark.store.store import Store

T = TypeVar("T")

_PLANS_KEPT: Final = 2

Plan = list[tuple["Lane", list["Planned"]]]
"""What a batch holds of each queue, by its first lane."""


class Planner:
    """One run of one streaming query. Spark calls it from one thread.

    Attributes:
        run: Fresh with each start of the query. Leases carry it, so that a copy of this checkpoint
            that runs elsewhere is noticed [P25].
        lag: How far the query is behind.

    Raises:
        QueueNotFound, OptionInvalid: See `Subscription`.
    """

    def __init__(self, store: Store, options: SourceOptions) -> None:
        self.run: UUID = store.entropy.new_uuid()
        self._store = store
        self._renewal = Renewal(
            store,
            run=self.run,
            give_up_after_s=options.max_batch_duration_s,
            is_settled_by_others=options.ack_mode != "commit",
        )
        self._subscription = Subscription(store, options, self._renewal, run=self.run)
        self._claiming = Claiming(store, self._subscription, self._renewal)
        self._aside = ThreadPoolExecutor(2, thread_name_prefix="cassieq-aside")
        self._looking: Future[object] | None = None
        self.lag = Lag(store, self._subscription, options)
        self._patience = Patience(store.clock)
        self._is_aimed = False
        self._pending: tuple[str, SourceOffset] | None = None
        self._acked: tuple[UUID | None, int] = (None, 0)
        self._plans: dict[str, Plan] = {}

    def latest(self, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """Ack ``start``, then claim; return ``start`` itself if there is nothing, or too little.

        While nothing new is there, a call is two reads a lane (I9).

        The same ``start`` again gets the same answer, and claims nothing: no offset would ever name
        what the first answer claimed [P23].

        Raises:
            StreamFenced: Another run has taken over our leases.
            DataLoss: A queue was deleted, re-created or purged under the checkpoint.
            QueueDeleted: The query's only queue was deleted.
            OffsetUnreadable: ``start`` is of another source or a later release.
        """
        self._renewal.touch()
        key = _key(start)
        offset = SourceOffset.from_json(start)
        known = self._subscription.of(offset)
        if self._pending is not None and self._pending[0] == key:
            self._ack(offset, known)
            return self._pending[1].to_json()
        claimed = self._ack_and_claim(offset, known, limits)
        if not claimed:
            return start
        by_queue: dict[QueueName, list[Claimed]] = {}
        for one in claimed:
            by_queue.setdefault(one.lane.queue, []).append(one)
        for queue in self._subscription.queues:
            queue.took(by_queue.get(queue.name, []))
        end = SourceOffset(
            stream=offset.stream or self._store.entropy.new_uuid(),
            queues={
                **{queue.name: queue.lane.lane_id for queue in self._subscription.queues},
                **{queue: some[0].lane.lanes[0] for queue, some in by_queue.items()},
            },
            seq=offset.seq + 1,
            leases=tuple(
                LeasedRuns(
                    queue=one.lane.queue,
                    place=one.place,
                    lease_id=one.lease.lease_id,
                    runs=one.lease.runs,
                )
                for one in claimed
            ),
        )
        self._pending = (key, end)
        plan = [(some[0].lane.first, [one.planned for one in some]) for some in by_queue.values()]
        self._remember(_key(end.to_json()), plan)
        if (look := self._claiming.next_look(claimed, limits)) is not None:
            self._looking = self._aside.submit(portal.run, look())
        return end.to_json()

    def aim_at_now(self) -> None:
        """Claim only ids that have been handed out so far (``Trigger.AvailableNow``).

        Raises:
            QueueDeleted, DataLoss: A queue is gone.
        """
        self._is_aimed = True
        self._subscription.aim_at_now()

    def plan(self, start: dict[str, Any], end: dict[str, Any]) -> Plan:
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
            self._remember(key, self._replay(SourceOffset.from_json(end)))
        return self._plans[key]

    def ack(self, end: dict[str, Any]) -> None:
        """Ack a batch that Spark has committed."""
        self._renewal.touch()
        offset = SourceOffset.from_json(end)
        self._ack(offset, self._subscription.of(offset))

    def close(self) -> None:
        """End the threads."""
        self._aside.shutdown()
        self.lag.close()
        self._renewal.close()

    def _replay(self, end: SourceOffset) -> Plan:
        known = self._subscription.of(end)
        planned = self._each(lambda queue, leases: queue.plan(leases, end.seq), end, known)
        return [(queue.lane, one) for queue, one in planned if one]

    def _ack_and_claim(
        self, offset: SourceOffset, known: dict[QueueName, OneQueue], limits: Limits
    ) -> list[Claimed]:
        """Ack and claim side by side, on different rows; both are done when this returns.

        If the ack were still under way when Spark logs the next offset, a crash would leave a batch
        that is committed and not acked, and no restart would ack it (I4).
        """
        is_apart = self._is_all_claimed(offset, known)
        aside = self._aside.submit(self._ack, offset, known) if is_apart else None
        claimed: list[Claimed] = []
        try:
            if aside is None:
                self._ack(offset, known)
            claimed = self._claim(limits)
        finally:
            if aside is not None and (failure := aside.exception()) is not None:
                # No offset will name what was claimed meanwhile [T22].
                self._renewal.drop(ids_by_bucket(claimed))
                portal.run(give_back(claimed))
                raise failure
        return claimed

    def _claim(self, limits: Limits) -> list[Claimed]:
        if self._looking is not None:
            self._looking.result()
            self._looking = None
        self._subscription.look_again()
        awake = self._claiming.awake()
        if not awake:
            return []
        # Nothing new comes below AvailableNow's target: it would wait for ever.
        if limits.at_least and not self._is_aimed:
            found = self._claiming.count(awake, limits.at_least)
            if found == 0:
                self._claiming.tidy(awake)
            if found is not None and self._patience.should_wait(found, limits):
                return []  # also what has come since the count: it is not known to be enough
        return self._claiming.claim(awake, limits)

    def _is_all_claimed(self, offset: SourceOffset, known: dict[QueueName, OneQueue]) -> bool:
        """Whether the buckets of a batch held nothing more to claim when it was claimed."""
        parts = offset.by_queue()
        return bool(parts) and all(
            name in known and known[name].is_all_claimed(some) for name, some in parts.items()
        )

    def _ack(self, offset: SourceOffset, known: dict[QueueName, OneQueue]) -> None:
        if not offset.leases or self._acked == (offset.stream, offset.seq):
            return
        plan = self._plans.get(_key(offset.to_json()), [])
        delivered = {one.lease_id: one.runs for _, some in plan for one in some if one.lease_id}
        self._each(lambda queue, leases: queue.ack(leases, delivered), offset, known)
        self._acked = (offset.stream, offset.seq)

    def _each(
        self,
        work: Callable[[OneQueue, tuple[LeasedRuns, ...]], Awaitable[T]],
        offset: SourceOffset,
        known: dict[QueueName, OneQueue],
    ) -> list[tuple[OneQueue, T]]:
        """Do some work for each queue of a batch, side by side; one that was deleted drops out."""
        parts = [(known[name], some) for name, some in offset.by_queue().items() if name in known]
        found: list[tuple[OneQueue, T]] = []
        done = portal.run(self._store.session.each(lambda part: work(*part), parts))
        for (queue, _), one in zip(parts, done, strict=True):
            if isinstance(one, QueueDeleted):
                self._subscription.drop(queue, one)
            elif isinstance(one, CassieqError):
                raise one
            else:
                found.append((queue, one))
        return found

    def _remember(self, key: str, plan: Plan) -> None:
        self._plans[key] = plan
        while len(self._plans) > _PLANS_KEPT:
            del self._plans[next(iter(self._plans))]


def _key(offset: dict[str, Any]) -> str:
    return json.dumps(offset, sort_keys=True)
