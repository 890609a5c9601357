"""A user's program that uses all of the public API: checked by mypy and pyright, never run.

Both are strict here, as in `pyproject.toml`. A ``type: ignore`` marks a mistake of a program: if
either of the two does not report it, it says that the comment is unnecessary.
"""

# mypy: disallow-any-expr, disallow-any-decorated, disallow-any-explicit

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, assert_type
from uuid import UUID

import cassieq_spark as cassieq
import cassieq_spark.spark
from cassieq_spark.spark import CassieqListener, foreach_batch, register, settle, spark_config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def client_api() -> None:
    with cassieq.connect(
        "127.0.0.1:9042,127.0.0.2:9042",
        keyspace="cassieq",
        datacenter="datacenter1",
        connect_timeout="5s",
        username="ada",
        password="secret",  # noqa: S106 - none
        ssl_ca_file=Path("ca.pem"),
        ssl_cert_file="client.pem",
        ssl_key_file=None,
        ssl_key_password=None,
        ssl_verify_hostname=True,
    ) as client:
        assert_type(client, cassieq.Client)
        assert_type(client.datacenter, str)
        assert_type(client.keyspace, str)
        assert_type(client.now_us(), int)
        client.bootstrap(replication={"class": "NetworkTopologyStrategy", "datacenter1": 3})
        client.check()
        queue = client.create_queue(
            "orders",
            bucket_size=10_000,
            visibility_timeout=timedelta(seconds=30),
            labels={"a": "b"},
        )
        assert_type(queue, cassieq.Queue)
        assert_type(client.queue("orders"), cassieq.Queue)
        assert_type(client.find_or_create_queue("orders", shards=2), tuple[cassieq.Queue, bool])
        assert_type(client.alter_queue("orders", max_deliveries=None), cassieq.Queue)
        assert_type(client.label_queue("orders", {"a": None}), cassieq.Queue)
        for info in client.queues():
            assert_type(info, cassieq.QueueInfo)
            assert_type((info.name, info.home_datacenter), tuple[str, str])
            assert_type(info.settings, cassieq.QueueSettings)
            assert_type(info.labels, Mapping[str, str])
        client.delete_queue("orders", force=True, if_empty=True, if_unused=True)
        client.forget_sink("orders", "sink")
        queue_api(queue)
        repair_api(client, queue.peek())
        client.close()


def queue_api(queue: cassieq.Queue) -> None:
    assert_type(queue.name, str)
    assert_type(queue.labels, Mapping[str, str])
    assert_type(queue.created_at, datetime)
    settings_api(queue.settings)
    stats_api(queue.stats(), queue.scheduled())
    put = queue.put(b"m", delay=timedelta(1), headers={"k": "v"}, group="g", ttl=60, priority=1)
    assert_type(put, cassieq.PutResult)
    assert_type((put.message_id, put.duplicate), tuple[str, bool])
    queue.put(b"m", due_at=datetime.now(UTC), tag="t", message_id=UUID(int=1), key="k")  # noqa: TID251 - never run
    assert_type(queue.put_many([b"1"], message_ids=[put]), list[cassieq.PutResult])
    queue.put_many((b for b in [b"1"]), priority=[0], delay=[1, timedelta(1)], group=["g", None])
    queue.put_many([b"1"], headers=[{"k": "v"}, None], dedup_keys=["k", None])
    messages = queue.get(10, wait=1, visibility_timeout=timedelta(1), consumer="me", min_priority=1)
    assert_type(messages, list[cassieq.Delivery])
    delivery_api(messages[0])
    queue.ack(messages)
    queue.ack(messages[0])
    queue.ack(messages[0].receipt)
    queue.ack(one.receipt for one in messages)
    assert_type(queue.extend(messages, 60), datetime)
    queue.release(messages[0].receipt, delay=timedelta(1), count_delivery=False)
    queue.reject(messages, reason="no such customer")
    assert_type(queue.ack_each(messages), list[cassieq.AckResult])
    if queue.ack_each([messages[0], "receipt"])[0] is cassieq.AckResult.STALE:
        return
    assert_type(queue.update(messages[0], body=b"new"), cassieq.Delivery)
    for seen in queue.peek(10):
        message_api(seen)
    with queue.consumer(
        prefetch=10, visibility_timeout=5, idle_timeout=timedelta(1), name="me", min_priority=1
    ) as consumer:
        assert_type(consumer, cassieq.Consumer)
        assert_type(consumer.get(wait=5), cassieq.Delivery | None)
        for message in consumer:
            assert_type(message, cassieq.Delivery)
            consumer.ack(message)
            consumer.ack([message, message.receipt])
        consumer.flush()
        assert_type(consumer.stale, int)
        consumer.close()
    assert_type(queue.cancel(put), bool)
    assert_type(queue.purge(), int)
    queue.delete(force=True, if_empty=True, if_unused=True)


