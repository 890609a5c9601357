"""A value that a view does not know is null, not a time of long ago."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cassieq_spark.model.pointer import Pointers
from cassieq_spark.spark.views.columns import LANES, QUEUES, View, batches

MINUTE_US = 60_000_000


@pytest.mark.parametrize("view", [QUEUES, LANES], ids=lambda view: view.name)
@pytest.mark.parametrize(
    ("pointers", "expected"),
    [
        (None, None),
        (Pointers(), None),
        (Pointers(time=29_000_000), 29_000_000 * MINUTE_US),
    ],
)
def test_a_pointer_that_nobody_moved_is_null_and_not_1969(
    view: View, pointers: Pointers | None, expected: int | None
) -> None:
    facts = SimpleNamespace(pointers=pointers)
    (found,) = batches(view, ("leases_checked_until",), [("q", facts)])
    (value,) = found.column(0).cast("int64").to_pylist()
    assert expected == value
