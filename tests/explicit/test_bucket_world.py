"""Every interleaving of a few clients on one bucket keeps I1 to I6 and I10 (explicit states).

The functions are production's; `world` says what is kept out. A violation prints a shortest trace.
Each negative control takes one rule away, and must be caught by the invariant that rests on it.
"""

# ruff: noqa: T201 - how many states there were is the result

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.model import bucket as bucket_rules
from cassieq_spark.model import lease as lease_rules
from cassieq_spark.model import outcome, settlement
from cassieq_spark.model.bucket import Bucket, Lease
from cassieq_spark.model.dead import Dead, DeadSet
from cassieq_spark.model.ids import union
from cassieq_spark.model.settlement import Update
from tests.explicit.explore import Explored, explore
from tests.explicit.network import Rules, Size
from tests.explicit.states import mask
from tests.explicit.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from cassieq_spark.model.ids import Runs
    from cassieq_spark.model.lease import Terms
    from tests.explicit.states import Receipt, State

LIMIT = 400_000
FEWEST = 20_000
"""A world with fewer states has lost some of its steps."""

INVARIANTS = [
    pytest.mark.invariant("I1"),
    pytest.mark.invariant("I2"),
    pytest.mark.invariant("I3"),
    pytest.mark.invariant("I4"),
    pytest.mark.invariant("I5"),
    pytest.mark.invariant("I6"),
    pytest.mark.invariant("I10"),
]
pytestmark = INVARIANTS

VERBS = ("ack", "ack part", "release", "delay", "extend part", "update", "ack old")
CLAIMS = Size(ticks=2, moves=2, verbs=("ack part", "extend part", "update", "ack old"))
CLAIMS_AGAIN = Size(
    offsets=1, ticks=2, gets=2, verbs=("ack", "extend", "update", "release"), at_most=1
)
ANSWERS_LOST = Size(ticks=1, verbs=VERBS, lost=2)
TAGS_EVICTED = Size(ticks=1, at_most=1, lost=1, verbs=("ack", "release", "update"))
THREE_OFFSETS = Size(offsets=3, ticks=2, verbs=VERBS, delayed=(2,), crashes=1)
DEAD_LETTERS = Size(has_repair=True, ticks=2, gets=2, max_deliveries=1, crashes=1)
PUT = Size(producers=2, consumers=1, has_repair=True, ticks=0, timeouts=1)
PUT_CRASH = Size(producers=1, consumers=2, has_repair=True, ticks=0, timeouts=1, crashes=1)
PUT_LOST = Size(producers=2, consumers=1, has_repair=True, ticks=0, lost=1)
GET_LOST = Size(offsets=1, producers=1, has_repair=True, ticks=0, lost=1)


def search(size: Size, rules: Rules | None = None) -> Explored[State]:
    explored = explore(World(size=size, rules=rules or Rules()), limit=LIMIT)
    print(explored)
    return explored


def assert_holds(explored: Explored[State]) -> None:
    assert explored.trace is None, str(explored)
    assert explored.is_complete, str(explored)
    assert FEWEST <= explored.states, str(explored)


WORLDS: Mapping[str, Size] = {
    "claims": CLAIMS,
    "claims again and again": CLAIMS_AGAIN,
    "answers lost": ANSWERS_LOST,
    "three offsets, one delayed": THREE_OFFSETS,
    "dead letters": DEAD_LETTERS,
    "put, seal, drop": PUT,
    "put, seal, drop with a crash": PUT_CRASH,
    # An INSERT `sealing` whose answer was lost is in the air twice, and its second copy may land
    # after the drop: a row that is born again with its writer (ADR 11).
    "put, seal, drop, an answer lost": PUT_LOST,
    "seal, get, drop, an answer lost": GET_LOST,
}


@pytest.mark.parametrize("size", WORLDS.values(), ids=WORLDS.keys())
def test_no_interleaving_breaks_an_invariant(size: Size) -> None:
    assert_holds(search(size))


