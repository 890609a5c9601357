"""When a worker is idle for too long: it has looked, and there was nothing."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cassieq_spark.errors import StoreUnavailable
from cassieq_spark.testing import ManualClock
from cassieq_spark.worker import work
from cassieq_spark.worker.work import LOOK_S, WorkSettings, _Pool, _State

IDLE_S = 10.0


class World:
    """A pool with one slot that waits for messages of a store that is there, or away."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.is_away = False
        settings = SimpleNamespace(visibility_timeout_s=30)
        queue: Any = SimpleNamespace(name="q", settings=settings, consumer=lambda **_: self)
        client: Any = None
        its = WorkSettings(function="m:f", concurrency=1, prefetch=1, idle_s=IDLE_S)
        self.pool = _Pool(client, queue, its)
        self.pool.clock = self.clock  # type: ignore[assignment]  # still time
        self.slot = self.pool.slots[0]
        self.slot.state = _State.WAITS

    def get(self, wait_s: float) -> None:
        """The consumer's: an outage is told when a get's statements were retried in vain."""
        self.clock.advance(24.0 if self.is_away else wait_s)
        if self.is_away:
            raise StoreUnavailable("no node answers")

    def ends_in(self, steps: Iterator[object]) -> bool:
        """Watch the pool, a step at a time. Return whether it has ended before the steps."""
        has_more = True

        def step() -> bool:
            nonlocal has_more
            has_more = next(steps, None) is not None
            return not has_more

        self.pool.watch(step)
        return has_more


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(work, "RETRY_S", 0.0)
    return World()


def test_a_worker_is_idle_when_gets_were_answered_with_nothing_for_so_long(world: World) -> None:
    gets = 0

    def steps() -> Iterator[object]:
        nonlocal gets
        while gets < 100:
            gets += 1
            assert world.slot._next() is None
            yield "answered"

    assert world.ends_in(steps())
    assert IDLE_S / LOOK_S / 2 < gets <= IDLE_S / LOOK_S


def test_time_in_which_the_store_was_away_is_not_idle(world: World) -> None:
    def steps() -> Iterator[object]:
        world.slot._next()
        yield "answered"
        world.is_away = True
        for _ in range(5):
            for _ in range(100):
                world.clock.advance(0.2)
                yield "a get is not answered yet"
            world.slot._next()
            yield "the get has failed"
        world.is_away = False
        for _ in range(5):
            world.slot._next()
            yield "answered"

    assert not world.ends_in(steps())


def test_a_worker_is_idle_also_after_an_outage(world: World) -> None:
    def steps() -> Iterator[object]:
        for world.is_away in [True, *[False] * 100]:
            world.slot._next()
            yield "answered, or failed"

    assert world.ends_in(steps())
