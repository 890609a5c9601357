"""The simulated Cassandra answers as the real one does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.store import portal, schema
from cassieq_spark.testing.simulated import cql
from cassieq_spark.testing.simulated.ring import Node, Ring
from cassieq_spark.testing.simulated.transport import SimulatedTransport
from tests.fixtures.differential import STATEMENTS, TABLES, Drawn, answer, every_row

if TYPE_CHECKING:
    from cassieq_spark.testing import EmbeddedCassandra

SEQUENCES = int(os.environ.get("SEQUENCES", "100"))
LENGTH = 40


@pytest.fixture(scope="module")
def real(cassandra: EmbeddedCassandra) -> Iterator[cassieq.Client]:
    """A client of a keyspace in which nothing else is."""
    name = "simulated"
    with cassieq.connect(cassandra.contact_points, keyspace=name) as client:
        client.bootstrap()
        portal.run(client._session.define(f"TRUNCATE {name}.meta"))
        yield client
        portal.run(client._session.define(f"DROP KEYSPACE {name}"))


def simulated() -> SimulatedTransport:
    ring = Ring([Node("127.0.0.1", "datacenter1", UUID(int=1), 1, SystemClock().now_us)])
    ring.copies = {"datacenter1": 1}
    ring.tables = dict(TABLES)
    return SimulatedTransport(ring)


def test_each_statement_and_table_is_one_that_it_reads() -> None:
    for statement in STATEMENTS:
        assert cql.parse(statement.cql.format(ks="k"))
    assert TABLES.keys() == schema.TABLES.keys()


def test_a_statement_of_another_form_is_an_error() -> None:
    for text in ("TRUNCATE k.bucket", "SELECT a FROM k.b GROUP BY a", "DELETE a FROM k.b"):
        with pytest.raises(ValueError, match="cannot read"):
            cql.parse(text)


def test_random_sequences_have_the_same_answers_and_tables_on_both(real: cassieq.Client) -> None:
    there, here = real._session.transport, simulated()

    async def compare(seed: int) -> None:
        drawn = Drawn(seed, SystemClock().now_us())
        sent = []
        for _ in range(LENGTH):
            statement, rows = drawn.statement()
            sent.append((statement.name, rows))
            expected = await answer(there, statement, rows)
            assert expected == await answer(here, statement, rows), (seed, sent[-1])

    async def compare_tables() -> None:
        for table in TABLES.values():
            expected = await answer(there, every_row(table), [()])
            assert expected == await answer(here, every_row(table), [()]), table.name

    async def forget() -> None:
        for table in TABLES.values():
            await there.define(f"TRUNCATE {real.keyspace}.{table.name}", 60.0)
        for node in here.ring.nodes:
            node.data.clear()
            node.promises.clear()

    for seed in range(SEQUENCES):
        portal.run(compare(seed))
        if seed % 25 == 24:  # the scans become long
            portal.run(compare_tables())
            portal.run(forget())
