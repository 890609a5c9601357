"""Tables alive and leader: the processes at work. They save work, and decide nothing [R3] [P29].

A row's time decides whether the process that wrote it is still at work. Its TTL does not tell: it
counts from the clock of the node that took the write. A row that was taken by a node whose clock
was an hour ahead stays an hour too long.
"""

from __future__ import annotations

import math
from uuid import UUID

from cassieq_spark.log import event, get_logger
from cassieq_spark.store import statements
from cassieq_spark.store.tables.table import Table

_logger = get_logger("store")


def leads(since_us: int, *, now_us: int, lease_s: float) -> bool:
    """Whether a leader that last renewed its lead at ``since_us`` still has it.

    No leader writes a time that is further ahead than a lead lasts: then the cluster's clock was
    wrong.
    """
    return abs(now_us - since_us) <= lease_s * 1e6


def is_at_work(at_us: int, *, now_us: int, timeout_s: float) -> bool:
    """Whether a writer whose newest heartbeat was at ``at_us`` still counts as at work.

    A time ahead of now counts: later heartbeats, by a clock that is right again, cannot replace it.
    """
    return now_us - at_us <= timeout_s * 1e6


class Leaders(Table):
    """The leader leases, by the name of the work."""

    async def lead(self, name: str, holder: UUID, *, lease_s: int) -> bool:
        """Take the lease, or keep it; return whether it is ours for ``lease_s`` seconds.

        A first sending whose answer was lost may have taken it: the last try finds that.
        """
        return await self._keep(name, holder, lease_s) or await self._take(name, holder, lease_s)

    async def has_other(self, name: str, holder: UUID, *, lease_s: int) -> bool:
        """Whether somebody else has the lease: a read, for those who only wait for its end."""
        row = await self._session.one(statements.READ_LEAD, (name,))
        if row is None or row.since_us is None or row.holder == holder:
            return False
        return leads(row.since_us, now_us=self._session.clock.now_us(), lease_s=lease_s)

    async def give_up(self, name: str, holder: UUID) -> None:
        """Give the lease up, so that the next process can take it at once."""
        await self._sender.answer(statements.GIVE_LEAD_UP, (name,), (name, holder))

    async def _take(self, name: str, holder: UUID, lease_s: int) -> bool:
        # A refusal has completed every earlier CAS, so this read shows its row.
        row = await self._session.one(statements.READ_LEAD, (name,))
        now_us = self._session.clock.now_us()
        # A row that was written by an INSERT of an older release may outlive its columns.
        before, since_us = (None, None) if row is None else (row.holder, row.since_us)
        if since_us is not None:
            if leads(since_us, now_us=now_us, lease_s=lease_s):
                return False
            silent_s = round((now_us - since_us) / 1e6, 1)
            event(_logger, "leadership_outlived", name=name, holder=str(before), silent_s=silent_s)
        params = (lease_s, holder, now_us, name, before, since_us)
        is_taken = await self._sender.answer(statements.TAKE_LEAD, (name,), params)
        return is_taken or await self._keep(name, holder, lease_s)

    async def _keep(self, name: str, holder: UUID, lease_s: int) -> bool:
        params = (lease_s, holder, self._session.clock.now_us(), name, holder)
        return await self._sender.answer(statements.KEEP_LEAD, (name,), params)


class Heartbeats(Table):
    """The heartbeats of sinks."""

    async def beat(self, sink_id: str, *, ttl_s: float) -> None:
        """Record that a writer is at work, for the next ``ttl_s`` seconds (at least 1)."""
        now_us = self._session.clock.now_us()
        # Its own time is its write time, too. Otherwise a node whose clock is ahead could store a
        # heartbeat that later ones cannot replace.
        params = (sink_id, now_us, now_us, max(1, math.ceil(ttl_s)))
        await self._session.run(statements.WRITE_ALIVE, params)

    async def is_alive(self, sink_id: str, *, timeout_s: float) -> bool:
        """Whether a writer has recorded a heartbeat within ``timeout_s`` seconds."""
        row = await self._session.one(statements.READ_ALIVE, (sink_id,))
        at_us = None if row is None else row.at_us  # a row may outlive its column, by a wrong clock
        now_us = self._session.clock.now_us()
        return at_us is not None and is_at_work(at_us, now_us=now_us, timeout_s=timeout_s)