async def work_api(queue: cassieq.AsyncQueue, delivery: cassieq.Delivery) -> None:
    worker = cassieq.Worker()
    backoff = cassieq.Backoff(base_s=5, most_s=60, jitter=0)

    @worker.on(tag="order", retries=5, backoff=backoff, give_up_on=(ValueError,))
    async def order(message: cassieq.Delivery) -> None:
        async with queue.process(message, backoff=backoff):
            raise cassieq.Retry(after=timedelta(minutes=1), counted=False)

    @worker.on()
    def other(message: cassieq.Delivery) -> str:
        raise cassieq.Reject(f"no such tag: {message.tag}")

    @worker.around
    def timed(message: cassieq.Delivery) -> Iterator[None]:
        assert_type(message, cassieq.Delivery)
        yield

    assert_type(other(delivery), str)
    await order(delivery)
    worker(delivery)
    await queue.work(order)
    await queue.work(worker, concurrency=50, idle_timeout=5, grace=timedelta(1), backoff=backoff)


def delivery_api(delivery: cassieq.Delivery) -> None:
    message_api(delivery)
    assert_type(delivery.receipt, str)
    assert_type(delivery.visible_until, datetime)
    assert_type(delivery.fence, int)


def message_api(message: cassieq.Message) -> None:
    assert_type((message.message_id, message.uuid), tuple[str, UUID])
    assert_type(message.body, bytes)
    assert_type((message.tag, message.group), tuple[str | None, str | None])
    assert_type(message.headers, Mapping[str, str])
    assert_type((message.id, message.priority, message.delivery_count), tuple[int, int, int])
    assert_type(message.enqueued_at, datetime)
    lane: UUID = message.lane
    assert lane


def settings_api(settings: cassieq.QueueSettings) -> None:
    assert_type((settings.bucket_size, settings.priorities, settings.shards), tuple[int, int, int])
    assert_type(settings.visibility_timeout_s, float)
    assert_type(settings.max_deliveries, int | None)
    dead_letter_queue: str | None = settings.dead_letter_queue
    assert dead_letter_queue


def stats_api(stats: cassieq.QueueStats, hours: list[cassieq.ScheduledHour]) -> None:
    assert_type((stats.visible, stats.in_flight, stats.delayed), tuple[int, int, int])
    assert_type((stats.scheduled, stats.dead, stats.total), tuple[int, int, int])
    assert_type(stats.oldest_age, float | None)
    assert_type((stats.buckets, stats.consumers), tuple[dict[str, int], dict[str, int]])
    assert_type(stats.by_priority, dict[int, int])
    for hour in hours:
        assert_type((hour.due_from, hour.priority, hour.messages), tuple[datetime, int, int])


def show(progress: cassieq.Progress) -> None:
    assert_type((progress.queue, progress.queues), tuple[str, int])
    assert_type(progress.share, float)


def repair_api(client: cassieq.Client, letters: list[cassieq.Message]) -> None:
    report = client.repair("orders", full=True, dry_run=True, on_progress=show)
    assert_type(report, cassieq.RepairReport)
    assert_type(report.problems, list[str])
    assert_type(sum(one.moved_dead for one in report.queues), int)
    assert_type(client.repair_as_leader(), cassieq.RepairReport | None)
    found = client.verify("orders", on_progress=show)
    assert_type(found, cassieq.VerifyReport)
    assert_type([one.kind for one in found.findings], list[str])
    redriven = client.redrive(
        "dead", letters, where=lambda one: one.tag == "t", to="orders", max_messages=5
    )
    assert_type(redriven, cassieq.Redriven)
    assert_type(client.redrive("dead", [letters[0].id]).by_target, dict[str, int])
    client.redrive("dead", may=lambda name: name != "", dry_run=True, on_progress=show)
    for letter in client.browse("dead"):
        assert_type(letter, cassieq.Message)


