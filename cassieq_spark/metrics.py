"""Count what this process has done since it began. Every counter is here, with a unit in its name.

The contents of queues are read from their tables, never from a counter that could drift. Counters
are plain numbers, which `exporter` hands to prometheus_client: Spark's workers must not import
that, and programs read the numbers here (ADR 28).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, TypeVar

T = TypeVar("T", "Counter", "LabelledCounter")

PREFIX: Final = "cassieq_"
"""The prefix of all names in Prometheus."""

MOST_TEXTS: Final = 10_000
"""The most texts of a label in one process, by last use. A process that sees ever new queues
must not grow for ever."""

OTHERS: Final = "(others)"
"""The text that takes over the counts of dropped texts, so that sums only grow. They move there
at once: do not read it as a rate."""


QUEUE: Final = "queue"
"""The label of counters that count by queue."""


class Counter:
    """A number that only grows. Thread-safe."""

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning
        self._lock = threading.Lock()
        self._value = 0

    def inc(self, by: int = 1) -> None:
        """Add ``by``, 0 or more."""
        if by < 0:
            raise ValueError(f"{self.name} only grows, not by {by}")
        with self._lock:
            self._value += by

    @property
    def value(self) -> int:
        """The count since the process began."""
        return self._value


class LabelledCounter:
    """Numbers that only grow, one for each value of one label. Thread-safe."""

    def __init__(self, name: str, meaning: str, *, label: str) -> None:
        self.name = name
        self.meaning = meaning
        self.label = label
        self._lock = threading.Lock()
        self._values: OrderedDict[str, int] = OrderedDict()
        self._others = 0

    def inc(self, text: str, by: int = 1) -> None:
        """Add ``by``, 0 or more, to the count of this text; see `MOST_TEXTS`."""
        if by < 0:
            raise ValueError(f"{self.name} only grows, not by {by}")
        with self._lock:
            self._values[text] = self._values.get(text, 0) + by
            self._values.move_to_end(text)
            while len(self._values) > MOST_TEXTS:
                self._others += self._values.popitem(last=False)[1]

    def forget(self, text: str) -> None:
        """Move the count of this text to `OTHERS`: its subject is gone."""
        with self._lock:
            self._others += self._values.pop(text, 0)

    @property
    def values(self) -> dict[str, int]:
        """Return the counts by the label's text, since the process began."""
        with self._lock:
            others = {OTHERS: self._others} if self._others else {}
            return {**self._values, **others}

    @property
    def value(self) -> int:
        """The sum of all counts since the process began."""
        return sum(self.values.values())


@dataclass(frozen=True, slots=True)
class Family:
    """A metric that exists only where a process exports metrics, by `exporter`.

    Attributes:
        name: Without `PREFIX`.
        labels: Each has few values: names of queues, or words from a fixed list.
        kind: ``counter``, ``gauge`` or ``histogram``, as Prometheus knows them.
    """

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    kind: str = field(default="gauge", kw_only=True)

    @property
    def exported(self) -> str:
        """The name in Prometheus."""
        return PREFIX + self.name


_ALL: dict[str, Counter | LabelledCounter] = {}


def _counter(name: str, meaning: str) -> Counter:
    return _declare(Counter(name, meaning))


def _by_queue(name: str, meaning: str) -> LabelledCounter:
    return _by(QUEUE, name, meaning)


def _by(label: str, name: str, meaning: str) -> LabelledCounter:
    return _declare(LabelledCounter(name, meaning, label=label))


def _declare(counter: T) -> T:
    if counter.name in _ALL:
        raise ValueError(f"two counters are named {counter.name}")
    _ALL[counter.name] = counter
    return counter


def every_counter() -> tuple[Counter | LabelledCounter, ...]:
    """Return all counters, for the reference and for exporters."""
    return tuple(_ALL.values())


def counted_queues() -> set[str]:
    """Return the queues that have counts of their own."""
    return {name for one in _of_queues() for name in one.values if name != OTHERS}


def forget_queue(name: str) -> None:
    """Move the counts of a queue that is gone to `OTHERS`."""
    for counter in _of_queues():
        counter.forget(name)


