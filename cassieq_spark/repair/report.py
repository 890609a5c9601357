"""Count what a repair pass or a redrive did, for people, logs and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(slots=True, kw_only=True)
class QueueRepair:
    """The result of one pass for one queue.

    Attributes:
        seals_finished: Buckets whose seal another process had left half-way.
        gaps_closed: Reserved buckets that nobody wrote into in time.
        aborted: Bulk buckets that became void with the transaction of a writer that fell silent.
        rolled_forward: Bulk buckets that were decided: made visible, or void.
        sinks_ended: Rows of transactions that are over.
        closed_expired: Open buckets that were sealed because messages in them had expired.
        expired: Messages that expired undelivered and were taken out.
        marked_dead, moved_dead: Messages out of deliveries; messages moved to their dead-letter
            queue.
        redriven: Messages of an interrupted redrive that are in their target now.
        hints_written: Buckets with messages that came back and may have no hint.
        freed: Buckets whose messages are gone while their rows wait for others below them.
        dropped: Buckets that are gone, with their messages.
        swept: Buckets below the repair pointer in which a late write had landed.
        problems: Errors of steps that failed, in their own words; the next pass tries again.
    """

    queue: str
    seals_finished: int = 0
    gaps_closed: int = 0
    aborted: int = 0
    rolled_forward: int = 0
    sinks_ended: int = 0
    closed_expired: int = 0
    expired: int = 0
    marked_dead: int = 0
    moved_dead: int = 0
    redriven: int = 0
    hints_written: int = 0
    freed: int = 0
    dropped: int = 0
    swept: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: QueueRepair) -> None:
        """Add another task's result for the same queue."""
        for one in fields(self):
            if one.name != "queue":
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """The result of one pass.

    Attributes:
        deletions_finished: Names of queues whose deletion another process had left half-way.
        sinks_swept: Rows of single transactions whose queue was deleted.
        swept_lanes: Lanes of deleted queues in which a late write had landed.
    """

    queues: list[QueueRepair] = field(default_factory=list)
    deletions_finished: list[str] = field(default_factory=list)
    sinks_swept: int = 0
    swept_lanes: int = 0

    @property
    def problems(self) -> list[str]:
        """The problems of all queues."""
        return [f"{one.queue}: {problem}" for one in self.queues for problem in one.problems]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class Redriven:
    """The outcome of a redrive. Each chosen message is in one count.

    Attributes:
        moved: Messages that are in their target now.
        waiting: Messages that are taken, and that nobody gets here; the next repair moves them.
        leased, delayed: Messages that stay, because a consumer holds them or they are not due yet.
            Only buckets that were looked at count.
        homeless: Messages that stay, because there is no queue to send them to; ``problems`` says
            why.
        gone: Named ids that are acked, moved or taken by now.
        by_target: Messages moved or waiting, by queue; in a dry run, those that would be moved.
        problems: Errors of steps that failed, in their own words.
    """

    queue: str
    moved: int = 0
    waiting: int = 0
    leased: int = 0
    delayed: int = 0
    homeless: int = 0
    gone: int = 0
    by_target: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, other: Redriven) -> None:
        """Add another task's result for the same queue."""
        self.moved += other.moved
        self.waiting += other.waiting
        self.leased += other.leased
        self.delayed += other.delayed
        self.homeless += other.homeless
        self.gone += other.gone
        for target, count in other.by_target.items():
            self.by_target[target] = self.by_target.get(target, 0) + count
        self.problems += other.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return asdict(self)
