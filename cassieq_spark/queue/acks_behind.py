"""Acks that are stored a moment later, together: one LWT a bucket for what gathered (design 5).

Holds I4: what is not stored yet is kept until it is, also across a Ctrl-C.
"""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING, Final

from cassieq_spark.log import event, get_logger
from cassieq_spark.queue.verdict import AckGroup, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.queue.lane import Lane

ACK_WITHIN_S: Final = 0.1
"""An ack waits at most so long for others to share its LWT."""

RETRY_S: Final = 1.0
"""After an error of the store."""

_logger = get_logger("queue")


class AcksBehind:
    """Gathers receipts and acks them in a thread of the caller's. Thread-safe.

    Attributes:
        stale: Messages whose ack came too late.
    """

    def __init__(
        self, lane: Callable[[], Lane], group: AckGroup, *, at_most: int, within_s: float
    ) -> None:
        self._lane = lane
        self._group = group
        self._at_most = at_most
        self._within_s = min(ACK_WITHIN_S, within_s)
        self._clock = lane().clock
        self._is_due = threading.Condition()
        self._working = threading.Lock()
        self._gathered: list[Receipt] = []
        self._at = inf
        self._is_closing = False
        self.stale = 0

    def add(self, receipts: list[Receipt]) -> None:
        """To be stored soon: at once, when as many have gathered as were asked for."""
        with self._is_due:
            had_enough = len(self._gathered) >= self._at_most
            self._gathered += receipts
            is_enough = len(self._gathered) >= self._at_most and not had_enough
            self._plan(0.0 if is_enough else self._within_s)

    def wait(self) -> bool:
        """Until some are due; False: `close` was called."""
        with self._is_due:
            while not self._is_closing:
                left_s = self._at - self._clock.monotonic()
                if left_s <= 0:
                    return True
                self._is_due.wait(min(left_s, threading.TIMEOUT_MAX))
            return False

    def flush(self) -> None:
        """Store all there are.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: It is unknown of some; they are kept, and due again after `RETRY_S`.
        """
        with self._working:
            with self._is_due:
                receipts, self._gathered = self._gathered, []
                self._at = inf
            if not receipts:
                return
            try:
                lane = self._lane()
                verdicts, failure = self._group.ack(lane, receipts)
            except BaseException:  # also Ctrl-C: an ack twice is harmless, one less is not
                self._keep(receipts)
                raise
            if stale := verdicts.count(Verdict.STALE):
                self.stale += stale
                event(_logger, "acks_stale", queue=lane.queue, messages=stale)
            if failure is not None:
                pairs = zip(receipts, verdicts, strict=True)
                self._keep([one for one, verdict in pairs if verdict is Verdict.UNKNOWN])
                raise failure

    def close(self) -> None:
        """Let `wait` end; what is there is stored by a last `flush`."""
        with self._is_due:
            self._is_closing = True
            self._is_due.notify_all()

    def _keep(self, receipts: list[Receipt]) -> None:
        with self._is_due:
            self._gathered = receipts + self._gathered
            self._plan(RETRY_S)

    def _plan(self, in_s: float) -> None:
        """Caller holds the lock. Nobody is woken where something is due before that anyway."""
        at = self._clock.monotonic() + in_s
        if at < self._at:
            self._at = at
            self._is_due.notify()
