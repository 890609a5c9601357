"""Typed uses of the public API: checked by mypy, never run."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, assert_type

import cassieq_spark as cassieq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def client_api() -> None:
    with cassieq.connect("127.0.0.1:9042,127.0.0.2:9042", keyspace="cassieq") as client:
        assert_type(client, cassieq.Client)
        client.bootstrap(replication={"class": "NetworkTopologyStrategy", "datacenter1": 3})
        queue = client.create_queue(
            "orders", bucket_size=10_000, visibility_timeout=timedelta(seconds=30)
        )
        assert_type(queue, cassieq.Queue)
        assert_type(client.queue("orders"), cassieq.Queue)
        assert_type(client.queues(), list[cassieq.QueueInfo])
        assert_type(queue.settings, cassieq.QueueSettings)
        assert_type(queue.stats(), cassieq.QueueStats)
        assert_type(queue.scheduled(), list[cassieq.ScheduledHour])
        assert_type(queue.cancel("..."), bool)
        assert_type(queue.stats().visible, int)
        client.forget_sink("orders", "sink")
        message_id = queue.put(b"m", delay=timedelta(1), headers={"k": "v"}, group="g")
        assert_type(message_id, cassieq.PutResult)
        assert_type(queue.put_many([b"1"], message_ids=[message_id]), list[cassieq.PutResult])
        messages = queue.get(10, wait=1)
        assert_type(messages, list[cassieq.Message])
        queue.ack(messages)
        queue.ack(messages[0])
        queue.release(message_id)
        queue.reject(messages, reason="no such customer")
        assert_type(queue.ack_each(messages), list[cassieq.AckResult])
        assert_type(queue.update(messages[0], body=b"new"), cassieq.Message)
        with queue.consumer(prefetch=10) as consumer:
            for message in consumer:
                assert_type(message, cassieq.Message)
                consumer.ack(message)
        client.repair("orders", dry_run=True)
        redriven = client.redrive("dead", messages, where=lambda one: one.tag == "t", to="orders")
        assert_type(redriven, cassieq.Redriven)
        assert_type(client.redrive("dead", [messages[0].id]).by_target, dict[str, int])
        for message in client.browse("dead"):
            assert_type(message, cassieq.Message)


async def async_api() -> None:
    async with cassieq.connect_async("127.0.0.1:9042", keyspace="cassieq") as client:
        assert_type(client, cassieq.AsyncClient)
        await client.bootstrap(replication={"class": "NetworkTopologyStrategy", "datacenter1": 3})
        queue = await client.create_queue("orders", visibility_timeout=timedelta(seconds=30))
        assert_type(queue, cassieq.AsyncQueue)
        assert_type(await client.queue("orders"), cassieq.AsyncQueue)
        assert_type(await client.queues(), list[cassieq.QueueInfo])
        assert_type(await queue.stats(), cassieq.QueueStats)
        assert_type(
            await queue.put(b"m", delay=timedelta(1), headers={"k": "v"}), cassieq.PutResult
        )
        assert_type(await queue.put_many([b"1"], group=["g"]), list[cassieq.PutResult])
        assert_type(await queue.put_many([b"1"], dedup_keys=["k"]), list[cassieq.PutResult])
        messages = await queue.get(10, wait=1)
        assert_type(messages, list[cassieq.Message])
        await queue.release(messages, delay=5)
        assert_type(await queue.ack_each(messages), list[cassieq.AckResult])
        assert_type(await queue.update(messages[0], body=b"new"), cassieq.Message)
        async with queue.consumer(prefetch=10) as consumer:
            assert_type(consumer, cassieq.AsyncConsumer)
            async for message in consumer:
                assert_type(message, cassieq.Message)
                await consumer.ack(message)
        async for message in client.browse("dead"):
            assert_type(message, cassieq.Message)
        assert_type(await client.redrive("dead", to="orders"), cassieq.Redriven)


def spark_api(spark: SparkSession) -> None:
    cassieq.register(spark)
    settings = cassieq.spark_config("127.0.0.1:9042", datacenter="datacenter1")
    assert_type(settings, dict[str, str])
    put = cassieq.foreach_batch(queue="orders", contact_points=["127.0.0.1:9042"], connector={})
    spark.readStream.format("rate").load().writeStream.foreachBatch(put)
    settled = cassieq.settle(
        spark.table("judged"), "verdict", queue="orders", delay=timedelta(minutes=1), username="ada"
    )
    assert_type(settled, cassieq.Settled)
    assert_type(settled.stale_receipts, tuple[str, ...])


def errors() -> None:
    try:
        client_api()
    except cassieq.QueueExists as error:
        assert_type(error.differences, tuple[str, ...])
    except cassieq.CassieqError as error:
        assert_type(error.retriable, bool)


def a_misspelt_name_is_refused(client: cassieq.Client) -> None:
    client.create_queue("orders", visiblity_timeout=3)  # type: ignore[call-arg]
    client.create_queue("orders", priorities="3")  # type: ignore[arg-type]
    cassieq.conect("127.0.0.1:9042")  # type: ignore[attr-defined]  # else unused: an error
