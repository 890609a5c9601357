"""Add up the costs of a transaction, for its log line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of one task, or of all tasks of a batch.

    Attributes:
        size_bytes: Bytes of chunks as stored.
        lwts: Conditional writes that were answered, or sent and not answered.
        retries: Statements that were sent again because they were not answered.
    """

    chunks: int = 0
    size_bytes: int = 0
    lwts: int = 0
    retries: int = 0

    def __add__(self, other: Costs) -> Costs:
        """Add the costs of both."""
        return Costs(
            chunks=self.chunks + other.chunks,
            size_bytes=self.size_bytes + other.size_bytes,
            lwts=self.lwts + other.lwts,
            retries=self.retries + other.retries,
        )


NO_COSTS = Costs()
