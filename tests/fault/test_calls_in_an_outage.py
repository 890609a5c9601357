"""The node is stopped or killed while 64 calls of each kind wait for it, and for each other.

Every call ends with an error of ours within 30 s, whatever it waits for: its own statement, another
call's lock, a thread, or a message that another thread was to get.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import CassieqError
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.transports import driver_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from cassieq_spark.testing import EmbeddedCassandra

    Call = Callable[[], object]

AT_ONCE = 64
PROMISED_S = 30.0


class Outage:
    """Calls of each kind, all begun when the node is away."""

    def __init__(self, cassandra: EmbeddedCassandra, name: str) -> None:
        self._points = cassandra.contact_points
        self._name = name
        self._stack = ExitStack()
        self._all: list[tuple[str, Future[object]]] = []
        self._begin: list[Call] = []

    def client(self) -> cassieq.Client:
        """A client for one kind of calls, so that they wait for each other and for no other."""
        return self._stack.enter_context(cassieq.connect(self._points, keyspace=KEYSPACE))

    def queue(self, **settings: object) -> cassieq.Queue:
        return self.client().queue(self._made(**settings))

    def _made(self, **settings: object) -> str:
        name = f"{self._name}.{len(self._all)}"
        with cassieq.connect(self._points, keyspace=KEYSPACE) as client:
            client.create_queue(name, **settings)
        return name

    def add(self, kind: str, calls: list[Call]) -> None:
        """Calls in a thread each."""
        for call in calls:
            future: Future[object] = Future()
            self._all.append((kind, future))

            def run(call: Call = call, future: Future[object] = future) -> None:
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it is what is looked at
                    future.set_exception(error)

            thread = threading.Thread(target=run, name=kind, daemon=True)
            self._begin.append(thread.start)

    def add_async(
        self,
        kind: str,
        make: Callable[[cassieq.AsyncQueue], Awaitable[Callable[[int], Awaitable[object]]]],
    ) -> None:
        """Tasks of one event loop.

        Args:
            make: Is awaited before the outage; returns what makes a call of a number.
        """
        name = self._made()
        futures: list[Future[object]] = [Future() for _ in range(AT_ONCE)]
        self._all += [(kind, future) for future in futures]
        is_ready, goes, is_over = threading.Event(), threading.Event(), threading.Event()

        async def one(call: Awaitable[object], future: Future[object]) -> None:
            try:
                future.set_result(await call)
            except BaseException as error:  # noqa: BLE001 - it is what is looked at
                future.set_exception(error)

        async def main() -> None:
            async with cassieq.connect_async(self._points, keyspace=KEYSPACE) as client:
                call = await make(await client.queue(name))
                is_ready.set()
                await asyncio.to_thread(goes.wait)
                await asyncio.gather(*(one(call(at), futures[at]) for at in range(AT_ONCE)))
                await asyncio.to_thread(is_over.wait)

        thread = threading.Thread(target=lambda: asyncio.run(main()), name=kind, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(is_over.set)
        assert is_ready.wait(60)
        self._begin.append(goes.set)

    def held(self, queue: cassieq.Queue, count: int = AT_ONCE) -> list[cassieq.Delivery]:
        """Messages of one bucket, each leased."""
        queue.put_many([b"%d" % at for at in range(count)])
        return queue.get(count, wait=10, visibility_timeout=600)

    def run(self) -> None:
        for begin in self._begin:
            begin()

    def late_and_odd(self) -> tuple[list[str], list[str]]:
        """The kinds of calls that are under way after 30 s, and what is no error of ours."""
        _, late = wait([future for _, future in self._all], PROMISED_S)
        over = [(kind, future) for kind, future in self._all if future.done()]
        return (
            sorted({kind for kind, future in self._all if future in late}),
            sorted(
                {
                    f"{kind}: {future.exception()!r}"
                    for kind, future in over
                    if not isinstance(future.exception(), CassieqError)
                }
            ),
        )

    def close(self) -> None:
        wait([future for _, future in self._all])
        self._stack.close()


@pytest.fixture
def outage(own_cassandra: EmbeddedCassandra, queue_name: str) -> Iterator[Outage]:
    with cassieq.connect(own_cassandra.contact_points, keyspace=KEYSPACE) as client:
        client.bootstrap()
    made = Outage(own_cassandra, queue_name)
    yield made
    (node,) = own_cassandra.nodes
    node.resume()
    if not node.is_running:
        node.start()
    made.close()


def add_puts(outage: Outage) -> None:
    fresh = outage.queue()
    outage.add("put", [lambda: fresh.put(b"x")] * AT_ONCE)
    used = outage.queue()
    used.put(b"before")  # its producer has a bucket: the first statement is the write
    outage.add("put, in a bucket", [lambda: used.put(b"x")] * AT_ONCE)
    many = outage.queue(bucket_size=10)
    many.put(b"before")
    outage.add("put_many", [lambda: many.put_many([b"x"] * 100)] * AT_ONCE)
    keyed = outage.queue(dedup_window=3600)
    keyed.put(b"before", dedup_key="k")
    outage.add("put of a key", [lambda: keyed.put(b"x", dedup_key="k")] * AT_ONCE)
    later = outage.queue(schedule_after=60)
    outage.add("put, due later", [lambda: later.put(b"x", delay=7200)] * AT_ONCE)
    unused = outage.queue()
    driver_of(unused._lane.store.session)._ready.clear()
    unused._lane.clock._anchor = None  # type: ignore[attr-defined]  # as of a client that is new
    outage.add("put, nothing prepared", [lambda: unused.put(b"x")] * AT_ONCE)
    outage.add("stats, nothing prepared", [unused.stats] * AT_ONCE)


def add_gets(outage: Outage) -> None:
    full = outage.queue()
    full.put_many([b"x"] * 1000)
    full.get(1, wait=10)
    outage.add("get", [lambda: full.get(10)] * AT_ONCE)
    lanes = outage.queue(shards=4, priorities=2)
    lanes.put(b"x")
    outage.add("get, from eight lanes", [lambda: lanes.get(10)] * AT_ONCE)
    polled = outage.queue()
    outage.add("long poll", [lambda: polled.get(10, wait=5)] * AT_ONCE)
    for kind in ("peek", "stats", "scheduled", "purge"):
        queue = outage.queue()
        queue.put(b"x")
        outage.add(kind, [getattr(queue, kind)] * AT_ONCE)


def add_settlements(outage: Outage) -> None:
    """Of messages that share a bucket."""
    kinds: dict[str, Callable[[cassieq.Queue, cassieq.Delivery], object]] = {
        "ack": lambda queue, one: queue.ack(one),
        "extend": lambda queue, one: queue.extend(one, 60),
        "release": lambda queue, one: queue.release(one),
        "update": lambda queue, one: queue.update(one, body=b"new"),
        "cancel": lambda queue, one: queue.cancel(one.message_id),
    }
    for kind, settle in kinds.items():
        queue = outage.queue()
        messages = outage.held(queue)
        outage.add(
            kind, [lambda one=one, do=settle, queue=queue: do(queue, one) for one in messages]
        )


def add_calls_of_the_client(outage: Outage) -> None:
    """All of them of one queue's row."""
    client = outage.client()
    name = outage.queue().name
    outage.add("create_queue", [lambda: client.create_queue(f"{name}.new")] * AT_ONCE)
    outage.add("alter_queue", [lambda: client.alter_queue(name, visibility_timeout=7)] * AT_ONCE)
    outage.add("label_queue", [lambda: client.label_queue(name, {"a": "b"})] * AT_ONCE)
    outage.add("queue", [lambda: client.queue(name)] * AT_ONCE)
    outage.add("queues", [client.queues] * AT_ONCE)


