"""What a repair pass did: counts, for people, logs and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class QueueRepair:
    """What one pass did for one queue.

    Attributes:
        seals_finished: Buckets whose seal somebody had left half-way.
        rolled_forward: Bulk buckets that were decided: made visible, or void.
        marked_dead, moved_dead: Messages out of deliveries; those that are in their dead-letter
            queue now.
        hints_written: Buckets with something that came back and may have no hint.
        dropped: Buckets that are gone, with their messages.
        problems: What could not be done, by the error's own words; the next pass tries again.
    """

    queue: str
    seals_finished: int = 0
    rolled_forward: int = 0
    marked_dead: int = 0
    moved_dead: int = 0
    hints_written: int = 0
    dropped: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """What one pass did.

    Attributes:
        deletions_finished: Names of queues whose deletion somebody had left half-way.
    """

    queues: list[QueueRepair] = field(default_factory=list)
    deletions_finished: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Of all queues."""
        return [f"{one.queue}: {problem}" for one in self.queues for problem in one.problems]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)
