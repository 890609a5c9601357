"""What becomes of a bucket row's callers when its statements fail as nothing should."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from cassieq_spark.clock import SystemClock
from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.rows.intents import ACK
from cassieq_spark.queue.settle import settle
from cassieq_spark.store import portal
from cassieq_spark.store.cas import CasSender
from cassieq_spark.store.rows import Port, Rows
from cassieq_spark.store.session import CqlSession
from cassieq_spark.testing import ManualClock
from tests.unit.test_session import OPTIONS, Paging

LANE = LaneId(UUID(int=7))
KEY = (LANE, BucketNo(0))


class Odd(Exception):
    """An error that cannot be copied."""

    def __init__(self, *, what: str) -> None:
        super().__init__(what)


@pytest.fixture
def rows() -> Iterator[Rows]:
    clock = ManualClock(SystemClock())
    with CqlSession(OPTIONS, transport=Paging(clock), clock=clock) as session:
        yield Rows(session, CasSender(session), lambda: session.clock)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """What the engine's loop logs of tasks and futures that nobody asked for their error."""
    found: list[Any] = []
    loop = portal.portal().loop
    loop.set_exception_handler(lambda _, context: found.append(context))
    yield found
    loop.set_exception_handler(None)


@pytest.mark.parametrize(
    "error", [RuntimeError("the transport is broken"), Odd(what="no copy"), SystemExit(3)]
)
def test_all_callers_are_told_and_the_loop_has_nothing_to_log_also_if_a_caller_has_left(
    rows: Rows, logged: list[Any], error: BaseException
) -> None:
    receipt = Receipt(lane=LANE, bucket=BucketNo(0), lease_id=UUID(int=2), first=0, last=0)
    intent = settle.wanted(settle.by_lease([receipt], ACK))
    told: list[BaseException] = []

    async def read() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await left.wait()
        raise error

    async def none(*_: Any) -> Any:
        raise NotImplementedError

    port: Any = Port(read, none, none, lambda: 0)
    left = asyncio.Event()

    async def apply() -> None:
        try:
            await rows.apply(KEY, port, intent)
        except BaseException as found:
            told.append(found)
            raise

    async def all_of_them() -> None:
        tasks = [asyncio.ensure_future(apply()) for _ in range(3)]
        left.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    with pytest.raises(KeyboardInterrupt):
        portal.run(apply())
    portal.run(all_of_them())
    portal.run(portal.handed_back())
    gc.collect()
    portal.run(asyncio.sleep(0))
    assert [type(error)] * len(told) == [type(one) for one in told]
    assert 4 == len(told)
    assert [] == logged
