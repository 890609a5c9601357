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
    assert (10, 0) == (stats.visible, stats.invisible)


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
