"""Acks of many requests: they share their LWTs, and each is told of its own receipts."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark import metrics
from cassieq_spark.errors import QueueNotFound, ReceiptInvalid
from cassieq_spark.queue.settle.settle import AckResult
from cassieq_spark.server.batches import acks
from tests.fixtures.backends import connected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    import cassieq_spark as cassieq

    Ack = Callable[[str, Sequence[str]], Awaitable[Any]]


def settling(client: cassieq.Client, work: Callable[[Ack], Awaitable[Any]]) -> Any:
    """Run something with what acks receipts for a request."""

    async def run() -> Any:
        async with connected(client, calls=64) as backend:

            async def ack(queue: str, receipts: Sequence[str]) -> Any:
                return await backend.on_queue(queue, partial(acks, receipts))

            return await work(ack)

    return asyncio.run(run())


@pytest.fixture
def queue(client: cassieq.Client, queue_name: str) -> Iterator[cassieq.Queue]:
    made = client.create_queue(queue_name, visibility_timeout=60, linger=0)
    yield made
    made.delete()


@pytest.fixture
def other(client: cassieq.Client, queue_name: str) -> Iterator[cassieq.Queue]:
    made = client.create_queue(f"{queue_name}.other", visibility_timeout=60, linger=0)
    yield made
    made.delete()


def test_requests_that_come_together_share_their_lwts(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    queue.put_many([b"m"] * 200)
    receipts = [one.receipt for one in queue.get(200)]
    assert 200 == len(receipts)

    async def work(ack: Ack) -> tuple[list[Any], int]:
        before = metrics.CAS_APPLIED.value
        answers = await asyncio.gather(
            *(ack(queue.name, receipts[at : at + 10]) for at in range(0, 200, 10))
        )
        return answers, metrics.CAS_APPLIED.value - before

    answers, lwts = settling(client, work)

    assert 20 * [10 * [AckResult.ACKED]] == answers
    assert 1 <= lwts <= 10  # 20 without sharing; how many come in one turn, a busy machine decides
    assert 0 == queue.stats().in_flight


def test_each_request_is_told_of_its_own_receipts(
    client: cassieq.Client, queue: cassieq.Queue, other: cassieq.Queue
) -> None:
    queue.put_many([b"m"] * 4)
    other.put(b"m")
    done, stale, good, again = queue.get(4)
    (foreign,) = other.get(1)
    queue.ack(done)
    queue.release(stale)

    async def work(ack: Ack) -> list[Any]:
        return await asyncio.gather(
            ack(queue.name, [good.receipt, "no receipt", foreign.receipt]),
            ack(queue.name, [done.receipt, stale.receipt, again.receipt]),
            ack(queue.name, ["no receipt"]),
            ack(f"{queue.name}.none", [good.receipt]),
            ack(f"{queue.name}.none", ["no receipt"]),
            return_exceptions=True,
        )

    first, second, third, *missing = settling(client, work)

    assert [AckResult.ACKED, ReceiptInvalid, ReceiptInvalid] == [first[0], *map(type, first[1:])]
    assert [AckResult.ALREADY_ACKED, AckResult.STALE, AckResult.ACKED] == second
    assert [ReceiptInvalid] == [*map(type, third)]
    assert [QueueNotFound, QueueNotFound] == [*map(type, missing)]
    assert 1 == other.stats().in_flight


def test_a_request_that_goes_away_takes_nothing_from_the_others(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    queue.put_many([b"m"] * 3)
    receipts = [one.receipt for one in queue.get(3)]

    async def work(ack: Ack) -> Any:
        first, second, third = (asyncio.create_task(ack(queue.name, [one])) for one in receipts)
        await asyncio.sleep(0)
        second.cancel()
        return await asyncio.gather(first, second, third, return_exceptions=True)

    first, second, third = settling(client, work)

    assert [[AckResult.ACKED], [AckResult.ACKED]] == [first, third]
    assert isinstance(second, asyncio.CancelledError)
    assert 0 == queue.stats().in_flight