def add_consumers(outage: Outage) -> None:
    queue = outage.queue()
    consumer = outage._stack.enter_context(queue.consumer(prefetch=1))
    assert consumer.get(0) is None
    outage.add("Consumer.get", [lambda: consumer.get(1)] * AT_ONCE)
    acked = outage.queue()
    acked.put_many([b"x"] * AT_ONCE)
    acking = outage._stack.enter_context(acked.consumer())
    messages = [acking.get(10) for _ in range(AT_ONCE)]

    def ack(one: cassieq.Delivery | None) -> None:
        assert one is not None
        acking.ack(one)
        acking.flush()

    outage.add("Consumer.flush", [lambda one=one: ack(one) for one in messages])


def add_tasks(outage: Outage) -> None:
    async def putting(queue: cassieq.AsyncQueue) -> Callable[[int], Awaitable[object]]:
        return lambda _: queue.put(b"x")

    async def acking(queue: cassieq.AsyncQueue) -> Callable[[int], Awaitable[object]]:
        await queue.put_many([b"x"] * AT_ONCE)
        held = await queue.get(AT_ONCE, wait=10, visibility_timeout=600)
        return lambda at: queue.ack(held[at])

    async def polling(queue: cassieq.AsyncQueue) -> Callable[[int], Awaitable[object]]:
        async def get(at: int) -> object:
            await asyncio.sleep(at / AT_ONCE)  # so that some come while a look is under way
            return await queue.get(wait=5)

        return get

    async def consuming(queue: cassieq.AsyncQueue) -> Callable[[int], Awaitable[object]]:
        consumer = queue.consumer(prefetch=1)
        await consumer.__aenter__()
        return lambda _: consumer.get(1)

    outage.add_async("async put", putting)
    outage.add_async("async ack", acking)
    outage.add_async("async long poll", polling)
    outage.add_async("AsyncConsumer.get", consuming)


GROUPS = [add_puts, add_gets, add_settlements, add_calls_of_the_client, add_consumers, add_tasks]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("how", "add"),
    [
        *(pytest.param("pause", add, id=f"pause-{add.__name__}") for add in GROUPS[:-1]),
        pytest.param("kill", add_puts, id="kill-add_puts"),
        pytest.param("kill", add_tasks, id="kill-add_tasks"),
        pytest.param("pause", add_tasks, id="pause-add_tasks", marks=pytest.mark.sample),
    ],
)
def test_64_calls_of_each_kind_end_within_30_s_when_the_node_is_away(
    own_cassandra: EmbeddedCassandra, outage: Outage, how: str, add: Callable[[Outage], None]
) -> None:
    add(outage)
    (node,) = own_cassandra.nodes
    getattr(node, how)()
    outage.run()

    assert ([], []) == outage.late_and_odd()
