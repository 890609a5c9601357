"""Chunks of both of Spark's doors stay near their limit, whichever column their bytes are in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cassieq_spark.model.bucket_plan import decode_due
from cassieq_spark.options import QueueSettings
from cassieq_spark.queue.put import encode
from cassieq_spark.spark import packer
from cassieq_spark.spark.connector.packed import NO_CHUNK, packing
from cassieq_spark.spark.lane_packer import LanePacker, Sorting
from cassieq_spark.store import chunk as chunks

KILO = 1024
CHUNK_BYTES = 256 * KILO
ONE = Sorting(QueueSettings(schedule_after_s=900, schedule_period_s=3_600), 0)
SPARE = 1.1
"""What Arrow adds, and what compression does not take away."""


@dataclass
class Taken:
    """Takes chunks as a bulk writer does: bucket by bucket."""

    bucket_size: int
    chunks: list[tuple[bytes, int]] = field(default_factory=list)
    in_bucket: int = 0

    def capacity(self) -> int:
        return self.bucket_size - self.in_bucket

    def close(self) -> None:
        raise AssertionError("no row is due later")

    def add(self, payload: bytes, count: int, due_us: Sequence[int] | None = None) -> None:
        assert 1 <= count <= self.capacity()
        assert due_us is None or len(due_us) == count
        self.chunks.append((payload, count))
        self.in_bucket = (self.in_bucket + count) % self.bucket_size


def one_lane(_partition: int) -> Sorting:
    return ONE


def arrow_door(taken: Taken, now_us: int, *, chunk_messages: int) -> LanePacker:
    """Packs for the one lane that its queue has."""

    def of_lane(lane: int) -> Taken:
        assert 0 == lane
        return taken

    return LanePacker(
        of_lane, ONE, lambda: now_us, chunk_messages=chunk_messages, chunk_bytes=CHUNK_BYTES
    )


def text(number: int, size: int) -> str:
    """Text that no compression makes much smaller."""
    return "".join(
        UUID(int=number << 64 | at * 0x9E3779B97F4A7C15 % (1 << 63)).hex for at in range(size // 32)
    )


def batch(rows: int, **columns: Any) -> pa.RecordBatch:
    """Bodies of a few bytes, and what else is given."""
    return pa.record_batch({"body": pa.array([b"m"] * rows, pa.binary()), **columns})


WIDE: dict[str, Callable[[int], pa.RecordBatch]] = {
    "headers": lambda rows: batch(
        rows,
        headers=pa.array(
            [[("k", text(at, 100 * KILO))] for at in range(rows)], pa.map_(pa.string(), pa.string())
        ),
    ),
    "keys of headers": lambda rows: batch(
        rows,
        headers=pa.array(
            [[(text(at, 100 * KILO), "v")] for at in range(rows)], pa.map_(pa.string(), pa.string())
        ),
    ),
    "tags": lambda rows: batch(rows, tag=pa.array([text(at, 100 * KILO) for at in range(rows)])),
    "bodies": lambda rows: pa.record_batch(
        {"body": pa.array([text(at, 100 * KILO).encode() for at in range(rows)], pa.binary())}
    ),
}


@pytest.mark.parametrize("wide", WIDE.values(), ids=WIDE)
def test_t20_a_chunk_of_the_arrow_door_is_near_its_limit_whatever_the_columns_hold(
    wide: Callable[[int], pa.RecordBatch],
) -> None:
    taken = Taken(bucket_size=50_000)
    packer = arrow_door(taken, 0, chunk_messages=2_500)
    for _ in range(2):
        packer.add(wide(10))
    packer.flush()
    assert 20 == sum(count for _, count in taken.chunks)
    assert max(len(payload) for payload, _ in taken.chunks) <= SPARE * CHUNK_BYTES
    assert {2} == {count for _, count in taken.chunks}


@pytest.mark.parametrize("wide", WIDE.values(), ids=WIDE)
def test_t20_a_chunk_of_the_connectors_door_is_near_its_limit_whatever_the_columns_hold(
    wide: Callable[[int], pa.RecordBatch],
) -> None:
    pack = packing(
        one_lane, bucket_size=50_000, chunk_messages=2_500, chunk_bytes=CHUNK_BYTES, now_us=0
    )
    rows = [row for part in pack(iter([wide(10), wide(10)])) for row in part.to_pylist()]
    sizes = {row["number"]: row["size_bytes"] for row in rows if row["number"] != NO_CHUNK}
    assert 10 == len(sizes)
    assert max(sizes.values()) <= SPARE * CHUNK_BYTES


def test_t20_a_put_counts_bytes_of_all_columns_and_not_characters() -> None:
    wide = chunks.Row(
        body=b"m", tag="\N{SNOWMAN}" * 20 * KILO, headers={"k": "\N{SNOWMAN}" * 20 * KILO}
    )
    packed = encode.pack([wide] * 20, bucket_size=50_000)
    assert {2} == {one.count for one in packed}
    small = chunks.Row(body=b"", message_id=bytes(16))
    assert [2, 1] == [one.count for one in encode.pack_into([small] * 3, capacity=lambda: 2)]


def test_t20_a_message_that_is_larger_than_a_chunk_is_alone_in_one() -> None:
    taken = Taken(bucket_size=50_000)
    packer = arrow_door(taken, 0, chunk_messages=2_500)
    tags = ["t", text(1, 3 * CHUNK_BYTES), "t"]
    packer.add(batch(3, tag=pa.array(tags)))
    packer.flush()
    assert [1, 1, 1] == [count for _, count in taken.chunks]


rows_of_all_kinds = st.lists(
    st.tuples(
        st.binary(max_size=40),
        st.none() | st.text(max_size=20),
        st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3),
        st.none() | st.uuids(),
    ),
    min_size=1,
    max_size=30,
)


@given(rows_of_all_kinds, st.integers(0, 10))
def test_t20_the_size_of_a_row_is_that_of_all_its_columns_also_of_a_slice(
    rows: list[Any], skipped: int
) -> None:
    whole = chunks.from_rows(
        [
            chunks.Row(
                body=body,
                tag=tag,
                headers=headers or {},
                message_id=None if message_id is None else message_id.bytes,
            )
            for body, tag, headers, message_id in rows
        ]
    )
    expected = [
        len(body)
        + len((tag or "").encode())
        + sum(len(key.encode()) + len(value.encode()) for key, value in (headers or {}).items())
        + (0 if message_id is None else 16)
        for body, tag, headers, message_id in rows
    ]
    assert expected[skipped:] == packer.row_sizes(whole.slice(skipped)).tolist()


bounds = st.sampled_from([1, 7, 256, 600, 1_024, 1_500, 50_000]).flatmap(
    lambda bucket_size: st.tuples(
        st.just(bucket_size),
        st.lists(st.integers(1, min(3_200, 40 * bucket_size)), min_size=1, max_size=3),
    )
)


@settings(max_examples=30)
@given(bounds, st.integers(1, 2_500))
def test_t1_no_door_gives_a_bucket_more_than_its_ids(
    bound: tuple[int, list[int]], at_most: int
) -> None:
    """`Taken` asks as a bulk writer does; the connector's chunks are placed later, and whole."""
    bucket_size, counts = bound
    chunk_messages = max(at_most, bucket_size // 40)
    total = sum(counts)
    moved = Taken(bucket_size)
    for count in counts:
        for packed in encode.pack_into([chunks.Row(body=b"")] * count, capacity=moved.capacity):
            moved.add(packed.payload, packed.count)
    assert total == sum(count for _, count in moved.chunks)

    taken = Taken(bucket_size)
    packer = arrow_door(taken, 7, chunk_messages=chunk_messages)
    pack = packing(
        one_lane,
        bucket_size=bucket_size,
        chunk_messages=chunk_messages,
        chunk_bytes=CHUNK_BYTES,
        now_us=7,
    )
    batches = [batch(count, delay=pa.array([1.0] * count)) for count in counts]
    for one in batches:
        packer.add(one)
    packer.flush()
    assert total == sum(count for _, count in taken.chunks)

    rows = [row for part in pack(iter(batches)) for row in part.to_pylist()]
    heads = [row for row in rows if row["number"] != NO_CHUNK and row["part"] == 0]
    assert total == sum(row["count"] for row in heads)
    assert all(1 <= row["count"] <= min(bucket_size, chunk_messages) for row in heads)
    assert all(row["count"] == len(list(decode_due(row["due"], row["count"]))) for row in heads)
