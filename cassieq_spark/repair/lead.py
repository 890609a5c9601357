"""Elect a leader: one process works for all. It only saves work; nothing depends on it [P29]."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.store.store import Store

REPAIR: Final = "repair"
LEASE_S: Final = 30
"""How long after a leader was killed the next one begins (design 2)."""

_logger = get_logger("repair")


class Lead:
    """A lead that this process has taken; a thread keeps it until it is given up."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._holder = new_uuid()
        self._until_s = 0.0
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="cassieq-lead", daemon=True)

    @property
    def is_held(self) -> bool:
        """Whether the lease still runs, by this process's own clock: nobody else leads until then.

        Cassandra counts a TTL, which older releases wait for, in whole seconds, so the last one is
        not counted on.
        """
        return self._store.clock.monotonic() < self._until_s

    def take(self) -> bool:
        """Take the lead, or keep it; return whether this process has it."""
        asked_s = self._store.clock.monotonic()
        is_ours = portal.run(self._store.leaders.lead(self._name, self._holder, lease_s=LEASE_S))
        self._until_s = asked_s + LEASE_S - 1 if is_ours else 0.0
        return is_ours

    def start(self) -> None:
        """Begin to keep it."""
        self._keeper.start()

    def give_up(self) -> None:
        """Let the next process begin at once."""
        self._ended.set()
        self._keeper.join()
        self._until_s = 0.0
        try:
            portal.run(self._store.leaders.give_up(self._name, self._holder))
        except StoreError as error:
            event(_logger, "lead_lost", name=self._name, error=str(error))

    def _keep(self) -> None:
        while not self._ended.wait(LEASE_S / 3):
            try:
                if not self.take():
                    event(_logger, "lead_lost", name=self._name, error="another process leads")
            except StoreError as error:
                event(_logger, "lead_lost", name=self._name, error=str(error))


@contextmanager
def taken(store: Store, name: str) -> Iterator[Lead | None]:
    """Lead while the block runs, if nobody else does; yields None if somebody else does."""
    lead = Lead(store, name)
    if not lead.take():
        yield None
        return
    lead.start()
    try:
        yield lead
    finally:
        lead.give_up()


@contextmanager
def leading(store: Store, name: str = REPAIR) -> Iterator[bool]:
    """Lead while the block runs, if nobody else does; yields whether this process may."""
    with taken(store, name) as lead:
        yield lead is not None
