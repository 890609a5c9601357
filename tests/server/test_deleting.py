"""Deletes of many requests: they share their LWTs, and each is told of its own receipts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark import metrics
from cassieq_spark.errors import QueueNotFound, ReceiptInvalid
from cassieq_spark.queue.settle.acks import Verdict
from cassieq_spark.server.backend import Backend
from cassieq_spark.server.deleting import Deleting
from tests.server.test_waiting import Unclosed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import cassieq_spark as cassieq


def deleting(client: cassieq.Client, work: Callable[[Deleting], Awaitable[Any]]) -> Any:
    """Run something on the deleting of a backend of its own."""

    async def run() -> Any:
        backend = Backend(lambda: Unclosed(client), threads=4)  # type: ignore[arg-type,return-value]  # it is one but for close
        await backend.connect()
        made = Deleting(backend)
        try:
            return await work(made)
        finally:
            await made.close(5)
            backend.close()

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

    async def work(made: Deleting) -> tuple[list[Any], int]:
        before = metrics.CAS_APPLIED.value
        answers = await asyncio.gather(
            *(made.ack(queue.name, receipts[at : at + 10]) for at in range(0, 200, 10))
        )
        return answers, metrics.CAS_APPLIED.value - before

    answers, lwts = deleting(client, work)

    assert 20 * [10 * [Verdict.ACKED]] == answers
    assert 1 <= lwts <= 3
    assert 0 == queue.stats().invisible


def test_each_request_is_told_of_its_own_receipts(
    client: cassieq.Client, queue: cassieq.Queue, other: cassieq.Queue
) -> None:
    queue.put_many([b"m"] * 4)
    other.put(b"m")
    done, stale, good, again = queue.get(4)
    (foreign,) = other.get(1)
    queue.ack(done)
    queue.release(stale)

    async def work(made: Deleting) -> list[Any]:
        return await asyncio.gather(
            made.ack(queue.name, [good.receipt, "no receipt", foreign.receipt]),
            made.ack(queue.name, [done.receipt, stale.receipt, again.receipt]),
            made.ack(queue.name, ["no receipt"]),
            made.ack(f"{queue.name}.none", [good.receipt]),
            made.ack(f"{queue.name}.none", ["no receipt"]),
            return_exceptions=True,
        )

    first, second, third, *missing = deleting(client, work)

    assert [Verdict.ACKED, ReceiptInvalid, ReceiptInvalid] == [first[0], *map(type, first[1:])]
    assert [Verdict.ALREADY_ACKED, Verdict.STALE, Verdict.ACKED] == second
    assert [ReceiptInvalid] == [*map(type, third)]
    assert [QueueNotFound, QueueNotFound] == [*map(type, missing)]
    assert 1 == other.stats().invisible


def test_a_request_that_goes_away_takes_nothing_from_the_others(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    queue.put_many([b"m"] * 3)
    receipts = [one.receipt for one in queue.get(3)]

    async def work(made: Deleting) -> Any:
        first, second, third = (
            asyncio.create_task(made.ack(queue.name, [one])) for one in receipts
        )
        await asyncio.sleep(0)
        second.cancel()
        return await asyncio.gather(first, second, third, return_exceptions=True)

    first, second, third = deleting(client, work)

    assert [[Verdict.ACKED], [Verdict.ACKED]] == [first, third]
    assert isinstance(second, asyncio.CancelledError)
    assert 0 == queue.stats().invisible
