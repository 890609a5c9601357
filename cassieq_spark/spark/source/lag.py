"""Report how far a streaming query is behind; Spark shows it as a source's ``latestOffset``.

Spark asks after every trigger, idle ones too (4.2, 4.3), so a task of its own counts, and only now
and then. What this run has done itself is always exact.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import LaneId
from cassieq_spark.options import SourceOptions
from cassieq_spark.queue.inspect import stats
from cassieq_spark.queue.inspect.stats import QueueStats
from cassieq_spark.queue.lane import Lane
from cassieq_spark.spark.source.subscription import Subscription
from cassieq_spark.store.store import Store

REPORT_VERSION: Final = 1
FIRST_COUNT_S: Final = 0.5
"""The time that the first report waits for its counts: a short query has no other report."""

COUNTS: Final = ("lag", "in_flight", "delayed", "dead", "oldest_age_s", "counted_at")

_logger = get_logger("spark")


class _Count(NamedTuple):
    """The count of one queue.

    Attributes:
        was_quiet: Nothing was happening in it, so that the count stays true until something does.
    """

    stats: QueueStats
    at: datetime
    was_quiet: bool


class Lag:
    """The lag of one run of one query."""

    def __init__(self, store: Store, subscription: Subscription, options: SourceOptions) -> None:
        self._store = store
        self._subscription = subscription
        self._options = options
        self._counting: asyncio.Task[None] | None = None
        self._counted: dict[LaneId, _Count] = {}
        self._due = 0.0

    async def report(self) -> dict[str, Any]:
        """The report for the query's progress; the counts are null until they are known.

        ``queues``: an entry per queue. ``lag``: visible messages; ``in_flight``: leased ones, of
        all consumers; ``oldest_age_s``: age of the oldest message that nobody has acked; all as of
        ``counted_at``. The same for all queues together, as of the earliest count.
        ``claimed``, ``redelivered``, ``acked`` (messages) and ``leases_lost``: by this run.
        """
        await self._count_if_due()
        queues = self._subscription.queues
        counts = {queue.name: self._counted.get(queue.lane.lane_id) for queue in queues}
        return {
            "v": REPORT_VERSION,
            "queue": str(self._options.queues),
            "ack_mode": self._options.ack_mode,
            "min_messages": self._options.min_messages_per_trigger or 0,
            **_total(list(counts.values())),
            "claimed": metrics.MESSAGES_CLAIMED.value,
            "redelivered": metrics.REDELIVERED.value,
            "acked": metrics.MESSAGES_ACKED.value,
            "leases_lost": metrics.LEASES_LOST.value,
            "queues": [
                {"queue": one.name, "lane": str(one.lane.lane_id), **_total([counts[one.name]])}
                for one in queues
            ],
        }

    async def close(self) -> None:
        """Return when nothing counts any more."""
        if self._counting is not None:
            await asyncio.wait([self._counting])

    async def _count_if_due(self) -> None:
        now = self._store.clock.monotonic()
        is_under_way = self._counting is not None and not self._counting.done()
        if now < self._due or is_under_way:
            return
        # While nothing happens in a queue, its last count stays true (I9).
        still = {lane_id for lane_id, count in self._counted.items() if count.was_quiet}
        todo = [
            (queue.lane, queue.reader.is_quiet)
            for queue in self._subscription.queues
            if not (queue.reader.is_quiet and queue.lane.lane_id in still)
        ]
        if not todo:
            return
        self._due = now + self._options.lag_interval_s
        self._counting = asyncio.get_running_loop().create_task(self._count(todo))
        if not self._counted:
            await asyncio.wait([self._counting], timeout=FIRST_COUNT_S)

    async def _count(self, todo: list[tuple[Lane, bool]]) -> None:
        counted = await self._store.session.each(lambda one: stats.stats(one[0]), todo)
        at = datetime.fromtimestamp(self._store.clock.now_us() / 1e6, UTC)
        for (lane, was_quiet), one in zip(todo, counted, strict=True):
            if isinstance(one, CassieqError):
                event(_logger, "lag_unknown", queue=lane.queue, error=str(one))
            else:
                self._counted[lane.lane_id] = _Count(one, at, was_quiet)
        here = {queue.lane.lane_id for queue in self._subscription.queues}
        self._counted = {at: one for at, one in self._counted.items() if at in here}


def _total(counts: list[_Count | None]) -> dict[str, Any]:
    """The counts of some queues together; null if that of one is not known."""
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or not known:
        return dict.fromkeys(COUNTS)
    ages = [count.stats.oldest_age for count in known if count.stats.oldest_age is not None]
    return {
        "lag": sum(count.stats.visible for count in known),
        "in_flight": sum(count.stats.in_flight for count in known),
        "delayed": sum(count.stats.delayed for count in known),
        "dead": sum(count.stats.dead for count in known),
        "oldest_age_s": max(ages, default=None),
        "counted_at": min(count.at for count in known).isoformat(),
    }
