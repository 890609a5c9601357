"""`LastRows`: bucket rows as this client's own CAS left them, so that the next one needs no read.

A row that somebody else has changed since is no danger: each CAS is conditional on the version it
was made from (G2), and is refused. But a refused LWT costs more than the read it was to save. So
where others change rows too, they are read again for a while.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.store.cas import Applied

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from cassieq_spark.clock import Clock
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo, LaneId
    from cassieq_spark.store.cas import Outcome, Stored

    Key = tuple[LaneId, BucketNo]

KEPT_ROWS: Final = 64
"""How many rows are kept: what a program holds at a time is mostly in one or two buckets."""

KEPT_BYTES: Final = 1 << 14
"""Rows with more bytes of claims are not kept."""

SHARED_ROWS: Final = 1_024
"""Of how many rows it is remembered that others change them."""

SHARED_FOR_S: Final = 10.0
"""How long a row is read before each CAS, after somebody else has changed it meanwhile."""

ALONE: Final = 4
"""Or until so many CASes of ours were applied in a row, with none of others between them."""


@dataclass(slots=True)
class _Shared:
    """A row that somebody else changes, too."""

    until: float
    times_alone: int = 0


class LastRows:
    """What one client remembers of the buckets of all its lanes. Thread-safe."""

    def __init__(self, client_id: UUID, *, clock: Callable[[], Clock]) -> None:
        self._client_id = client_id
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: OrderedDict[Key, Stored[Bucket]] = OrderedDict()
        self._shared: OrderedDict[Key, _Shared] = OrderedDict()

    def of(self, key: Key) -> Stored[Bucket] | None:
        """The row as this client has left it, if nobody else seems to change it."""
        with self._lock:
            return self._rows.get(key)

    def forget(self, key: Key) -> None:
        """This row is about to be changed: until that is answered, nobody knows how it is."""
        with self._lock:
            self._rows.pop(key, None)

    def note(self, key: Key, old: Stored[Bucket], outcome: Outcome[Bucket], *, size: int) -> None:
        """Learn from a CAS from ``old`` that has written ``size`` bytes of claims."""
        now = outcome.now
        if now is None:
            return
        with self._lock:
            if not self._is_own(now):
                until = self._clock().monotonic() + SHARED_FOR_S
                self._shared[key] = _Shared(until=until)
                self._shared.move_to_end(key)
                _shorten(self._shared, SHARED_ROWS)
            elif isinstance(outcome, Applied) and self._is_alone(key, old) and size <= KEPT_BYTES:
                self._rows[key] = now
                _shorten(self._rows, KEPT_ROWS)

    def _is_alone(self, key: Key, old: Stored[Bucket]) -> bool:
        """Whether nobody else seems to change a row, now that we have done so once more."""
        shared = self._shared.get(key)
        if shared is None:
            return True
        shared.times_alone = shared.times_alone + 1 if self._is_own(old) else 0
        if shared.times_alone < ALONE and self._clock().monotonic() < shared.until:
            return False
        del self._shared[key]
        return True

    def _is_own(self, row: Stored[Bucket]) -> bool:
        """Whether this client was the last one to change it, by whatever thread."""
        return row.version.last_client == self._client_id


def _shorten(kept: OrderedDict[Key, Any], at_most: int) -> None:
    while len(kept) > at_most:
        kept.popitem(last=False)
