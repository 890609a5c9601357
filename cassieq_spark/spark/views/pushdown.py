"""Work out what a query's filters let through: which buckets, which ids, which rows."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

Value = str | int

Compared = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual

EVERYTHING: Final[tuple[range, ...]] = (range(ID_LIMIT),)

_COMPARED: Final[dict[type[Filter], Callable[[Value, Value], bool]]] = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A filter that is applied here, and not by Spark. Pickled into tasks.

    Attributes:
        kind: The class of pyspark's filter.
        values: What it compares with: several for ``In``, without null; none for the two filters
            that compare with null.
    """

    column: str
    kind: type[Filter]
    values: tuple[Value, ...] = ()

    def holds(self, value: object) -> bool:
        """Whether SQL lets a row with this value in the column through."""
        if self.kind is IsNull:
            return value is None
        if self.kind is IsNotNull:
            return value is not None
        if not isinstance(value, str | int):
            return False
        if self.kind is In:
            return value in self.values
        return _COMPARED[self.kind](value, self.values[0])

    def spans(self) -> tuple[range, ...]:
        """The whole numbers that are let through, from 0 on, ascending."""
        numbers = [value for value in self.values if isinstance(value, int)]
        if self.kind is In:
            return _clipped(range(number, number + 1) for number in sorted(set(numbers)))
        if self.kind not in _SPANS:
            return () if self.kind is IsNull else EVERYTHING
        return _clipped([_SPANS[self.kind](numbers[0])])


def split(
    filters: Iterable[Filter], kinds: Mapping[str, type[Value]]
) -> tuple[tuple[Condition, ...], list[Filter]]:
    """Return (filters applied here, filters left to Spark).

    Args:
        kinds: The columns that filters are taken for, with the type of their values.
    """
    taken: list[Condition] = []
    left: list[Filter] = []
    for one in filters:
        condition = _condition(one, kinds)
        if condition is None:
            left.append(one)
        else:
            taken.append(condition)
    return tuple(taken), left


def hold(conditions: Iterable[Condition], values: Mapping[str, object]) -> bool:
    """Whether all conditions hold whose column is among the values."""
    return all(one.holds(values[one.column]) for one in conditions if one.column in values)


def id_spans(conditions: Iterable[Condition]) -> tuple[range, ...]:
    """The ids that the conditions on column ``id`` let through."""
    spans = EVERYTHING
    for one in conditions:
        if one.column == "id":
            spans = intersect(spans, one.spans())
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
        if one.column == "bucket":
            spans = intersect(spans, one.spans())
        elif one.column in ids:
            spans = intersect(spans, _joined(_buckets(span, bucket_size) for span in one.spans()))
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


def _condition(one: Filter, kinds: Mapping[str, type[Value]]) -> Condition | None:
    """The condition of a filter; None if Spark has to apply it."""
    if not isinstance(one, Compared | In | IsNull | IsNotNull):
        return None
    kind = kinds.get(one.attribute[0]) if len(one.attribute) == 1 else None
    if kind is None:
        return None
    values: tuple[object, ...] = ()
    if isinstance(one, In):
        # In SQL a null in a list lets no further row through.
        values = tuple(value for value in one.value if value is not None)
    elif isinstance(one, Compared):
        values = (one.value,)
    known = tuple(value for value in values if isinstance(value, kind))
    if len(known) != len(values):
        return None
    return Condition(column=one.attribute[0], kind=type(one), values=known)


def _buckets(ids: range, bucket_size: int) -> range:
    """The buckets of these ids."""
    return range(ids.start // bucket_size, -(-ids.stop // bucket_size))


def _clipped(spans: Iterable[range]) -> tuple[range, ...]:
    """Cut spans to the allowed ids, and join them."""
    return intersect(_joined(spans), EVERYTHING)


def _joined(spans: Iterable[range]) -> tuple[range, ...]:
    """Join ascending spans: overlapping and touching ones become one."""
    joined: list[range] = []
    for span in spans:
        if not span:
            continue
        if joined and span.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, span.stop))
        else:
            joined.append(span)
    return tuple(joined)
