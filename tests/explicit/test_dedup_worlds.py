"""A deduplication key: every interleaving keeps I1 and I4 (explicit states).

Each negative control takes one rule away, and must be caught by what rests on it.
"""

# ruff: noqa: T201 - how many states there were is the result

from __future__ import annotations

import pytest

from tests.explicit.dedup import DedupWorld, Rules, State
from tests.explicit.explore import Explored, explore

LIMIT = 1_500_000
FEWEST = 1_000
"""A world with fewer states has lost some of its steps."""

pytestmark = [pytest.mark.invariant("I1"), pytest.mark.invariant("I4")]

TWICE = "I4: a key is in twice within its window"
LATE = "I4: a put happens after another has taken its key"
NEVER = "I1: told that it is a duplicate of what never happened"


def search(world: DedupWorld) -> Explored[State]:
    explored = explore(world, limit=LIMIT)
    print(explored)
    return explored


@pytest.mark.parametrize(
    "world",
    [
        DedupWorld(),
        pytest.param(DedupWorld(crashes=0, ticks=1), marks=pytest.mark.long),
        DedupWorld(tries=(1, 1), crashes=0, ticks=2),
        pytest.param(DedupWorld(crashes=0, ghosts=1), marks=pytest.mark.long),
        DedupWorld(crashes=0, lost=1),
    ],
    ids=["a crash", "the window passes", "the entry ends", "a late INSERT", "a lost answer"],
)
def test_no_order_of_steps_puts_a_key_twice_or_loses_it(world: DedupWorld) -> None:
    explored = search(world)
    assert explored.trace is None, str(explored.trace)
    assert explored.is_complete
    assert explored.states >= FEWEST


@pytest.mark.parametrize(
    ("without", "breaks", "world"),
    [
        ("message_first", NEVER, DedupWorld()),
        ("moves_entry", TWICE, DedupWorld()),
        ("keeps", TWICE, DedupWorld()),
        ("settles_first", LATE, DedupWorld(ticks=1)),
        ("closes", LATE, DedupWorld()),
        ("believes_low", NEVER, DedupWorld(ghosts=1)),
        ("looks_at_entry", LATE, DedupWorld(crashes=0, lost=1)),
    ],
)
def test_without_this_rule_some_order_of_steps_does(
    without: str, breaks: str, world: DedupWorld
) -> None:
    world.rules = Rules(**{without: False})
    explored = search(world)
    assert explored.trace is not None
    assert breaks == explored.trace.invariant
