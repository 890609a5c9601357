"""Tables alive and leader: who is at work. They save work, and decide nothing [R3] [P29]."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cassieq_spark.store import statements

if TYPE_CHECKING:
    from uuid import UUID

    from cassieq_spark.store.cas import CasSender
    from cassieq_spark.store.session import CqlSession


class Leaders:
    """The leader leases, by name of the work."""

    def __init__(self, session: CqlSession, sender: CasSender) -> None:
        self._session = session
        self._sender = sender

    def lead(self, name: str, holder: UUID, *, ttl_s: int) -> bool:
        """Take the lease, or keep it; return whether it is ours for ``ttl_s`` seconds.

        A first sending whose answer was lost may have taken it: then the last look says so.
        """
        return self._keep(name, holder, ttl_s) or self._take(name, holder, ttl_s)

    def give_up(self, name: str, holder: UUID) -> None:
        """Let the next process begin at once."""
        self._sender.answer(statements.GIVE_LEAD_UP, (name,), (name, holder))

    def _take(self, name: str, holder: UUID, ttl_s: int) -> bool:
        params = (name, holder, self._session.clock.now_us(), ttl_s)
        is_taken = self._sender.answer(statements.TAKE_LEAD, (name,), params)
        return is_taken or self._keep(name, holder, ttl_s)

    def _keep(self, name: str, holder: UUID, ttl_s: int) -> bool:
        params = (ttl_s, holder, self._session.clock.now_us(), name, holder)
        return self._sender.answer(statements.KEEP_LEAD, (name,), params)


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
