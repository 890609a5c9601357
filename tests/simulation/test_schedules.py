"""Seeds of schedules alone, in virtual time; see docs/design/schedules.md."""

from __future__ import annotations

import pytest

from tests.simulation.schedules import run

pytestmark = pytest.mark.invariant("I11")

SEEDS = 12
AT_ONCE = 3


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_each_slot_is_put_exactly_once_in_a_seed(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        assert (seed, []) == (seed, run(seed).anomalies)
