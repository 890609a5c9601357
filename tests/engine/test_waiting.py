"""Those who wait for messages: what idle ones cost, who is served, and who went away."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.aio.client import for_tasks
from cassieq_spark.errors import CassieqError, OptionInvalid, StoreUnavailable, UsageError
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from cassieq_spark.queue.get.getter import GetRequest
    from cassieq_spark.queue.lane import Lane
    from tests.fixtures.places import Places

    Work = Callable[[cassieq.AsyncQueue], Awaitable[Any]]


@pytest.fixture
def queue(client: cassieq.Client, queue_name: str) -> Iterator[cassieq.Queue]:
    made = client.create_queue(queue_name, visibility_timeout=60, linger=0)
    yield made
    made.delete()


@pytest.fixture
def classes(client: cassieq.Client, queue_name: str) -> Iterator[cassieq.Queue]:
    made = client.create_queue(queue_name, priorities=4, fairness=0, linger=0)
    yield made
    made.delete()


def running(client: cassieq.Client, queue: cassieq.Queue, work: Work) -> Any:
    async def run() -> Any:
        return await work(await for_tasks(client).queue(queue.name))

    return asyncio.run(run())


def statements() -> int:
    return sum(metrics.STATEMENTS.values.values())


def reads_of(client: cassieq.Client, queue: cassieq.Queue, waiters: int) -> int:
    """The statements of so many that wait for three seconds for nothing."""

    async def wait(here: cassieq.AsyncQueue) -> int:
        assert [] == await here.get(10)
        before, threads = statements(), threading.active_count()
        waits = [asyncio.ensure_future(here.get(10, wait=3)) for _ in range(waiters)]
        async with asyncio.timeout(30):
            while here._sync._work.waiting.count < waiters:
                await asyncio.sleep(0.02)
        assert waiters == here._sync._work.waiting.count
        assert threads >= threading.active_count() - 1  # one measures the time now and then
        assert waiters * [[]] == await asyncio.gather(*waits)
        return statements() - before

    return int(running(client, queue, wait))


def test_a_thousand_idle_waiters_read_no_more_than_one_and_take_no_thread(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    one = max(reads_of(client, queue, 1) for _ in range(2))
    many = reads_of(client, queue, 1_000)

    assert 2 <= one <= 30
    assert many <= 30


def test_waiters_that_each_ask_for_another_timeout_read_no_more_than_one(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    async def wait(here: cassieq.AsyncQueue) -> int:
        await here.get(10)
        before = statements()
        polls = [here.get(10, visibility_timeout=30 + n / 10, wait=3) for n in range(300)]
        assert 300 * [[]] == await asyncio.gather(*polls)
        return statements() - before

    assert running(client, queue, wait) <= 30


@pytest.fixture
def looks(classes: cassieq.Queue, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float, int]]:
    """The looks that are made: the lowest priority, the timeout, how many were found."""
    made: list[tuple[int, float, int]] = []
    getter = classes._work.waiting.getter
    look = getter.look

    async def noted(lane: Lane, wanted: GetRequest) -> list[cassieq.Delivery]:
        found = await look(lane, wanted)
        made.append((wanted.min_priority, wanted.visibility_us / 1e6, len(found)))
        return found

    monkeypatch.setattr(getter, "look", noted)
    return made


@pytest.mark.parametrize("seed", range(3))
def test_nobody_waits_for_more_looks_than_there_are_waiters_in_front(
    client: cassieq.Client,
    classes: cassieq.Queue,
    looks: list[tuple[int, float, int]],
    seed: int,
) -> None:
    """However they differ; and each look that finds nothing is one for all who ask for less."""
    drawn = random.Random(seed)  # noqa: S311 - seeded, to be repeated
    wanted = [drawn.randrange(4) for _ in range(24)]
    for priority in range(4):
        classes.put_many([b"m"] * drawn.randrange(5), priority=priority)

    async def work(here: cassieq.AsyncQueue) -> list[int]:
        polls = [
            here.get(1, visibility_timeout=40 + at, min_priority=least)
            for at, least in enumerate(wanted)
        ]
        return [len(one) for one in await asyncio.gather(*polls)]

    found = running(client, classes, work)
    for at, least in enumerate(wanted):
        told = [
            number
            for number, (asked, timeout, count) in enumerate(looks)
            if timeout == 40 + at or (not count and asked <= least)
        ]
        assert told[0] <= at, (at, looks)
        assert found[at] == sum(count for _, timeout, count in looks if timeout == 40 + at)
    assert len(looks) <= sum(found) + 4 * (1 + sum(found))


def test_who_waits_for_a_high_priority_keeps_nobody_from_a_low_one(
    client: cassieq.Client, classes: cassieq.Queue
) -> None:
    """And is looked for again, when those behind it had their turn."""

    async def work(here: cassieq.AsyncQueue) -> list[list[bytes]]:
        async def receive(least: int, visibility_s: float) -> list[bytes]:
            found = await here.get(1, visibility_timeout=visibility_s, wait=20, min_priority=least)
            return [one.body for one in found]

        high = asyncio.create_task(receive(3, 40))
        low = [asyncio.create_task(receive(0, 41 + n)) for n in range(3)]
        await here.put_many([b"low"] * 3)
        found = await asyncio.gather(*low)
        assert not high.done()
        await here.put(b"high", priority=3)
        return [*found, await high]

    assert [*[[b"low"]] * 3, [b"high"]] == running(client, classes, work)


def test_terms_that_are_wrong_are_an_error_of_those_alone_who_have_them(
    client: cassieq.Client, classes: cassieq.Queue
) -> None:
    async def work(here: cassieq.AsyncQueue) -> list[Any]:
        polls = [here.get(1, wait=20, min_priority=least) for least in (0, 99, 1, 99)]
        waits = [asyncio.ensure_future(one) for one in polls]
        await asyncio.wait({waits[1], waits[3]}, timeout=60)
        assert not waits[0].done()
        await here.put_many([b"m", b"m"], priority=2)
        return await asyncio.gather(*waits, return_exceptions=True)

    one, wrong, two, too = running(client, classes, work)
    assert (1, 1) == (len(one), len(two))
    assert {OptionInvalid} == {type(wrong), type(too)}


@pytest.mark.parametrize("error", [UsageError("wrong"), StoreUnavailable("no node answers")])
def test_a_look_that_fails_for_its_terms_fails_those_who_have_them_else_it_fails_all(
    client: cassieq.Client,
    classes: cassieq.Queue,
    error: CassieqError,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    getter = classes._work.waiting.getter
    look = getter.look

    have_come = asyncio.Event()

    async def failing(lane: Lane, wanted: GetRequest) -> list[cassieq.Delivery]:
        while not have_come.is_set():  # they may come in several turns of the loop
            if classes._work.waiting.count == 3:
                have_come.set()
            await asyncio.sleep(0.01)
        if wanted.visibility_us == 40_000_000:
            raise error
        return await look(lane, wanted)

    monkeypatch.setattr(getter, "look", failing)

    async def work(here: cassieq.AsyncQueue) -> list[Any]:
        waits = [
            asyncio.ensure_future(here.get(1, wait=5, visibility_timeout=seconds))
            for seconds in (40, 41, 40)
        ]
        return await asyncio.gather(*waits, return_exceptions=True)

    first, other, third = running(client, classes, work)
    assert 2 * [(type(error), str(error))] == [(type(one), str(one)) for one in (first, third)]
    assert first is not third  # each has its own traceback
    if isinstance(error, UsageError):
        assert [] == other
    else:
        assert str(error) == str(other)


@pytest.mark.parametrize("is_alone", [True, False])
def test_who_waits_misses_nothing_that_was_visible_a_second_before_he_went(
    client: cassieq.Client, classes: cassieq.Queue, places: Places, is_alone: bool
) -> None:
    with places.connect() as other:
        puts = other.queue(classes.name)

        async def put_later() -> None:
            await asyncio.sleep(1)
            await asyncio.to_thread(puts.put, b"late")  # nobody here hears of it

        async def work(here: cassieq.AsyncQueue) -> list[int]:
            found = []
            company = asyncio.ensure_future(here.get(1, wait=60, min_priority=3))
            if is_alone:
                company.cancel()
                await asyncio.wait({company})
            for wait_s in (3.0, *[2.0] * 6):  # at first the pauses come to their longest
                putting = asyncio.create_task(put_later()) if wait_s < 3 else None
                got = await here.get(1, wait=wait_s)
                if putting is not None:
                    await putting
                await here.ack(got)
                found.append(len(got))
            company.cancel()
            await asyncio.wait({company})
            return found

        assert [0, *[1] * 6] == running(client, classes, work)


def test_messages_go_to_the_waiters_in_their_order(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    wanted = replace(queue._ways(4, None, None, 0).wanted(queue._lane), wait_s=20)

    async def three() -> list[list[cassieq.Delivery]]:
        """They come in one turn of the engine's loop."""
        gets = (queue._work.waiting.get(queue._lane, wanted) for _ in range(3))
        return await asyncio.gather(*gets)

    async def work(here: cassieq.AsyncQueue) -> list[int]:
        polls = asyncio.ensure_future(portal.asked(three()))
        await asyncio.sleep(0.1)
        await here.put_many([b"%d" % n for n in range(10)])
        return [len(one) for one in await polls]

    assert [4, 4, 2] == running(client, queue, work)


def test_who_went_away_gets_nothing_and_no_delivery_is_counted(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    async def work(here: cassieq.AsyncQueue) -> None:
        gone = asyncio.ensure_future(here.get(10, wait=20))
        await asyncio.sleep(0.1)
        await here.put(b"x")  # a look is under way now
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone

    running(client, queue, work)

    (got,) = queue.get(10, wait=5)
    assert 1 == got.delivery_count
