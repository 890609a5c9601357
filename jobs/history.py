"""What happened while the demo ran: looks at the queues, and the work of its queries.

Nothing is counted here: a `Look` is what ``stats()`` says, and a `Piece` of a streaming query is
one of its progress reports.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Self

from cassieq_spark import CassieqError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from cassieq_spark import Client

LOOK_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What ``stats()`` said of one queue.

    Attributes:
        at_s: Seconds of the wall clock, as all times here.
        depth: Messages that nobody has acked, leased or not.
        lag_s: The age of the oldest of them; 0 if there is none.
    """

    queue: str
    at_s: float
    depth: int
    lag_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One write, or one micro-batch of a streaming query."""

    leg: str
    begin_s: float
    end_s: float
    messages: int

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / max(self.end_s - self.begin_s, 1e-3)

    @classmethod
    def of_progress(cls, leg: str, progress: Mapping[str, Any]) -> Self:
        """The micro-batch that a progress report of Spark tells of."""
        begin_s = datetime.fromisoformat(progress["timestamp"]).timestamp()
        took_s = progress["durationMs"]["triggerExecution"] / 1e3
        return cls(
            leg=leg,
            begin_s=begin_s,
            end_s=begin_s + took_s,
            messages=progress["numInputRows"],
        )


def warm_rate(pieces: Sequence[Piece]) -> float:
    """Messages a second: the median of the later half of the pieces.

    The earlier ones are slow: Python workers start, and the JVMs compile what they run.
    """
    return median(one.rate for one in pieces[len(pieces) // 2 :])


class Watch:
    """Look at queues every second, on a thread of its own, as long as the block runs."""

    def __init__(self, client: Client, queues: Sequence[str]) -> None:
        self._queues = {name: client.queue(name) for name in queues}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-watch", daemon=True)
        self.looks: list[Look] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._look()
        self._look()  # the last state, whatever the thread has seen before

    def _look(self) -> None:
        for name, queue in self._queues.items():
            with suppress(CassieqError):  # a node that is busy for long: the picture has a gap
                stats = queue.stats()
                look = Look(
                    queue=name,
                    at_s=time.time(),
                    depth=stats.visible + stats.in_flight,
                    lag_s=stats.oldest_age or 0.0,
                )
                self.looks.append(look)
