"""When a worker is idle for too long: it has looked, and there was nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cassieq_spark.aio import crew
from cassieq_spark.aio.crew import LOOK_S, Crew, CrewSettings, State
from cassieq_spark.errors import StoreUnavailable
from cassieq_spark.testing import ManualClock

IDLE_S = 10.0


class World:
    """A crew with one hand that waits for messages of a store that is there, or away."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.is_away = False
        settings = SimpleNamespace(visibility_timeout_s=30)
        queue: Any = SimpleNamespace(name="q", settings=settings, consumer=lambda **_: self)
        hand: Any = None
        its = CrewSettings(prefetch=1, idle_s=IDLE_S)
        self.crew = Crew(queue, [hand], its, clock=self.clock)
        self.crew.states[0] = State.WAITS

    async def get(self, wait_s: float) -> None:
        """The consumer's: an outage is told when a get's statements were retried in vain."""
        self.clock.advance(24.0 if self.is_away else wait_s)
        if self.is_away:
            raise StoreUnavailable("no node answers")


Steps = Callable[[World], AsyncIterator[object]]


def ends_in(steps: Steps) -> bool:
    """Look after the crew at each step. Return whether it was idle for too long at one."""

    async def look() -> bool:
        world = World()
        world.crew.is_idle()
        async for _ in steps(world):
            if world.crew.is_idle():
                return True
        return False

    return asyncio.run(look())


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "RETRY_S", 0.0)


def test_a_worker_is_idle_when_gets_were_answered_with_nothing_for_so_long() -> None:
    gets = 0

    async def steps(world: World) -> AsyncIterator[object]:
        nonlocal gets
        while gets < 100:
            gets += 1
            assert await world.crew._next() is None
            yield "answered"

    assert ends_in(steps)
    assert IDLE_S / LOOK_S / 2 < gets <= IDLE_S / LOOK_S


def test_time_in_which_the_store_was_away_is_not_idle() -> None:
    async def steps(world: World) -> AsyncIterator[object]:
        await world.crew._next()
        yield "answered"
        world.is_away = True
        for _ in range(5):
            for _ in range(100):
                world.clock.advance(0.2)
                yield "a get is not answered yet"
            await world.crew._next()
            yield "the get has failed"
        world.is_away = False
        for _ in range(5):
            await world.crew._next()
            yield "answered"

    assert not ends_in(steps)


def test_a_worker_is_idle_also_after_an_outage() -> None:
    async def steps(world: World) -> AsyncIterator[object]:
        for world.is_away in [True, *[False] * 100]:
            await world.crew._next()
            yield "answered, or failed"

    assert ends_in(steps)
