"""Id runs are a set algebra, and their encoding is exact and strict."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cassieq_spark.errors import RowCorrupt
from cassieq_spark.model.ids import (
    EMPTY,
    OFFSET_LIMIT,
    LaneId,
    Runs,
    bucket_of,
    derived_message_id,
    first_id,
)

offsets = st.sets(st.integers(0, 300), max_size=120)
LANE = LaneId(UUID("5aa96f9f-94e2-456f-8eb0-0123456789ab"))


def as_runs(numbers: set[int]) -> Runs:
    return Runs.from_offsets(numbers)


@given(offsets, offsets)
def test_operations_are_those_of_sets(left: set[int], right: set[int]) -> None:
    one, two = as_runs(left), as_runs(right)

    assert as_runs(left | right) == one | two
    assert as_runs(left & right) == one & two
    assert as_runs(left - right) == one - two
    assert (left <= right) == one.issubset(two)
    assert sorted(left) == list(one.offsets())
    assert len(left) == one.count
    assert bool(left) == bool(one)
    assert [number in left for number in range(301)] == [number in one for number in range(301)]


@given(offsets, st.integers(0, 320))
def test_take_splits_lowest_first_and_below_keeps_the_lower(numbers: set[int], at: int) -> None:
    runs = as_runs(numbers)
    ordered = sorted(numbers)

    assert (as_runs(set(ordered[:at])), as_runs(set(ordered[at:]))) == runs.take(at)
    assert as_runs({number for number in numbers if number < at}) == runs.below(at)


@given(offsets)
def test_equal_sets_are_equal_values_with_separate_runs(numbers: set[int]) -> None:
    pairs = as_runs(numbers).pairs

    assert all(first <= last for first, last in pairs)
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(pairs))


@given(offsets)
def test_what_is_encoded_is_decoded(numbers: set[int]) -> None:
    runs = as_runs(numbers)

    assert runs == Runs.decode(runs.encode())


@given(st.binary(max_size=40))
@example(b"\x00\x01\x80")  # it ends in the middle of a number
@example(b"\x00\x01")  # and of a pair
def test_decode_gives_runs_or_row_corrupt(data: bytes) -> None:
    try:
        runs = Runs.decode(data)
    except RowCorrupt:
        return
    assert runs == Runs.of(*runs.pairs)
    assert runs == Runs.decode(runs.encode())


def test_a_full_bucket_takes_few_bytes_and_a_torn_one_at_most_a_bitmap() -> None:
    every_other = Runs.from_offsets(range(0, 10_000, 2))

    assert len(Runs.span(0, 9_999).encode()) <= 5
    assert len(every_other.encode()) <= 10_000 // 8 + 2


@pytest.mark.parametrize("pair", [(-1, 3), (4, 3), (0, OFFSET_LIMIT)])
def test_a_run_that_is_none_is_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not inside a bucket"):
        Runs.of(pair)


def test_ends_of_an_empty_set_are_no_numbers() -> None:
    with pytest.raises(IndexError):
        _ = EMPTY.first
    with pytest.raises(IndexError):
        _ = EMPTY.last


def test_something_that_is_no_number_is_not_in_a_set() -> None:
    assert "1" not in Runs.span(0, 3)


@given(st.integers(0, 1 << 60), st.integers(1, 100_000))
def test_an_id_is_in_the_bucket_that_begins_at_or_before_it(message_id: int, size: int) -> None:
    bucket = bucket_of(message_id, size)

    assert first_id(bucket, size) <= message_id < first_id(bucket, size) + size


@given(st.sets(st.integers(0, (1 << 48) - 1), min_size=2, max_size=50))
def test_derived_ids_are_distinct_version_8_uuids(ids: set[int]) -> None:
    derived = {derived_message_id(LANE, one) for one in ids}

    assert len(ids) == len(derived)
    assert {8} == {one.version for one in derived}
    assert {"specified in RFC 4122"} == {str(one.variant) for one in derived}
