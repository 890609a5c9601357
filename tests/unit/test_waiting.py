"""Gets that wait: what coming and going costs beside many, and whose settings a look has."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cassieq_spark.entropy import system
from cassieq_spark.queue import waiting
from cassieq_spark.queue.get.getter import GetRequest
from cassieq_spark.queue.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from cassieq_spark.queue.message import Message


def request(*, wait_s: float, at_least: int = 0) -> GetRequest:
    return GetRequest(
        at_most=1, owner="test", visibility_us=1, wait_s=wait_s, priority_at_least=at_least
    )


@dataclass
class Getter:
    """Finds nothing, ever."""

    lanes: int = 1
    looked: list[tuple[Any, int]] = field(default_factory=list)

    async def look(self, lane: Any, wanted: GetRequest) -> list[Message]:
        self.looked.append((lane.name, wanted.priority_at_least))
        return []


def lane(name: str = "lane") -> Any:
    def begin(work: Callable[[Any], Any], item: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work(item))

    session = SimpleNamespace(looks=SimpleNamespace(begin=begin))
    return SimpleNamespace(
        name=name, store=SimpleNamespace(session=session), settings=SimpleNamespace(priorities=4)
    )


class Steps:
    """Counts the bytecode steps of `waiting` in a block."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Steps:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, kind: str, _: object) -> Any:
        if frame.f_code.co_filename != waiting.__file__:
            return None
        frame.f_trace_opcodes = True
        self.count += kind == "opcode"
        return self._trace


def steps_of_arrivals(others: int) -> int:
    """The steps of ten gets that come, and of ten whose time is over, beside so many others."""

    async def run() -> int:
        here, getter = Waiting(system), Getter()
        here.getter = getter  # type: ignore[assignment]
        times = [60.0] * others + [0.1 + at / 100 for at in range(10)]
        waits = [asyncio.ensure_future(here.get(lane(), request(wait_s=time))) for time in times]
        while not getter.looked:
            await asyncio.sleep(0)
        here._look_at += 60  # no look from here on
        await asyncio.sleep(0)
        with Steps() as steps:
            for _ in range(10):
                waits.append(asyncio.ensure_future(here.get(lane(), request(wait_s=60))))
                for _ in range(5):
                    await asyncio.sleep(0)
            assert 10 * [[]] == await asyncio.gather(*waits[others : others + 10])
        assert 1 == len(getter.looked)
        await here.drain()
        assert (others + 20) * [[]] == await asyncio.gather(*waits)
        return steps.count

    return asyncio.run(run())


def test_who_comes_and_who_goes_costs_the_same_beside_many_who_wait() -> None:
    assert 0 < steps_of_arrivals(2_000) < 2 * steps_of_arrivals(20)


def test_a_look_is_made_with_the_newest_settings() -> None:
    """Those who were told that nothing is there go to the end of the line, with older settings."""

    async def run() -> list[tuple[str, int]]:
        here, getter = Waiting(system), Getter()
        here.getter = getter  # type: ignore[assignment]
        waits = [
            asyncio.ensure_future(here.get(lane("old"), request(wait_s=60, at_least=1))),
            asyncio.ensure_future(here.get(lane("new"), request(wait_s=60))),
        ]
        while len(getter.looked) < 2:
            await asyncio.sleep(0)
        await here.drain()
        await asyncio.gather(*waits)
        return getter.looked[:2]

    assert [("new", 1), ("new", 0)] == asyncio.run(run())
