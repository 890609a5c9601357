"""Gets that wait: what coming and going costs beside many, and whose settings a look has."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

import pytest

from cassieq_spark.entropy import system
from cassieq_spark.queue import waiting
from cassieq_spark.queue.get.getter import GetRequest
from cassieq_spark.queue.message import Delivery
from cassieq_spark.queue.waiting import Waiting


def request(*, wait_s: float, at_least: int = 0) -> GetRequest:
    return GetRequest(
        at_most=1, owner="test", visibility_us=1, wait_s=wait_s, min_priority=at_least
    )


@dataclass
class Getter:
    """Finds nothing, ever."""

    lanes: int = 1
    looked: list[tuple[Any, int]] = field(default_factory=list)

    async def look(self, lane: Any, wanted: GetRequest) -> list[Delivery]:
        self.looked.append((lane.name, wanted.min_priority))
        return []


G = TypeVar("G", bound=Getter)


def waiting_for(getter: G) -> tuple[Waiting, G]:
    here = Waiting(system)
    here.getter = getter  # type: ignore[assignment]
    return here, getter


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
        here, getter = waiting_for(Getter())
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


async def test_a_look_is_made_with_the_newest_settings() -> None:
    """Those who were told that nothing is there go to the end of the line, with older settings."""
    here, getter = waiting_for(Getter())
    waits = [
        asyncio.ensure_future(here.get(lane("old"), request(wait_s=60, at_least=1))),
        asyncio.ensure_future(here.get(lane("new"), request(wait_s=60))),
    ]
    while len(getter.looked) < 2:
        await asyncio.sleep(0)
    await here.drain()
    await asyncio.gather(*waits)
    assert [("new", 1), ("new", 0)] == getter.looked[:2]


@dataclass
class Backlog(Getter):
    """Finds so many messages, a number at most in each look; a look takes a while."""

    left: int = 0
    a_look: int = 200
    takes_s: float = 0.0

    async def look(self, lane: Any, wanted: GetRequest) -> list[Delivery]:
        self.looked.append((lane.name, wanted.min_priority))
        await asyncio.sleep(self.takes_s)
        count = min(self.left, wanted.at_most, self.a_look)
        self.left -= count
        return [SimpleNamespace() for _ in range(count)]  # type: ignore[misc]


def served(getter: Backlog, *requests: GetRequest) -> list[int]:
    """How many messages each of some gets has that come at the same time."""

    async def run() -> list[int]:
        here, _ = waiting_for(getter)
        gets = [here.get(lane(), one) for one in requests]
        return [len(found) for found in await asyncio.gather(*gets)]

    return asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("wait_s", [0, 0.05])
@pytest.mark.parametrize(("gets", "at_most"), [(5, 100), (300, 1), (64, 10)])
def test_no_get_finds_nothing_while_messages_are_visible(
    gets: int, at_most: int, wait_s: float
) -> None:
    """A look serves some of those who ask, and has not looked for the others."""
    one = replace(request(wait_s=wait_s), at_most=at_most)

    found = served(Backlog(left=100_000, takes_s=0.04), *[one] * gets)

    assert [at_most] * gets == found


@pytest.mark.invariant("I10")
def test_a_look_that_finds_less_than_it_was_asked_for_has_not_looked_for_the_others() -> None:
    getter = Backlog(left=7, a_look=3)

    found = served(getter, *[request(wait_s=0)] * 20)

    assert [1] * 7 + [0] * 13 == found
    assert 4 == len(getter.looked)  # three find, and one finds nothing


def test_a_party_that_always_finds_something_leaves_every_other_one_its_turn() -> None:
    busy, quiet = request(wait_s=20), request(wait_s=20, at_least=1)
    getter = Backlog(left=1_000, a_look=1)

    assert [1] * 31 == served(getter, *[busy] * 30, quiet)

    assert 1 in [priority for _, priority in getter.looked[:3]]


@pytest.mark.invariant("I10")
async def test_one_who_comes_after_a_look_for_nobody_is_looked_for() -> None:
    """The only waiter leaves while its look waits for a place among those of other queues."""
    here, _ = waiting_for(Backlog(left=1))
    there, place = lane(), asyncio.Event()

    def begin(work: Callable[[Any], Any], item: Any) -> asyncio.Task[Any]:
        async def placed() -> None:
            await place.wait()
            await work(item)

        return asyncio.get_running_loop().create_task(placed())

    there.store.session.looks.begin = begin
    first = asyncio.ensure_future(here.get(there, request(wait_s=60)))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0)
    place.set()
    await asyncio.sleep(0.01)
    began_at = asyncio.get_running_loop().time()
    assert 1 == len(await here.get(there, request(wait_s=5)))
    assert asyncio.get_running_loop().time() - began_at < 4


async def test_a_get_that_comes_while_a_client_drains_looks_once_and_waits_for_nothing() -> None:
    here, getter = waiting_for(Backlog())
    waits = [asyncio.ensure_future(here.get(lane(), request(wait_s=60))) for _ in range(3)]
    while not getter.looked:
        await asyncio.sleep(0)
    await here.drain()
    looked, getter.left = len(getter.looked), 1
    waits.append(asyncio.ensure_future(here.get(lane(), request(wait_s=0))))
    waits.append(asyncio.ensure_future(here.get(lane(), request(wait_s=60))))
    found = await asyncio.gather(*waits)
    assert [0, 0, 0, 1, 0] == [len(one) for one in found]
    assert 1 == len(getter.looked) - looked


def test_a_look_beside_many_waiters_costs_what_it_costs_beside_few() -> None:
    def steps_of_looks(waiters: int) -> int:
        async def run() -> int:
            here, getter = waiting_for(Backlog())
            waits = [
                asyncio.ensure_future(here.get(lane(), request(wait_s=60))) for _ in range(waiters)
            ]
            while not getter.looked:
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            looked = len(getter.looked)
            with Steps() as steps:
                for _ in range(10):
                    getter.left = 1
                    here.look_soon()
                    await asyncio.sleep(0.01)
            assert 10 <= len(getter.looked) - looked
            assert 10 == sum(one.done() for one in waits)
            await here.drain()
            await asyncio.gather(*waits)
            return steps.count

        return asyncio.run(run())

    assert 0 < steps_of_looks(5_000) < 2 * steps_of_looks(50)


async def test_whatever_ends_a_look_is_raised_in_those_who_wait_and_the_next_one_looks() -> None:
    class Killed(BaseException):
        pass

    here, getter = waiting_for(Backlog(left=1))
    look = getter.look

    async def dies(*_: Any) -> list[Delivery]:
        getter.look = look  # type: ignore[method-assign]
        raise Killed

    getter.look = dies  # type: ignore[method-assign]
    waits = [here.get(lane(), request(wait_s=60)) for _ in range(2)]
    assert 2 * [Killed] == [
        type(one) for one in await asyncio.gather(*waits, return_exceptions=True)
    ]
    assert 1 == len(await here.get(lane(), request(wait_s=60)))
