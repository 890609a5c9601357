"""Remember a streaming query's state between Spark's calls, in its planner process.

See docs/design/source.md.

Holds I2, I4, I8: one claim per start offset, one plan per batch and run, acks by lease id. A batch
is shared among the query's queues evenly, and what one leaves goes to the others (I10): each queue
has its turn, and one that does not answer holds up no other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar
from uuid import UUID

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from cassieq_spark.doors import blocking
from cassieq_spark.errors import CassieqError, QueueDeleted, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import ID_LIMIT, QueueName
from cassieq_spark.model.offset import LeasedRuns, SourceOffset
from cassieq_spark.options import SourceOptions
from cassieq_spark.queue.fetch import Planned
from cassieq_spark.queue.get.claim import Budget, Claimed, give_back
from cassieq_spark.queue.lane import Lane
from cassieq_spark.spark.source.lag import Lag
from cassieq_spark.spark.source.one_queue import Limits, OneQueue, messages
from cassieq_spark.spark.source.renewal import Renewal
from cassieq_spark.spark.source.subscription import Subscription
from cassieq_spark.store.store import Store

T = TypeVar("T")

AT_ONCE: Final = 16
"""The most queues that are claimed from side by side. Each may add thousands of runs of ids to the
offset: after each wave it is seen whether that is enough for one batch."""

LOOK_S: Final = 2.0
"""The time that a claim waits for each statement, as long as other queues may have messages."""

_PLANS_KEPT: Final = 2

Plan: TypeAlias = list[tuple[Lane, list[Planned]]]
"""The part of a batch from each queue, by the queue's first lane."""

_logger = get_logger("spark")


