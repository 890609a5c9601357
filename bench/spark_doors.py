"""How Spark and a program reach a queue, or a topic of Kafka; imported in a child process only."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

KAFKA_WAIT_S = 30.0


class Door(Protocol):
    """One side's format, its options, and what a program does there."""

    format: str
    body: str
    schema: str | None

    def prepare(self, spark: SparkSession) -> None:
        """Once, when the session is there."""

    def create(self, queue: str, durability: str) -> None:
        """A fresh queue or topic."""

    def source(self, queue: str, limit: int | None) -> dict[str, str]:
        """Options of ``readStream``, with at most ``limit`` messages a batch."""

    def sink(self, queue: str) -> dict[str, str]:
        """Options of both writers."""

    def put(self, queue: str, body: bytes) -> None:
        """One message, stored when this returns."""

    def stored(self, queue: str) -> int:
        """How many messages were put, before any was taken."""

    def left(self, queue: str) -> int:
        """How many are there after a drain."""

    def close(self) -> None:
        """Close connections."""


class CassieqDoor:
    """A queue; a durability is that of the node, so it chooses the node."""

    format, body, schema = "cassieq", "body", "body binary"

    def __init__(self, addresses: Mapping[str, str]) -> None:
        import cassieq_spark  # noqa: F401, PLC0415 - before the session, as programs do

        self._addresses = addresses
        self._nodes: dict[str, str] = {}
        self._clients: dict[str, Any] = {}

    def prepare(self, spark: SparkSession) -> None:
        """As the README has it; the other side's environment has no such package."""
        from cassieq_spark.spark import register  # noqa: PLC0415 - as above

        register(spark)

    def create(self, queue: str, durability: str) -> None:
        """A queue as it comes, on the node with this durability."""
        self._nodes[queue] = durability
        self._client(queue).create_queue(queue)

    def source(self, queue: str, limit: int | None) -> dict[str, str]:
        """Nothing but the limit is set."""
        return self.sink(queue) | ({"maxMessagesPerTrigger": str(limit)} if limit else {})

    def sink(self, queue: str) -> dict[str, str]:
        """Where it is."""
        return {"contactPoints": self._address(queue), "queue": queue}

    def put(self, queue: str, body: bytes) -> None:
        """By the client."""
        self._client(queue).queue(queue).put(body)

    def stored(self, queue: str) -> int:
        """By its own count."""
        return int(self._client(queue).queue(queue).stats().visible)

    def left(self, queue: str) -> int:
        """Leased messages count, too."""
        stats = self._client(queue).queue(queue).stats()
        return int(stats.visible + stats.in_flight)

    def close(self) -> None:
        """Close all clients."""
        for client in self._clients.values():
            client.close()

    def _address(self, queue: str) -> str:
        return self._addresses[self._nodes.get(queue, next(iter(self._addresses)))]

    def _client(self, queue: str) -> Any:
        import cassieq_spark as cassieq  # noqa: PLC0415 - not in the other side's environment

        address = self._address(queue)
        if address not in self._clients:
            self._clients[address] = cassieq.connect(address)
        return self._clients[address]


class KafkaDoor:
    """A topic, with Kafka's defaults; a durability is a setting of the topic."""

    format, body, schema = "kafka", "value", None

    def __init__(self, address: str, *, partitions: int) -> None:
        self._address = address
        self._partitions = partitions
        self._producer: Any = None

    def prepare(self, spark: SparkSession) -> None:
        """Nothing."""

    def create(self, queue: str, durability: str) -> None:
        """A topic; ``fsync``: the log is forced to the disk before each answer."""
        from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 - as above

        settings = {"flush.messages": "1"} if durability == "fsync" else {}
        topic = NewTopic(queue, self._partitions, 1, config=settings)
        admin = AdminClient({"bootstrap.servers": self._address})
        admin.create_topics([topic], operation_timeout=KAFKA_WAIT_S)[queue].result(KAFKA_WAIT_S)

    def source(self, queue: str, limit: int | None) -> dict[str, str]:
        """From the beginning."""
        options = {
            "kafka.bootstrap.servers": self._address,
            "subscribe": queue,
            "startingOffsets": "earliest",
        }
        return options | ({"maxOffsetsPerTrigger": str(limit)} if limit else {})

    def sink(self, queue: str) -> dict[str, str]:
        """Where it is."""
        return {"kafka.bootstrap.servers": self._address, "topic": queue}

    def put(self, queue: str, body: bytes) -> None:
        """By a producer that waits for nothing: by default it would linger for 5 ms."""
        from confluent_kafka import Producer  # noqa: PLC0415 - as above

        if self._producer is None:
            self._producer = Producer({"bootstrap.servers": self._address, "linger.ms": 0})
        self._producer.produce(queue, value=body)
        if self._producer.flush(KAFKA_WAIT_S):
            raise RuntimeError(f"Kafka did not take a message within {KAFKA_WAIT_S} s")

    def stored(self, queue: str) -> int:
        """By the offsets of all partitions."""
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - as above

        settings = {"bootstrap.servers": self._address, "group.id": "bench"}
        with contextlib.closing(Consumer(settings)) as consumer:
            offsets = [
                consumer.get_watermark_offsets(TopicPartition(queue, at), timeout=KAFKA_WAIT_S)
                for at in range(self._partitions)
            ]
        return sum(high - low for low, high in offsets)

    def left(self, queue: str) -> int:  # noqa: ARG002 - as the other side has it
        """A log keeps what was read, and the checkpoint says how far: nothing to count."""
        return 0

    def close(self) -> None:
        """Nothing is open that minds."""
