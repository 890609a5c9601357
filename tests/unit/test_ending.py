"""The end of a lane: what comes next, by what was read of it."""

from __future__ import annotations

import pytest

from cassieq_spark.model.ending import Close, Drop, Over, Raise, Step, next_step
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import DELETED, Pointers

FIVE = BucketNo(5)


def of(*, repair: int = DELETED, dropped: int = 0, end: int = 0) -> Pointers:
    return Pointers(repair=BucketNo(repair), dropped=BucketNo(dropped), end=BucketNo(end))


@pytest.mark.parametrize(
    ("ids_end", "pointers", "step"),
    [
        (FIVE, of(repair=3), Raise(dropped=BucketNo(3))),
        (None, of(repair=3), Raise(dropped=BucketNo(3))),
        (FIVE, of(dropped=3), Close(end=FIVE)),
        (FIVE, of(dropped=3, end=4), Close(end=FIVE)),  # reserved since it was noted
        (None, of(dropped=3, end=5), Drop(first=BucketNo(3), end=FIVE)),
        (None, of(dropped=3, end=9), Drop(first=BucketNo(3), end=BucketNo(7))),
        (None, of(dropped=5, end=5), Over()),
        (None, of(), Over()),
        (BucketNo(0), of(dropped=5, end=5), Close(end=BucketNo(0))),  # born again
    ],
)
def test_t15_a_deleter_carries_on_from_what_it_reads(
    ids_end: BucketNo | None, pointers: Pointers, step: Step
) -> None:
    assert step == next_step(ids_end, pointers, at_most=4)
