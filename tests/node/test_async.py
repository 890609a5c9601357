"""The asyncio client: a thousand tasks, cancelled calls, and what close leaves behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.errors import QueueDeleted, StoreUnavailable, UsageError
from cassieq_spark.testing.faults import FaultyStore
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.processes import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.testing import EmbeddedCassandra

    Work = Callable[[cassieq.AsyncClient, cassieq.AsyncQueue], Awaitable[Any]]
    Run = Callable[..., Any]


@pytest.fixture
def queue(client: cassieq.Client, queue_name: str) -> cassieq.Queue:
    """The same queue, seen by the synchronous client."""
    return client.create_queue(queue_name, linger=0, visibility_timeout=600)


@pytest.fixture
def run(cassandra: EmbeddedCassandra, queue: cassieq.Queue) -> Run:
    """Run something with an asyncio client of its own."""

    def start(work: Work, *, threads: int = 8) -> Any:
        async def inside() -> Any:
            async with cassieq.connect_async(
                cassandra.contact_points, keyspace=KEYSPACE, threads=threads
            ) as own:
                return await work(own, await own.queue(queue.name))

        return asyncio.run(inside())

    return start


def lie(queue: cassieq.Queue) -> tuple[int, int]:
    """Visible, invisible."""
    stats = queue.stats()
    return stats.visible, stats.invisible


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.02)


def test_a_message_is_put_got_extended_given_back_and_acked(run: Run, queue: cassieq.Queue) -> None:
    async def work(client: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> None:
        assert KEYSPACE == client.keyspace
        message_id = await opened.put(b"one", tag="t", headers={"k": "v"})
        (message,) = await opened.get()
        assert (message_id, b"one", "t", {"k": "v"}) == (
            message.message_id,
            message.body,
            message.tag,
            message.headers,
        )
        await opened.extend(message, 60)
        await opened.release(message)
        (again,) = await opened.get()
        assert 2 == again.delivery_count
        await opened.ack(again)
        with pytest.raises(cassieq.ReceiptExpired):
            await opened.extend(message, 60)
        assert 0 == (await opened.stats()).visible
        assert [opened.name] == [
            info.name for info in await client.queues() if info.name == opened.name
        ]

    run(work)
    assert (0, 0) == lie(queue)


def test_a_thousand_tasks_share_a_client(run: Run, queue: cassieq.Queue) -> None:
    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> list[bytes]:
        got: list[bytes] = []

        async def one(number: int) -> None:
            await opened.put(b"%d" % number)
            (message,) = await opened.get(1, wait=60)
            got.append(message.body)
            await opened.ack(message)

        async with asyncio.TaskGroup() as tasks:
            for number in range(1_000):
                tasks.create_task(one(number))
        return got

    assert {b"%d" % number for number in range(1_000)} == set(run(work))
    assert (0, 0) == lie(queue)


def test_a_thousand_tasks_that_wait_for_messages_cost_no_more_than_one_and_block_no_call(
    run: Run, queue: cassieq.Queue
) -> None:
    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> int:
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(opened.get(1, wait=120)) for _ in range(1_000)]
            await asyncio.sleep(0)
            before = sum(metrics.STATEMENTS.values.values())
            await asyncio.sleep(2)
            reads = sum(metrics.STATEMENTS.values.values()) - before
            # All threads are free, though there are two only.
            await opened.put_many([b"%d" % number for number in range(1_000)])
            found = [message for task in waiting for message in await task]
            await opened.ack(found)
        assert 1_000 == len({message.body for message in found})
        return reads

    assert run(work, threads=2) < 500
    assert (0, 0) == lie(queue)


def test_a_get_that_is_cancelled_keeps_no_message(run: Run, queue: cassieq.Queue) -> None:
    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> None:
        for turn in range(40):
            getting = [asyncio.create_task(opened.get(2, wait=30)) for _ in range(3)]
            putting = asyncio.create_task(opened.put(b"%d" % turn))
            await asyncio.sleep(turn / 4_000)  # before the look, within it, after it
            for task in getting:
                task.cancel()
            ended = await asyncio.gather(*getting, return_exceptions=True)
            await putting
            for found in ended:
                if isinstance(found, list):  # it was faster
                    await opened.release(found, is_counted=False)

    run(work)  # at its end everything is given back
    assert (40, 0) == lie(queue)
    assert {1} == {message.delivery_count for message in queue.get(100)}


def test_a_put_that_is_cancelled_says_that_it_may_be_stored(run: Run, queue: cassieq.Queue) -> None:
    stored, unknown, nothing = set[bytes](), set[bytes](), set[bytes]()
    is_held, may_go = threading.Event(), threading.Event()
    faults = FaultyStore()

    def hold() -> None:
        is_held.set()
        assert may_go.wait(30)

    # The second put is under way when all are cancelled.
    faults.before("write_message", hold, after=1)

    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> None:
        async def put(body: bytes) -> None:
            try:
                await opened.put(body)
            except asyncio.CancelledError as error:
                notes = getattr(error, "__notes__", [])
                assert all("put had begun when it was cancelled" in note for note in notes)
                (unknown if notes else nothing).add(body)
                raise
            stored.add(body)

        with faults.on(opened._sync._lane.store.session):
            putting = [asyncio.create_task(put(b"%d" % number)) for number in range(50)]
            while not (stored and is_held.is_set()):
                await asyncio.sleep(0)
            for task in putting:
                task.cancel()
            # A thread that is free sooner would begin one whose cancellation has not come yet.
            while len(stored | nothing) < 49:
                await asyncio.sleep(0)
            may_go.set()
            await asyncio.gather(*putting, return_exceptions=True)

    run(work, threads=1)
    found: set[bytes] = set()
    while messages := queue.get(100, wait=1):
        found |= {message.body for message in messages}

    # With one thread, one put was under way; all that were behind it did nothing.
    assert (1, 50) == (len(unknown), len(stored | unknown | nothing))
    assert stored <= found <= stored | unknown


def test_a_consumer_hands_each_message_to_one_of_many_tasks(run: Run, queue: cassieq.Queue) -> None:
    bodies = [b"%d" % number for number in range(500)]
    queue.put_many(bodies)

    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> list[bytes]:
        got: list[bytes] = []
        async with opened.consumer(prefetch=50, idle_timeout=1) as consumer:

            async def one() -> None:
                async for message in consumer:
                    got.append(message.body)
                    await consumer.ack(message)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(100):
                    tasks.create_task(one())
            await consumer.flush()
            assert 0 == consumer.stale
        return got

    got = run(work)
    assert sorted(bodies) == sorted(got)
    assert (0, 0) == lie(queue)


def test_a_consumers_get_that_is_cancelled_keeps_no_message_and_close_gives_back_the_rest(
    run: Run, queue: cassieq.Queue
) -> None:
    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> int:
        taken = 0
        async with opened.consumer(prefetch=5) as consumer:
            assert await consumer.get(0) is None
            getting = [asyncio.create_task(consumer.get()) for _ in range(10)]
            await opened.put_many([b"%d" % number for number in range(30)])
            await until(lambda: done(getting, 4))
            for task in getting:
                task.cancel()
            ended = await asyncio.gather(*getting, return_exceptions=True)
            for one in ended:
                if isinstance(one, cassieq.Message):
                    taken += 1
                    await consumer.ack(one)
        assert await consumer.get() is None  # it is closed
        return taken

    async def done(tasks: list[asyncio.Task[Any]], number: int) -> bool:
        return sum(task.done() for task in tasks) >= number

    taken = run(work)
    assert taken >= 4
    assert (30 - taken, 0) == lie(queue)
    assert {1} == {message.delivery_count for message in queue.get(100)}


def test_a_message_that_comes_when_nobody_waits_any_more_is_given_back(
    run: Run, queue: cassieq.Queue
) -> None:
    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> None:
        async with opened.consumer(prefetch=5) as consumer:
            getting = asyncio.create_task(consumer.get())
            await asyncio.sleep(0.1)
            getting.cancel()  # its thread looks on, for a second
            await opened.put(b"m")
            while consumer._puller is not None:
                await asyncio.sleep(0.02)

    run(work)
    assert (1, 0) == lie(queue)
    assert [1] == [message.delivery_count for message in queue.get()]


def test_close_answers_who_waits_stores_acks_and_leaves_no_thread(
    run: Run, queue: cassieq.Queue
) -> None:
    before = set(threading.enumerate())
    queue.put_many([b"%d" % number for number in range(20)])
    left: list[asyncio.Task[Any]] = []

    async def work(client: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> None:
        consumer = opened.consumer(prefetch=10)
        await consumer.__aenter__()  # and nobody leaves the block
        message = await consumer.get()
        assert message is not None
        await consumer.ack(message)
        other = await client.create_queue(f"{opened.name}.other")
        left.append(asyncio.create_task(other.get(wait=600)))
        await asyncio.sleep(0.2)
        await client.close()
        assert [] == await left[0]
        with pytest.raises(UsageError, match="the client is closed"):
            await opened.put(b"late")
        with pytest.raises(UsageError, match="the client is closed"):
            await opened.get()

    run(work)
    assert (19, 0) == lie(queue)
    assert [] == [
        thread.name
        for thread in set(threading.enumerate()) - before
        if thread.name.startswith("cassieq-")
    ]


def test_errors_are_those_of_the_synchronous_client(run: Run, queue: cassieq.Queue) -> None:
    async def work(client: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> None:
        with pytest.raises(cassieq.QueueNotFound):
            await client.queue("no-such-queue")
        for arguments in ({"wait": -1}, {"visibility_timeout": 0}, {"priority_at_least": 7}):
            with pytest.raises(UsageError):
                await opened.get(**arguments)  # type: ignore[arg-type]  # wrong on purpose
        waiting = asyncio.create_task(opened.get(wait=60))
        async with opened.consumer() as consumer:
            getting = asyncio.create_task(consumer.get())
            await asyncio.sleep(0.1)
            queue.delete()
            with pytest.raises(QueueDeleted):
                await getting
            with pytest.raises(QueueDeleted):
                await waiting

    run(work)


def test_a_client_that_cannot_connect_says_so_and_leaves_nothing(
    cassandra: EmbeddedCassandra,
) -> None:
    async def inside() -> None:
        with pytest.raises(StoreUnavailable):
            async with cassieq.connect_async("127.0.0.1:1", keyspace=KEYSPACE):
                pytest.fail("connected")
        for delay_s in (0, 0.005, 0.01, 0.02, 0.03, 0.05):
            own = cassieq.connect_async(cassandra.contact_points, keyspace=KEYSPACE)
            connecting = asyncio.create_task(own.__aenter__())
            await asyncio.sleep(delay_s)
            connecting.cancel()
            try:
                await connecting
            except asyncio.CancelledError:
                continue
            await own.close()  # it was faster

    asyncio.run(inside())  # the threads of a client that was left open would fail this test


def test_a_first_use_in_a_coroutine_imports_only_what_is_light_in_the_event_loop(
    cassandra: EmbeddedCassandra, queue_name: str
) -> None:
    """Whoever imports the driver, NumPy or PyArrow there stops all tasks for half a second."""
    done = subprocess.run(
        [
            sys.executable,
            CHILDREN / "first_use_on_loop.py",
            cassandra.contact_points,
            KEYSPACE,
            queue_name,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stderr

    names = [name.split(".") for name in json.loads(done.stdout)]
    # Module copy of the standard library looks for Jython's org.
    others = {name[0] for name in names} - sys.stdlib_module_names - {"org"}
    rooms = {name[1] for name in names if name[0] == "cassieq_spark" and len(name) > 1}
    modules = {".".join(name[1:]) for name in names if name[:2] == ["cassieq_spark", "aio"]}
    assert {"cassieq_spark"} == others
    assert {"aio", "errors", "interpreter", "model", "options"} >= rooms
    assert {"aio", "aio.connect"} == modules