def test_effects_tell_what_evicted_tags_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "TAGGED_CLIENTS", 1)

    assert_holds(search(TAGS_EVICTED))


# --- negative controls: one rule less, and what notices ------------------------------------------


def ack_by_offset(row: Bucket, acked: Mapping[UUID, Runs], *, now_us: int) -> Bucket:
    """Whoever holds them now."""
    everybody = {lease.lease_id: runs for lease in row.leases for runs in acked.values()}
    return lease_rules.ack(row, everybody, now_us=now_us)


def found_by_offset(row: Bucket, receipt: Receipt) -> Lease | None:
    return next((one for one in row.leases if mask(one.runs) & receipt.offsets), None)


def ack_all_of_it(row: Bucket, acked: Mapping[UUID, Runs], *, now_us: int) -> Bucket:
    return lease_rules.ack(row, dict.fromkeys(acked), now_us=now_us)


def claim_live_leases(row: Bucket, terms: Terms, new_id: Callable[[], UUID]) -> Any:
    return lease_rules.claim(row, replace(terms, now_us=terms.until_us * 2), new_id)


def claim_none_that_expired(row: Bucket, terms: Terms, new_id: Callable[[], UUID]) -> Any:
    after, leases = lease_rules.claim(replace(row, leases=()), terms, new_id)
    return replace(after, status=row.status, leases=(*row.leases, *after.leases)), leases


def claim_into_the_old_dead_set(
    row: Bucket, terms: Terms, new_id: Callable[[], UUID]
) -> tuple[Bucket, tuple[Lease, ...]]:
    after, leases = lease_rules.claim(row, terms, new_id)
    if len(after.dead) > 1:
        runs = union(part.runs for part in after.dead)
        after = replace(after, dead=(DeadSet(set_id=after.dead[0].set_id, runs=runs),))
    return after, leases


def revise_under_the_old_id(
    row: Bucket, lease_id: UUID, offset: int, action: Update, *, now_us: int
) -> Bucket:
    after = settlement.revise(row, lease_id, offset, action, now_us=now_us)
    leases = (
        replace(one, lease_id=lease_id) if one.lease_id == action.new_lease_id else one
        for one in after.leases
    )
    return replace(after, leases=tuple(leases))


def release_uncounted(row: Bucket, released: Mapping[UUID, Runs], **rest: Any) -> Bucket:
    return lease_rules.release(row, released, **{**rest, "count_delivery": False})


def release_whole_row(row: Bucket, _: Mapping[UUID, Runs], **rest: Any) -> Bucket:
    return lease_rules.release(row, dict.fromkeys(one.lease_id for one in row.leases), **rest)


def open_sets_too(dead: Dead) -> list[Dead]:
    """A mover takes what is still filled."""
    return [(one,) for one in dead]


def without_any_dead(row: Bucket, _: UUID, *, now_us: int) -> Bucket:
    for part in row.dead:
        row = bucket_rules.without_dead(row, part.set_id, now_us=now_us)
    return row


GHOSTS_COUNT = Rules(
    put_judges_above_low=False, get_hands_out_above_low=False, ack_expires_above_low=False
)
"""Before ADR 11. With its rules a ghost means nothing to anybody, so that it does no harm that two
older rules make fewer of them: those are the second line, and are missed where the first is not."""

DYING = replace(DEAD_LETTERS, crashes=0, at_most=1)

