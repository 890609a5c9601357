"""Seeds of schedules alone, in virtual time; see docs/design/schedules.md."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.simulation.schedules import run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.invariant("I11")

SEEDS = 12
AT_ONCE = 3


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A world's faults are logged as a program's would be."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_each_slot_is_put_exactly_once_in_a_seed(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        assert (seed, []) == (seed, run(seed).anomalies)
