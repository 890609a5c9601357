"""Cancel against claim, with lost answers and a time to live: every interleaving (explicit states).

Each negative control takes one rule away, and must be caught by what rests on it.
"""

# ruff: noqa: T201 - how many states there were is the result

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cassieq_spark.model import taken
from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.ids import EMPTY, Runs
from tests.explicit.cancel import CancelWorld, Rules, State
from tests.explicit.explore import Explored, explore

LIMIT = 400_000
FEWEST = 500
"""A world with fewer states has lost some of its steps."""

pytestmark = [pytest.mark.invariant(one) for one in ("I1", "I2", "I4")]

TWICE = "I2: cancelled, and delivered"
NOWHERE = "I1: a message is nowhere, and nobody has cancelled it"


def search(world: CancelWorld) -> Explored[State]:
    explored = explore(world, limit=LIMIT)
    print(explored)
    return explored


@pytest.mark.parametrize(
    "world",
    [
        CancelWorld(),
        CancelWorld(cancels=2, lost=2),
        CancelWorld(claims=2),
        CancelWorld(cancels=2, claims=2, lives=True, late=False),
        CancelWorld(lives=True, lost=2),
    ],
    ids=["one of each", "two cancel", "two claim", "two of each, and it expires", "it expires"],
)
def test_a_message_is_delivered_or_cancelled_and_who_cancels_learns_it(world: CancelWorld) -> None:
    explored = search(world)
    assert explored.trace is None, str(explored.trace)
    assert explored.is_complete
    assert explored.states >= FEWEST


def counted_too(row: Bucket, wanted: Runs, *, now_us: int) -> Bucket:
    """What somebody was given, and what came back from him."""
    fresh = tuple(replace(part, deliveries=0) for part in row.returned)
    after = taken.cancelled(replace(row, returned=fresh), wanted, now_us=now_us)
    return row if not wanted.issubset(after.cancelled - row.cancelled) else after


def leased_too(row: Bucket, wanted: Runs, *, now_us: int) -> Bucket:
    leased = [lease.runs & wanted for lease in row.leases]
    if not any(leased):
        return taken.cancelled(row, wanted, now_us=now_us)
    after = taken.taken_out(row, wanted, now_us=now_us)
    return replace(after, cancelled=row.cancelled | wanted)


def forgotten(row: Bucket, wanted: Runs, *, now_us: int) -> Bucket:
    after = taken.cancelled(row, wanted, now_us=now_us)
    return row if after is row else replace(after, cancelled=EMPTY)


@pytest.mark.parametrize(
    ("cancelled", "breaks"),
    [(counted_too, TWICE), (leased_too, TWICE), (forgotten, NOWHERE)],
    ids=["what was given back is cancelled", "what is leased is cancelled", "the row forgets"],
)
def test_without_this_rule_some_order_of_steps_breaks_it(
    cancelled: Callable[..., Bucket], breaks: str
) -> None:
    explored = search(CancelWorld(rules=Rules(cancelled=cancelled), ticks=1))
    assert explored.trace is not None
    assert breaks == explored.trace.invariant
