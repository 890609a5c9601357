"""Calls in turn: who is next, who is over its share, and what becomes of those who give up."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.errors import StoreTimeout
from cassieq_spark.server import backend as module
from cassieq_spark.server.backend import Busy, Shared, Turns
from cassieq_spark.store.call import LONGEST_S, acting, present
from cassieq_spark.testing import ManualClock

FOREVER = float("inf")


async def others_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Calls:
    """Calls that have a place until they are told to end."""

    def __init__(self, places: int, *, most_waiting: int = 100) -> None:
        self.turns = Turns(places, most_waiting=most_waiting)
        self.asked: list[str] = []
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, *accounts: str) -> None:
        for account in accounts:
            self.asked.append(account)
            self.tasks.append(asyncio.create_task(self._take(account)))
        await others_run()

    async def _take(self, account: str) -> None:
        await self.turns.take(account or None, FOREVER)
        self.begun.append(account)

    async def end(self, *accounts: str) -> None:
        for account in accounts:
            self.ended.append(account)
            self.turns.leave(account or None)
            await others_run()

    @property
    def held(self) -> list[str]:
        left = list(self.begun)
        for one in self.ended:
            left.remove(one)
        return left

    async def close(self) -> None:
        self.turns.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_an_account_with_many_calls_costs_another_one_turn_for_each_of_its_calls() -> None:
    calls = Calls(1)
    await calls.ask(*"aaaaaa", *"bb", "c")
    for _ in range(8):
        await calls.end(calls.begun[-1])
    assert list("aabcabaaa") == calls.begun
    await calls.close()


async def test_slow_calls_of_one_account_leave_half_of_the_places_to_others() -> None:
    calls = Calls(8)
    await calls.ask(*"a" * 100)
    assert list("aaaa") == calls.begun  # none of them ends
    await calls.ask(*"bbb", *"cc", "d")
    assert list("aaaabbcd") == calls.begun
    await calls.end("b")  # b and c hold as many as are free now
    await calls.ask("e")
    assert list("aaaabbcde") == calls.begun
    await calls.close()


async def test_calls_of_no_account_may_have_all_places() -> None:
    calls = Calls(4)
    await calls.ask(*[""] * 9)
    assert [""] * 4 == calls.begun
    await calls.end("")
    assert [""] * 5 == calls.begun
    await calls.close()


async def test_only_the_account_that_has_too_many_calls_is_told_so() -> None:
    calls = Calls(1, most_waiting=3)
    await calls.ask(*"aaaa")
    assert 3 == len(calls.turns._lines)
    with pytest.raises(Busy):
        await calls.turns.take("a", FOREVER)
    await calls.ask("b")
    assert 4 == len(calls.turns._lines)
    await calls.end("a")
    await calls.ask("a")
    await calls.close()


async def test_who_gives_up_is_passed_over_even_as_its_turn_comes() -> None:
    calls = Calls(1)
    await calls.ask(*"abcd")
    calls.tasks[1].cancel()
    await calls.end("a")  # b is next, and does not know yet that it was cancelled
    assert ["a", "c"] == calls.begun
    calls.turns.leave("c")
    calls.tasks[3].cancel()  # d has its turn already
    await others_run()
    assert (0, ["a", "c"]) == (len(calls.turns._lines), calls.begun)
    await calls.ask("e")
    assert ["a", "c", "e"] == calls.begun
    await calls.close()


async def test_no_place_in_time_is_a_timeout_and_the_place_in_the_line_is_gone() -> None:
    calls = Calls(1)
    await calls.ask("a")
    with pytest.raises(TimeoutError):
        await calls.turns.take("b", asyncio.get_running_loop().time())
    assert 0 == len(calls.turns._lines)
    await calls.end("a")
    await calls.ask("c")
    assert ["a", "c"] == calls.begun
    await calls.close()


@given(
    places=st.integers(1, 6),
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2)), max_size=60),
)
def test_no_place_is_lost_and_nobody_who_may_have_one_waits(
    places: int, steps: list[tuple[str, int]]
) -> None:
    """Whoever waits is over its share, or all places are taken; and all get one in the end."""

    async def run() -> None:
        calls = Calls(places)
        for account, kind in steps:
            if kind < 2:
                await calls.ask(account)
            elif calls.held:
                await calls.end(calls.held[0])
            free = places - len(calls.held)
            waits = {one for one in "abcd" if calls.asked.count(one) > calls.begun.count(one)}
            assert 0 <= free
            assert all(calls.held.count(one) >= free for one in waits)
        while calls.held:
            await calls.end(calls.held[0])
        assert 0 == len(calls.turns._lines)
        assert sorted(calls.asked) == sorted(calls.begun)

    asyncio.run(run())


async def test_a_call_has_its_place_until_it_ends_also_if_its_client_has_gone() -> None:
    turns, goes_on, begun = Turns(2), asyncio.Event(), list[str]()

    async def call(name: str) -> str:
        begun.append(name)
        await goes_on.wait()
        return name

    gone = asyncio.create_task(turns.run(lambda: call("gone"), "a"))
    late = asyncio.create_task(turns.run(lambda: call("late"), "a"))
    await others_run()
    gone.cancel()
    await asyncio.wait({gone})
    assert (["gone"], 2, 1) == (begun, turns.calls, len(turns._lines))
    goes_on.set()
    assert "late" == await late
    await others_run()
    assert 0 == turns.calls


async def test_a_call_is_of_its_account_and_has_the_rest_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(module, "_clock", clock)

    turns = Turns(1)

    async def seen() -> tuple[str | None, float]:
        call = present().call
        assert call is not None
        return acting.get(), call.left_s

    await turns.take("a", FOREVER)
    acting.set("b")
    waits = asyncio.create_task(turns.run(seen))
    await others_run()
    clock.advance(10.0)
    turns.leave("a")
    assert ("b", LONGEST_S - 10) == await waits
    assert ("c", LONGEST_S) == await turns.run(seen, "c")
    assert present().call is None


async def test_a_call_whose_turn_does_not_come_in_time_says_so_and_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LONGEST_S", 0.01)

    turns, begun = Turns(1), list[str]()

    async def call() -> None:
        begun.append("late")

    await turns.take("a", FOREVER)
    with pytest.raises(StoreTimeout, match="Nothing was done"):
        await turns.run(call, "a")
    assert [] == begun


async def test_who_asks_for_the_same_at_the_same_time_waits_for_one_call() -> None:
    shared, asked = Shared(), list[str]()

    async def ask() -> int:
        asked.append("x")
        await others_run()
        return len(asked)

    first, gone, third = (asyncio.create_task(shared.once("x", ask)) for _ in range(3))
    await asyncio.sleep(0)
    gone.cancel()
    assert [1, 1] == [await first, await third]
    assert 2 == await shared.once("x", ask)
