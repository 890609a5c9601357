"""Count what a repair pass or a redrive did, for people, logs and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(slots=True, kw_only=True)
class QueueRepair:
    """The result of one pass for one queue.

    Attributes:
        seals_finished: Buckets whose seal somebody had left half-way.
        gaps_closed: Reserved buckets that nobody wrote into in time.
        aborted: Bulk buckets that became void with the transaction of a writer that fell silent.
        rolled_forward: Bulk buckets that were decided: made visible, or void.
        sinks_ended: Rows of transactions that are over.
        closed_expired: Open buckets that were sealed because something in them had expired.
        expired: Messages taken out because nobody was given them in time.
        marked_dead, moved_dead: Messages out of deliveries; messages moved to their dead-letter
            queue.
        redriven: Messages of an interrupted redrive that are in their target now.
        hints_written: Buckets with something that came back and may have no hint.
        freed: Buckets whose messages are gone while their rows wait for others below them.
        dropped: Buckets that are gone, with their messages.
        swept: Buckets below the repair pointer in which something had landed late.
        problems: What could not be done, by the error's own words; the next pass tries again.
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
        """Add what another task did for the same queue."""
        for one in fields(self):
            if one.name != "queue":
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """The result of one pass.

    Attributes:
        deletions_finished: Names of queues whose deletion somebody had left half-way.
        sinks_swept: Rows of single transactions whose queue was deleted.
        swept_lanes: Deleted queues in which something had landed late.
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
        """The report as a JSON object."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class Redriven:
    """The outcome of a redrive. Each chosen message is in one count.

    Attributes:
        moved: In their target now.
        waiting: Taken, and nobody gets them here; the next repair carries them over.
        leased, delayed: Held by somebody, or not due yet: they stay. Only buckets that were looked
            at count.
        homeless: They stay, because there is no queue to send them to; ``problems`` says why.
        gone: Ids that were named and are acked, moved or taken by now.
        by_target: Messages moved or waiting, by queue; in a dry run, those that would be moved.
        problems: What could not be done, in the error's own words.
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
        """Add what another task did for the same queue."""
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
        """The result as a JSON object."""
        return asdict(self)
