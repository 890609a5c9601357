"""Track how much one call may still claim: messages, bytes as stored, and runs of ids."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.lease import visible
from cassieq_spark.model.row_limits import LEASES_PER_CLAIM, RUNS_PER_LEASE

if TYPE_CHECKING:
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.queue.get.claim import Claimed

RUNS_PER_CALL: Final = 8_192
"""The most runs that one call claims. A batch's offset has an entry of about 60 bytes for each run
of ids, and Spark keeps a hundred offsets. The limit matters only where single messages came back,
bucket after bucket."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """The rest of a call's limits.

    Attributes:
        messages: How many more messages.
        size_bytes: How many more bytes, by the mean of each bucket; None: no limit.
        is_untouched: Nothing was taken yet: then one message fits, however large it is, or a queue
            of large messages would stand still (I10).
        runs: About how many more runs: a bucket gives all that one claim takes there.
    """

    messages: int
    size_bytes: float | None = None
    is_untouched: bool = True
    runs: int = field(default_factory=lambda: RUNS_PER_CALL)

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits."""
        if self.is_untouched:
            return self.messages <= 0
        has_bytes = self.size_bytes is None or self.size_bytes > 0
        return self.messages <= 0 or self.runs <= 0 or not has_bytes

    def for_messages_of(self, row: Bucket, available: int) -> int:
        """How many of the available messages of this bucket fit."""
        count = min(self.messages, available)
        each = mean_bytes(row)
        if self.size_bytes is None or not each or not count:
            return count
        fitting = int(max(0.0, self.size_bytes) / each)
        return min(count, max(fitting, 1 if self.is_untouched else 0))

    def take(self, row: Bucket, count: int, *, runs: int) -> None:
        """Subtract messages of this bucket. A rest of bytes too small for one message becomes 0."""
        self.messages -= count
        self.runs -= runs
        if count and self.size_bytes is not None:
            self.size_bytes -= count * mean_bytes(row)
            if self.size_bytes < mean_bytes(row):
                self.size_bytes = 0
        self.is_untouched &= not count

    def take_claimed(self, claimed: list[Claimed]) -> None:
        """These were taken."""
        for one in claimed:
            self.take(one.row.value, one.lease.runs.count, runs=len(one.lease.runs.pairs))


def mean_bytes(row: Bucket) -> float:
    """The mean size of a message of a sealed bucket; 0 if nobody counted."""
    return row.size_bytes / max(1, row.manifest.count)


def runs_there(row: Bucket, now_us: int) -> int:
    """How many runs of ids a claim may take here at most: so many for each delivery count."""
    there: Counter[int] = Counter()
    for part in visible(row, now_us):
        there[part.deliveries] += len(part.runs.pairs)
    return sum(sorted(min(RUNS_PER_LEASE, runs) for runs in there.values())[-LEASES_PER_CLAIM:])
