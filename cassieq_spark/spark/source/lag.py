"""Report how far a streaming query is behind; Spark shows it as a source's ``latestOffset``.

Spark asks after every trigger, idle ones too (4.2, 4.3), so a separate thread counts, and only now
and then. What this run has done itself is always exact.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.queue.inspect import stats

if TYPE_CHECKING:
    from cassieq_spark.options import SourceOptions
    from cassieq_spark.queue.get.lanes import Readers
    from cassieq_spark.queue.inspect.stats import QueueStats
    from cassieq_spark.queue.lane import Lane

REPORT_VERSION: Final = 1
FIRST_COUNT_S: Final = 0.5
"""How long the first report waits for its counts: a short query has no other report."""

_logger = get_logger("spark")


class Lag:
    """The lag of one run of one query."""

    def __init__(self, lane: Lane, reader: Readers, options: SourceOptions) -> None:
        self._lane = lane
        self._reader = reader
        self._options = options
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="cassieq-lag")
        self._counting: Future[None] | None = None
        self._counted: tuple[QueueStats, datetime] | None = None
        self._due = 0.0
        self._was_quiet = False

    def report(self) -> dict[str, Any]:
        """The report for the query's progress; the counts are null until they are known.

        ``behind``: visible messages; ``in_flight``: leased ones, of all consumers;
        ``oldest_age_s``: age of the oldest message that nobody has acked; all as of ``counted_at``.
        ``claimed``, ``redelivered``, ``acked`` (messages) and ``leases_lost``: by this run.
        """
        self._count_if_due()
        counted, counted_at = self._counted or (None, None)
        return {
            "v": REPORT_VERSION,
            "queue": self._lane.queue,
            "lane": str(self._lane.lane_id),
            "ack_mode": self._options.ack_mode,
            "min_messages": self._options.min_messages_per_trigger or 0,
            "behind": None if counted is None else counted.visible,
            "in_flight": None if counted is None else counted.invisible,
            "delayed": None if counted is None else counted.delayed,
            "dead": None if counted is None else counted.dead,
            "oldest_age_s": None if counted is None else counted.oldest_age,
            "counted_at": None if counted_at is None else counted_at.isoformat(),
            "claimed": metrics.MESSAGES_CLAIMED.value,
            "redelivered": metrics.REDELIVERED.value,
            "acked": metrics.MESSAGES_ACKED.value,
            "leases_lost": metrics.LEASES_LOST.value,
        }

    def close(self) -> None:
        """End the thread."""
        self._aside.shutdown()

    def _count_if_due(self) -> None:
        now = self._lane.clock.monotonic()
        is_under_way = self._counting is not None and not self._counting.done()
        # While nothing happens in the queue, its last count stays true (I9).
        is_known = self._was_quiet and self._reader.is_quiet
        if now < self._due or is_under_way or is_known:
            return
        self._due = now + self._options.lag_interval_s
        self._was_quiet = self._reader.is_quiet
        self._counting = self._aside.submit(self._count)
        if self._counted is None:
            wait([self._counting], FIRST_COUNT_S)

    def _count(self) -> None:
        try:
            counted = stats.stats(self._lane)
        except CassieqError as error:
            event(_logger, "lag_unknown", queue=self._lane.queue, error=str(error))
            return
        self._counted = counted, datetime.fromtimestamp(self._lane.clock.now_us() / 1e6, UTC)
