"""Chunks hold all messages once, in order, within their limits."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model.packing import cut, split_parts
from cassieq_spark.model.sizes import PART_BYTES

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
