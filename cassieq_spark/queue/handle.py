"""`Queue`: what a user holds of one queue; delegates, holds no rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassieq_spark.queue import look

if TYPE_CHECKING:
    from cassieq_spark.options import QueueSettings
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.queue.look import QueueStats


class Queue:
    """One queue. Threads may share it; not picklable."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    @property
    def name(self) -> str:
        """Its name."""
        return self._lane.queue

    @property
    def settings(self) -> QueueSettings:
        """As given when it was created."""
        return self._lane.settings

    def stats(self) -> QueueStats:
        """Count what is in the queue: one read per bucket that repair has not dropped.

        Raises:
            QueueDeleted: It was deleted meanwhile.
        """
        return look.stats(self._lane)

    def __repr__(self) -> str:
        """Name and lane."""
        return f"Queue({self.name!r})"
