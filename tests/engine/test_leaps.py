"""Time leaps where all wait, in the order of their timers; and never while somebody is at work."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cassieq_spark.store import portal
from tests.fixtures.leaps import LEAPS

A_DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def simulated(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("real"):
        pytest.skip("time does not leap on a real node")


def test_a_day_passes_for_all_who_wait_and_their_timers_ring_in_order() -> None:
    began, rang, is_night = LEAPS.times.now(), list[str](), threading.Event()

    async def in_the_engine() -> None:
        await asyncio.sleep(A_DAY_S / 2)
        rang.append("engine")

    async def in_a_loop() -> None:
        await asyncio.sleep(A_DAY_S / 4)
        rang.append("loop")
        await portal.asked(in_the_engine())

    def in_a_thread() -> None:
        assert not is_night.wait(A_DAY_S / 8)
        rang.append("thread")
        assert is_night.wait(A_DAY_S)
        rang.append("night")

    with ThreadPoolExecutor(2) as pool:
        thread = pool.submit(in_a_thread)
        pool.submit(asyncio.run, in_a_loop()).result()
        is_night.set()
        thread.result()
    assert ["thread", "loop", "engine", "night"] == rang
    assert A_DAY_S * 3 / 4 <= LEAPS.times.now() - began < A_DAY_S


def test_time_does_not_leap_while_a_thread_is_at_work() -> None:
    """What this one waits for is nothing that is known: it may go on at any moment."""
    reads, writes = os.pipe()
    worker = threading.Thread(target=os.read, args=(reads, 1))
    worker.start()
    before = LEAPS.times.ahead_s
    portal.run(asyncio.sleep(0.05))
    assert before == LEAPS.times.ahead_s
    os.write(writes, b"x")
    worker.join()
    portal.run(asyncio.sleep(A_DAY_S))
    assert A_DAY_S / 2 < LEAPS.times.ahead_s - before
    for one in (reads, writes):
        os.close(one)
