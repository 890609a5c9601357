"""Chunks of one bucket are written two at a time, as one mutation, and sent again one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cassandra import ConsistencyLevel, OperationTimedOut
from cassandra.query import BatchStatement

from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.sizes import CHUNK_BYTES, WRITTEN_TOGETHER_BYTES
from cassieq_spark.store import caller, driver, portal, statements
from cassieq_spark.store.tables.messages import ChunkRow
from tests.fixtures.transports import driver_of, intercept, prepared

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.store.tables.messages import ChunkWriter
    from tests.fixtures.queues import Door

ALL = Runs.span(0, 1_000)


class Requests:
    """How many rows each request of chunks has; the next ones may be lost."""

    def __init__(self, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self.lost = 0
        self._execute = driver_of(door.session).session.execute_async
        monkeypatch.setattr(driver_of(door.session).session, "execute_async", self)
        self._insert = prepared(door.session, statements.WRITE_MESSAGE)

    def __call__(self, query: Any, *given: Any, **more: Any) -> Any:
        is_batch = isinstance(query, BatchStatement)
        if is_batch or query is self._insert:
            self.rows.append(len(query._statements_and_parameters) if is_batch else 1)
            if self.lost:
                self.lost -= 1
                raise OperationTimedOut
        return self._execute(query, *given, **more)


@pytest.fixture
def requests(door: Door, monkeypatch: pytest.MonkeyPatch) -> Requests:
    # The tests' own interceptor has each row sent by itself.
    intercept(door.session, None)
    return Requests(door, monkeypatch)


def writing(door: Door, chunks: ChunkWriter) -> Callable[..., None]:
    def write(bucket: int, first: int, size: int = 100) -> None:
        row = ChunkRow(first=first, count=1, payload=bytes([first]) * size, enqueued_us=1)
        portal.run(chunks.write(door.place(bucket), row))

    return write


def stored(door: Door, bucket: int) -> list[int]:
    ((_, chunks),) = portal.iterate(door.lane.messages.read([(BucketNo(bucket), ALL)]))
    assert all(set(chunk.payload) == {chunk.first} for chunk in chunks)
    return [chunk.first for chunk in chunks]


def test_two_chunks_of_the_usual_size_are_one_request_whatever_the_limit_of_a_batch(
    door: Door, requests: Requests
) -> None:
    """A probe, too: Cassandra refuses batches of more than 50 KiB, but none of one partition."""
    chunks = door.store.chunk_writer(writes_in_flight=8)
    write = writing(door, chunks)
    for first in range(5):
        write(0, first, CHUNK_BYTES + 2_000)
    portal.run(chunks.flush())

    assert [2, 2, 1] == requests.rows
    assert [0, 1, 2, 3, 4] == stored(door, 0)


def test_a_chunk_waits_neither_for_one_of_another_bucket_nor_for_one_that_is_too_large(
    door: Door, requests: Requests
) -> None:
    chunks = door.store.chunk_writer(writes_in_flight=8)
    write = writing(door, chunks)
    write(0, 0)
    write(1, 1)
    write(1, 2, WRITTEN_TOGETHER_BYTES - 50)
    assert [1, 1, 1] == requests.rows
    write(1, 3)
    portal.run(chunks.flush())

    assert [1, 1, 1, 1] == requests.rows
    assert ([0], [1, 2, 3]) == (stored(door, 0), stored(door, 1))


def test_what_follows_a_chunk_is_called_when_it_is_stored_though_no_other_one_came(
    door: Door, requests: Requests
) -> None:
    chunks = door.store.chunk_writer(writes_in_flight=8)
    write = writing(door, chunks)
    seen: list[list[int]] = []
    write(0, 7)

    async def look() -> None:
        seen.append(await caller.in_a_thread(lambda: stored(door, 0)))

    portal.run(chunks.after_these(look))
    write(0, 8)
    portal.run(chunks.flush())

    (found,) = seen
    assert 7 in found
    assert [7, 8] == stored(door, 0)
    assert [1, 1] == requests.rows


@pytest.mark.parametrize(
    ("limit", "rows"),
    [(1, [1] * 9), (3, [1] * 9), (4, [2, 2, 2, 2, 1]), (5, [2, 2, 2, 2, 1])],
)
def test_no_more_rows_than_the_limit_are_under_way(
    door: Door,
    requests: Requests,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    rows: list[int],
) -> None:
    chunks = door.store.chunk_writer(writes_in_flight=limit)
    write = writing(door, chunks)
    finished = 0
    finish = door.session.finish

    async def count(sent: Any) -> Any:
        nonlocal finished
        found = await finish(sent)
        finished += 1
        return found

    monkeypatch.setattr(door.session, "finish", count)
    under_way = []
    for first in range(9):
        write(0, first)
        under_way.append(sum(requests.rows) - finished)
    portal.run(chunks.flush())

    assert rows == requests.rows
    assert limit >= max(under_way) >= min(limit, 2)
    assert list(range(9)) == stored(door, 0)


def test_a_request_of_two_that_its_node_refuses_is_sent_again_one_by_one(
    door: Door, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's own future fails, once for both, and is asked by both."""
    batch = driver.query_of

    def too_few(prepared: Any, rows: Any) -> Any:
        found = batch(prepared, rows)
        if len(rows) > 1:
            found[0].consistency_level = ConsistencyLevel.THREE
        return found

    monkeypatch.setattr(driver, "query_of", too_few)
    chunks = door.store.chunk_writer(writes_in_flight=4)
    write = writing(door, chunks)
    write(0, 0)
    write(0, 1)
    portal.run(chunks.flush())

    assert [2, 1, 1] == requests.rows
    assert [0, 1] == stored(door, 0)


def test_chunks_of_a_request_that_is_lost_are_sent_again_one_by_one(
    door: Door, requests: Requests
) -> None:
    chunks = door.store.chunk_writer(writes_in_flight=8)
    write = writing(door, chunks)
    requests.lost = 1
    for first in range(2):
        write(0, first)
    portal.run(chunks.flush())

    assert [2, 1, 1] == requests.rows
    assert [0, 1] == stored(door, 0)
