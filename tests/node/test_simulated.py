"""The simulated Cassandra answers as the real one does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.store import schema
from cassieq_spark.testing.simulated import cql
from tests.fixtures.differential import STATEMENTS, TABLES, alone, compare_sequences

if TYPE_CHECKING:
    from collections.abc import Iterator

    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra

SEQUENCES = int(os.environ.get("SEQUENCES", "100"))


@pytest.fixture(scope="module")
def real(cassandra: EmbeddedCassandra) -> Iterator[cassieq.Client]:
    with alone(cassandra) as client:
        yield client


def test_each_statement_and_table_is_one_that_it_reads() -> None:
    for statement in STATEMENTS:
        assert cql.parse(statement.cql.format(ks="k"))
    assert TABLES.keys() == schema.TABLES.keys()


def test_a_statement_of_another_form_is_an_error() -> None:
    for text in ("TRUNCATE k.bucket", "SELECT a FROM k.b GROUP BY a", "DELETE a FROM k.b"):
        with pytest.raises(ValueError, match="cannot read"):
            cql.parse(text)


def test_random_sequences_have_the_same_answers_and_tables_on_both(real: cassieq.Client) -> None:
    compare_sequences(real, SEQUENCES)
