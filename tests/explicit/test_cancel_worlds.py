"""Cancel, claim and repair, with lost answers and a time to live: every interleaving.

Each negative control takes one rule away, and must be caught by what rests on it.
"""

# ruff: noqa: T201 - how many states there were is the result

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from cassieq_spark.model import lease
from cassieq_spark.model.bucket import Bucket, Lease
from cassieq_spark.model.ids import EMPTY, Runs
from cassieq_spark.model.lease import Terms
from tests.explicit.cancel import CancelWorld, Rules, State
from tests.explicit.explore import Explored, explore

LIMIT = 400_000
FEWEST = 500
"""A world with fewer states has lost some of its steps."""

pytestmark = [pytest.mark.invariant(one) for one in ("I1", "I2", "I3", "I4")]

LONG_US = 1_500_000
"""A lease that a message with a time to live may outlive."""

Claimed = tuple[Bucket, tuple[Lease, ...]]

LOST = "I3: whoever holds it has lost it before his lease was over"
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
        CancelWorld(lives=True, repairs=1, ticks=2, holds_us=LONG_US),
        CancelWorld(lives=True, repairs=1, ticks=2, holds_us=LONG_US, dies=True),
        CancelWorld(lives=True, repairs=2, cancels=0, dies=True),
    ],
    ids=[
        "one of each",
        "two cancel",
        "two claim",
        "two of each, and it expires",
        "it expires",
        "repair takes it out",
        "repair lets it die",
        "two repair",
    ],
)
def test_a_message_is_delivered_or_cancelled_and_who_cancels_learns_it(world: CancelWorld) -> None:
    explored = search(world)
    assert explored.trace is None, str(explored.trace)
    assert explored.is_complete
    assert explored.states >= FEWEST


def counted_too(row: Bucket, wanted: Runs, *, now_us: int) -> Bucket:
    """What somebody was given, and what came back from him."""
    fresh = tuple(replace(part, deliveries=0) for part in row.returned)
    after = lease.cancelled(replace(row, returned=fresh), wanted, now_us=now_us)
    return row if not wanted.issubset(after.cancelled - row.cancelled) else after


def leased_too(row: Bucket, wanted: Runs, *, now_us: int) -> Bucket:
    leased = [one.runs & wanted for one in row.leases]
    if not any(leased):
        return lease.cancelled(row, wanted, now_us=now_us)
    after = lease.taken_out(row, wanted, now_us=now_us)
    return replace(after, cancelled=row.cancelled | wanted)


def forgotten(row: Bucket, wanted: Runs, *, now_us: int) -> Bucket:
    after = lease.cancelled(row, wanted, now_us=now_us)
    return row if after is row else replace(after, cancelled=EMPTY)


def whoever_holds_it(row: Bucket, terms: Terms, new_id: Callable[[], UUID]) -> Claimed:
    ended = [replace(lease, until_us=0) for lease in row.leases]
    return lease.claim(replace(row, leases=tuple(ended)), terms, new_id)


def acked(row: Bucket, terms: Terms, new_id: Callable[[], UUID]) -> Claimed:
    return lease.claim(row, replace(terms, expired_die=False), new_id)


def given(row: Bucket, terms: Terms, new_id: Callable[[], UUID]) -> Claimed:
    found, leases = lease.claim(replace(row, expiring=()), terms, new_id)
    return replace(found, expiring=row.expiring), leases


@pytest.mark.parametrize(
    ("rules", "breaks"),
    [
        (Rules(take_out=whoever_holds_it), LOST),
        (Rules(take_out=acked), NOWHERE),
        (Rules(claim=given), "I2: expired, and delivered"),
    ],
    ids=["repair takes it from its holder", "what expired is acked", "what expired is given"],
)
def test_what_expired_dies_once_and_is_given_to_nobody(rules: Rules, breaks: str) -> None:
    explored = search(
        CancelWorld(lives=True, repairs=1, dies=True, ticks=2, holds_us=LONG_US, rules=rules)
    )
    assert explored.trace is not None
    assert breaks == explored.trace.invariant


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
