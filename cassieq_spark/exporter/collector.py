"""Make metrics of Prometheus from what this process counts, and from the last scan if it leads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cassieq_spark import metrics
from cassieq_spark.exporter.scan import Counted, Scanner
from cassieq_spark.metrics import Counter, Family
from cassieq_spark.repair import outcome
from cassieq_spark.repair.outcome import Samples


def registry_of(scanner: Scanner) -> CollectorRegistry:
    """A registry with the metrics of this process, and those of queues while it leads."""
    found = CollectorRegistry()
    ProcessCollector(registry=found)
    PlatformCollector(registry=found)
    found.register(_Ours(scanner))
    return found


class _Ours(Collector):
    """The counters of `metrics`, the passes of repair that this process ran, and the queues."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner

    def collect(self) -> Iterator[Metric]:
        for counter in metrics.every_counter():
            name = metrics.PREFIX + counter.name
            if isinstance(counter, Counter):
                yield CounterMetricFamily(name, counter.meaning, value=counter.value)
                continue
            family = CounterMetricFamily(name, counter.meaning, labels=[counter.label])
            for text, value in counter.values.items():
                family.add_metric([text], value)
            yield family
        for gauge, samples in {**self._of_scan(), **outcome.samples()}.items():
            yield _gauge(gauge, samples)

    def _of_scan(self) -> dict[Family, Samples]:
        """The figures of queues, in the process that leads; in the others only that they do not."""
        self._scanner.note_scrape()
        scan = self._scanner.last
        leads: dict[Family, Samples] = {metrics.SCAN_LEADER: [((), int(self._scanner.is_leader))]}
        if scan is None:
            return leads
        return {
            **leads,
            metrics.SCAN_AGE: [((), self._scanner.age_s(scan))],
            metrics.SCAN_DURATION: [((), scan.took_s)],
            metrics.SCAN_QUEUES: [
                (("counted",), len(scan.queues)),
                (("unanswered",), scan.unanswered),
            ],
            **_of_schedules(scan.schedules),
            **_of_queues(scan.queues),
        }


def _of_schedules(found: tuple[int, float] | None) -> dict[Family, Samples]:
    both = metrics.SCHEDULES, metrics.SCHEDULES_LATE
    return {} if found is None else {of: [((), one)] for of, one in zip(both, found, strict=True)}


def _of_queues(queues: Iterable[Counted]) -> dict[Family, Samples]:
    found: dict[Family, Samples] = {family: [] for family in metrics.OF_QUEUES}
    for one in queues:
        of, name = one.stats, one.queue
        states = {
            "visible": of.visible,
            "in_flight": of.in_flight,
            "delayed": of.delayed,
            "scheduled": of.scheduled,
            "dead": of.dead,
        }
        found[metrics.QUEUE_MESSAGES] += [((name, state), n) for state, n in states.items()]
        found[metrics.QUEUE_VISIBLE] += [
            ((name, str(priority)), n) for priority, n in of.by_priority.items()
        ]
        found[metrics.QUEUE_PAUSED] += [
            ((name, str(priority)), int(priority in of.paused)) for priority in of.by_priority
        ]
        found[metrics.QUEUE_OLDEST].append(((name,), of.oldest_age or 0.0))
        found[metrics.QUEUE_BUCKETS] += [((name, status), n) for status, n in of.buckets.items()]
        found[metrics.QUEUE_INFO].append(((name, one.dead_letter_queue or ""), 1))
    return found


def _gauge(family: Family, samples: Samples) -> Metric:
    gauge = GaugeMetricFamily(family.exported, family.meaning, labels=family.labels)
    for labels, value in samples:
        gauge.add_metric(labels, value)
    return gauge
