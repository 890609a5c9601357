"""A program that uses ten thousand queues, one after the other, does not grow with them."""

from __future__ import annotations

import gc

import pytest

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.model.ids import QueueName
from cassieq_spark.queue import admin
from cassieq_spark.queue.get.queue_reader import QueueReader
from cassieq_spark.queue.handle import Work
from cassieq_spark.queue.put.producer import Producer
from cassieq_spark.store import portal
from cassieq_spark.testing import EmbeddedCassandra
from tests.fixtures.cassandra import own_keyspace

KEPT = "cassieq_spark.client.QUEUES", "cassieq_spark.store.store.LANES"


@pytest.fixture(scope="module")
def keyspace(cassandra: EmbeddedCassandra) -> str:
    """Of its own: each repair pass of another test would go over ten thousand queues."""
    return own_keyspace(cassandra, "cassieq_ten_thousand")


@pytest.mark.parametrize(
    "queues",
    [
        pytest.param(60, marks=pytest.mark.sample),
        pytest.param(10_000, marks=pytest.mark.timeout(3_600)),
    ],
)
def test_ever_new_queues_take_no_more_space(
    cassandra: EmbeddedCassandra,
    keyspace: str,
    queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
    queues: int,
) -> None:
    """Objects are counted, and series of metrics; a tenth of the queues is what may stay."""
    kept = queues // 10
    for constant in KEPT:
        monkeypatch.setattr(constant, kept, raising=False)
    monkeypatch.setattr(metrics, "MOST_TEXTS", kept)
    names = [QueueName(f"{queue_name}.{at}") for at in range(queues)]
    with cassieq.connect(cassandra.contact_points, keyspace=keyspace) as maker:
        store = maker.store
        made = store.session.map(lambda name: admin.create(store, name, {"linger": 0}, {}), names)
        portal.run(made)
    before = counted()
    in_all = metrics.MESSAGES_PUT.value
    with cassieq.connect(cassandra.contact_points, keyspace=keyspace) as own:
        for name in names:
            queue = own.queue(name)
            queue.get()
            queue.put(b"m")
        del queue
        for kind, found in counted().items():
            assert 0 < found - before.get(kind, 0) <= kept, kind
        assert kept == len(own.store.seen.values())
    assert in_all + queues == metrics.MESSAGES_PUT.value
    series = metrics.MESSAGES_PUT.values
    assert names[-kept:] == [name for name in series if name != metrics.OTHERS]


def counted() -> dict[type, int]:
    """How many objects there are that a client keeps for a queue."""
    gc.collect()
    found = [type(one) for one in gc.get_objects()]
    return {kind: found.count(kind) for kind in (Work, Producer, QueueReader)}
