"""How much one call may still claim: messages, and bytes as they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cassieq_spark.model.bucket import Bucket


@dataclass(slots=True, kw_only=True)
class Budget:
    """What is left of a call's limits.

    Attributes:
        messages: So many more.
        size_bytes: So many more, by the mean of each bucket; None: no limit.
        is_untouched: Nothing was taken yet: then one message fits, however large it is, or a queue
            of large messages would stand still (I10).
    """

    messages: int
    size_bytes: float | None = None
    is_untouched: bool = True

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits."""
        return self.messages <= 0 or (
            self.size_bytes is not None and self.size_bytes <= 0 and not self.is_untouched
        )

    def for_messages_of(self, row: Bucket, available: int) -> int:
        """How many of so many messages of this bucket fit."""
        count = min(self.messages, available)
        each = mean_bytes(row)
        if self.size_bytes is None or not each or not count:
            return count
        fitting = int(max(0.0, self.size_bytes) / each)
        return min(count, max(fitting, 1 if self.is_untouched else 0))

    def take(self, row: Bucket, count: int) -> None:
        """So many of this bucket were taken. What is left and fits none is no budget."""
        self.messages -= count
        if count and self.size_bytes is not None:
            self.size_bytes -= count * mean_bytes(row)
            if self.size_bytes < mean_bytes(row):
                self.size_bytes = 0
        self.is_untouched &= not count


def mean_bytes(row: Bucket) -> float:
    """Of one message of a sealed bucket; 0 where nobody counted."""
    return row.size_bytes / max(1, row.manifest.count)
