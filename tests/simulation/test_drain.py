"""Which bucket a program tries costs no more conditional writes than docs/design/choice.md has."""

from __future__ import annotations

import pytest

from tests.simulation.drain import drain


@pytest.mark.parametrize(
    ("processes", "buckets", "most"), [(1, 16, 2.3), (4, 4, 2.6), (4, 16, 2.7), (16, 16, 5.0)]
)
def test_programs_that_drain_a_lane_seldom_meet(processes: int, buckets: int, most: float) -> None:
    """Two is the least: a claim and an ack of a hundred messages. Seals come on top."""
    done = drain(1, processes, buckets, 6_400)
    assert 6_400 == done.messages
    assert 2.0 <= done.cas_per_100 <= most
