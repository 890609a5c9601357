"""`CassieqListener` reports a query's lag to the log and Prometheus, and acks its last batch."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from cassieq_spark.errors import CassieqError, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.offset import SourceOffset, by_bucket
from cassieq_spark.options import ConnectionArguments, connection_of
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.settle.batches import ack_leases
from cassieq_spark.store import portal
from cassieq_spark.store.store import opened

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

GAUGES: Final = {
    "lag": ("cassieq_messages_lag", "Visible messages that no batch has taken yet."),
    "in_flight": ("cassieq_messages_in_flight", "Leased messages, of all consumers of the queue."),
    "delayed": ("cassieq_messages_delayed", "Messages that are not due yet."),
    "dead": ("cassieq_messages_dead", "Dead messages that wait for repair to move them."),
    "oldest_age_s": (
        "cassieq_oldest_message_age_seconds",
        "Seconds since the oldest message was put that is not acked; 0 if there is none.",
    ),
}
COUNTERS: Final = {
    "claimed": ("cassieq_messages_claimed", "Messages that the query has leased."),
    "redelivered": (
        "cassieq_messages_redelivered",
        "Messages that the query has leased for a second or later delivery.",
    ),
    "acked": ("cassieq_messages_acked", "Messages that the query has acked."),
    "leases_lost": (
        "cassieq_leases_lost",
        "Leases of the query that ended before their messages were acked.",
    ),
}

_logger = get_logger("spark")


class CassieqListener(StreamingQueryListener):
    """Watch all queries that read a queue: ``spark.streams.addListener(CassieqListener())``.

    Each progress is logged as event ``query_progress``: the lag, the age of the oldest message, and
    the messages in flight, redelivered and acked. With connection options the listener also acks
    the last batch of a query that has ended, if Spark has committed it: Spark tells a source only
    with the next batch (4.2, 4.3). Without them, those messages stay leased until the query is
    started again, or until their lease ends and others get them a second time.

    Args:
        contact_points, connection: As for `cassieq_spark.connect`; ``CASSIEQ_*`` variables count.
            If nothing is given: no acks.

    Raises:
        OptionUnknown, OptionInvalid: A connection option is wrong.
    """

    def __init__(
        self,
        *,
        contact_points: str | Sequence[str] | None = None,
        **connection: Unpack[ConnectionArguments],
    ) -> None:
        super().__init__()
        self._connection = None
        if connection or contact_points is not None:
            self._connection = connection_of(connection, contact_points, of="CassieqListener")
        self._lock = threading.Lock()
        self._names: dict[UUID, str] = {}
        self._ends: dict[UUID, list[tuple[dict[str, Any], SourceOffset]]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Remember the query's name."""
        with self._lock:
            self._names[event.runId] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Note a committed batch: Spark reports progress after it writes its commit log."""
        progress = event.progress
        ends = [
            (report, SourceOffset.from_json(json.loads(source.endOffset)))
            for source in progress.sources
            if (report := _report(source.latestOffset)) is not None
        ]
        with self._lock:
            name = self._names.setdefault(progress.runId, progress.name or str(progress.id))
            if ends:
                self._ends[progress.runId] = ends
        for report, _ in ends:
            _log(name, progress.batchId, report)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note that too little was visible for a batch, or nothing: no progress reports that."""
        with self._lock:
            for report, _ in self._ends.get(event.runId, []):
                if not report["min_messages"]:
                    for one in (report, *report["queues"]):
                        one |= {"lag": 0, "oldest_age_s": None}

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Ack the last batch that Spark has committed; a later one stays leased for a restart."""
        with self._lock:
            self._names.pop(event.runId, None)
            ends = self._ends.pop(event.runId, [])
        for report, end in ends:
            if self._connection is not None and report["ack_mode"] == "commit":
                self._ack(end)

    def prometheus(self) -> str:
        """Return all queries' figures as Prometheus text.

        Raises:
            UsageError: Package prometheus_client is missing.
        """
        from prometheus_client import generate_latest  # noqa: PLC0415 - an extra of the package

        return generate_latest(self._registry()).decode()

    def serve(self, port: int, address: str = "127.0.0.1", host_names: Collection[str] = ()) -> int:
        """Let Prometheus scrape ``http://address:port/metrics``; return the port (0: a free one).

        Args:
            host_names: Names by which Prometheus asks, besides addresses and localhost. Requests
                for other names are refused.

        Raises:
            UsageError: Package prometheus_client is missing, or nobody can listen there.
            OptionInvalid: A name is not a host name.
        """
        registry = self._registry()
        from cassieq_spark.exporter.listen import metrics, start  # noqa: PLC0415 - as above

        server, _ = start(metrics(registry), address, port, host_names)
        return int(server.server_port)

    def collect(self) -> Iterable[Any]:
        """Yield the metrics for a registry of prometheus_client."""
        from prometheus_client.core import (  # noqa: PLC0415 - as above
            CounterMetricFamily,
            GaugeMetricFamily,
        )

        with self._lock:
            reports = [
                (self._names.get(run, str(run)), copy.deepcopy(report))
                for run, ends in self._ends.items()
                for report, _ in ends
            ]
        for key, (name, meaning) in GAUGES.items():
            gauge = GaugeMetricFamily(name, meaning, labels=["query", "queue"])
            for query, report in reports:
                for one in report["queues"]:
                    if one["lag"] is not None:
                        gauge.add_metric([query, one["queue"]], one[key] or 0)
            yield gauge
        for key, (name, meaning) in COUNTERS.items():
            counter = CounterMetricFamily(name, meaning, labels=["query", "queue"])
            for query, report in reports:
                counter.add_metric([query, report["queue"]], report[key])
            yield counter

    def _registry(self) -> CollectorRegistry:
        try:
            from prometheus_client import CollectorRegistry  # noqa: PLC0415 - as above
        except ImportError as error:
            raise UsageError(
                "Prometheus text needs the package prometheus_client. Install "
                "'cassieq_spark[prometheus]'"
            ) from error
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def _ack(self, end: SourceOffset) -> None:
        if self._connection is None or not end.leases:
            return
        try:
            with opened(self._connection) as store:
                for queue, leases in end.by_queue().items():
                    lane = portal.run(open_lane(store, queue))
                    if lane.lane_id == end.queues[queue]:
                        portal.run(ack_leases(lane, by_bucket(leases)))
        except CassieqError as error:
            event(_logger, "last_ack_failed", queue=", ".join(end.queues), error=str(error))


def _report(latest: str | None) -> dict[str, Any] | None:
    """The report of `spark.source.lag.Lag`; None for another source."""
    try:
        found = json.loads(latest or "null")
    except ValueError:
        return None
    if not isinstance(found, Mapping) or not {"queues", "lag", "ack_mode"} <= found.keys():
        return None
    return dict(found)


def _log(query: str, batch_id: int, report: Mapping[str, Any]) -> None:
    shown = ("queue", *GAUGES, *COUNTERS)
    event(
        _logger,
        "query_progress",
        query=query,
        batch=batch_id,
        **{name: report[name] for name in shown},
    )
