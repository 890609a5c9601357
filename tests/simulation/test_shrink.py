"""What is left of a plan is needed: without any of it nothing is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.shrink import fewest

if TYPE_CHECKING:
    from collections.abc import Collection

PARTS = [f"part {number}" for number in range(23)]


@pytest.mark.parametrize("needed", [set(), {"part 0"}, {"part 3", "part 22"}, set(PARTS)])
def test_the_parts_that_are_needed_are_found(needed: set[str]) -> None:
    def is_wrong(without: Collection[str]) -> bool:
        return not needed & set(without)

    assert sorted(needed) == sorted(fewest(PARTS, is_wrong))


def test_two_parts_that_stand_for_each_other_are_not_both_left_out() -> None:
    def is_wrong(without: Collection[str]) -> bool:
        return not {"part 5", "part 6"} <= set(without)

    assert 1 == len(fewest(PARTS, is_wrong))
