"""What a queue's columns hold, and that those nobody asked for are not built."""

from __future__ import annotations

import re
from datetime import UTC, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.ids import BucketNo, LaneId, QueueName, derived_message_id
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.spark.columns import Builder
from cassieq_spark.spark.schema import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Row

    from tests.fixtures.streams import Streams

LANE = LaneId(UUID("11111111-2222-4333-8444-555555555555"))


def test_every_column_comes_back_as_it_was_put(streams: Streams) -> None:
    chosen = str(new_uuid())
    frame = streams.spark.createDataFrame(
        [
            (bytearray(b"\x00\xff"), "red", {"a": "1", "b": ""}, chosen, None),
            (bytearray(b""), None, None, None, 0),
        ],
        "body binary, tag string, headers map<string, string>, message_id string, delay int",
    )
    streams.put(frame.coalesce(1))
    sealed_us = streams.lane.clock.now_us()

    first, second = sorted(streams.drain().rows, key=lambda row: row.id)

    lane = streams.lane.lane_id
    assert SCHEMA.names == list(first.asDict())
    assert [chosen, str(derived_message_id(lane, 1))] == [first.message_id, second.message_id]
    assert [b"\x00\xff", b""] == [bytes(first.body), bytes(second.body)]
    assert ["red", None] == [first.tag, second.tag]
    assert [{"a": "1", "b": ""}, None] == [first.headers, second.headers]
    for offset, row in enumerate((first, second)):
        assert (streams.queue.name, offset, 0) == (row.queue, row.id, row.bucket)
        assert 1 == row.delivery_count
        age_us = sealed_us - row.enqueued_at.replace(tzinfo=UTC).timestamp() * 1e6
        assert 0 <= age_us < 60e6
        decoded = Receipt.decode(row.receipt)
        assert (lane, 0, offset) == (decoded.lane, decoded.bucket, decoded.first)
    assert first.enqueued_at.utcoffset() in (None, timedelta(0))


def test_a_group_is_written_and_read_back_beside_the_headers(streams: Streams) -> None:
    frame = streams.spark.createDataFrame(
        [
            (bytearray(b"a"), {"h": "1"}, "customer-7"),
            (bytearray(b"b"), None, "~" * 128),
            (bytearray(b"c"), {"h": "2"}, None),
        ],
        "body binary, headers map<string, string>, group string",
    )
    expected = {
        b"a": ({"h": "1"}, "customer-7"),
        b"b": (None, "~" * 128),
        b"c": ({"h": "2"}, None),
    }
    streams.put(frame.coalesce(1))
    streams.queue.put(b"d", group="of-python", headers={"h": "3"})
    expected[b"d"] = ({"h": "3"}, "of-python")
    assert {body: one for body, (_, one) in expected.items()} == {
        one.body: one.group for one in streams.queue.peek()
    }

    named = "body binary, headers map<string, string>, group string"
    looked = streams.spark.read.format("cassieq").options(**streams.options).schema(named).load()
    before = looked.collect()
    rows: list[Row] = []
    query = streams.start(streams.source(named), lambda batch, _: rows.extend(batch.collect()))
    assert query.awaitTermination(120)

    for found in (before, rows):
        assert expected == {bytes(one.body): (one.headers, one["group"]) for one in found}


def test_a_group_goes_along_to_view_dead_and_into_sql(streams: Streams) -> None:
    graves = streams.another("dead")
    live = streams.another("live", linger=0, dead_letter_queue=graves.queue.name)
    live.queue.put_many([b"a", b"b"], group=["g", None])
    live.queue.reject(live.queue.get(2), reason="bad")
    read = streams.spark.read.format("cassieq").options(**live.options, view="dead")
    found = read.schema("body binary, group string").load().where("`group` = 'g'").collect()
    assert [b"a"] == [bytes(one.body) for one in found]

    given = ", ".join(f"{name} '{value}'" for name, value in streams.options.items())
    streams.spark.sql(
        f"CREATE TEMPORARY VIEW with_groups (body BINARY, group STRING) USING cassieq "
        f"OPTIONS ({given})"
    )
    streams.spark.sql("INSERT INTO with_groups VALUES (X'63', 'of-sql')")
    assert [("c", "of-sql")] == [
        (bytes(one.body).decode(), one["group"])
        for one in streams.spark.sql("SELECT * FROM with_groups").collect()
    ]
    assert [(b"c", "of-sql")] == [(one.body, one.group) for one in streams.queue.peek()]
    streams.spark.sql("DROP VIEW with_groups")


@pytest.mark.parametrize("bad", ["", "two words"])
def test_a_wrong_group_is_named_with_its_row_and_nothing_is_put(streams: Streams, bad: str) -> None:
    frame = streams.spark.createDataFrame(
        [(bytearray(b"a"), "fine"), (bytearray(b"b"), bad)], "body binary, group string"
    )
    with pytest.raises(PySparkException, match=r"row 1 of its input partition has group"):
        streams.put(frame.coalesce(1))
    assert [] == streams.queue.peek()


@pytest.mark.parametrize("schema", ["body binary", "id long, body binary", "receipt string"])
def test_a_schema_of_some_columns_gives_those_in_its_order(streams: Streams, schema: str) -> None:
    streams.put(streams.numbered(0, 50))
    names = [column.split()[0] for column in schema.split(", ")]
    frame = streams.source(schema)

    assert names == frame.columns
    rows: list[tuple[object, ...]] = []
    query = streams.start(frame, lambda batch, _: rows.extend(batch.collect()))
    assert query.awaitTermination(120)
    assert 50 == len(set(map(repr, rows)))
    assert {len(names)} == {len(row) for row in rows}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("body binary, colour string", "unknown column 'colour' in the schema. A queue has: "),
        ("body string", "column 'body' of the schema is string, but a queue has it as binary"),
        ("id int", "column 'id' of the schema is int, but a queue has it as bigint"),
    ],
)
def test_a_schema_that_no_queue_has_is_refused_by_name_before_a_message_is_taken(
    streams: Streams, schema: str, says: str
) -> None:
    streams.put(streams.numbered(0, 10))

    def read() -> None:
        query = streams.start(streams.source(schema), lambda batch, _: batch.collect())
        query.awaitTermination(120)

    with pytest.raises(PySparkException, match=rf"\[cassieq:option_invalid\] {re.escape(says)}"):
        read()

    stats = streams.queue.stats()
    assert (10, 0) == (stats.visible, stats.in_flight)


_EXPENSIVE = {"message_id": "_message_ids", "receipt": "_receipts"}


@pytest.mark.parametrize("name", SCHEMA.names)
def test_a_column_that_nobody_asked_for_is_not_built(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    built: list[str] = []
    for column, method in _EXPENSIVE.items():
        original = getattr(Builder, method)

        def noting(
            self: Builder, *args: object, _as: str = column, _do: object = original
        ) -> object:
            built.append(_as)
            return _do(self, *args)

        monkeypatch.setattr(Builder, method, noting)
    chunk = pa.record_batch({"body": pa.array([b"a", b"b"], pa.binary())})

    found = Builder((name,), QueueName("q"), LANE, bucket_size=10).build(
        chunk,
        bucket=BucketNo(3),
        first=4,
        keep=None,
        lease=new_uuid(),
        delivery_count=2,
        enqueued_us=5,
    )

    assert ([name], 2) == (found.schema.names, found.num_rows)
    assert [name] * (name in _EXPENSIVE) == built
