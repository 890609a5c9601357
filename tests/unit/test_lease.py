"""Claim, ack, extend, release, revise: what one CAS on a sealed bucket writes.

See docs/design/get-and-leases.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from cassieq_spark.model import lease as rules
from cassieq_spark.model import settlement
from cassieq_spark.model.bucket import Lease, Returned, Status
from cassieq_spark.model.dead import DeadSet
from cassieq_spark.model.expiry import Delayed
from cassieq_spark.model.ids import EMPTY, Runs
from cassieq_spark.model.lease import EXPIRY_MARGIN_US, Terms
from cassieq_spark.model.row_limits import (
    CROWDED_LEASES,
    FURTHER_OWNERS,
    LEASES_PER_CLAIM,
    OWNERS_BYTES,
    RUNS_PER_LEASE,
)
from cassieq_spark.model.settlement import Update
from tests.fixtures import rows
from tests.fixtures.rows import TEN, ids, sealed

NOW = 1_700_000_000_000_000
LATER = NOW + 60_000_000
EXPIRED = NOW - EXPIRY_MARGIN_US - 1
AT = {"now_us": NOW, "until_us": LATER}


def terms(at_most: int = 100, **more: Any) -> Terms:
    values = {"owner": "me", "run": None, "now_us": NOW, "until_us": LATER, **more}
    return Terms(at_most=at_most, **values)


lease = partial(rows.lease, until_us=LATER)


def test_a_claim_takes_the_lowest_fresh_ones_into_one_lease() -> None:
    row, leases = rules.claim(sealed(fresh=TEN), terms(4), ids())
    expected = Lease(
        lease_id=UUID(int=1_000),
        owner="me",
        run=None,
        delivery_count=1,
        runs=Runs.span(0, 3),
        until_us=LATER,
    )
    assert (expected,) == leases
    assert sealed(changed_us=NOW, fresh=Runs.span(4, 9), leases=leases) == row


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.SEALED}))
def test_nothing_is_claimed_from_a_bucket_that_is_not_sealed(status: Status) -> None:
    row = replace(sealed(fresh=TEN), status=status)
    assert (row, ()) == rules.claim(row, terms(), ids())
    assert 0 == rules.claimable(row, now_us=NOW)
    assert not rules.is_dying(row, now_us=NOW, max_deliveries=1)


@pytest.mark.invariant("I2")
def test_a_live_lease_is_nobody_elses_until_the_margin_is_over() -> None:
    held = lease(1, TEN, until_us=NOW)
    row = sealed(leases=(held,))
    at_the_end = terms(now_us=NOW + EXPIRY_MARGIN_US)
    assert ((held,), ()) == (
        rules.claim(row, at_the_end, ids())[0].leases,
        rules.claim(row, at_the_end, ids())[1],
    )
    assert 0 == rules.claimable(row, now_us=NOW + EXPIRY_MARGIN_US)

    _, leases = rules.claim(row, terms(now_us=NOW + EXPIRY_MARGIN_US + 1), ids())
    assert [(2, TEN)] == [(one.delivery_count, one.runs) for one in leases]


def test_what_came_back_goes_out_first_and_counts_are_not_mixed() -> None:
    row = sealed(
        fresh=Runs.span(6, 9),
        returned=(Returned(deliveries=1, runs=Runs.span(0, 1)),),
        leases=(lease(7, Runs.span(2, 3), count=4, until_us=EXPIRED),),
        delayed=(
            Delayed(due_us=NOW, runs=Runs.span(4, 4)),
            Delayed(due_us=NOW + 1, runs=Runs.span(5, 5)),
        ),
    )
    assert 9 == rules.claimable(row, now_us=NOW)
    after, leases = rules.claim(row, terms(6), ids())
    assert [(one.delivery_count, one.runs) for one in leases] == [
        (2, Runs.span(0, 1)),
        (5, Runs.span(2, 3)),
        (1, Runs.of((4, 4), (6, 6))),  # delayed or fresh: never delivered
    ]
    assert Runs.span(7, 9) == after.fresh
    assert (Delayed(due_us=NOW + 1, runs=Runs.span(5, 5)),) == after.delayed
    assert () == after.returned


def test_what_ran_out_first_is_claimed_first() -> None:
    ended = {3: EXPIRED - 20, 1: EXPIRED - 10, 2: EXPIRED}
    row = sealed(
        leases=tuple(lease(at, Runs.span(at, at), until_us=ended[at]) for at in (1, 2, 3)),
        delayed=(Delayed(due_us=EXPIRED - 15, runs=Runs.span(4, 4), deliveries=1),),
    )
    order = []
    for _ in range(4):
        row, (one,) = rules.claim(row, terms(1), ids())
        order.append(one.runs.first)
    assert [3, 4, 1, 2] == order


@pytest.mark.invariant("I3")
def test_r20_a_claim_leaves_expired_leases_that_it_does_not_take_to_their_holders() -> None:
    row = sealed(
        leases=(
            lease(1, Runs.span(0, 4), until_us=EXPIRED - 1),
            lease(2, Runs.span(5, 9), until_us=EXPIRED),
        )
    )
    after, _ = rules.claim(row, terms(3), ids())
    acked = rules.ack(after, {UUID(int=1): None, UUID(int=2): None}, now_us=NOW)
    assert Runs.span(0, 2) == acked.unacked


def test_a_claim_stays_below_the_triggers_target() -> None:
    row = sealed(fresh=Runs.span(3, 9), returned=(Returned(deliveries=1, runs=Runs.span(0, 2)),))
    assert 3 == rules.claimable(row, now_us=NOW, below=3)
    after, leases = rules.claim(row, terms(below=2), ids())
    assert [Runs.span(0, 1)] == [one.runs for one in leases]
    assert (Returned(deliveries=1, runs=Runs.span(2, 2)),) == after.returned
    assert Runs.span(3, 9) == after.fresh


def test_a_lease_of_a_query_holds_so_few_runs_that_an_offset_can_name_them() -> None:
    scattered = Runs.from_offsets(range(0, 4 * RUNS_PER_LEASE, 2))
    of_a_query = replace(terms(10_000), run=UUID(int=9))
    _, (one,) = rules.claim(sealed(fresh=scattered), of_a_query, ids())
    assert RUNS_PER_LEASE == len(one.runs.pairs)
    _, (one,) = rules.claim(sealed(fresh=scattered), terms(10_000), ids())
    assert scattered == one.runs


def test_r6_expired_leases_crowd_no_row_and_are_merged_by_the_claim() -> None:
    """2,048 leases of 10 ids each ran out, everybody asks for one message: it must be found."""
    many = tuple(
        lease(at + 1, Runs.span(10 * at, 10 * at + 9), until_us=EXPIRED)
        for at in range(CROWDED_LEASES)
    )
    row = sealed(manifest=Runs.span(0, 10 * CROWDED_LEASES - 1), leases=many)
    assert 10 * CROWDED_LEASES == rules.claimable(row, now_us=NOW)
    assert not rules.is_crowded(row, now_us=NOW)
    after, (one,) = rules.claim(row, terms(1), ids())
    assert (one,) == after.leases
    assert (2, Runs.span(0, 0)) == (one.delivery_count, one.runs)
    assert (Returned(deliveries=1, runs=Runs.span(1, 10 * CROWDED_LEASES - 1)),) == after.returned


@pytest.mark.invariant("I10")
def test_t11_many_live_leases_hide_nothing_of_the_rest() -> None:
    """Others are preferred to such a bucket; where there is none, its messages are to be had."""
    many = tuple(lease(at + 1, Runs.span(at, at)) for at in range(CROWDED_LEASES))
    end = CROWDED_LEASES
    row = sealed(
        manifest=Runs.span(0, 49_999),
        fresh=Runs.span(end + 1, 49_999),
        returned=(Returned(deliveries=1, runs=Runs.span(end, end)),),
        leases=many,
    )
    assert rules.is_crowded(row, now_us=NOW)
    assert 50_000 - end == rules.claimable(row, now_us=NOW)
    after, leases = rules.claim(row, terms(3), ids())
    assert [Runs.span(end, end), Runs.span(end + 1, end + 2)] == [one.runs for one in leases]
    assert (*many, *leases) == after.leases


def test_a_claim_makes_so_few_leases_that_an_offset_can_name_them() -> None:
    row = sealed(
        manifest=Runs.span(0, 499),
        returned=tuple(Returned(deliveries=at + 1, runs=Runs.span(at, at)) for at in range(500)),
    )
    _, leases = rules.claim(row, terms(500), ids())
    assert LEASES_PER_CLAIM == len(leases)


def test_t2_names_of_holders_have_a_limit_and_their_leases_none() -> None:
    """Each of 800 bytes at most: above 64 KB of them further ones go by one name."""
    names = [f"{number:04}".ljust(200, "é") for number in range(400)]
    row = sealed(manifest=Runs.span(0, 999), fresh=Runs.span(0, 999))
    for name in names:
        row, _ = rules.claim(row, replace(terms(1), owner=name), ids())
    known = {one.owner for one in row.leases}
    assert FURTHER_OWNERS in known
    assert OWNERS_BYTES <= sum(len(name.encode()) for name in known) < OWNERS_BYTES + 1_000
    assert 400 == len(row.leases)
    _, (again,) = rules.claim(row, replace(terms(1), owner=names[0]), ids())
    assert names[0] == again.owner


@pytest.mark.invariant("I4")
def test_an_acked_message_is_in_no_part_of_the_row_and_the_last_ack_drains() -> None:
    row = sealed(leases=(lease(1, Runs.span(0, 4)), lease(2, Runs.span(5, 9))))
    some = rules.ack(row, {UUID(int=1): Runs.span(1, 2), UUID(int=2): None}, now_us=NOW)
    assert (lease(1, Runs.of((0, 0), (3, 4))),) == some.leases
    assert Status.SEALED is some.status
    everything = rules.ack(some, {UUID(int=1): None}, now_us=NOW)
    assert sealed(status=Status.DRAINED, changed_us=NOW) == everything


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("runs", [None, Runs.span(0, 4)])
def test_an_ack_of_a_lease_that_ended_touches_no_other_delivery(runs: Runs | None) -> None:
    row = sealed(leases=(lease(2, TEN, count=2),))
    assert replace(row, changed_us=NOW) == rules.ack(row, {UUID(int=1): runs}, now_us=NOW)


@pytest.mark.invariant("I3")
def test_r20_a_lease_that_ran_out_and_was_not_claimed_again_still_acks() -> None:
    row = sealed(leases=(lease(1, TEN, until_us=EXPIRED),))
    assert Status.DRAINED is rules.ack(row, {UUID(int=1): None}, now_us=NOW).status


def test_extending_a_part_of_a_lease_leaves_the_rest_its_end() -> None:
    one, some = UUID(int=1), Runs.span(2, 3)
    row = rules.extend(sealed(leases=(lease(1, TEN),)), {one: some}, until_us=NOW + 1, now_us=NOW)
    assert [(TEN - some, LATER), (some, NOW + 1)] == [(e.runs, e.until_us) for e in row.leases]
    whole = row.lease(one)
    assert whole is not None
    assert (TEN, NOW + 1) == (whole.runs, whole.until_us)
    assert Status.DRAINED is rules.ack(row, {one: None}, now_us=NOW).status
    again = rules.extend(row, {one: some}, until_us=LATER, now_us=NOW)
    assert (lease(1, TEN),) == again.leases


def test_release_of_a_part_with_a_delay_keeps_the_count_and_the_rest() -> None:
    row = sealed(leases=(lease(1, Runs.span(0, 4), count=3),))
    some = Runs.span(1, 2)
    after = rules.release(row, {UUID(int=1): some}, now_us=NOW, due_us=NOW + 500_000)
    (group,) = after.delayed
    assert (some, 3) == (group.runs, group.deliveries)
    assert NOW + 500_000 <= group.due_us < NOW + 1_500_000
    assert Runs.of((0, 0), (3, 4)) == after.leases[0].runs
    assert rules.is_dying(after, now_us=group.due_us, max_deliveries=3)
    _, (again,) = rules.claim(after, terms(now_us=group.due_us), ids())
    assert (4, some) == (again.delivery_count, again.runs)


def test_a_release_that_is_due_already_is_no_delay() -> None:
    row = sealed(leases=(lease(1, TEN),))
    after = rules.release(row, {UUID(int=1): None}, now_us=NOW, due_us=NOW)
    assert ((Returned(deliveries=1, runs=TEN),), ()) == (after.returned, after.delayed)


@pytest.mark.invariant("I3")
def test_p26_a_revised_message_has_a_lease_of_its_own_and_keeps_its_revision() -> None:
    row = sealed(leases=(lease(1, TEN, count=2),), revisions=((3, 11), (7, 12)))
    after = settlement.revise(
        row,
        UUID(int=1),
        3,
        Update(revision=99, new_lease_id=UUID(int=8), visibility_us=7),
        now_us=NOW,
    )
    three = Runs.span(3, 3)
    assert (lease(1, TEN - three, count=2), lease(8, three, count=2, until_us=NOW + 7)) == (
        after.leases
    )
    assert ((3, 99), (7, 12)) == after.revisions
    expired, _ = rules.claim(after, terms(now_us=LATER + EXPIRY_MARGIN_US + 1), ids())
    assert ((3, 99),) == expired.revisions_of(three)
    acked = rules.ack(after, {UUID(int=8): None}, now_us=NOW)
    assert ((7, 12),) == acked.revisions


def test_a_revision_without_a_body_or_a_time_keeps_that_part() -> None:
    row = sealed(leases=(lease(1, TEN),), revisions=((0, 5),))
    after = settlement.revise(
        row,
        UUID(int=1),
        0,
        Update(new_lease_id=UUID(int=2)),
        now_us=NOW,
    )
    assert [LATER, LATER] == [one.until_us for one in after.leases]
    assert ((0, 5),) == after.revisions


def test_p18_a_claim_that_nobody_held_uses_up_no_delivery() -> None:
    row = sealed(leases=(lease(1, TEN, count=1),))
    after = rules.release(row, {UUID(int=1): None}, now_us=NOW, count_delivery=False)
    assert (Returned(deliveries=0, runs=TEN),) == after.returned
    _, (again,) = rules.claim(after, terms(max_deliveries=1), ids())
    assert 1 == again.delivery_count


def test_r14_what_dies_is_in_an_open_set_beside_the_closed_ones() -> None:
    old = DeadSet(set_id=UUID(int=5), runs=Runs.span(9, 9))
    row = sealed(
        fresh=Runs.span(8, 8),
        leases=(
            lease(1, Runs.span(0, 1), count=2, until_us=EXPIRED),
            lease(2, Runs.span(2, 3), count=3, until_us=EXPIRED),
            lease(3, Runs.span(4, 5), count=1, until_us=EXPIRED),
        ),
        returned=(Returned(deliveries=2, runs=Runs.span(6, 7)),),
        dead=(old,),
    )
    assert rules.is_dying(row, now_us=NOW, max_deliveries=2)
    assert 3 == rules.claimable(row, now_us=NOW, max_deliveries=2)
    after, leases = rules.claim(row, terms(max_deliveries=2), ids())
    assert old == after.dead[0]
    assert [(2, Runs.of((0, 1), (6, 7))), (3, Runs.span(2, 3))] == [
        (dead.deliveries, dead.runs) for dead in after.dead[1:]
    ]
    assert {(UUID(int=1_000), True)} == {(dead.set_id, dead.is_open) for dead in after.dead[1:]}
    assert [(2, Runs.span(4, 5)), (1, Runs.span(8, 8))] == [
        (one.delivery_count, one.runs) for one in leases
    ]


def test_r22_nothing_dies_without_a_limit() -> None:
    row = sealed(leases=(lease(1, TEN, count=10_000, until_us=EXPIRED),))
    assert not rules.is_dying(row, now_us=NOW, max_deliveries=None)
    after, (one,) = rules.claim(row, terms(), ids())
    assert (10_001, ()) == (one.delivery_count, after.dead)


def test_a_claim_that_finds_nothing_changes_no_message() -> None:
    row = sealed(leases=(lease(1, TEN),))
    assert (replace(row, changed_us=NOW), ()) == rules.claim(row, terms(), ids())
    assert EMPTY == row.fresh


def test_claims_together_give_each_caller_what_it_would_have_got_after_the_others() -> None:
    row = sealed(
        fresh=Runs.of((0, 3), (6, 9)),
        returned=(Returned(deliveries=1, runs=Runs.span(4, 4)),),
        delayed=(Delayed(due_us=NOW - 1, runs=Runs.span(5, 5), deliveries=2),),
    )
    wanted = [terms(1), terms(3), terms(2), terms(9), terms(1)]

    together, given = rules.claim_each(row, wanted, ids(), **AT)

    alone, expected = row, []
    for one in wanted:
        alone, leases = rules.claim(alone, one, ids())
        expected.append([(part.delivery_count, part.runs) for part in leases])
    assert expected == [[(part.delivery_count, part.runs) for part in some] for some in given]
    assert alone.unacked == together.unacked
    assert () == given[4]
    # One lease for each delivery count, whoever was given a part of it.
    assert 3 == len(together.leases)
    assert {one.lease_id for one in together.leases} == {
        one.lease_id for some in given for one in some
    }
    assert len(alone.leases) > 3


def test_many_small_claims_of_single_messages_that_came_back_all_get_one() -> None:
    every_other = Runs.from_offsets(range(0, 4 * RUNS_PER_LEASE, 2))
    row = sealed(manifest=every_other, returned=(Returned(deliveries=1, runs=every_other),))

    after, given = rules.claim_each(row, [terms(1)] * every_other.count, ids(), **AT)

    assert [1] * every_other.count == [sum(one.runs.count for one in some) for some in given]
    assert [RUNS_PER_LEASE] * 2 == [len(one.runs.pairs) for one in after.leases]


def test_one_claim_of_many_takes_no_more_runs_than_alone() -> None:
    every_other = Runs.from_offsets(range(0, 4 * RUNS_PER_LEASE, 2))
    row = sealed(manifest=every_other, fresh=every_other)

    wanted = [replace(terms(many), run=UUID(int=9)) for many in (1_000, 1)]
    _, (first, second) = rules.claim_each(row, wanted, ids(), **AT)

    assert RUNS_PER_LEASE == sum(one.runs.count for one in first)
    assert [Runs.span(2 * RUNS_PER_LEASE, 2 * RUNS_PER_LEASE)] == [one.runs for one in second]
