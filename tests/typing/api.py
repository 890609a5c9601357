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
        assert_type(queue.stats().visible, int)
        client.forget_sink("orders", "sink")


def spark_api(spark: SparkSession) -> None:
    cassieq.register(spark)


def errors() -> None:
    try:
        client_api()
    except cassieq.QueueExists as error:
        assert_type(error.differences, tuple[str, ...])
    except cassieq.CassieqError as error:
        assert_type(error.retriable, bool)
