"""Show that a writer is at work, so that repair does not abort it (design 8) [R3]."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from cassieq_spark.errors import StoreError
from cassieq_spark.log import event, get_logger

if TYPE_CHECKING:
    from cassieq_spark.queue.lane import Lane

BEATS_PER_TIMEOUT = 3

_logger = get_logger("queue")


class Heartbeat:
    """Beats while its block runs.

    It has a thread of its own: a task may wait minutes for its next row, and a commit for its
    buckets. Politeness, not safety: a beat that fails is logged and the work goes on.
    """

    def __init__(self, lane: Lane, sink_id: str, *, is_row_fresh: bool = False) -> None:
        """Prepare; nothing is sent yet.

        Args:
            is_row_fresh: The sink's row was changed just now, which is a sign of life of its own:
                work that ends within a third of the timeout sends no beat.
        """
        self._lane = lane
        self._sink_id = sink_id
        self._is_row_fresh = is_row_fresh
        self._period_s = lane.settings.repair_timeout_s / BEATS_PER_TIMEOUT
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"cassieq-heartbeat-{sink_id}", daemon=True
        )

    def __enter__(self) -> Self:
        """Beat once, then go on in the background."""
        if not self._is_row_fresh:
            self._beat()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop and join."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            self._beat()

    def _beat(self) -> None:
        try:
            # Do not wait long for the store: the work must begin, and the next beat be due [T5].
            with self._lane.store.session.within(self._period_s):
                self._lane.store.heartbeats.beat(
                    self._sink_id, ttl_s=self._lane.settings.repair_timeout_s
                )
        except StoreError as error:
            event(_logger, "heartbeat_failed", sink=self._sink_id, error=str(error))
