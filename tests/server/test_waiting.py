"""Long polls: what idle ones cost, who is served, and what becomes of those who went away."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from cassieq_spark import metrics
from cassieq_spark.aio.waiting import Waiting
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.server.backend import Backend
from cassieq_spark.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import cassieq_spark as cassieq
    from tests.server.conftest import Gateway


class Unclosed:
    """The shared client, which a backend must not close."""

    def __init__(self, client: cassieq.Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def close(self) -> None: ...


def running(client: cassieq.Client, work: Callable[[Waiting], Any]) -> Any:
    """Run something on the waiting of a backend of its own."""

    async def run() -> Any:
        backend = Backend(lambda: Unclosed(client), threads=4)  # type: ignore[arg-type,return-value]  # it is one but for close
        await backend.connect()
        waiting = Waiting(backend, consumer="gateway")
        try:
            return await work(waiting)
        finally:
            await waiting.close()
            backend.close()

    return asyncio.run(run())


@pytest.fixture
def queue(client: cassieq.Client, queue_name: str) -> Iterator[cassieq.Queue]:
    made = client.create_queue(queue_name, visibility_timeout=60, linger=0)
    yield made
    made.delete()


def reads_of(client: cassieq.Client, queue: cassieq.Queue, waiters: int) -> int:
    """The statements of so many waiters that wait for three seconds for nothing."""

    async def wait(waiting: Waiting) -> int:
        first = waiting.receive(queue.name, at_most=10, visibility_s=None, wait_s=0)
        assert [] == await first
        before = sum(metrics.STATEMENTS.values.values())
        found = await asyncio.gather(
            *(
                waiting.receive(queue.name, at_most=10, visibility_s=None, wait_s=3)
                for _ in range(waiters)
            )
        )
        assert waiters * [[]] == found
        return sum(metrics.STATEMENTS.values.values()) - before

    return int(running(client, wait))


def test_a_thousand_idle_waiters_read_no_more_than_one(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    one = max(reads_of(client, queue, 1) for _ in range(2))
    many = reads_of(client, queue, 1_000)

    assert 2 <= one <= 30
    assert many <= 30


def test_waiters_that_each_ask_for_another_timeout_read_no_more_than_one(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    async def wait(waiting: Waiting) -> tuple[int, int]:
        await waiting.receive(queue.name, at_most=10, visibility_s=None, wait_s=0)
        before = sum(metrics.STATEMENTS.values.values())
        found = await asyncio.gather(
            *(
                waiting.receive(queue.name, at_most=10, visibility_s=30 + n / 10, wait_s=3)
                for n in range(300)
            )
        )
        assert 300 * [[]] == found
        return sum(metrics.STATEMENTS.values.values()) - before, len(waiting._pollers)

    reads, pollers = running(client, wait)
    assert 1 == pollers
    assert reads <= 30


class Looks:
    """The looks that a poller makes: the lowest priority, the timeout, how many were found."""

    def __init__(self, backend: Backend) -> None:
        self.made: list[tuple[int, float | None, int]] = []
        self._backend = backend

    async def on_queue(self, name: str, work: Callable[[Any], Any]) -> Any:
        return await self._backend.on_queue(name, lambda queue: work(_Watched(queue, self.made)))


class _Watched:
    """A handle of a queue whose gets are noted."""

    def __init__(self, queue: cassieq.Queue, made: list[tuple[int, float | None, int]]) -> None:
        self._queue = queue
        self._made = made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, at_most: int, **wanted: Any) -> list[cassieq.Message]:
        found = self._queue.get(at_most, **wanted)
        self._made.append((wanted["priority_at_least"], wanted["visibility_timeout"], len(found)))
        return found


@pytest.fixture
def classes(client: cassieq.Client, queue_name: str) -> Iterator[cassieq.Queue]:
    made = client.create_queue(queue_name, priorities=4, fairness=0, linger=0)
    yield made
    made.delete()


@pytest.mark.parametrize("seed", range(3))
def test_nobody_waits_for_more_looks_than_there_are_waiters_in_front(
    client: cassieq.Client, classes: cassieq.Queue, seed: int
) -> None:
    """However they differ; and each look that finds nothing is one for all who ask for less."""
    drawn = random.Random(seed)  # noqa: S311 - seeded, to be repeated
    wanted = [drawn.randrange(4) for _ in range(24)]
    for priority in range(4):
        classes.put_many([b"m"] * drawn.randrange(5), priority=priority)

    async def work(waiting: Waiting) -> tuple[list[int], list[tuple[int, float | None, int]]]:
        looks = Looks(waiting._backend)  # type: ignore[arg-type]  # it is the real one
        waiting._backend = looks
        polls = [
            waiting.receive(
                classes.name, at_most=1, visibility_s=40 + at, wait_s=0, priority_at_least=least
            )
            for at, least in enumerate(wanted)
        ]
        found = await asyncio.gather(*polls)
        return [len(one) for one in found], looks.made

    found, looks = running(client, work)
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

    async def work(waiting: Waiting) -> list[list[bytes]]:
        async def receive(least: int, visibility_s: float) -> list[bytes]:
            found = await waiting.receive(
                classes.name,
                at_most=1,
                visibility_s=visibility_s,
                wait_s=20,
                priority_at_least=least,
            )
            return [one.body for one in found]

        high = asyncio.create_task(receive(3, 40))
        low = [asyncio.create_task(receive(0, 41 + n)) for n in range(3)]
        await asyncio.to_thread(classes.put_many, [b"low"] * 3)
        waiting.put(classes.name)
        found = await asyncio.gather(*low)
        assert not high.done()
        await asyncio.to_thread(classes.put, b"high", priority=3)
        waiting.put(classes.name)
        return [*found, await high]

    assert [*[[b"low"]] * 3, [b"high"]] == running(client, work)


def test_terms_that_are_wrong_are_an_error_of_those_alone_who_have_them(
    client: cassieq.Client, classes: cassieq.Queue
) -> None:
    async def work(waiting: Waiting) -> list[Any]:
        polls = [
            waiting.receive(
                classes.name, at_most=1, visibility_s=None, wait_s=20, priority_at_least=least
            )
            for least in (0, 99, 1, 99)
        ]
        waits = [asyncio.ensure_future(one) for one in polls]
        await asyncio.wait({waits[1], waits[3]}, timeout=60)
        assert not waits[0].done()
        await asyncio.to_thread(classes.put_many, [b"m", b"m"], priority=2)
        waiting.put(classes.name)
        return await asyncio.gather(*waits, return_exceptions=True)

    one, wrong, two, too = running(client, work)
    assert (1, 1) == (len(one), len(two))
    assert {OptionInvalid} == {type(wrong), type(too)}


def test_who_waits_misses_nothing_that_was_visible_a_second_before_he_went(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    async def put_later() -> None:
        await asyncio.sleep(1)
        await asyncio.to_thread(queue.put, b"late")  # by another client: no poller hears of it

    async def work(waiting: Waiting) -> list[int]:
        found = []
        for wait_s in (3.0, *[2.0] * 6):  # at first the poller comes to its longest pauses
            putting = asyncio.create_task(put_later()) if wait_s < 3 else None
            got = await waiting.receive(queue.name, at_most=1, visibility_s=None, wait_s=wait_s)
            if putting is not None:
                await putting
            await asyncio.to_thread(queue.ack, got)
            found.append(len(got))
        return found

    assert [0, *[1] * 6] == running(client, work)


def test_messages_go_to_the_waiters_in_their_order(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    async def work(waiting: Waiting) -> list[int]:
        polls = [
            asyncio.ensure_future(
                waiting.receive(queue.name, at_most=4, visibility_s=None, wait_s=20)
            )
            for _ in range(3)
        ]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(queue.put_many, [b"%d" % n for n in range(10)])
        waiting.put(queue.name)
        return [len(one) for one in await asyncio.gather(*polls)]

    assert [4, 4, 2] == running(client, work)


def test_who_went_away_gets_nothing_and_no_delivery_is_counted(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    async def work(waiting: Waiting) -> None:
        gone = asyncio.ensure_future(
            waiting.receive(queue.name, at_most=10, visibility_s=None, wait_s=20)
        )
        await asyncio.sleep(0.1)
        await asyncio.to_thread(queue.put, b"x")
        waiting.put(queue.name)
        await asyncio.sleep(0)  # the look is under way
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone

    running(client, work)

    (got,) = queue.get(10, wait=5)
    assert 1 == got.delivery_count


def poll(sqs: Any, url: str, wait_s: int) -> list[str]:
    found = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=wait_s).get("Messages", [])
    return [one["Body"] for one in found]


def test_a_client_that_disconnects_leaves_its_message_to_the_next(
    gateway: Gateway, sqs: Any, name: str
) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    address = urlsplit(gateway.url)
    for _ in range(5):
        with socket.create_connection((address.hostname, address.port)) as gone:
            gone.sendall(
                b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
    sqs.send_message(QueueUrl=url, MessageBody="x")

    (got,) = sqs.receive_message(
        QueueUrl=url, WaitTimeSeconds=10, AttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert {"ApproximateReceiveCount": "1"} == got["Attributes"]
    sqs.delete_queue(QueueUrl=url)


def test_sigterm_answers_those_who_wait(start: Callable[..., Gateway], name: str) -> None:
    gateway = start("--no-repair")
    gateway.wait_until_ready()
    sqs = gateway.sqs(max_pool_connections=20)
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    with ThreadPoolExecutor(10) as pool:
        polls = [pool.submit(poll, sqs, url, 20) for _ in range(10)]
        wait_until(lambda: not any(one.done() for one in polls), deadline_s=1)
        threading.Event().wait(1)  # they have arrived
        assert 0 == gateway.terminate()
        assert 10 * [[]] == [one.result(10) for one in polls]
    sqs.close()


@pytest.mark.invariant("I1")
def test_a_gateway_that_is_killed_under_load_loses_nothing_it_has_acknowledged(
    start: Callable[..., Gateway], sqs: Any, name: str
) -> None:
    """And what was leased through it comes back."""
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "2"})["QueueUrl"]
    gateway = start("--no-repair")
    gateway.wait_until_ready()
    acknowledged: list[str] = []

    def send(worker: int) -> None:
        doomed = gateway.sqs()
        for batch in range(10_000):
            ids = [f"{worker}-{batch}-{n}" for n in range(10)]
            try:
                done = doomed.send_message_batch(
                    QueueUrl=url, Entries=[{"Id": one, "MessageBody": one} for one in ids]
                )
                doomed.receive_message(QueueUrl=url, MaxNumberOfMessages=5)
            except Exception:  # noqa: BLE001 - whatever a killed server causes
                break
            acknowledged.extend(one["Id"] for one in done["Successful"])
        doomed.close()

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(send, worker) for worker in range(4)]
        wait_until(lambda: len(acknowledged) >= 200, deadline_s=60)
        gateway.kill()
        for one in workers:
            one.result(60)

    seen: set[str] = set()

    def drained() -> bool:
        found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for one in found.get("Messages", []):
            seen.add(one["Body"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        return seen >= set(acknowledged)

    wait_until(drained, deadline_s=120, describe=lambda: str(len(set(acknowledged) - seen)))
    sqs.delete_queue(QueueUrl=url)
