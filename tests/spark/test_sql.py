"""SQL on queues: a temporary view does all; a table of CREATE TABLE needs options per statement."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from cassieq_spark.entropy import new_uuid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.streams import Streams


@pytest.fixture
def name(streams: Streams) -> Iterator[str]:
    """A name for a table or view, which is dropped afterwards."""
    found = f"t_{new_uuid().hex[:12]}"
    yield found
    streams.spark.catalog.dropTempView(found)
    streams.spark.sql(f"DROP TABLE IF EXISTS {found}")


def listed(streams: Streams, between: str = " ") -> str:
    """The options that each door needs, as SQL lists them."""
    return ", ".join(f"{key}{between}'{value}'" for key, value in streams.options.items())


def test_the_statements_of_the_guide_work(streams: Streams, pytestconfig: pytest.Config) -> None:
    text = (pytestconfig.rootpath / "docs" / "guides" / "spark.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    statements = [one.strip() for block in blocks for one in block.split(";") if one.strip()]
    assert 5 == len(statements)
    shown = {"contactPoints": "127.0.0.1:9042", "keyspace": "cassieq", "queue": "orders"}
    try:
        for name, value in shown.items():
            statements = [
                re.sub(f"({name} (= )?)'{value}'", rf"\1'{streams.options[name]}'", one)
                for one in statements
            ]
        answers = [streams.spark.sql(one).collect() for one in statements]
    finally:
        streams.spark.catalog.dropTempView("orders")
        streams.spark.sql("DROP TABLE IF EXISTS looked_at")
    assert [("by hand", 1)] == [tuple(row) for row in answers[2]]
    assert [b"{}"] == [bytes(row.body) for row in answers[4]]


def test_an_insert_into_a_view_without_columns_says_how_to_create_it(
    streams: Streams, name: str
) -> None:
    streams.spark.sql(f"CREATE TEMPORARY VIEW {name} USING cassieq OPTIONS ({listed(streams)})")

    assert 0 == streams.spark.table(name).count()
    with pytest.raises(AnalysisException, match=r"CREATE TEMPORARY VIEW v \(body BINARY, tag ST"):
        streams.spark.sql(f"INSERT INTO {name} (body) VALUES (X'41')")


def test_a_temporary_view_with_a_wrong_option_is_refused_at_once(
    streams: Streams, name: str
) -> None:
    with pytest.raises(AnalysisException, match=r"\[cassieq:option_unknown\] 'keyspaze'"):
        streams.spark.sql(
            f"CREATE TEMPORARY VIEW {name} USING cassieq OPTIONS ({listed(streams)}, keyspaze 'x')"
        )


def test_a_table_with_options_is_refused_with_what_to_do(streams: Streams, name: str) -> None:
    says = (
        r"\[cassieq:option_invalid\] this CREATE TABLE has OPTIONS "
        r"\(contactPoints, keyspace, queue\).* Use a temporary view .* WITH \(contactPoints"
    )
    with pytest.raises(AnalysisException, match=says):
        streams.spark.sql(f"CREATE TABLE {name} USING cassieq OPTIONS ({listed(streams)})")
    assert not streams.spark.catalog.tableExists(name)


def test_a_table_without_options_takes_those_of_each_statement(streams: Streams, name: str) -> None:
    streams.spark.sql(f"CREATE TABLE {name} USING cassieq")
    streams.put(streams.numbered(0, 3))

    assert 3 == streams.spark.sql(f"SELECT * FROM {name} WITH ({listed(streams, '=')})").count()
    assert 3 == streams.spark.read.options(**streams.options).table(name).count()


def test_a_table_with_columns_is_written_with_the_options_of_the_statement(
    streams: Streams, name: str
) -> None:
    """With columns Spark asks nothing of us at CREATE TABLE, so it accepts the options."""
    streams.spark.sql(
        f"CREATE TABLE {name} (body BINARY) USING cassieq OPTIONS ({listed(streams)})"
    )
    says = r"'contactPoints' of .* is not set.* CREATE TABLE.* WITH \(contactPoints"
    with pytest.raises(AnalysisException, match=says):
        streams.spark.sql(f"SELECT * FROM {name}").collect()
    with pytest.raises(AnalysisException, match=says):
        streams.spark.sql(f"INSERT INTO {name} VALUES (X'41')")

    streams.spark.sql(f"INSERT INTO {name} WITH ({listed(streams, '=')}) VALUES (X'41')")
    assert 1 == streams.queue.stats().visible
