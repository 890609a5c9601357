"""Birth, use and end of a due lane: every interleaving keeps I1, I4 and I9 (explicit states).

Each negative control takes one rule away, and must be caught by what rests on it.
"""

# ruff: noqa: T201 - how many states there were is the result

from __future__ import annotations

import pytest

from tests.explicit.due import DueWorld, Rules, State
from tests.explicit.explore import Explored, explore

LIMIT = 400_000
FEWEST = 1_000
"""A world with fewer states has lost some of its steps."""

pytestmark = [
    pytest.mark.invariant("I1"),
    pytest.mark.invariant("I4"),
    pytest.mark.invariant("I9"),
]

LOST = "I1: acknowledged, and L is above it"
UNSEEN = "I1: acknowledged, and no reader looks there"
TWICE = "I4: delivered from the due lane, and put again into another"
LITTER = "I9: a deleted queue has a lane in its schedule, and nobody removes it"


def search(world: DueWorld) -> Explored[State]:
    explored = explore(world, limit=LIMIT)
    print(explored)
    return explored


@pytest.mark.parametrize(
    "world",
    [
        DueWorld(producers=2, buckets=2),
        DueWorld(producers=2, buckets=1, deletes=True, late=0),
    ],
    ids=["a late INSERT", "a deletion meanwhile"],
)
def test_no_order_of_steps_loses_or_doubles_a_scheduled_message(world: DueWorld) -> None:
    explored = search(world)
    assert explored.trace is None, str(explored.trace)
    assert explored.is_complete
    assert explored.states >= FEWEST


@pytest.mark.parametrize(
    ("without", "breaks", "world"),
    [
        ("reads_register", UNSEEN, DueWorld()),
        ("register_first", UNSEEN, DueWorld()),
        ("closes_row", LOST, DueWorld()),
        ("stays_ambiguous", TWICE, DueWorld(buckets=2)),
        ("undoes_own", LOST, DueWorld()),
        ("raises_low", UNSEEN, DueWorld()),
        ("deletes_after", LITTER, DueWorld(deletes=True, late=0)),
    ],
)
def test_without_this_rule_some_order_of_steps_does(
    without: str, breaks: str, world: DueWorld
) -> None:
    world.rules = Rules(**{without: False})
    explored = search(world)
    assert explored.trace is not None
    assert breaks == explored.trace.invariant