def spark_api(spark: SparkSession) -> None:
    register(spark)
    settings = spark_config("127.0.0.1:9042", datacenter="datacenter1")
    assert_type(settings, dict[str, str])
    put = foreach_batch(
        queue="orders", contact_points=["127.0.0.1:9042"], connector={}, keyspace="cassieq"
    )
    assert_type(put, Callable[[DataFrame, int], None])
    spark.readStream.format("rate").load().writeStream.foreachBatch(put)
    settled = settle(
        spark.table("judged"), "verdict", queue="orders", delay=timedelta(minutes=1), username="ada"
    )
    assert_type(settled, cassieq.Settled)
    assert_type((settled.acked, settled.stale_receipts), tuple[int, tuple[str, ...]])
    listener = CassieqListener(contact_points="127.0.0.1:9042", keyspace="cassieq")
    spark.streams.addListener(listener)
    assert_type((listener.prometheus(), listener.serve(8_080)), tuple[str, int])


def wrapped(
    wait: cassieq.Seconds,
    settings: cassieq.QueueArguments,
    on_progress: cassieq.OnProgress,
    secret: cassieq.Secret,
    **connection: Unpack[cassieq.ConnectionArguments],
) -> None:
    """A program names what it passes on, and what it gets."""
    connection["password"] = secret
    with cassieq.connect(**connection) as client:
        queue = client.create_queue("orders", **settings)
        held: list[cassieq.Held] = list(queue.get(wait=wait))
        queue.ack(held)
        repaired: list[cassieq.QueueRepair] = client.repair(on_progress=on_progress).queues
        found: list[cassieq.Finding] = client.verify().findings
        assert_type((repaired[0].moved_dead, found[0].lane), tuple[int, str | None])
        client.redrive("dead", [cassieq.Spot(one.lane, one.id) for one in queue.peek()])


def errors() -> None:
    try:
        client_api()
    except cassieq.QueueExists as error:
        assert_type((error.queue, error.differences), tuple[str, tuple[str, ...]])
    except (cassieq.QueueNotFound, cassieq.QueueDeleted, cassieq.UsageError) as error:
        assert_type(error.message, str)
    except (cassieq.ReceiptExpired, cassieq.ReceiptInvalid) as error:
        assert_type(error.refused, tuple[str, ...])
    except cassieq.PutAmbiguous as error:
        assert_type(error.message_ids, tuple[str, ...])
    except (cassieq.StoreUnavailable, cassieq.StoreTimeout) as error:
        assert_type((error.errno, error.retriable), tuple[int | None, bool])
    except (cassieq.CasAmbiguous, cassieq.SchemaMissing, cassieq.ClientClosed) as error:
        assert_type(error.message, str)
    except (cassieq.QueueInUse, cassieq.StoreError, cassieq.StreamError) as error:
        assert_type((error.code, error.meaning, error.remedy), tuple[str, str, str])
    except cassieq.CassieqError as error:
        assert_type(error.retriable, bool)


def mistakes(client: cassieq.Client, queue: cassieq.Queue, spark: SparkSession) -> None:
    cassieq.conect("127.0.0.1:9042")  # type: ignore[attr-defined]
    cassieq.register(spark)  # type: ignore[attr-defined]
    cassieq_spark.spark.registr(spark)  # type: ignore[attr-defined]
    cassieq.connect("127.0.0.1:9042", kespace="cassieq")  # type: ignore[call-arg]
    cassieq.connect(contact_points=9042)  # type: ignore[arg-type]
    client.create_queue("orders", visiblity_timeout=3)  # type: ignore[call-arg]
    client.create_queue("orders", priorities="3")  # type: ignore[arg-type]
    client.redrive("dead", ["receipt"])  # type: ignore[list-item]
    queue.put("text")  # type: ignore[arg-type]
    queue.put(b"m", dely=3)  # type: ignore[call-arg]
    queue.put_many([b"1"], priority="high")  # type: ignore[arg-type]
    queue.get("10")  # type: ignore[arg-type]
    (seen,) = queue.peek(1)
    (held,) = queue.get(1)
    queue.ack(seen)  # type: ignore[arg-type]
    queue.ack([seen])  # type: ignore[list-item]
    queue.extend(seen, 60)  # type: ignore[arg-type]
    queue.extend(held)  # type: ignore[call-arg]
    queue.update(seen, body=b"")  # type: ignore[arg-type]
    queue.update(held.receipt, body=b"")  # type: ignore[arg-type]
    print(seen.receipt)  # type: ignore[attr-defined,misc]  # noqa: T201 - never run
    held.body = b""  # type: ignore[misc]
    with queue.consumer() as consumer:
        consumer.ack(seen)  # type: ignore[arg-type]
    settle(spark.table("judged"), queue="orders", usename="ada")  # type: ignore[call-arg]
    CassieqListener(contact_point="127.0.0.1")  # type: ignore[call-arg]
