"""`df.write` without an id, as Spark calls its writer: driver, pickled into tasks, driver again."""

from __future__ import annotations

import pickle
from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from cassieq_spark.errors import QueueDeleted
from cassieq_spark.model.bucket import Status
from cassieq_spark.options import parse_sink
from cassieq_spark.spark import sink
from cassieq_spark.spark.sink import BatchWriter
from cassieq_spark.store import portal
from cassieq_spark.store.store import close_shared
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.queues import Door, OpenDoor

SCHEMA = StructType([StructField("body", BinaryType())])


@pytest.fixture(autouse=True)
def no_shared_store() -> Iterator[None]:
    """A process of Spark's keeps it until it ends; this one is the test's."""
    yield
    close_shared()


def writer_of(cassandra: EmbeddedCassandra, door: Door) -> BatchWriter:
    options = {
        "contactPoints": cassandra.contact_points,
        "keyspace": KEYSPACE,
        "queue": door.queue.name,
    }
    return pickle.loads(pickle.dumps(BatchWriter(parse_sink(options), SCHEMA)))  # noqa: S301


def rows(*bodies: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], names=["body"])


@pytest.mark.invariant("I7")
def test_t3_a_write_without_an_id_commits_on_the_row_that_its_driver_made(
    cassandra: EmbeddedCassandra, door: Door
) -> None:
    writer = writer_of(cassandra, door)
    written = [writer.write(iter([rows(b"a")])), writer.write(iter([rows(b"b", b"c")]))]
    assert [] == door.drain()
    writer.commit([*written, None])
    assert [b"a", b"b", b"c"] == door.drain()


@pytest.mark.invariant("I1")
def test_t6_a_write_into_a_queue_that_was_created_again_is_refused_in_task_and_driver(
    cassandra: EmbeddedCassandra, open_door: OpenDoor
) -> None:
    door = open_door()
    writer = writer_of(cassandra, door)
    written = [writer.write(iter([rows(b"a")]))]
    door.client.delete_queue(door.queue.name)
    anew = open_door()
    with pytest.raises(QueueDeleted, match="created again"):
        writer.write(iter([rows(b"b")]))
    with pytest.raises(QueueDeleted, match="created again"):
        writer.commit(list(written))
    assert [] == anew.drain()


class Worker:
    """The tasks of one sink in one worker, and what they reserve."""

    def __init__(
        self, cassandra: EmbeddedCassandra, door: Door, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sink, "_filled", deque(maxlen=sink.TASKS))
        self.door = door
        self._writer = writer_of(cassandra, door)

    def reserves(self, batches: Iterable[pa.RecordBatch]) -> int:
        before = self._reserved()
        self._writer.write(iter(batches))
        return self._reserved() - before

    def statuses(self) -> list[Status]:
        return [self.door.value(bucket).status for bucket in range(self._reserved())]

    def _reserved(self) -> int:
        return portal.run(self.door.lane.read_monoton()).next_id // self.door.lane.bucket_size


FIVE = (b"1", b"2", b"3", b"4", b"5")
PREPARED, VOID = [Status.PREPARED] * 3, [Status.VOID] * 3


@pytest.mark.invariant("I10")
def test_a_worker_opens_a_bucket_before_the_first_row_if_its_last_tasks_had_rows(
    cassandra: EmbeddedCassandra, open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many are reserved as they filled; what nobody needed is void: no reader waits."""
    worker = Worker(cassandra, open_door(bucket_size=2), monkeypatch)
    assert [7, 3, 3, 0, 7] == [
        worker.reserves([rows(*FIVE)]),  # one bucket, then two, and four ahead of what may come
        worker.reserves([rows(*FIVE)]),
        worker.reserves([]),  # in vain
        worker.reserves([]),
        worker.reserves([rows(*FIVE)]),
    ]
    unused = [*VOID, Status.VOID]
    assert [*PREPARED, *unused, *PREPARED, *VOID, *PREPARED, *unused] == worker.statuses()


@pytest.mark.invariant("I10")
def test_a_task_that_fails_before_its_first_row_leaves_no_gap(
    cassandra: EmbeddedCassandra, open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        raise ArithmeticError("upstream")
        yield

    worker = Worker(cassandra, open_door(bucket_size=2), monkeypatch)
    worker.reserves([rows(*FIVE)])
    with pytest.raises(ArithmeticError):
        worker.reserves(broken())
    assert [*PREPARED, *VOID, Status.VOID, *VOID] == worker.statuses()


def test_rows_for_due_lanes_open_no_bucket_in_the_queues_own(
    cassandra: EmbeddedCassandra, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(cassandra, door, monkeypatch)
    later = rows(b"1").append_column("delay", pa.array([30 * 86_400.0]))
    assert [0, 0] == [worker.reserves([later]), worker.reserves([later])]
