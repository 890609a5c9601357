"""A client makes no garbage that only the collector finds: it would keep all rows until then."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from cassieq_spark.entropy import new_uuid
from cassieq_spark.store import portal, statements

if TYPE_CHECKING:
    from tests.fixtures.queues import Door

TIMES = 100


def test_a_statement_leaves_nothing_to_the_garbage_collector(door: Door) -> None:
    session, sender = door.session, door.store.sender

    async def send() -> None:
        for _ in range(TIMES):
            lane = new_uuid()
            await session.run(statements.READ_POINTERS, (lane,))
            await session.run(statements.ADVANCE_POINTER, (1, 1, lane, "reader"))
            await sender.delete(statements.DELETE_BUCKET, (lane, 0))

    def garbage() -> int:
        gc.collect()
        gc.disable()
        try:
            portal.run(send())
            return gc.collect()
        finally:
            gc.enable()

    # Clients of earlier tests leave some of theirs, at a time of their own, and never each time.
    assert min(garbage() for _ in range(5)) < TIMES
