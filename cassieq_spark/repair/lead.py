"""Elect a leader: one process works for all. It only saves work; nothing depends on it [P29]."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from cassieq_spark.errors import StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.store.call import repeating
from cassieq_spark.store.store import Store

REPAIR: Final = "repair"
LEASE_S: Final = 30
"""The length of a lead's lease: after it, a killed leader is replaced."""

_logger = get_logger("repair")


class Lead:
    """A lead that this process has taken; a task renews it until it is given up."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._holder = store.entropy.new_uuid()
        self._until_s = 0.0

    @property
    def is_held(self) -> bool:
        """Whether the lease still runs, by this process's own clock: nobody else leads until then.

        Cassandra counts a TTL, which older releases wait for, in whole seconds, so the last second
        does not count.
        """
        return self._store.clock.monotonic() < self._until_s

    async def take_if_free(self) -> bool:
        """Do as `take` does; while another process leads, it costs a read and no LWT."""
        if not self.is_held and await self._store.leaders.has_other(
            self._name, self._holder, lease_s=LEASE_S
        ):
            return False
        return await self.take()

    async def take(self) -> bool:
        """Take the lead, or renew it; return whether this process has it."""
        asked_s = self._store.clock.monotonic()
        is_ours = await self._store.leaders.lead(self._name, self._holder, lease_s=LEASE_S)
        self._until_s = asked_s + LEASE_S - 1 if is_ours else 0.0
        return is_ours

    async def keep(self) -> None:
        """Renew the lead."""
        try:
            if not await self.take():
                event(_logger, "leadership_lost", name=self._name, error="another process leads")
        except StoreError as error:
            event(_logger, "leadership_lost", name=self._name, error=str(error))

    async def give_up(self) -> None:
        """Give the lead up, so that the next process can take it at once."""
        self._until_s = 0.0
        try:
            await self._store.leaders.give_up(self._name, self._holder)
        except StoreError as error:
            event(_logger, "leadership_lost", name=self._name, error=str(error))


@asynccontextmanager
async def leading(store: Store, name: str = REPAIR) -> AsyncIterator[Lead | None]:
    """Lead while the block runs, if nobody else does; yield None if somebody else does."""
    lead = Lead(store, name)
    if not await lead.take():
        yield None
        return
    try:
        async with repeating(lead.keep, LEASE_S / 3):
            yield lead
    finally:
        await lead.give_up()
