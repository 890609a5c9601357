"""The asyncio client: a thousand tasks, cancelled calls, and what close leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.aio.consumer import AsyncConsumer
from cassieq_spark.errors import ClientClosed, QueueDeleted, UsageError
from tests.fixtures.faults import FaultyStore
from tests.fixtures.transports import intercept

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.fixtures.places import Places

    Work = Callable[[cassieq.AsyncClient, cassieq.AsyncQueue], Awaitable[Any]]
    Run = Callable[..., Any]


@pytest.fixture
def queue(client: cassieq.Client, queue_name: str) -> cassieq.Queue:
    """The same queue, seen by the synchronous client."""
    return client.create_queue(queue_name, linger=0, visibility_timeout=600)


@pytest.fixture
def run(places: Places, queue: cassieq.Queue) -> Run:
    """Run something with an asyncio client of its own."""

    def start(work: Work) -> Any:
        async def inside() -> Any:
            async with places.connect_async() as own:
                return await work(own, await own.queue(queue.name))

        return asyncio.run(inside())

    return start


def lie(queue: cassieq.Queue) -> tuple[int, int]:
    """Visible, invisible."""
    stats = queue.stats()
    return stats.visible, stats.in_flight


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.02)


def test_a_message_is_put_got_extended_given_back_and_acked(
    run: Run, queue: cassieq.Queue, client: cassieq.Client
) -> None:
    keyspace = client.keyspace

    async def work(client: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> None:
        assert keyspace == client.keyspace
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


def test_ten_thousand_tasks_that_wait_cost_no_thread_and_four_reads_a_second(
    run: Run, queue: cassieq.Queue
) -> None:
    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> tuple[Counter[str], int]:
        threads = threading.active_count()
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(opened.get(1, wait=120)) for _ in range(10_000)]
            await asyncio.sleep(3)  # at first, they look more often
            before = Counter(metrics.STATEMENTS.values)
            await asyncio.sleep(15)  # pauses are random
            reads = Counter(metrics.STATEMENTS.values) - before
            threads = threading.active_count() - threads
            await opened.put_many([b"%d" % number for number in range(10_000)])
            found = [message for task in waiting for message in await task]
            await opened.ack(found)
        assert 10_000 == len({message.body for message in found})
        return reads, threads

    reads, threads = run(work)
    assert reads.total() <= 4 * 15, reads
    assert threads <= 1  # one may read in a thread just now
    assert (0, 0) == lie(queue)


class _CancelsAt:
    """Cancels a task when its call sends its n-th statement, before or after that is answered."""

    def __init__(self, at: int, *, is_late: bool) -> None:
        self._left = at
        self._is_late = is_late
        self.cancel: Callable[[], None] = lambda: None

    def around(self, _: Any, __: Any, proceed: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left:
            return proceed()
        if not self._is_late:
            self.cancel()
        found = proceed()
        if self._is_late:
            self.cancel()
        return found


@pytest.mark.parametrize("is_late", [False, True], ids=["before it", "after it"])
def test_a_get_that_is_cancelled_at_any_statement_keeps_no_message(
    run: Run, queue: cassieq.Queue, *, is_late: bool
) -> None:
    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> int:
        session, loop = opened._sync._lane.store.session, asyncio.get_running_loop()
        for at in range(1, 100):
            await opened.put(b"m")  # in an open bucket of its own: a get that seals it
            cancels = _CancelsAt(at, is_late=is_late)
            intercept(session, cancels)
            task = asyncio.create_task(opened.get(1))
            is_gone = threading.Event()

            def cancel(task: Any = task, is_gone: threading.Event = is_gone) -> None:
                loop.call_soon_threadsafe(task.cancel)
                loop.call_soon_threadsafe(is_gone.set)
                assert is_gone.wait(30)

            cancels.cancel = cancel
            ended = (await asyncio.gather(task, return_exceptions=True))[0]
            intercept(session, None)
            await until(all_is_visible)
            if isinstance(ended, list):  # it has no more statements than this
                await opened.ack(ended)
                return at
            (got,) = await opened.get(1, wait=5)
            assert 1 == got.delivery_count
            await opened.ack(got)
        return 100

    async def all_is_visible() -> bool:
        return await asyncio.to_thread(lie, queue) in ((1, 0), (0, 1))

    assert 4 < run(work) < 100


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_and_its_queue_work_in_two_loops_one_after_the_other(
    places: Places, queue: cassieq.Queue, new_loop: Any
) -> None:
    own = places.connect_async()

    async def begin() -> cassieq.AsyncQueue:
        await own.__aenter__()
        opened = await own.queue(queue.name)
        await opened.put_many([b"1", b"2", b"3"])
        return opened

    async def go_on(opened: cassieq.AsyncQueue) -> int:
        (first,) = await opened.get(1, wait=5)
        await opened.ack(first)
        async with opened.consumer(idle_timeout=1) as consumer:
            bodies = []
            async for message in consumer:
                bodies.append(message.body)
                await consumer.ack(message)
        await own.close()
        return len(bodies)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        opened = runner.run(begin())
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert 2 == runner.run(go_on(opened))
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
                    await opened.release(found, count_delivery=False)

    run(work)  # at its end everything is given back
    assert (40, 0) == lie(queue)
    assert {1} == {message.delivery_count for message in queue.get(100)}


def test_a_put_that_is_cancelled_says_that_it_may_be_stored(run: Run, queue: cassieq.Queue) -> None:
    stored, unknown = set[bytes](), set[bytes]()
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
                (note,) = error.__notes__
                assert "put had begun when it was cancelled" in note
                unknown.add(body)
                raise
            stored.add(body)

        with faults.on(opened._sync._lane.store.session):
            await put(b"first")
            putting = [asyncio.create_task(put(b"%d" % number)) for number in range(50)]
            await asyncio.to_thread(is_held.wait, 30)
            for task in putting:
                task.cancel()
            await asyncio.gather(*putting, return_exceptions=True)
            may_go.set()

    run(work)  # at its end, what is under way has ended
    found: set[bytes] = set()
    while messages := queue.get(100, wait=1):
        found |= {message.body for message in messages}

    assert 51 == len(stored | unknown)
    assert stored <= found <= stored | unknown
    assert found & unknown


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
                if isinstance(one, cassieq.Delivery):
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


def test_a_consumers_get_that_is_cancelled_wherever_it_waits_keeps_no_message(
    run: Run, queue: cassieq.Queue
) -> None:
    """The next one gets it, and not the queue."""

    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> list[bytes]:
        async with opened.consumer(prefetch=5) as consumer:
            assert consumer._ahead is not None
            shelf = consumer._ahead.shelf

            async def cancelled(getting: asyncio.Task[Any]) -> None:
                getting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await getting

            async def begun() -> asyncio.Task[Any]:
                getting = asyncio.create_task(consumer.get())
                await asyncio.sleep(0)  # it lets others go first, though messages may be there
                return getting

            await cancelled(await begun())
            # It waits, and is cancelled before there is something.
            getting = await begun()
            await until(lambda: yes(shelf._waiting))
            await cancelled(getting)
            await until(lambda: yes(not shelf._waiting))

            # It is answered, and cancelled before it has seen that.
            getting = await begun()
            await until(lambda: yes(shelf._waiting))
            await asyncio.to_thread(queue.put_many, [b"0", b"1", b"2"])
            while shelf._waiting:
                pass
            await cancelled(getting)

            await until(lambda: yes(3 == len(shelf.waiting())))
            await cancelled(await begun())
            assert 3 == len(shelf.waiting())
            return [one.body for _ in range(3) if (one := await consumer.get(0)) is not None]

    async def yes(condition: object) -> bool:
        return bool(condition)

    assert [b"0", b"1", b"2"] == run(work)


def test_a_thousand_tasks_that_wait_for_a_consumers_messages_take_no_thread(
    run: Run, queue: cassieq.Queue
) -> None:
    async def work(_: cassieq.AsyncClient, opened: cassieq.AsyncQueue) -> None:
        async with opened.consumer(prefetch=2_000) as consumer, asyncio.TaskGroup() as tasks:
            before = threading.active_count()
            waiting = [tasks.create_task(consumer.get(120)) for _ in range(1_000)]
            await asyncio.sleep(1)
            assert threading.active_count() <= before + 1  # one may read in a thread
            await opened.put_many([b"%d" % number for number in range(1_000)])
            found = [message for task in waiting if (message := await task) is not None]
            assert 1_000 == len({message.body for message in found})
            # First come, first served.
            assert sorted(found, key=lambda one: one.id) == found
            await consumer.ack(found)

    run(work)
    assert (0, 0) == lie(queue)


def test_tasks_of_several_event_loops_share_a_consumer(queue: cassieq.Queue) -> None:
    ways = queue._ways(10, None, None, 0)
    consumer = AsyncConsumer(ways, idle_timeout_s=1)
    bodies = [b"%d" % number for number in range(200)]
    queue.put_many(bodies)

    async def work() -> list[bytes]:
        got = []
        async for message in consumer:
            got.append(message.body)
            await consumer.ack(message)
        return got

    asyncio.run(consumer.__aenter__())
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(asyncio.run, work()) for _ in range(4)]
        assert sorted(bodies) == sorted(body for one in found for body in one.result())
    asyncio.run(consumer.close())
    assert (0, 0) == lie(queue)


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
        with pytest.raises(ClientClosed, match="the client is closed"):
            await opened.put(b"late")
        with pytest.raises(ClientClosed, match="the client is closed"):
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
        for arguments in ({"wait": -1}, {"visibility_timeout": 0}, {"min_priority": 7}):
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
