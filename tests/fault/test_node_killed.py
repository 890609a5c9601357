"""The node gets SIGKILL under load and comes back: no client is touched, nothing acked is lost."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator, new_uuid
from cassieq_spark.errors import PutAmbiguous, StoreError
from cassieq_spark.queue.settle.ack_group import Verdict
from cassieq_spark.testing import wait_until
from tests.fault.children.deliveries import Deliveries, drain
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cassieq_spark.testing import EmbeddedCassandra

KILLS = 3
VISIBILITY_S = 4.0


class Producer:
    """Puts until it is told to stop, and keeps what it was told of each message."""

    def __init__(self, queue: cassieq.Queue) -> None:
        self._queue = queue
        self.stored: set[str] = set()
        self.unknown: set[str] = set()
        self.refused: set[str] = set()
        self.progress = 0

    def run(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            ids = [str(new_uuid()) for _ in range(5)]
            try:
                self._queue.put_many([one.encode() for one in ids], message_ids=ids)
                self.stored.update(ids)
                self.progress += 1
            except PutAmbiguous as error:
                self.stored.update(error.stored)
                self.unknown.update(error.message_ids)
                self.refused.update(set(ids) - set(error.stored) - set(error.message_ids))
            except StoreError:
                self.refused.update(ids)


class Consumer:
    """Gets and acks until it is told to stop; what it could not ack comes back."""

    def __init__(self, queue: cassieq.Queue) -> None:
        self._queue = queue
        self.seen = Deliveries(visibility_s=VISIBILITY_S)
        self.ids: set[tuple[str, int]] = set()
        self.progress = 0

    def run(self, is_over: threading.Event) -> None:
        now = SystemClock().monotonic
        while not is_over.is_set():
            begun = now()
            try:
                messages = self._queue.get(20, visibility_timeout=VISIBILITY_S, wait=0.2)
            except StoreError:
                continue
            for one in messages:
                self.ids.add((one.message_id, one.id))
                self.seen.add_got(one.message_id, one.delivery_count, begun, now())
            verdicts = self._queue.ack_each(messages)
            for one, verdict in zip(messages, verdicts, strict=True):
                # "Already acked" may tell of a later delivery, to the other consumer.
                if verdict is Verdict.ACKED:
                    self.seen.acked.add((one.message_id, one.delivery_count))
                    self.progress += 1


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
def test_a_node_killed_under_load_and_restarted_loses_nothing_that_was_acknowledged(
    own_cassandra: EmbeddedCassandra, queue_name: str, seed: int
) -> None:
    rng = generator(seed)
    (node,) = own_cassandra.nodes
    with (
        cassieq.connect(own_cassandra.contact_points, keyspace=KEYSPACE) as first,
        cassieq.connect(own_cassandra.contact_points, keyspace=KEYSPACE) as second,
    ):
        first.bootstrap()
        queue = first.create_queue(queue_name, bucket_size=200, visibility_timeout=VISIBILITY_S)
        queues = [queue, second.queue(queue_name)]
        producers = [Producer(one) for one in queues]
        consumers = [Consumer(one) for one in queues]
        workers = [*producers, *consumers]
        is_over = threading.Event()
        with ThreadPoolExecutor(len(workers), thread_name_prefix="load") as pool:
            running = [pool.submit(worker.run, is_over) for worker in workers]
            try:
                await_progress(workers, running)
                for _ in range(KILLS):
                    SystemClock().wait(rng.uniform(0, 0.5))
                    node.kill()
                    node.start()
                    await_progress(workers, running)
            finally:
                is_over.set()
        for one in running:
            one.result()

        seen = Deliveries(visibility_s=VISIBILITY_S)
        ids = set().union(*(one.ids for one in consumers))
        for consumer in consumers:
            seen.merge(consumer.seen)
        ids |= take_the_rest(queue, seen)

    stored = set().union(*(one.stored for one in producers))
    unknown = set().union(*(one.unknown for one in producers))
    refused = set().union(*(one.refused for one in producers))
    assert set() == stored - set(seen.got)
    assert set() == set(seen.got) - stored - unknown
    assert set() == set(seen.got) & refused
    places = Counter(message_id for message_id, _ in ids)
    assert {} == {message_id: n for message_id, n in places.items() if n > 1}
    assert [] == seen.faults()


def take_the_rest(queue: cassieq.Queue, seen: Deliveries) -> set[tuple[str, int]]:
    """What is still there, or comes back from leases that nobody could ack: (message id, id)."""
    ids: set[tuple[str, int]] = set()
    now = SystemClock().monotonic
    begun = now()

    def is_drained() -> bool:
        for message in drain(queue):
            ids.add((message.message_id, message.id))
            seen.add_got(message.message_id, message.delivery_count, begun, now())
        stats = queue.stats()
        return stats.visible == stats.invisible == 0

    wait_until(is_drained, deadline_s=60, describe=lambda: str(queue.stats()))
    return ids


def await_progress(workers: list[Producer | Consumer], running: list[Future[None]]) -> None:
    """Each of them gets on, without anybody having touched it."""
    before = [worker.progress for worker in workers]

    def all_get_on() -> bool:
        for one in running:
            if one.done():
                one.result()
        return all(
            worker.progress >= then + 20 for worker, then in zip(workers, before, strict=True)
        )

    wait_until(
        all_get_on,
        deadline_s=90,
        describe=lambda: f"progress beyond {before}: {[worker.progress for worker in workers]}",
    )
