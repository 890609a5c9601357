"""As `api.py`, for asyncio: checked by mypy and pyright, never run.

It is a file of its own, because every coroutine is a ``Coroutine[Any, Any, ...]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import assert_type

import cassieq_spark as cassieq


def show(progress: cassieq.Progress) -> None:
    print(progress.share)  # noqa: T201 - never run


async def async_api() -> None:
    async with cassieq.connect_async("127.0.0.1:9042", keyspace="cassieq") as client:
        assert_type(client, cassieq.AsyncClient)
        assert_type((client.datacenter, client.keyspace), tuple[str, str])
        assert_type(await client.now_us(), int)
        await client.bootstrap(replication={"class": "NetworkTopologyStrategy", "datacenter1": 3})
        await client.check()
        queue = await client.create_queue("orders", visibility_timeout=timedelta(seconds=30))
        assert_type(queue, cassieq.AsyncQueue)
        assert_type(await client.queue("orders"), cassieq.AsyncQueue)
        found = await client.find_or_create_queue("orders", shards=2)
        assert_type(found, tuple[cassieq.AsyncQueue, bool])
        assert_type(await client.alter_queue("orders", linger=0), cassieq.AsyncQueue)
        assert_type(await client.label_queue("orders", {"a": None}), cassieq.AsyncQueue)
        assert_type(await client.queues(), list[cassieq.QueueInfo])
        await client.delete_queue("orders", force=True)
        await client.forget_sink("orders", "sink")
        await async_queue_api(queue)
        async for message in client.browse("dead"):
            assert_type(message, cassieq.Message)
        assert_type(await client.redrive("dead", to="orders"), cassieq.Redriven)
        assert_type(await client.repair("orders", on_progress=show), cassieq.RepairReport)
        assert_type(await client.repair_as_leader(), cassieq.RepairReport | None)
        assert_type(await client.verify(), cassieq.VerifyReport)
        await client.close()


async def async_queue_api(queue: cassieq.AsyncQueue) -> None:
    assert_type((queue.name, queue.labels), tuple[str, Mapping[str, str]])
    assert_type((queue.created_at, queue.settings), tuple[datetime, cassieq.QueueSettings])
    assert_type(await queue.stats(), cassieq.QueueStats)
    assert_type(await queue.scheduled(), list[cassieq.ScheduledHour])
    put = await queue.put(b"m", delay=timedelta(1), headers={"k": "v"})
    assert_type(put, cassieq.PutResult)
    assert_type(await queue.put_many([b"1"], group=["g"]), list[cassieq.PutResult])
    assert_type(await queue.put_many([b"1"], dedup_keys=["k"]), list[cassieq.PutResult])
    messages = await queue.get(10, wait=1)
    assert_type(messages, list[cassieq.Delivery])
    await queue.ack(messages)
    await queue.ack(messages[0].receipt)
    assert_type(await queue.extend(messages, 60), datetime)
    await queue.release(messages, delay=5)
    await queue.reject(messages[0], reason="no such customer")
    assert_type(await queue.ack_each(messages), list[cassieq.AckResult])
    assert_type(await queue.update(messages[0], body=b"new"), cassieq.Delivery)
    assert_type(await queue.peek(), list[cassieq.Message])
    async with queue.consumer(prefetch=10) as consumer:
        assert_type(consumer, cassieq.AsyncConsumer)
        assert_type(await consumer.get(wait=5), cassieq.Delivery | None)
        async for message in consumer:
            assert_type(message, cassieq.Delivery)
            await consumer.ack(message)
        await consumer.flush()
        assert_type(consumer.stale, int)
        await consumer.close()
    assert_type(await queue.cancel(put), bool)
    assert_type(await queue.purge(), int)
    await queue.delete(force=True)


async def mistakes_of_coroutines(queue: cassieq.AsyncQueue) -> None:
    await queue.put("text")  # type: ignore[arg-type]
    await queue.put(b"m", dely=3)  # type: ignore[call-arg]
    (seen,) = await queue.peek(1)
    await queue.ack(seen)  # type: ignore[arg-type]
    queue.ack("receipt")  # type: ignore[unused-coroutine]
    async with queue.consumer() as consumer:
        await consumer.ack([seen])  # type: ignore[list-item]