def _of_queues() -> list[LabelledCounter]:
    counters = [one for one in _ALL.values() if isinstance(one, LabelledCounter)]
    return [one for one in counters if one.label == QUEUE]


def snapshot() -> dict[str, int]:
    """Return all counters by name, and each count of a labelled one as ``name{text}``."""
    found: dict[str, int] = {}
    for counter in _ALL.values():
        found[counter.name] = counter.value
        if isinstance(counter, LabelledCounter):
            found |= {f"{counter.name}{{{text}}}": n for text, n in counter.values.items()}
    return found


STATEMENTS: Final = _by(
    "statement", "statements_total", "Statements sent to Cassandra, by statement name."
)
RETRIES: Final = _counter(
    "statements_retried_total", "Statements sent again because they were not answered."
)
CAS_APPLIED: Final = _counter("cas_applied_total", "Conditional writes that took effect.")
CAS_REFUSED: Final = _counter(
    "cas_refused_total", "Conditional writes that lost against another client."
)
CAS_UNKNOWN: Final = _counter("cas_unknown_total", "Conditional writes whose answer was lost.")
MESSAGES_PUT: Final = _by_queue(
    "messages_put_total", "Messages that clients put and Cassandra acknowledged."
)
MESSAGES_CLAIMED: Final = _by_queue("messages_claimed_total", "Messages leased.")
REDELIVERED: Final = _by_queue(
    "messages_redelivered_total", "Messages leased for a second or later delivery."
)
MESSAGES_EXPIRED: Final = _by_queue(
    "messages_expired_total",
    "Messages that expired undelivered, and that this process took out.",
)
MESSAGES_CANCELLED: Final = _by_queue(
    "messages_cancelled_total", "Messages taken back before anybody was given them."
)
MESSAGES_DUPLICATE: Final = _by_queue(
    "messages_duplicate_total", "Puts whose deduplication key was put already: nothing was stored."
)
MESSAGES_ACKED: Final = _by_queue("messages_acked_total", "Messages acknowledged.")
MESSAGES_PREPARED: Final = _by_queue(
    "messages_prepared_total", "Messages written in bulk by sinks."
)
ACKS: Final = _counter("acked_buckets_total", "Buckets in which messages were acknowledged.")
LEASES_LOST: Final = _by_queue(
    "leases_lost_total", "Leases that ran out before their messages were settled."
)
LEASE_RENEWALS: Final = _counter("lease_renewals_total", "Buckets whose leases were extended.")
CHUNKS_WRITTEN: Final = _counter("chunks_written_total", "Chunks sent to Cassandra.")
BYTES_WRITTEN: Final = _counter(
    "chunk_bytes_written_total", "Encoded bytes of the chunks sent to Cassandra."
)
NODE_CLOCKS_WRONG: Final = _by(
    "node",
    "node_clock_wrong_total",
    "Measurements, one a minute, in which a Cassandra node's clock was more than a second apart "
    "from the others'.",
)
SCHEDULE_PASSES: Final = _counter(
    "schedule_passes_total", "Passes over all schedules that this process ran."
)
SCHEDULE_FAILURES: Final = _counter(
    "schedule_failures_total", "Schedules that a pass could not fill. The next pass tries it again."
)
SCHEDULE_MISFIRES: Final = _by_queue(
    "schedule_misfires_total",
    "Touches of schedules that found times which were over and not put, since nobody dispatched.",
)
HTTP_REFUSED: Final = _by(
    "status",
    "http_refused_total",
    "Connections that a gateway refused before there was a whole request, by HTTP status.",
)

# --- the leader's counts of all queues, see `exporter.scan` ---------------------------------------

