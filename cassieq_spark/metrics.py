"""Count what this process does, since it began. Every counter is here, with its unit in its name.

Look here for what is counted. What a queue holds is asked from its tables, never from a counter
that could drift from them.
"""

from __future__ import annotations

import threading
from typing import Final, TypeVar

T = TypeVar("T", "Counter", "LabelledCounter")


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
    """Numbers that only grow, one for each label that was counted. Thread-safe."""

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning
        self._lock = threading.Lock()
        self._counters: dict[str, Counter] = {}

    def inc(self, label: str, by: int = 1) -> None:
        """Add ``by``, 0 or more, to the count of this label."""
        with self._lock:
            counter = self._counters.setdefault(label, Counter(self.name, self.meaning))
        counter.inc(by)

    @property
    def values(self) -> dict[str, int]:
        """The counts by label, since the process began."""
        with self._lock:
            return {label: counter.value for label, counter in self._counters.items()}


_ALL: dict[str, Counter | LabelledCounter] = {}


def _counter(name: str, meaning: str) -> Counter:
    return _declare(Counter(name, meaning))


def _declare(counter: T) -> T:
    if counter.name in _ALL:
        raise ValueError(f"two counters are named {counter.name}")
    _ALL[counter.name] = counter
    return counter


def every_counter() -> tuple[Counter | LabelledCounter, ...]:
    """All counters, for the reference and for exporters."""
    return tuple(_ALL.values())


def snapshot() -> dict[str, int]:
    """All counters by name; a labelled one as ``name{label}`` for each label that was counted."""
    found: dict[str, int] = {}
    for counter in _ALL.values():
        if isinstance(counter, Counter):
            found[counter.name] = counter.value
        else:
            found |= {f"{counter.name}{{{label}}}": n for label, n in counter.values.items()}
    return found


STATEMENTS: Final = _declare(
    LabelledCounter("statements_total", "Statements sent to Cassandra, by statement name.")
)
RETRIES: Final = _counter(
    "statements_again_total", "Statements sent again because they were not answered."
)
CAS_APPLIED: Final = _counter("cas_applied_total", "Conditional writes that took effect.")
CAS_REFUSED: Final = _counter(
    "cas_refused_total", "Conditional writes that lost against another client."
)
CAS_UNKNOWN: Final = _counter("cas_unknown_total", "Conditional writes whose answer was lost.")
MESSAGES_PUT: Final = _counter(
    "messages_put_total", "Messages that clients put and Cassandra acknowledged."
)
MESSAGES_CLAIMED: Final = _counter("messages_claimed_total", "Messages leased.")
REDELIVERED: Final = _counter(
    "redelivered_total", "Messages leased for a second or later delivery."
)
MESSAGES_EXPIRED: Final = _counter(
    "messages_expired_total",
    "Messages taken out because nobody was given them in time, by this process.",
)
MESSAGES_CANCELLED: Final = _counter(
    "messages_cancelled_total", "Messages taken back before anybody was given them."
)
MESSAGES_DUPLICATE: Final = _counter(
    "messages_duplicate_total", "Puts whose deduplication key was put already: nothing was stored."
)
MESSAGES_ACKED: Final = _counter("messages_acked_total", "Messages acknowledged.")
MESSAGES_PREPARED: Final = _counter("messages_prepared_total", "Messages written in bulk by sinks.")
ACKS: Final = _counter("ack_writes_total", "Buckets in which messages were acknowledged.")
LEASES_LOST: Final = _counter(
    "leases_lost_total", "Leases that ended before their messages were acked."
)
LEASE_RENEWALS: Final = _counter("lease_renewals_total", "Buckets whose leases were extended.")
CHUNKS_WRITTEN: Final = _counter("chunks_written_total", "Chunks sent to Cassandra.")
BYTES_WRITTEN: Final = _counter(
    "chunk_bytes_written_total", "Encoded bytes of the chunks sent to Cassandra."
)
