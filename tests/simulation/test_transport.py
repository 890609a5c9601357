"""The simulated transport counts the time of a request, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from cassandra import OperationTimedOut

from cassieq_spark.store import statements
from cassieq_spark.store.transport import Page, Request
from tests.fixtures.differential import simulated
from tests.simulation.loop import VirtualLoop

READ = Request(statement=statements.READ_BUCKET, rows=[(UUID(int=7), 0)], timeout_s=2.0)


def answered(stands_still_s: float, *, is_cut: bool = False) -> tuple[float, Any]:
    """Send a request, after which the machine stands still; return when it ended, and how."""
    loop = VirtualLoop()
    transport = simulated(["127.0.0.1"], "datacenter1")
    if is_cut:
        transport.ring.network.carry = lambda *_: None  # type: ignore[method-assign]

    async def ask() -> tuple[float, Any]:
        told: asyncio.Future[Any] = loop.create_future()
        transport.send(READ, told.set_result)
        loop._now_s += stands_still_s
        return await told, loop.time()

    task = loop.create_task(ask())
    loop.finish(task)
    answer, at_s = task.result()
    loop.drop()
    return round(at_s, 6), answer


def test_a_machine_that_stands_still_costs_a_request_a_tenth_of_its_time() -> None:
    at_s, answer = answered(60.0)
    assert isinstance(answer, Page)
    assert at_s == 60.0


def test_a_request_that_nobody_answers_times_out() -> None:
    at_s, answer = answered(0.0, is_cut=True)
    assert isinstance(answer, OperationTimedOut)
    assert at_s == 2.0
    at_s, _ = answered(60.0, is_cut=True)
    assert at_s == 61.8