QUEUE_MESSAGES: Final = Family(
    "queue_messages",
    "Messages in the queue by state: visible, in_flight, delayed, scheduled, dead. Dead ones wait "
    "for repair to move them. A message has one state.",
    ("queue", "state"),
)
QUEUE_VISIBLE: Final = Family(
    "queue_visible_messages", "Visible messages in the queue by priority.", ("queue", "priority")
)
QUEUE_OLDEST: Final = Family(
    "queue_oldest_message_age_seconds",
    "Seconds since the oldest message was put that is not acked; 0 if there is none.",
    ("queue",),
)
QUEUE_BUCKETS: Final = Family(
    "queue_buckets",
    "Buckets that repair has not dropped, by status. They are what a scan reads.",
    ("queue", "status"),
)
QUEUE_INFO: Final = Family(
    "queue_info",
    "Always 1: the queue exists, and has this dead-letter queue, if any.",
    ("queue", "dead_letter_queue"),
)
QUEUE_PAUSED: Final = Family(
    "queue_paused",
    "1 if this priority of the queue is paused, so that no get returns its messages; otherwise 0.",
    ("queue", "priority"),
)
OF_QUEUES: Final = (
    QUEUE_MESSAGES,
    QUEUE_VISIBLE,
    QUEUE_OLDEST,
    QUEUE_BUCKETS,
    QUEUE_INFO,
    QUEUE_PAUSED,
)

SCAN_LEADER: Final = Family(
    "scan_leader", "1 in the process that counts the queues for all, and 0 in the others."
)
SCAN_AGE: Final = Family(
    "scan_age_seconds",
    "Seconds since the leader's last scan began: how old the figures of queues are.",
)
SCAN_DURATION: Final = Family("scan_duration_seconds", "Seconds that the leader's last scan took.")
SCAN_QUEUES: Final = Family(
    "scan_queues",
    "Queues that the last scan found, by whether they were counted or did not answer.",
    ("outcome",),
)
SCHEDULES: Final = Family("schedules", "Schedules of the data centre, paused ones among them.")
SCHEDULES_LATE: Final = Family(
    "schedules_late_seconds",
    "Seconds since the first time of a schedule that is over and was not put, of the schedule "
    "that is latest; 0 if all keep up.",
)
OF_SCANS: Final = (
    SCAN_LEADER, SCAN_AGE, SCAN_DURATION, SCAN_QUEUES, SCHEDULES, SCHEDULES_LATE,
)  # fmt: skip

# --- passes of repair, in the process that runs them ----------------------------------------------

PASS_ENDED: Final = Family(
    "repair_last_pass_timestamp_seconds",
    "Unix time at which the last pass over all queues came to its end; 0 if this process shall run "
    "passes, and none has ended yet. work is repair or verify.",
    ("work",),
)
PASS_PROBLEMS: Final = Family(
    "repair_problems", "What the last pass could not do or look at.", ("work",)
)
VERIFY_FINDINGS: Final = Family("verify_findings", "Broken invariants that the last verify found.")
OF_PASSES: Final = (PASS_ENDED, PASS_PROBLEMS, VERIFY_FINDINGS)

# --- what a gateway does --------------------------------------------------------------------------

HTTP_DURATION: Final = Family(
    "http_request_duration_seconds",
    "Seconds from a request to the end of its answer. A long poll counts with its wait.",
    ("api", "operation"),
    kind="histogram",
)
HTTP_ERRORS: Final = Family(
    "http_errors_total",
    "Requests that were answered with an error, by its code and HTTP status.",
    ("api", "code", "status"),
    kind="counter",
)
HTTP_ENTRY_ERRORS: Final = Family(
    "http_entry_errors_total",
    "Entries that failed in batches that were answered 200, by the error's code and its "
    "equivalent HTTP status.",
    ("api", "code", "status"),
    kind="counter",
)
HTTP_IN_FLIGHT: Final = Family(
    "http_requests_in_flight",
    "Requests that are not answered yet, long polls among them.",
    ("api",),
)
LONG_POLLS: Final = Family("long_polls_waiting", "Requests that wait for a message.")
CLIENT_CALLS: Final = Family(
    "client_calls", "Calls of the client that are under way or wait for their turn."
)
CLIENT_CALLS_LIMIT: Final = Family("client_calls_limit", "Calls of the client at once: --calls.")
OF_GATEWAYS: Final = (
    HTTP_DURATION, HTTP_ERRORS, HTTP_ENTRY_ERRORS, HTTP_IN_FLIGHT, LONG_POLLS, CLIENT_CALLS,
    CLIENT_CALLS_LIMIT,
)  # fmt: skip
