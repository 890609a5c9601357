"""Every counter of the package: of this process, since it began. Units are in the names."""

from __future__ import annotations

import threading
from typing import Final


class Counter:
    """A number that only grows. Thread-safe."""

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning
        self._lock = threading.Lock()
        self._value = 0

    def inc(self, by: int = 1) -> None:
        """Add."""
        with self._lock:
            self._value += by

    @property
    def value(self) -> int:
        """Since the process began."""
        return self._value


_ALL: dict[str, Counter] = {}


def _counter(name: str, meaning: str) -> Counter:
    return _ALL.setdefault(name, Counter(name, meaning))


CAS_APPLIED: Final = _counter("cas_applied_total", "Conditional writes that took effect.")
CAS_REFUSED: Final = _counter("cas_refused_total", "Conditional writes that lost to another.")
CAS_UNKNOWN: Final = _counter("cas_unknown_total", "Conditional writes whose answer was lost.")
MESSAGES_CLAIMED: Final = _counter("messages_claimed_total", "Messages leased.")
MESSAGES_ACKED: Final = _counter("messages_acked_total", "Messages acknowledged.")
MESSAGES_PREPARED: Final = _counter("messages_prepared_total", "Messages written in bulk.")
ACKS: Final = _counter("ack_writes_total", "Buckets in which messages were acknowledged.")
LEASES_LOST: Final = _counter("leases_lost_total", "Leases that ended before their ack.")
LEASE_RENEWALS: Final = _counter("lease_renewals_total", "Buckets whose leases were extended.")
CHUNKS_WRITTEN: Final = _counter("chunks_written_total", "Chunks sent to Cassandra.")
BYTES_WRITTEN: Final = _counter("chunk_bytes_written_total", "Encoded bytes of those chunks.")


def snapshot() -> dict[str, int]:
    """All counters by name."""
    return {name: counter.value for name, counter in _ALL.items()}
