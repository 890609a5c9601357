"""Calls that are made together: who gathers, who waits, and for how long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cassieq_spark.aio import linger
from cassieq_spark.server import groups as server_groups
from cassieq_spark.server.groups import Groups

if TYPE_CHECKING:
    import pytest

Key = tuple[str, int]
Q: Key = ("q", 1)
R: Key = ("r", 1)


class Calls:
    """Calls that end when they are told to."""

    def __init__(self) -> None:
        self.made: list[list[str]] = []
        self.begun = asyncio.Event()
        self._ends = asyncio.Event()

    async def make(self, key: Key, together: list[str]) -> None:
        del key
        self.made.append(together)
        self.begun.set()
        await self._ends.wait()
        self._ends.clear()

    async def next(self) -> None:
        """Return when another call is under way."""
        async with asyncio.timeout(10):
            await self.begun.wait()
        self.begun.clear()

    def end(self) -> None:
        self._ends.set()


async def others_run() -> None:
    """Let all that is ready go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def take_all(waiting: list[str]) -> list[str]:
    found = list(waiting)
    waiting.clear()
    return found


def test_who_comes_while_a_call_is_under_way_goes_with_the_next() -> None:
    async def run() -> list[list[str]]:
        calls = Calls()
        groups: Groups[Key, str] = Groups(take_all, calls.make)
        groups.add(Q, "a")
        await calls.next()
        groups.add(Q, "b")
        groups.add(Q, "c")
        calls.end()
        await calls.next()
        calls.end()
        await groups.close(5)
        return calls.made

    assert [["a"], ["b", "c"]] == asyncio.run(run())


def test_a_call_waits_for_as_many_as_the_last_one_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linger, "until_s", lambda **_: float("inf"))

    async def run() -> list[list[str]]:
        calls = Calls()
        groups: Groups[Key, str] = Groups(take_all, calls.make)
        groups.add(Q, "a")
        groups.add(Q, "b")
        await calls.next()
        groups.add(Q, "c")
        calls.end()
        await others_run()
        assert 1 == len(calls.made)  # c waits for one more
        groups.add(Q, "a")
        await calls.next()
        groups.add(Q, "d")  # nobody is waited for any longer than it takes to end the test
        monkeypatch.setattr(linger, "until_s", lambda **_: 0.0)
        calls.end()
        await calls.next()
        calls.end()
        await groups.close(5)
        return calls.made

    assert [["a", "b"], ["c", "a"], ["d"]] == asyncio.run(run())


def test_whoever_is_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linger, "until_s", lambda **_: float("inf"))

    async def run() -> list[list[str]]:
        calls = Calls()
        groups: Groups[Key, str] = Groups(take_all, calls.make)
        for one in ("a", "b", "c"):
            groups.add(Q, one)
            await calls.next()
            calls.end()
        await groups.close(5)
        return calls.made

    assert [["a"], ["b"], ["c"]] == asyncio.run(run())


def test_the_first_call_of_a_key_waits_for_as_many_as_the_queue_s_last_call_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Receivers that were served together ack together, of one bucket after the other."""
    monkeypatch.setattr(server_groups, "FIRST_S", 60.0)

    async def run() -> list[list[str]]:
        calls = Calls()
        groups: Groups[Key, str] = Groups(take_all, calls.make)
        groups.add(Q, "a")
        groups.add(Q, "b")
        await calls.next()
        calls.end()
        await others_run()
        groups.add(("q", 2), "a")
        groups.add(R, "c")  # of another queue: it waits for nobody
        await others_run()
        assert ["c"] == calls.made.pop()
        groups.add(("q", 2), "b")
        await others_run()
        return calls.made

    assert [["a", "b"], ["a", "b"]] == asyncio.run(run())


def test_the_end_begins_no_further_call_and_waits_only_so_long() -> None:
    """Whoever would have had the next call is gone by then."""

    async def run() -> list[list[str]]:
        calls = Calls()
        groups: Groups[Key, str] = Groups(take_all, calls.make)
        groups.add(Q, "a")
        await calls.next()
        groups.add(Q, "b")
        await groups.close(0.01)
        calls.end()
        await groups.close(5)
        return calls.made

    assert [["a"]] == asyncio.run(run())


def test_keys_do_not_wait_for_each_other() -> None:
    async def run() -> list[list[str]]:
        calls = Calls()
        groups: Groups[Key, str] = Groups(take_all, calls.make)
        groups.add(Q, "a")
        await calls.next()
        groups.add(R, "b")
        await calls.next()
        calls.end()
        calls.end()
        await asyncio.sleep(0)
        calls.end()
        await groups.close(5)
        return calls.made

    assert [["a"], ["b"]] == asyncio.run(run())


def test_nobody_lingers_longer_than_the_last_call_took_or_than_the_limit() -> None:
    assert 10.015625 == linger.until_s(began_s=9.984375, ended_s=10.0)
    assert 10.03125 == linger.until_s(began_s=9.984375, ended_s=10.0, times=2.0)
    assert 10.0 + linger.LINGER_S == linger.until_s(began_s=1.0, ended_s=10.0)
