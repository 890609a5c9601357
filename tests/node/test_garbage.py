"""A client makes no garbage that only the collector finds: it would keep all rows until then."""

from __future__ import annotations

import gc
from types import CoroutineType, FrameType, TracebackType
from typing import TYPE_CHECKING

from cassandra.cluster import ResponseFuture

from cassieq_spark.entropy import new_uuid
from cassieq_spark.store import portal, statements

if TYPE_CHECKING:
    from tests.fixtures.queues import Door

TIMES = 100

#: What a statement would keep alive; the driver's own (metadata it read again) is no statement's.
KINDS = (CoroutineType, FrameType, TracebackType, ResponseFuture)


def is_of_a_statement(found: object) -> bool:
    kind = type(found)
    # By type: a dead weak proxy of somebody else may be among them, and has no class any more.
    return issubclass(kind, KINDS) or kind.__module__.startswith(("cassieq_spark.", "_asyncio"))


def test_a_statement_leaves_nothing_to_the_garbage_collector(door: Door) -> None:
    session, sender = door.session, door.store.sender

    async def send() -> None:
        for _ in range(TIMES):
            lane = new_uuid()
            await session.run(statements.READ_POINTERS, (lane,))
            await session.run(statements.ADVANCE_POINTER, (1, 1, lane, "reader"))
            await sender.delete(statements.DELETE_BUCKET, (lane, 0))

    portal.run(send())  # what is made once
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        portal.run(send())
        gc.collect()
        found = sum(is_of_a_statement(each) for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()

    assert found < TIMES  # other clients may leave some of theirs
