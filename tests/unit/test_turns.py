"""Threads in turn: who is next, who is over its share, and what becomes of those who give up."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.aio.pool import Busy
from cassieq_spark.server.turns import Turns

FOREVER = float("inf")


async def others_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Calls:
    """Calls that have a thread until they are told to end."""

    def __init__(self, threads: int, *, most_waiting: int = 100) -> None:
        self.turns = Turns(threads, most_waiting=most_waiting)
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


def test_an_account_with_many_calls_costs_another_one_turn_for_each_of_its_calls() -> None:
    async def run() -> None:
        calls = Calls(1)
        await calls.ask(*"aaaaaa", *"bb", "c")
        for _ in range(8):
            await calls.end(calls.begun[-1])
        assert list("aabcabaaa") == calls.begun
        await calls.close()

    asyncio.run(run())


def test_slow_calls_of_one_account_leave_half_of_the_threads_to_others() -> None:
    async def run() -> None:
        calls = Calls(8)
        await calls.ask(*"a" * 100)
        assert list("aaaa") == calls.begun  # none of them ends
        await calls.ask(*"bbb", *"cc", "d")
        assert list("aaaabbcd") == calls.begun
        await calls.end("b")  # b and c hold as many as are free now
        await calls.ask("e")
        assert list("aaaabbcde") == calls.begun
        await calls.close()

    asyncio.run(run())


def test_calls_of_no_account_may_have_all_threads() -> None:
    async def run() -> None:
        calls = Calls(4)
        await calls.ask(*[""] * 9)
        assert [""] * 4 == calls.begun
        await calls.end("")
        assert [""] * 5 == calls.begun
        await calls.close()

    asyncio.run(run())


def test_only_the_account_that_has_too_many_calls_is_told_so() -> None:
    async def run() -> None:
        calls = Calls(1, most_waiting=3)
        await calls.ask(*"aaaa")
        assert 3 == calls.turns.waiting
        with pytest.raises(Busy):
            await calls.turns.take("a", FOREVER)
        await calls.ask("b")
        assert 4 == calls.turns.waiting
        await calls.end("a")
        await calls.ask("a")
        await calls.close()

    asyncio.run(run())


def test_who_gives_up_is_passed_over_even_as_its_turn_comes() -> None:
    async def run() -> None:
        calls = Calls(1)
        await calls.ask(*"abcd")
        calls.tasks[1].cancel()
        await calls.end("a")  # b is next, and does not know yet that it was cancelled
        assert ["a", "c"] == calls.begun
        calls.turns.leave("c")
        calls.tasks[3].cancel()  # d has its turn already
        await others_run()
        assert (0, ["a", "c"]) == (calls.turns.waiting, calls.begun)
        await calls.ask("e")
        assert ["a", "c", "e"] == calls.begun
        await calls.close()

    asyncio.run(run())


def test_no_thread_in_time_is_a_timeout_and_the_place_in_the_line_is_gone() -> None:
    async def run() -> None:
        calls = Calls(1)
        await calls.ask("a")
        with pytest.raises(TimeoutError):
            await calls.turns.take("b", asyncio.get_running_loop().time())
        assert 0 == calls.turns.waiting
        await calls.end("a")
        await calls.ask("c")
        assert ["a", "c"] == calls.begun
        await calls.close()

    asyncio.run(run())


@given(
    threads=st.integers(1, 6),
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2)), max_size=60),
)
def test_no_thread_is_lost_and_nobody_who_may_have_one_waits(
    threads: int, steps: list[tuple[str, int]]
) -> None:
    """Whoever waits is over its share, or all threads are taken; and all get one in the end."""

    async def run() -> None:
        calls = Calls(threads)
        for account, kind in steps:
            if kind < 2:
                await calls.ask(account)
            elif calls.held:
                await calls.end(calls.held[0])
            free = threads - len(calls.held)
            waits = {one for one in "abcd" if calls.asked.count(one) > calls.begun.count(one)}
            assert 0 <= free
            assert all(calls.held.count(one) >= free for one in waits)
        while calls.held:
            await calls.end(calls.held[0])
        assert 0 == calls.turns.waiting
        assert sorted(calls.asked) == sorted(calls.begun)

    asyncio.run(run())
