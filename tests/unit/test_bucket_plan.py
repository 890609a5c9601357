"""Chunks hold all messages in order, within their limits; they fill buckets in order, uncut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model.bucket_plan import (
    PackedChunk,
    assign,
    cut,
    decode_due,
    encode_due,
    split_parts,
)
from cassieq_spark.model.sizes import PART_BYTES

BUCKET_SIZE, BUCKET_BYTES = 20, 1_000

#: (messages, bytes) of each chunk of a partition, for a few partitions.
packed = st.lists(
    st.lists(st.tuples(st.integers(1, BUCKET_SIZE), st.integers(0, 1_500)), max_size=12), max_size=4
).map(
    lambda partitions: [
        PackedChunk(partition=at, number=number, count=count, size_bytes=size)
        for at, chunks in enumerate(partitions)
        for number, (count, size) in enumerate(chunks)
    ]
)


@given(packed)
def test_every_chunk_is_placed_once_and_in_order(chunks: list[PackedChunk]) -> None:
    plans = assign(chunks, bucket_size=BUCKET_SIZE, bucket_bytes=BUCKET_BYTES)

    assert chunks == [chunk for plan in plans for chunk in plan.chunks]
    assert all(plan.chunks for plan in plans)


@given(packed)
def test_a_bucket_has_no_holes_and_keeps_both_limits(chunks: list[PackedChunk]) -> None:
    for plan in assign(chunks, bucket_size=BUCKET_SIZE, bucket_bytes=BUCKET_BYTES):
        offsets = [first + at for chunk, first in plan.placed() for at in range(chunk.count)]
        assert list(range(plan.count)) == offsets
        assert plan.size_bytes == sum(chunk.size_bytes for chunk in plan.chunks)
        assert plan.count <= BUCKET_SIZE
        assert plan.size_bytes <= BUCKET_BYTES or len(plan.chunks) == 1


@given(packed)
def test_a_bucket_ends_only_where_the_next_chunk_would_not_fit(chunks: list[PackedChunk]) -> None:
    plans = assign(chunks, bucket_size=BUCKET_SIZE, bucket_bytes=BUCKET_BYTES)
    for plan, after in itertools.pairwise(plans):
        following = after.chunks[0]
        assert (
            plan.count + following.count > BUCKET_SIZE
            or plan.size_bytes + following.size_bytes > BUCKET_BYTES
        )


def test_a_chunk_that_no_bucket_takes_is_a_mistake_of_whoever_packed_it() -> None:
    chunk = PackedChunk(partition=0, number=0, count=21, size_bytes=1)
    with pytest.raises(ValueError, match="21 messages does not fit into a bucket of 20"):
        assign([chunk], bucket_size=BUCKET_SIZE, bucket_bytes=BUCKET_BYTES)


@given(st.lists(st.one_of(st.just(0), st.integers(1, 2**62)), min_size=1, max_size=60))
def test_due_times_come_back_where_they_are(due_us: list[int]) -> None:
    decoded = list(decode_due(encode_due(due_us), len(due_us)))
    assert [(at, due) for at, due in enumerate(due_us) if due > 0] == decoded


def test_one_delay_for_all_of_a_chunk_takes_twelve_bytes() -> None:
    assert 12 == len(encode_due([7_000_000] * 2_500))


def test_due_times_of_a_bucket_are_by_their_offsets_in_it() -> None:
    chunks = [
        PackedChunk(partition=0, number=0, count=3, size_bytes=1),
        PackedChunk(partition=0, number=1, count=3, size_bytes=1, due=encode_due([0, 5, 5])),
        PackedChunk(partition=1, number=0, count=2, size_bytes=1, due=encode_due([9, 0])),
    ]
    [plan] = assign(chunks, bucket_size=BUCKET_SIZE, bucket_bytes=BUCKET_BYTES)
    assert {4: 5, 5: 5, 6: 9} == plan.due_us()


sizes = st.lists(st.integers(0, 500), max_size=80)


@given(sizes, st.integers(1, 20), st.integers(1, 1_000))
def test_chunks_cover_all_and_keep_both_limits(bodies: list[int], at_most: int, limit: int) -> None:
    chunks = cut(bodies, at_most=at_most, limit_bytes=limit)

    assert list(range(len(bodies))) == [at for start, end in chunks for at in range(start, end)]
    for start, end in chunks:
        assert 1 <= end - start <= at_most
        assert sum(bodies[start:end]) <= limit or end - start == 1


@given(sizes, st.integers(1, 20), st.integers(1, 1_000))
def test_a_chunk_ends_only_where_the_next_message_would_not_fit(
    bodies: list[int], at_most: int, limit: int
) -> None:
    for start, end in cut(bodies, at_most=at_most, limit_bytes=limit)[:-1]:
        assert end - start == at_most or sum(bodies[start : end + 1]) > limit


@given(st.integers(0, 5 * PART_BYTES))
def test_parts_cover_a_payload_and_none_is_too_long(length: int) -> None:
    parts = split_parts(length)

    assert parts[0][0] == 0
    assert parts[-1][1] == length
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(parts))
    assert all(end - start <= PART_BYTES for start, end in parts)