class Planner:
    """A run of a streaming query. Spark calls it from one thread; the engine does the work.

    Attributes:
        run: Fresh with each start of the query. Leases carry it, so that a copy of this checkpoint
            that runs elsewhere is noticed [P25].
    """

    def __init__(self, store: Store, options: SourceOptions) -> None:
        self.run: UUID = store.entropy.new_uuid()
        self._store = store
        self._options = options
        self._renewal = Renewal(
            store,
            run=self.run,
            give_up_after_s=options.max_batch_duration_s,
            is_settled_by_others=options.ack_mode != "commit",
        )
        self._subscription = Subscription(store, options, self._renewal, run=self.run)
        self._claiming = _Claiming(store, self._subscription, self._renewal)
        self._looking: asyncio.Task[None] | None = None
        self._lag = Lag(store, self._subscription, options)
        self._waits_since: float | None = None
        self._is_aimed = False
        self._pending: tuple[str, SourceOffset] | None = None
        self._acked: tuple[UUID | None, int] = (None, 0)
        self._plans: dict[str, Plan] = {}

    @classmethod
    @blocking
    async def open(cls, store: Store, options: SourceOptions) -> Self:
        """Begin a run.

        Raises:
            QueueNotFound, OptionInvalid: See `Subscription.begin`.
        """
        planner = cls(store, options)
        await planner._subscription.begin()
        return planner

    def limits(self, limit: ReadLimit) -> Limits:
        """The limits for what Spark passes on: our own kind, or "all" for ``Trigger.Once``."""
        if isinstance(limit, ReadAllAvailable):
            return Limits()
        return Limits(
            at_most=self._options.max_messages_per_trigger or ID_LIMIT,
            at_most_bytes=self._options.max_bytes_per_trigger,
            at_least=self._options.min_messages_per_trigger or 0,
            wait_s=self._options.max_trigger_delay_s,
        )

    @blocking
    async def latest(self, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
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
        known = await self._subscription.of(offset)
        if self._pending is not None and self._pending[0] == key:
            await self._ack(offset, known)
            return self._pending[1].to_json()
        claimed = await self._ack_and_claim(offset, known, limits)
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
        if messages(claimed) >= limits.at_most or limits.at_most_bytes is not None:
            # The batch may not hold all there was.
            self._looking = asyncio.get_running_loop().create_task(self._claiming.look_ahead())
        return end.to_json()

    @blocking
    async def plan(self, start: dict[str, Any], end: dict[str, Any]) -> Plan:
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
            offset = SourceOffset.from_json(end)
            known = await self._subscription.of(offset)
            planned = await self._each(
                lambda queue, leases: queue.plan(leases, offset.seq), offset, known
            )
            self._remember(key, [(queue.lane, one) for queue, one in planned if one])
        return self._plans[key]

    @blocking
    async def ack(self, end: dict[str, Any]) -> None:
        """Ack a batch that Spark has committed."""
        self._renewal.touch()
        offset = SourceOffset.from_json(end)
        await self._ack(offset, await self._subscription.of(offset))

    @blocking
    async def aim_at_now(self) -> None:
        """Claim only ids that have been handed out so far (``Trigger.AvailableNow``).

        Raises:
            QueueDeleted, DataLoss: A queue is gone.
        """
        self._is_aimed = True
        await self._subscription.aim_at_now()

    @blocking
    async def report(self) -> dict[str, Any]:
        """Return the query's lag; see `Lag.report`."""
        return await self._lag.report()

    @blocking
    async def close(self) -> None:
        """End what runs beside Spark's calls."""
        if self._looking is not None:
            await asyncio.wait([self._looking])
        await self._lag.close()
        await self._renewal.close()

    async def _ack_and_claim(
        self, offset: SourceOffset, known: Mapping[QueueName, OneQueue], limits: Limits
    ) -> list[Claimed]:
        """Ack and claim, side by side if on different rows; both are done when this returns.

        If the ack were still under way when Spark logs the next offset, a crash would leave a batch
        that is committed and not acked, and no restart would ack it (I4).
        """
        acking = asyncio.get_running_loop().create_task(self._ack(offset, known))
        if not self._is_all_claimed(offset, known):
            await acking
        claimed: list[Claimed] = []
        try:
            claimed = await self._claim(limits)
        finally:
            await asyncio.wait([acking])
            if (failure := acking.exception()) is not None:
                # No offset will name what was claimed meanwhile [T22].
                await self._claiming.give_back(claimed)
                raise failure
        return claimed

    async def _claim(self, limits: Limits) -> list[Claimed]:
        if self._looking is not None:
            await self._looking
            self._looking = None
        await self._subscription.look_again()
        awake = await self._claiming.awake()
        if not awake:
            return []
        # Nothing new comes below AvailableNow's target: it would wait for ever.
        if limits.at_least and not self._is_aimed:
            found = await self._claiming.count(awake, limits.at_least)
            if found == 0:
                await self._claiming.tidy(awake)
            if found is not None and self._should_wait(found, limits):
                return []  # also what has come since the count: it is not known to be enough
        return await self._claiming.claim(awake, limits)

    def _should_wait(self, found: int, limits: Limits) -> bool:
        """Whether visible messages should wait for more, or for the first; not for ever (I10)."""
        if found == 0 or found >= limits.at_least:
            self._waits_since = None
            return found < limits.at_least
        now = self._store.clock.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if now - self._waits_since < limits.wait_s:
            return True
        self._waits_since = None
        return False

    def _is_all_claimed(self, offset: SourceOffset, known: Mapping[QueueName, OneQueue]) -> bool:
        """Whether the buckets of a batch held nothing more to claim when it was claimed."""
        parts = offset.by_queue()
        return bool(parts) and all(
            name in known and known[name].is_all_claimed(some) for name, some in parts.items()
        )

    async def _ack(self, offset: SourceOffset, known: Mapping[QueueName, OneQueue]) -> None:
        if not offset.leases or self._acked == (offset.stream, offset.seq):
            return
        plan = self._plans.get(_key(offset.to_json()), [])
        delivered = {one.lease_id: one.runs for _, some in plan for one in some if one.lease_id}
        await self._each(lambda queue, leases: queue.ack(leases, delivered), offset, known)
        self._acked = (offset.stream, offset.seq)

    async def _each(
        self,
        work: Callable[[OneQueue, tuple[LeasedRuns, ...]], Awaitable[T]],
        offset: SourceOffset,
        known: Mapping[QueueName, OneQueue],
    ) -> list[tuple[OneQueue, T]]:
        """Do some work for each queue of a batch, side by side; one that was deleted drops out."""
        parts = offset.by_queue()
        found: list[tuple[OneQueue, T]] = []
        for queue, one in await self._subscription.each(
            lambda queue: work(queue, parts[queue.name]),
            [known[name] for name in parts if name in known],
        ):
            if isinstance(one, CassieqError):
                raise one
            found.append((queue, one))
        return found

    def _remember(self, key: str, plan: Plan) -> None:
        self._plans[key] = plan
        while len(self._plans) > _PLANS_KEPT:
            del self._plans[next(iter(self._plans))]


def _key(offset: dict[str, Any]) -> str:
    return json.dumps(offset, sort_keys=True)


class _Part(NamedTuple):
    """The limits of one queue's addition to the batch in one turn."""

    queue: OneQueue
    limits: Limits


class _Claiming:
    """Shares micro-batches among the queues of a query, for one run of it."""

    def __init__(self, store: Store, subscription: Subscription, renewal: Renewal) -> None:
        self._session = store.session
        self._subscription = subscription
        self._renewal = renewal
        self._first = ""
        self._asked: list[_Part] = []

    async def awake(self) -> list[OneQueue]:
        """The queues that may have messages, the one whose turn it is first.

        Raises:
            StoreError: The only queue did not answer.
            QueueDeleted, DataLoss: A queue is gone.
        """
        subscription, awake = self._subscription, []
        with self._session.within(each_s=inf if subscription.is_one else LOOK_S):
            said = await subscription.each(lambda queue: queue.may_find(), subscription.queues)
        for queue, one in said:
            if isinstance(one, CassieqError) and subscription.is_one:
                raise one
            if one is not False:
                # One without an answer is among them: then the error, if it stays, has a name.
                awake.append(queue)
        later = [queue for queue in awake if queue.name >= self._first]
        return [*later, *awake[: len(awake) - len(later)]]

    async def count(self, awake: list[OneQueue], enough: int) -> int | None:
        """Estimate how many messages a claim from these would find, counted up to ``enough``.

        What does not answer holds up no other (I10).

        Returns:
            None: none was found, but a part did not answer. A claim finds out, or names it.
        """
        counted = await self._session.each(lambda queue: queue.count(enough), awake)
        found = sum(one for one in counted if isinstance(one, int))
        return found if found or all(isinstance(one, int) for one in counted) else None

    async def tidy(self, awake: list[OneQueue]) -> None:
        """Do what a claim that finds nothing does besides; see `Reader.tidy`.

        Raises:
            QueueDeleted, DataLoss: A queue is gone.
        """
        with self._session.within(each_s=LOOK_S):
            said = await self._subscription.each(lambda queue: queue.tidy(), awake)
        for _, one in said:
            if isinstance(one, CassieqError) and not isinstance(one, StoreError):
                raise one  # what did not answer is asked again by the next trigger's count

    async def claim(self, awake: list[OneQueue], limits: Limits) -> list[Claimed]:
        """Claim a batch from these queues.

        Raises:
            StoreError: Nothing was claimed, and a queue did not answer.
            QueueDeleted, DataLoss: A queue is gone; what was claimed is given back.
        """
        whole = Budget(messages=limits.at_most, size_bytes=limits.at_most_bytes)
        claimed: list[Claimed] = []
        failed: dict[OneQueue, CassieqError] = {}
        hungry, self._asked = awake, []
        try:
            while hungry and not whole.is_full:
                hungry = await self._turn(hungry, whole, limits, claimed, failed)
            if failed and not claimed and not self._subscription.is_one:
                # No other queue has messages: these may have all the time there is.
                waiting, failed = list(failed), {}
                await self._turn(waiting, whole, limits, claimed, failed, each_s=inf)
        except CassieqError:
            await self.give_back(claimed)  # no offset will name it [T22]
            raise
        if failed and not claimed:
            raise next(iter(failed.values()))
        for queue, error in failed.items():
            event(_logger, "queue_passed_over", queue=queue.name, error=str(error))
        return claimed

    async def give_back(self, claimed: list[Claimed]) -> None:
        """Give back what no offset names, uncounted."""
        for one in claimed:
            self._renewal.drop({one.place: [one.lease.lease_id]})
        await give_back(claimed)

    async def look_ahead(self) -> None:
        """Look for what the next turn of the queues will claim, while Spark works on a batch."""
        await self._session.each(lambda part: part.queue.look_ahead(part.limits), self._asked)

    async def _turn(
        self,
        hungry: list[OneQueue],
        whole: Budget,
        limits: Limits,
        claimed: list[Claimed],
        failed: dict[OneQueue, CassieqError],
        *,
        each_s: float = LOOK_S,
    ) -> list[OneQueue]:
        """Ask each queue once, as long as there is room; return those that may have more."""
        may_have_more: list[OneQueue] = []
        waiting = hungry
        while waiting and not whole.is_full:
            wave = _shares(waiting, whole, limits)
            waiting = waiting[len(wave) :]
            with self._session.within(each_s=inf if self._subscription.is_one else each_s):
                got = await self._session.each(lambda part: part.queue.claim(part.limits), wave)
            for part, one in zip(wave, got, strict=True):
                if isinstance(one, list):
                    claimed += one
                    whole.take_claimed(one)
                    room = Budget(
                        messages=part.limits.at_most, size_bytes=part.limits.at_most_bytes
                    )
                    room.take_claimed(one)
                    if room.is_full:
                        may_have_more.append(part.queue)
            for part, one in zip(wave, got, strict=True):
                if isinstance(one, QueueDeleted):
                    self._subscription.drop(part.queue, one)
                elif isinstance(one, CassieqError):
                    failed[part.queue] = one
            self._asked = self._asked or wave
        # The next batch begins with who got nothing in this one, or with the second in turn.
        self._first = (waiting or hungry[1:] or hungry)[0].name
        return may_have_more


def _shares(waiting: list[OneQueue], whole: Budget, limits: Limits) -> list[_Part]:
    """Divide the budget that is left into even limits, one for each of the next queues."""
    left, size = whole.messages, whole.size_bytes
    each_bytes = None if size is None else max(1, int(size / len(waiting)))
    parts = []
    for at, queue in enumerate(waiting[:AT_ONCE]):
        share = -(-left // (len(waiting) - at))
        if not share:
            break
        left -= share
        parts.append(_Part(queue, replace(limits, at_most=share, at_most_bytes=each_bytes)))
    return parts