CONTROLS: Mapping[str, tuple[Size, Rules, str, int, str]] = {
    "an ack goes by offset, not by lease id": (
        *(CLAIMS_AGAIN, Rules(ack=ack_by_offset, found=found_by_offset)),
        *("I3", 9, "C0's ack is applied"),
    ),
    "a part's ack ends the whole lease": (
        *(CLAIMS, Rules(ack=ack_all_of_it)),
        *("I3", 5, "C0's ack is applied"),
    ),
    "an update keeps the lease id": (
        *(CLAIMS, Rules(revise=revise_under_the_old_id)),
        *("I3", 7, "C0's ack is applied"),
    ),
    "a release gives back all of the row": (
        *(THREE_OFFSETS, Rules(release=release_whole_row)),
        *("I3", 9, "C1's late release is applied"),
    ),
    "a release does not count": (
        *(CLAIMS_AGAIN, Rules(release=release_uncounted)),
        *("I6", 8, "C0's claim is applied"),
    ),
    "a claim takes live leases": (
        *(CLAIMS, Rules(claim=claim_live_leases)),
        *("I2", 6, "C1's claim is applied"),
    ),
    "a claim forgets leases that ran out": (
        *(CLAIMS, Rules(claim=claim_none_that_expired)),
        *("I10", 3, "C0's claim is applied"),
    ),
    "a dead set grows while a mover has it [R14]": (
        *(DYING, Rules(claim=claim_into_the_old_dead_set)),
        *("I1", 16, "R's take out of the dead is applied"),
    ),
    "a mover takes an open dead set [R14]": (
        *(DYING, Rules(movable=open_sets_too)),
        *("I1", 14, "R's take out of the dead is applied"),
    ),
    "a mover takes out every dead set": (
        *(DYING, Rules(without_dead=without_any_dead)),
        *("I1", 16, "R's take out of the dead is applied"),
    ),
    "a lost answer is taken for a refusal [P7]": (
        *(ANSWERS_LOST, Rules(settles_by_tags=False)),
        *("I3", 8, "its ack was refused"),
    ),
    "a CAS has no condition": (
        *(CLAIMS, Rules(condition="none")),
        *("I6", 6, "C1's claim is applied"),
    ),
    "a CAS has no condition, two sealers": (
        *(PUT, Rules(condition="none")),
        *("I5", 12, "P1's seal is applied"),
    ),
    "a CAS is conditional on a counter [P3]": (
        *(PUT, replace(GHOSTS_COUNT, condition="row_version")),
        *("I1", 20, "P1 is in the manifest: acknowledged"),
    ),
    "a put does not read L": (
        *(PUT, Rules(put_reads_low=False)),
        *("I1", 11, "P0 reads L=1: acknowledged"),
    ),
    "a put does not read the row": (
        *(PUT, Rules(put_reads_row=False)),
        *("I1", 8, "P1 reads L=0: acknowledged"),
    ),
    "a seal does not read L [P2]": (
        *(PUT, replace(GHOSTS_COUNT, seal_reads_low=False)),
        *("I4", 18, "C2's seal is applied"),
    ),
    "a seal scans before its insert": (
        *(PUT, Rules(scans_after_insert=False)),
        *("I1", 7, "P1 reads L=0: acknowledged"),
    ),
    "a put believes a ghost's manifest": (
        *(PUT_LOST, Rules(put_judges_above_low=False)),
        *("I4", 23, "P1 is not in the manifest"),
    ),
    "a ghost is delivered from": (
        *(GET_LOST, Rules(get_hands_out_above_low=False)),
        *("I6", 22, "C1's seal is applied"),
    ),
    "a ghost calls an ack that counted expired": (
        *(GET_LOST, Rules(ack_expires_above_low=False)),
        *("I3", 20, "its ack was refused"),
    ),
    "a drop deletes the row before it raises L": (
        *(PUT, Rules(raises_low_first=False)),
        *("I1", 10, "P0 reads L=0: acknowledged"),
    ),
}


def test_where_no_answer_is_lost_the_older_rules_are_enough() -> None:
    assert_holds(search(PUT, GHOSTS_COUNT))


@pytest.mark.parametrize(
    ("size", "rules", "invariant", "steps", "last"), CONTROLS.values(), ids=CONTROLS.keys()
)
def test_a_rule_that_is_taken_away_is_missed(
    size: Size, rules: Rules, invariant: str, steps: int, last: str
) -> None:
    trace = search(size, rules).trace

    assert trace is not None
    assert (invariant, steps) == (trace.invariant.partition(":")[0], len(trace.steps)), str(trace)
    assert last in trace.steps[-1], str(trace)
