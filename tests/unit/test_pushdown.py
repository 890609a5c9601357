"""Filters that are taken from Spark let the same rows through, and never shut a bucket too many."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from cassieq_spark.model.ids import ID_LIMIT, BucketNo
from cassieq_spark.spark.views import pushdown
from cassieq_spark.spark.views.reader import FEWEST_BUCKETS, MOST_BUCKETS, windows

SIZE = 5
KINDS: dict[str, type[str | int]] = {"bucket": int, "id": int, "status": str, "is_expired": bool}

#: What SQL says of them, null included.
SQL: dict[type[Filter], Any] = {
    EqualTo: lambda value, other: value is not None and value == other,
    EqualNullSafe: lambda value, other: value == other,
    GreaterThan: lambda value, other: value is not None and value > other,
    GreaterThanOrEqual: lambda value, other: value is not None and value >= other,
    LessThan: lambda value, other: value is not None and value < other,
    LessThanOrEqual: lambda value, other: value is not None and value <= other,
    In: lambda value, others: value is not None and value in others,
    IsNull: lambda value, _: value is None,
    IsNotNull: lambda value, _: value is not None,
}


def made(kind: type[Filter], column: str, value: object) -> Filter:
    # In is given a list by Spark 4.3.0.
    return kind((column,)) if kind in (IsNull, IsNotNull) else kind((column,), value)  # type: ignore[call-arg]


numbers = st.integers(-3, 40) | st.sampled_from([-(1 << 63), (1 << 62) - 1, (1 << 63) - 1])
words = st.sampled_from(["", "open", "sealed", "é", "z"])


@st.composite
def filters(draw: st.DrawFn, column: str, values: st.SearchStrategy[Any]) -> tuple[Filter, Any]:
    kind = draw(st.sampled_from(list(SQL)))
    value = draw(st.lists(values | st.none(), max_size=4)) if kind is In else draw(values)
    return made(kind, column, value), value


@given(filters("bucket", numbers), numbers | st.none())
def test_a_number_is_let_through_as_sql_has_it(one: tuple[Filter, Any], value: int | None) -> None:
    [condition], left = pushdown.split([one[0]], KINDS)

    assert [] == left
    assert SQL[type(one[0])](value, one[1]) == pushdown.holds(condition, value)
    assert condition == pickle.loads(pickle.dumps(condition))  # noqa: S301 - our own bytes


@given(filters("status", words), words | st.none())
def test_a_word_is_let_through_as_sql_has_it(one: tuple[Filter, Any], value: str | None) -> None:
    [condition], left = pushdown.split([one[0]], KINDS)

    assert [] == left
    assert SQL[type(one[0])](value, one[1]) == pushdown.holds(condition, value)


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("tag",), "a"),
        EqualTo(("bucket", "x"), 1),
        EqualTo(("bucket",), "1"),
        EqualTo(("bucket",), 1.0),
        EqualTo(("status",), None),
        EqualNullSafe(("status",), None),
        In(("bucket",), (1, "2")),
        Not(EqualTo(("bucket",), 1)),
        StringStartsWith(("status",), "o"),
    ],
)
def test_what_cannot_be_applied_exactly_is_left_to_spark(one: Filter) -> None:
    assert ((), [one]) == pushdown.split([one], KINDS)


@given(st.lists(st.sampled_from(["bucket", "id"]).flatmap(lambda c: filters(c, numbers))))
def test_no_id_that_is_let_through_lies_outside_of_the_buckets(
    given_: list[tuple[Filter, Any]],
) -> None:
    conditions, _ = pushdown.split([one for one, _ in given_], KINDS)

    buckets = pushdown.bucket_spans(conditions, SIZE, ids=("id",))
    ids = pushdown.id_spans(conditions)

    assert list(buckets) == sorted(buckets, key=lambda span: span.start)
    assert all(span for span in buckets)
    for number in range(45):
        bucket = BucketNo(number // SIZE)
        row = {"id": number, "bucket": bucket}
        is_in = any(bucket in span for span in buckets) and (
            number % SIZE in pushdown.offsets_of(bucket, SIZE, ids)
        )
        assert pushdown.hold(conditions, row) == is_in


def test_only_the_buckets_of_a_few_ids_are_read() -> None:
    conditions, _ = pushdown.split([In(("id",), (3, 4, 21, 7))], KINDS)

    assert (range(2), range(4, 5)) == pushdown.bucket_spans(conditions, SIZE, ids=("id",))


spans_ = st.lists(st.integers(0, 3_000), max_size=8).map(
    lambda cuts: tuple(
        range(low, high)
        for low, high in zip(sorted(set(cuts))[::2], sorted(set(cuts))[1::2], strict=False)
    )
)


@given(
    st.just(pushdown.EVERYTHING) | spans_,
    st.tuples(st.integers(0, 50), st.integers(0, 2_500)),
    st.none() | st.integers(1, 40),
)
def test_each_live_bucket_is_in_one_task_and_later_ones_are_in_the_last(
    spans: tuple[range, ...], where: tuple[int, int], at_least: int | None
) -> None:
    live = range(where[0], where[0] + where[1])
    parts = windows(spans, live, at_least=at_least)

    planned = [number for part in parts for span in part for number in span[:4_000]]
    wanted = [number for span in spans for number in span[:4_000] if number >= live.start]
    assert [number for number in wanted if number in live] == [
        number for number in planned if number in live
    ]
    assert set(wanted) <= set(planned) or ID_LIMIT in {span.stop for span in parts[-1]}
    assert all(span.stop <= live.stop for part in parts[:-1] for span in part)
    sizes = [sum(len(span) for span in pushdown.intersect(part, (live,))) for part in parts]
    assert all(size <= MOST_BUCKETS for size in sizes)
    if at_least is not None and sum(sizes):
        share = -(-sum(sizes) // max(at_least, -(-sum(sizes) // MOST_BUCKETS)))
        assert -(-sum(sizes) // share) == len(parts)


def test_a_queue_without_a_bucket_has_one_task_for_those_to_come() -> None:
    assert [(range(7, ID_LIMIT),)] == windows(pushdown.EVERYTHING, range(7, 7), at_least=16)


def test_few_buckets_are_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)

    counts = [
        len(windows(pushdown.EVERYTHING, range(count), at_least=None))
        for count in (1, FEWEST_BUCKETS, FEWEST_BUCKETS + 1, 8 * FEWEST_BUCKETS, 9 * MOST_BUCKETS)
    ]

    assert [1, 1, 2, 8, 9] == counts
