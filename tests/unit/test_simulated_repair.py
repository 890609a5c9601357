"""Read repair of the simulated Cassandra: of the rows that a page has come to, and no others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from cassandra import ConsistencyLevel, Unavailable

from cassieq_spark.store import statements
from cassieq_spark.store.transport import Page, Request
from cassieq_spark.testing.simulated.ring import Coordinator
from cassieq_spark.testing.simulated.storage import Cell, Deletion, Marker, Partition
from tests.fixtures.differential import at_level, simulated

if TYPE_CHECKING:
    from cassieq_spark.store.statements import Statement
    from cassieq_spark.testing.simulated.transport import SimulatedTransport

LANE = UUID(int=7)
KEY = ("message", (LANE, 0))
ADDRESSES = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


def row_of(partition: Partition, first: int) -> None:
    row = partition.row((first, 0))
    row.marker = Marker(1)
    row.cells["count"] = Cell(1, 1)


@pytest.fixture
def apart() -> SimulatedTransport:
    """A ring on whose first node there are four rows, which the others have missed."""
    transport = simulated(ADDRESSES, "datacenter1")
    there = Partition()
    for first in range(4):
        row_of(there, first)
    transport.ring.nodes[0].apply(KEY, there)
    return transport


def pages(
    transport: SimulatedTransport, statement: Statement, row: tuple[Any, ...], count: int
) -> None:
    """Read so many pages at ALL, with two rows each."""
    sized = replace(at_level(statement, ConsistencyLevel.ALL), rows_per_page=2)

    async def read() -> None:
        page = None
        for _ in range(count):
            told: asyncio.Future[Page | BaseException] = asyncio.get_running_loop().create_future()
            request = Request(statement=sized, rows=[row], timeout_s=10.0, page=page)
            transport.send(request, told.set_result)
            found = await told
            if isinstance(found, BaseException):
                raise found
            page = found.following

    asyncio.run(read())


def rows_there(transport: SimulatedTransport) -> list[list[int]]:
    return [[first for first, _ in node.read(KEY, 0).order] for node in transport.ring.nodes[1:]]


def test_it_ends_with_the_page(apart: SimulatedTransport) -> None:
    pages(apart, statements.SCAN_MESSAGES, (LANE, 0), 1)
    assert [[0, 1]] * 2 == rows_there(apart)
    pages(apart, statements.SCAN_MESSAGES, (LANE, 0), 2)
    assert [[0, 1, 2, 3]] * 2 == rows_there(apart)


def test_it_is_of_the_slice_alone(apart: SimulatedTransport) -> None:
    pages(apart, statements.READ_MESSAGES, (LANE, 0, 1, 2), 2)
    assert [[1, 2]] * 2 == rows_there(apart)


def test_a_list_of_keys_repairs_the_first_row_of_each(apart: SimulatedTransport) -> None:
    pages(apart, statements.LIST_MESSAGES, (), 1)
    assert [[0]] * 2 == rows_there(apart)


def test_a_read_of_keys_alone_repairs_whole_rows(apart: SimulatedTransport) -> None:
    pages(apart, statements.OLDEST_MESSAGE, (LANE, 0), 1)
    assert {} == apart.ring.nodes[1].read(KEY, 0).rows[0, 0].cells
    pages(apart, statements.PEEK_BUCKET, (LANE, 0), 1)
    assert {"count"} == apart.ring.nodes[1].read(KEY, 0).rows[0, 0].cells.keys()


def test_a_deletion_that_ends_behind_the_page_waits_for_the_next() -> None:
    transport = simulated(ADDRESSES, "datacenter1")
    key = ("overlay", (LANE, 0))
    there = Partition()
    there.slices[(0, 0)] = Deletion(1, 0)
    for part in range(3):
        there.row((0, 0, part)).marker = Marker(2)
    transport.ring.nodes[0].apply(key, there)
    pages(transport, statements.READ_OVERLAY, (LANE, 0, 0, 0), 1)
    assert {} == transport.ring.nodes[1].read(key, 0).slices
    assert 2 == len(transport.ring.nodes[1].read(key, 0).rows)


def test_what_has_expired_on_one_node_wins_over_a_value_of_the_same_time() -> None:
    transport = simulated(ADDRESSES, "datacenter1")
    now_s = transport.ring.nodes[0].now_s
    for node, cell in zip(
        transport.ring.nodes,
        (Cell(5, b"old", 10, now_s - 1), Cell(5, b"new", 10, now_s + 9), Cell(4, b"before")),
        strict=True,
    ):
        there = Partition()
        there.row((0, 0)).marker = Marker(5)
        there.row((0, 0)).cells["payload"] = cell
        node.apply(KEY, there)
    pages(transport, statements.SCAN_MESSAGES, (LANE, 0), 1)
    repaired = [node.read(KEY, now_s).rows[0, 0].cells["payload"] for node in transport.ring.nodes]
    assert [Cell(5, None, 0, now_s - 11)] * 3 == repaired


def test_a_slice_that_ends_before_it_begins_asks_no_node(apart: SimulatedTransport) -> None:
    for node in apart.ring.nodes[1:]:
        apart.ring.convict(node)
    pages(apart, statements.READ_MESSAGES, (LANE, 0, 2, 1), 1)
    pages(apart, statements.READ_SCHEDULE, (LANE, 0, 2, 2), 1)
    with pytest.raises(Unavailable):
        pages(apart, statements.READ_MESSAGES, (LANE, 0, 1, 1), 1)


@pytest.mark.parametrize(("coordinator", "rows"), [(0, 1), (1, 0)])
def test_what_has_ended_is_a_question_of_the_coordinators_clock(
    apart: SimulatedTransport, coordinator: int, rows: int
) -> None:
    """A read carries its time (``ReadCommand.nowInSec``): no replica asks its own clock."""
    nodes = apart.ring.nodes
    for node in nodes[1:]:
        node.wall_us = lambda: nodes[0].wall_us() + 3_600_000_000
    ends = Partition()
    ends.row((9, 0)).cells["count"] = Cell(1, 1, 60, nodes[0].now_s + 60)
    for node in nodes:
        node.apply(KEY, ends)

    async def read() -> Partition:
        from_here = Coordinator(apart.ring, nodes[coordinator])
        return await from_here.read(KEY, frozenset({"count"}), ConsistencyLevel.ALL)

    found = asyncio.run(read())
    assert rows == sum((9, 0) == at for at, _ in found.live(nodes[coordinator].now_s))
