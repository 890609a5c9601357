"""`AsyncQueue.work`: coroutines side by side, and what becomes of messages when something ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import QueueDeleted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.fixtures.places import Places

    Run = Callable[[Callable[[cassieq.AsyncQueue], Awaitable[Any]]], Any]


@pytest.fixture
def queue(client: cassieq.Client, queue_name: str) -> cassieq.Queue:
    client.create_queue(f"{queue_name}.dead")
    return client.create_queue(
        queue_name,
        linger=0,
        visibility_timeout=10,
        max_deliveries=3,
        dead_letter_queue=f"{queue_name}.dead",
    )


@pytest.fixture
def run(places: Places, queue: cassieq.Queue) -> Run:
    def start(work: Callable[[cassieq.AsyncQueue], Awaitable[Any]]) -> Any:
        async def inside() -> Any:
            async with places.connect_async() as own:
                return await work(await own.queue(queue.name))

        return asyncio.run(inside())

    return start


def lie(queue: cassieq.Queue) -> tuple[int, int, int, int]:
    """Visible, invisible, delayed, dead."""
    stats = queue.stats()
    return stats.visible, stats.in_flight, stats.delayed, stats.dead


def test_as_many_functions_as_asked_for_run_side_by_side(queue: cassieq.Queue, run: Run) -> None:
    queue.put_many([b"%d" % number for number in range(60)])
    most = now = 0

    async def function(_: cassieq.Delivery) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.1)
        now -= 1

    run(lambda one: one.work(function, concurrency=20, idle_timeout=1))

    assert 20 == most
    assert (0, 0, 0, 0) == lie(queue)


def test_an_error_is_logged_with_its_trace_and_its_message_comes_again(
    queue: cassieq.Queue, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    worker = cassieq.Worker()
    tried: list[tuple[bytes, int]] = []

    @worker.on(tag="bad")
    async def bad(message: cassieq.Delivery) -> None:
        tried.append((message.body, message.delivery_count))
        raise ValueError("not today")

    @worker.on(tag="late")
    async def late(message: cassieq.Delivery) -> None:
        tried.append((message.body, message.delivery_count))
        if len(tried) < 6:
            raise cassieq.Retry(after=0.1, counted=False)

    @worker.on()
    def reject(message: cassieq.Delivery) -> None:
        raise cassieq.Reject(message.tag or "")

    queue.put(b"m", tag="bad")
    queue.put(b"r", tag="unwanted")
    queue.put(b"l", tag="late")
    backoff = cassieq.Backoff(base_s=0.1)
    run(lambda one: one.work(worker, concurrency=1, idle_timeout=5, backoff=backoff))

    assert [1, 2, 3] == [count for body, count in tried if body == b"m"]
    assert {1} == {count for body, count in tried if body == b"l"}
    assert (0, 0, 0, 2) == lie(queue)
    assert 3 == caplog.text.count("ValueError: not today\nWARNING")


def test_a_lease_is_kept_also_while_the_loop_of_the_program_is_blocked(
    queue: cassieq.Queue, run: Run
) -> None:
    queue.put(b"m")
    seen: list[Any] = []

    async def function(_: cassieq.Delivery) -> None:
        seen.extend(queue.get(wait=60))  # a blocking call, for six visibility timeouts
        await asyncio.sleep(30)

    run(lambda one: one.work(function, idle_timeout=1))

    assert [] == seen
    assert (0, 0, 0, 0) == lie(queue)


class Stopping:
    """Work that was cancelled while two functions run and others wait."""

    def __init__(self) -> None:
        self.began = 0
        self.ended: list[str] = []
        self.may_end = asyncio.Event()
        self.have_begun = asyncio.Event()

    async def function(self, _: cassieq.Delivery) -> None:
        self.began += 1
        if self.began == 2:
            self.have_begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
            self.ended.append("cancelled")
            raise
        self.ended.append("done")

    async def cancelled(self, queue: cassieq.AsyncQueue, **settings: Any) -> asyncio.Task[None]:
        await queue.put_many([b"m"] * 6)
        work = asyncio.create_task(queue.work(self.function, concurrency=2, prefetch=4, **settings))
        await self.have_begun.wait()
        while (await queue.stats()).in_flight < 6:
            await asyncio.sleep(0.1)
        work.cancel()
        while (await queue.stats()).visible < 4:
            await asyncio.sleep(0.1)
        assert not work.done()
        return work


async def ends_cancelled(work: asyncio.Task[None]) -> None:
    await asyncio.wait({work})
    assert work.cancelled()


def test_a_cancel_lets_running_functions_end_and_gives_back_what_waits(
    queue: cassieq.Queue, run: Run
) -> None:
    async def work(own: cassieq.AsyncQueue) -> list[str]:
        stopping = Stopping()
        task = await stopping.cancelled(own)
        stopping.may_end.set()
        await ends_cancelled(task)
        return stopping.ended

    assert ["done", "done"] == run(work)
    assert (4, 0, 0, 0) == lie(queue)
    assert {1} == {one.delivery_count for one in queue.get(10)}


@pytest.mark.parametrize("how", ["grace", "second cancel"])
def test_functions_that_do_not_end_are_cancelled_and_waited_for_and_their_deliveries_count(
    queue: cassieq.Queue, run: Run, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(own: cassieq.AsyncQueue) -> list[str]:
        stopping = Stopping()
        task = await stopping.cancelled(own, grace=5 if how == "grace" else 3_600)
        if how != "grace":
            task.cancel()
        await ends_cancelled(task)
        return stopping.ended

    assert ["cancelled", "cancelled"] == run(work)
    assert (6, 0, 0, 0) == lie(queue)
    assert [1, 1, 1, 1, 2, 2] == sorted(one.delivery_count for one in queue.get(10))
    assert 2 == caplog.text.count("worker_stopped_function")


def test_a_function_that_raises_a_cancel_of_its_own_has_failed(
    queue: cassieq.Queue, run: Run
) -> None:
    queue.put(b"m")
    counts: list[int] = []

    async def function(message: cassieq.Delivery) -> None:
        counts.append(message.delivery_count)
        if len(counts) < 3:
            raise asyncio.CancelledError

    backoff = cassieq.Backoff(base_s=0.1)
    run(lambda one: one.work(function, idle_timeout=5, backoff=backoff))

    assert [1, 2, 3] == counts
    assert (0, 0, 0, 0) == lie(queue)


def test_a_client_that_closes_ends_the_work_and_what_runs_may_end(
    places: Places, queue: cassieq.Queue
) -> None:
    queue.put_many([b"m"] * 3)

    async def inside() -> list[str]:
        ended: list[str] = []
        has_begun = asyncio.Event()

        async def function(_: cassieq.Delivery) -> None:
            has_begun.set()
            await asyncio.sleep(1)
            ended.append("done")

        async with places.connect_async() as own:
            found = await own.queue(queue.name)
            task = asyncio.create_task(found.work(function, concurrency=1, prefetch=2))
            await has_begun.wait()
        await task
        return ended

    assert ["done"] == asyncio.run(inside())
    assert 3 == sum(lie(queue))  # it could not be acked any more, and comes again


def test_a_queue_that_goes_away_ends_the_work(run: Run) -> None:
    async def work(own: cassieq.AsyncQueue) -> None:
        await own.delete(force=True)
        await own.work(print)

    with pytest.raises(QueueDeleted):
        run(work)
