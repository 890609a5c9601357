"""The gateway's own clock: the cluster's time, and nobody's request waits while it is measured."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.aio.client import for_tasks
from cassieq_spark.errors import QueueNotFound, StoreUnavailable
from cassieq_spark.server import backend as module
from cassieq_spark.server.backend import MOST_WAITING as MOST
from cassieq_spark.server.backend import READS, Backend, Turns
from cassieq_spark.store.call import acting
from tests.fixtures.backends import unconnected


class Slow:
    """Calls that hold their places until they may end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.begun: list[str] = []

    def call(self, name: str) -> Callable[[], Coroutine[Any, Any, None]]:
        async def work() -> None:
            self.begun.append(name)
            await self.may_end.wait()

        return work


async def whose() -> str | None:
    return acting.get()


async def others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def backend(client: cassieq.Client) -> Backend:
    made = unconnected(client)
    made._client = for_tasks(client)
    return made


def test_the_loop_goes_on_while_the_time_is_measured(
    backend: Backend, client: cassieq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is five round trips, once a minute; all who want it meanwhile get the one answer."""
    may_end, measured = threading.Event(), []
    now_us = client.now_us

    def slow() -> int:
        assert may_end.wait(60)
        measured.append(now_us())
        return measured[-1]

    monkeypatch.setattr(client, "now_us", slow)

    async def ask() -> list[int]:
        both = asyncio.gather(backend.now_us(), backend.now_us())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not both.done()
        may_end.set()
        found = list(await both)
        found.append(await backend.now_us())
        return found

    found = asyncio.run(ask())
    assert 1 == len(measured)
    assert found == sorted(found)
    assert abs(found[-1] - now_us()) < 5_000_000


def test_the_time_is_measured_again_and_an_error_is_not_kept(
    backend: Backend, client: cassieq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[int | StoreUnavailable] = [
        StoreUnavailable("no node answers"),
        10**15,
        2 * 10**15,
    ]

    def next_answer() -> int:
        answer = answers.pop(0)
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    monkeypatch.setattr(client, "now_us", next_answer)
    monkeypatch.setattr(module, "TIME_EVERY_S", 0.0)

    async def ask() -> int:
        with pytest.raises(StoreUnavailable):
            await backend.now_us()
        return await backend.now_us()

    assert 10**15 <= asyncio.run(ask()) < 10**15 + 10**6


def test_slow_calls_of_one_account_keep_no_other_waiting(
    backend: Backend, client: cassieq.Client, queue_name: str
) -> None:
    """Not one of them ends before the calls of the others are answered."""
    client.create_queue(f"b/{queue_name}")

    async def ask() -> None:
        slow = Slow()
        greedy = [
            asyncio.create_task(backend.run(slow.call("a"), account="a")) for _ in range(MOST + 300)
        ]
        await others_run()
        async with asyncio.timeout(60):
            handle = await backend.opened(f"b/{queue_name}")
            assert 0 == (await backend.on_queue(handle.name, lambda queue: queue.stats())).visible
            acting.set("c")
            assert "c" == await backend.run(whose)
        assert ["a", "a"] == slow.begun
        assert 300 - 2 == sum(one.done() for one in greedy)  # Busy
        assert 2 + MOST == backend.turns.calls
        slow.may_end.set()
        await asyncio.gather(*greedy, return_exceptions=True)

    asyncio.run(ask())
    client.delete_queue(f"b/{queue_name}")


def test_a_call_whose_client_has_gone_holds_its_place_until_it_ends(backend: Backend) -> None:
    """Whoever sends slow requests and hangs up gets no second share."""

    async def ask() -> None:
        slow = Slow()
        gone = [
            asyncio.create_task(backend.run(slow.call(f"gone {n}"), account="a")) for n in range(2)
        ]
        await others_run()
        assert 2 == len(slow.begun)
        for one in gone:
            one.cancel()
        late = asyncio.create_task(backend.run(slow.call("late"), account="a"))
        await others_run()
        await asyncio.wait(gone)
        assert "late" not in slow.begun
        assert 1 == len(backend.turns._lines)
        slow.may_end.set()
        await late

    asyncio.run(ask())


def test_a_door_is_told_no_name_of_another_queue_and_reads_none(
    backend: Backend, client: cassieq.Client, queue_name: str
) -> None:
    client.create_queue(queue_name)
    near = queue_name[:-1]

    async def ask() -> str:
        with pytest.raises(QueueNotFound) as refused:
            await backend.opened(near)
        return str(refused.value)

    before = metrics.STATEMENTS.values.get("some_names", 0)
    assert "Did you mean" not in asyncio.run(ask())
    assert before == metrics.STATEMENTS.values.get("some_names", 0)
    with pytest.raises(QueueNotFound, match=f"Did you mean '{queue_name}'"):
        client.queue(near)
    client.delete_queue(queue_name)


def test_calls_that_read_messages_leave_places_to_all_others(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they read is in memory before it is counted, so they are fewer."""
    monkeypatch.setattr(backend, "turns", Turns(100))

    async def ask() -> None:
        slow = Slow()
        reads = [
            asyncio.create_task(backend.reading(partial(backend.run, slow.call("read"))))
            for _ in range(2 * READS)
        ]
        await others_run()
        assert READS == len(slow.begun) == backend.turns.calls
        assert await backend.run(whose) is None
        slow.may_end.set()
        await asyncio.gather(*reads)
        assert 2 * READS == len(slow.begun)

    asyncio.run(ask())
