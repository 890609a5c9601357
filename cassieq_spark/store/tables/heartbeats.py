"""Table ``alive`` holds sink ids with a live writer. Plain writes; politeness, not safety [R3]."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cassieq_spark.store import statements

if TYPE_CHECKING:
    from cassieq_spark.store.session import CqlSession


class Heartbeats:
    """The heartbeats of sinks."""

    def __init__(self, session: CqlSession) -> None:
        self._session = session

    def beat(self, sink_id: str, *, ttl_s: float) -> None:
        """Record that a writer is at work, for the next ``ttl_s`` seconds (at least 1)."""
        self._session.run(
            statements.WRITE_ALIVE,
            (sink_id, self._session.clock.now_us(), max(1, math.ceil(ttl_s))),
        )

    def is_alive(self, sink_id: str) -> bool:
        """Whether a writer has recorded that lately."""
        return self._session.one(statements.READ_ALIVE, (sink_id,)) is not None
