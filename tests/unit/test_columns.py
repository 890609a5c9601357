"""The source's columns, built by the thousand, are those that one message at a time would give."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.ids import BucketNo, LaneId, QueueName, Runs, derived_message_id
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.spark import columns, schema
from cassieq_spark.spark.packer import check_sink_schema

LANE = LaneId(UUID("5aa96f9f-94e2-456f-8eb0-0123456789ab"))
LEASE = UUID("0189abcd-ef01-4234-8567-89abcdef0123")
BUCKET = BucketNo(7)
SIZE = 10_000
ALL = tuple(schema.ALL.names)


def build(chunk: pa.RecordBatch, names: tuple[str, ...] = ALL, **changes: Any) -> pa.RecordBatch:
    arguments: dict[str, Any] = {
        "bucket": BUCKET,
        "first": 20,
        "keep": None,
        "lease": LEASE,
        "delivery_count": 3,
        "enqueued_us": 1_700_000_000_123_456,
    }
    builder = columns.Builder(names, QueueName("orders"), LANE, bucket_size=SIZE, priority=2)
    return builder.build(chunk, **(arguments | changes))


def chunk_of(count: int) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array([b"%d" % at for at in range(count)])})


@given(st.integers(1, 40), st.integers(0, SIZE - 41), st.integers(0, 1 << 40))
def test_receipts_and_message_ids_are_those_of_the_model(
    count: int, first: int, bucket: int
) -> None:
    number = BucketNo(bucket)
    built = build(chunk_of(count), ("message_id", "receipt"), first=first, bucket=number)

    offsets = range(first, first + count)
    assert [
        str(derived_message_id(LANE, number * SIZE + offset)) for offset in offsets
    ] == built.column("message_id").to_pylist()
    assert [
        Receipt(lane=LANE, bucket=number, lease_id=LEASE, first=at, last=at).encode()
        for at in offsets
    ] == built.column("receipt").to_pylist()


def test_every_column_of_a_plain_chunk() -> None:
    rows = build(chunk_of(2)).to_pylist()

    assert [70_020, 70_021] == [row["id"] for row in rows]
    assert [b"0", b"1"] == [row["body"] for row in rows]
    assert {("orders", 7, 3, None, None, str(LANE), 2)} == {
        (
            row["queue"],
            row["bucket"],
            row["delivery_count"],
            row["tag"],
            row["headers"],
            row["lane"],
            row["priority"],
        )
        for row in rows
    }
    assert {1_700_000_000_123_456} == {
        round(row["enqueued_at"].timestamp() * 1_000_000) for row in rows
    }


def test_chosen_message_ids_stand_beside_derived_ones_also_in_a_slice() -> None:
    chosen = UUID(int=9)
    ids = pa.array([None, chosen.bytes, None], pa.binary(16))
    chunk = pa.record_batch({"body": pa.array([b"a", b"b", b"c"]), "message_id": ids})

    whole = build(chunk, ("message_id",)).column(0).to_pylist()
    part = build(chunk.slice(1), ("message_id",), first=21).column(0).to_pylist()

    assert str(chosen) == whole[1]
    assert whole[1:] == part
    assert str(derived_message_id(LANE, 70_020)) == whole[0]


@given(st.sets(st.integers(0, 29), min_size=1))
def test_only_the_planned_offsets_are_built(wanted: set[int]) -> None:
    keep = Runs.from_offsets(20 + one for one in wanted)

    built = build(chunk_of(30), ("id", "body"), keep=keep)

    assert [70_020 + one for one in sorted(wanted)] == built.column("id").to_pylist()
    assert [b"%d" % one for one in sorted(wanted)] == built.column("body").to_pylist()


def test_a_look_has_no_receipts() -> None:
    assert [None, None] == build(chunk_of(2), ("receipt",), lease=None).column(0).to_pylist()


@pytest.mark.parametrize("names", [ALL, ("body",), ("id", "receipt")])
def test_the_schema_is_the_one_spark_checks_against(names: tuple[str, ...]) -> None:
    asked = StructType([schema.ALL[name] for name in names])

    assert to_arrow_schema(asked, timezone="UTC") == build(chunk_of(3), names).schema


def test_a_user_schema_is_resolved_or_refused_by_column() -> None:
    assert ("id", "body") == schema.resolve(
        StructType([schema.SCHEMA["id"], schema.SCHEMA["body"]])
    )
    assert ("lane", "priority") == schema.resolve(
        StructType([schema.ALL["lane"], schema.ALL["priority"]])
    )
    with pytest.raises(OptionInvalid, match="'bdoy'"):
        schema.resolve(StructType([StructField("bdoy", StringType())]))
    with pytest.raises(OptionInvalid, match=r"'body' .* is bigint, but a queue has it as binary"):
        schema.resolve(StructType([StructField("body", LongType())]))
    with pytest.raises(OptionInvalid, match="no column"):
        schema.resolve(StructType([]))


def test_a_column_that_is_named_twice_is_refused_for_both_directions() -> None:
    twice = StructType([StructField("id", LongType()), StructField("id", LongType())])
    with pytest.raises(OptionInvalid, match="column 'id' is in the schema twice"):
        schema.resolve(twice)

    bodies = StructType([StructField("body", BinaryType()), StructField("body", BinaryType())])
    with pytest.raises(OptionInvalid, match="column 'body' is in the schema twice"):
        check_sink_schema(bodies)


def test_a_sink_refuses_what_a_queue_does_not_store() -> None:
    check_sink_schema(StructType([schema.SCHEMA["body"], schema.SCHEMA["headers"]]))
    with pytest.raises(OptionInvalid, match=r"'body' .binary. is missing"):
        check_sink_schema(StructType([schema.SCHEMA["tag"]]))
    with pytest.raises(OptionInvalid, match="'list'"):
        check_sink_schema(
            StructType([schema.SCHEMA["body"], StructField("list", ArrayType(LongType()))])
        )
