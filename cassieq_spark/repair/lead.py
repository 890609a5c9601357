"""Elect a leader: one repair at a time. It only saves work; nothing depends on it [P29]."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import StoreError
from cassieq_spark.log import event, get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from cassieq_spark.store.store import Store

REPAIR: Final = "repair"
LEASE_S: Final = 30
"""How long after a leader was killed the next one begins (design 2)."""

_logger = get_logger("repair")


@contextmanager
def leading(store: Store, name: str = REPAIR) -> Iterator[bool]:
    """Lead while the block runs, if nobody else does; yields whether this process may."""
    holder = new_uuid()
    if not store.leaders.lead(name, holder, ttl_s=LEASE_S):
        yield False
        return
    ended = threading.Event()
    keeper = threading.Thread(
        target=_keep, args=(store, name, holder, ended), name="cassieq-lead", daemon=True
    )
    keeper.start()
    try:
        yield True
    finally:
        ended.set()
        keeper.join()
        try:
            store.leaders.give_up(name, holder)
        except StoreError as error:
            event(_logger, "lead_lost", name=name, error=str(error))


def _keep(store: Store, name: str, holder: UUID, ended: threading.Event) -> None:
    while not ended.wait(LEASE_S / 3):
        try:
            if not store.leaders.lead(name, holder, ttl_s=LEASE_S):
                event(_logger, "lead_lost", name=name, error="another process leads")
        except StoreError as error:
            event(_logger, "lead_lost", name=name, error=str(error))
