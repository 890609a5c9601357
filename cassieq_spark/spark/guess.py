"""Guess what a sink's next task in this worker will write: most tasks of a stream are alike."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cassieq_spark.model.ids import LaneId

TASKS = 2


class Guess:
    """How many buckets the last tasks of one sink have filled in the first lane of its queue.

    Only the last sink counts: a worker of one query writes to one.
    """

    def __init__(self) -> None:
        self._sink: tuple[LaneId, str] | None = None
        self._filled: deque[int] = deque(maxlen=TASKS)

    def of(self, lane: LaneId, sink_id: str) -> int:
        """How many the next task will fill at least; 0: none, or unknown.

        The fewest of the last two: a bucket too few is opened a little later, and one too many
        costs two LWTs.
        """
        return min(self._filled, default=0) if self._sink == (lane, sink_id) else 0

    def note(self, lane: LaneId, sink_id: str, filled: int) -> None:
        """Remember what a task has filled."""
        if self._sink != (lane, sink_id):
            self._sink = (lane, sink_id)
            self._filled.clear()
        self._filled.append(filled)
