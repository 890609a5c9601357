"""Work out what a query's filters let through: which buckets, which ids, which rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias

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
)

from cassieq_spark.model.ids import ID_LIMIT, OFFSET_LIMIT, BucketNo, Runs, first_id

Compared = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual

Condition: TypeAlias = Compared | In | IsNull | IsNotNull
"""A filter that is applied here, and not by Spark. Pickled into tasks."""

EVERYTHING: Final[tuple[range, ...]] = (range(ID_LIMIT),)

_COMPARED: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}

_SPANS: Final[dict[type[Filter], Callable[[int], range]]] = {
    EqualTo: lambda value: range(value, value + 1),
    EqualNullSafe: lambda value: range(value, value + 1),
    GreaterThan: lambda value: range(value + 1, ID_LIMIT),
    GreaterThanOrEqual: lambda value: range(value, ID_LIMIT),
    LessThan: range,
    LessThanOrEqual: lambda value: range(value + 1),
}


def split(
    filters: Iterable[Filter], kinds: Mapping[str, type]
) -> tuple[tuple[Condition, ...], list[Filter]]:
    """Return (filters applied here, filters left to Spark).

    Args:
        kinds: The columns that filters are taken for, with the type of their values.
    """
    taken: list[Condition] = []
    left: list[Filter] = []
    for one in filters:
        kind = kinds.get(".".join(getattr(one, "attribute", ())))
        if (
            kind is not None
            and isinstance(one, Condition)
            and all(isinstance(value, kind) for value in _values(one))
        ):
            taken.append(one)
        else:
            left.append(one)
    return tuple(taken), left


def holds(condition: Condition, value: object) -> bool:
    """Whether SQL lets a row with this value in the condition's column through."""
    if value is None or isinstance(condition, IsNull | IsNotNull):
        return isinstance(condition, IsNull if value is None else IsNotNull)
    if isinstance(condition, In):
        return value in condition.value
    return _COMPARED[type(condition)](value, condition.value)


def hold(conditions: Iterable[Condition], values: Mapping[str, object]) -> bool:
    """Whether all conditions hold whose column is among the values."""
    return all(holds(one, values[column(one)]) for one in conditions if column(one) in values)


def column(condition: Condition) -> str:
    """The column that a condition is about."""
    return condition.attribute[0]


def id_spans(conditions: Iterable[Condition]) -> tuple[range, ...]:
    """The ids that the conditions on column ``id`` let through."""
    spans = EVERYTHING
    for one in conditions:
        if column(one) == "id":
            spans = intersect(spans, _spans(one))
    return spans


def bucket_spans(
    conditions: Iterable[Condition], bucket_size: int, *, ids: Collection[str]
) -> tuple[range, ...]:
    """The buckets that may have rows that are let through.

    Args:
        ids: The columns whose value is an id in the row's bucket.
    """
    spans = EVERYTHING
    for one in conditions:
        if column(one) == "bucket":
            spans = intersect(spans, _spans(one))
        elif column(one) in ids:
            of_ids = _spans(one)
            buckets = [range(at.start // bucket_size, -(-at.stop // bucket_size)) for at in of_ids]
            spans = intersect(spans, _joined(buckets))
    return spans


def offsets_of(bucket: BucketNo, bucket_size: int, ids: tuple[range, ...]) -> Runs:
    """The offsets of a bucket whose ids are among these."""
    base = first_id(bucket, bucket_size)
    whole = range(base, base + min(bucket_size, OFFSET_LIMIT))
    return Runs.of(
        *((span.start - base, span.stop - 1 - base) for span in intersect((whole,), ids))
    )


def intersect(left: tuple[range, ...], right: tuple[range, ...]) -> tuple[range, ...]:
    """The numbers in both; each argument is ascending, without overlaps."""
    common: list[range] = []
    at = 0
    for one in left:
        while at < len(right) and right[at].stop <= one.start:
            at += 1
        look = at
        while look < len(right) and right[look].start < one.stop:
            common.append(range(max(one.start, right[look].start), min(one.stop, right[look].stop)))
            look += 1
    return tuple(common)


def _values(condition: Condition) -> list[Any]:
    """Return the values that a condition compares with, without nulls in a list."""
    if isinstance(condition, In):
        return [value for value in condition.value if value is not None]
    return [condition.value] if isinstance(condition, Compared) else []


def _spans(condition: Condition) -> tuple[range, ...]:
    """The whole numbers that are let through, from 0 on, ascending."""
    if isinstance(condition, In):
        spans = [range(number, number + 1) for number in sorted(set(_values(condition)))]
    elif isinstance(condition, Compared):
        spans = [_SPANS[type(condition)](condition.value)]
    else:
        spans = [] if isinstance(condition, IsNull) else [*EVERYTHING]
    return intersect(_joined(spans), EVERYTHING)


def _joined(spans: Iterable[range]) -> tuple[range, ...]:
    """Join ascending spans: overlapping and touching ones become one."""
    joined: list[range] = []
    for span in spans:
        if joined and span.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, span.stop))
        elif span:
            joined.append(span)
    return tuple(joined)
