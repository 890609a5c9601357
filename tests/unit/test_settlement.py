"""What is asked of deliveries, what a row says to it, and what becomes of the row.

See docs/design/settle.md.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model import settlement as rules
from cassieq_spark.model.bucket import Bucket, Lease, Returned, Status
from cassieq_spark.model.dead import OUT_OF_DELIVERIES, DeadSet
from cassieq_spark.model.expiry import Delayed
from cassieq_spark.model.ids import EMPTY, Runs
from cassieq_spark.model.settlement import (
    Ack,
    Action,
    Asked,
    Extend,
    Judged,
    Reject,
    Release,
    TakeOver,
    Update,
)
from cassieq_spark.store.tables.claims import decode_dead, encode_dead
from tests.fixtures.rows import TEN, ids, sealed

NOW = 1_700_000_000_000_000
ONE, TWO, GONE = UUID(int=1), UUID(int=2), UUID(int=3)
ACK, RELEASE, REJECT = Ack(), Release(), Reject(reason="no such order")
ACTIONS: tuple[Action, ...] = (ACK, RELEASE, REJECT)


def lease(lease_id: UUID, runs: Runs, *, count: int = 1, until_us: int = NOW + 1) -> Lease:
    return Lease(
        lease_id=lease_id, owner="o", run=None, delivery_count=count, runs=runs, until_us=until_us
    )


def carried_out(row: Bucket, asked: Asked) -> Bucket:
    return rules.carry_out(row, rules.judge(row, asked).held, ids(), now_us=NOW)


def test_each_message_goes_its_own_way_and_what_is_not_named_stays() -> None:
    row = sealed(leases=(lease(ONE, Runs.span(0, 7), count=2), lease(TWO, Runs.span(8, 9))))

    after = carried_out(
        row,
        {
            ONE: {
                ACK: Runs.span(0, 1),
                RELEASE: Runs.span(2, 3),
                REJECT: Runs.span(4, 5),
            },
            TWO: {REJECT: Runs.span(8, 8)},
        },
    )

    assert after == sealed(
        changed_us=NOW,
        leases=(lease(ONE, Runs.span(6, 7), count=2), lease(TWO, Runs.span(9, 9))),
        returned=(Returned(deliveries=2, runs=Runs.span(2, 3)),),
        dead=(
            DeadSet(
                set_id=UUID(int=1_000),
                runs=Runs.span(8, 8),
                deliveries=1,
                died_us=NOW,
                reason="no such order",
                is_open=True,
            ),
            DeadSet(
                set_id=UUID(int=1_000),
                runs=Runs.span(4, 5),
                deliveries=2,
                died_us=NOW,
                reason="no such order",
                is_open=True,
            ),
        ),
    )


@pytest.mark.invariant("I4")
def test_the_last_ack_drains_but_not_while_something_is_to_be_moved() -> None:
    row = sealed(leases=(lease(ONE, TEN),))

    assert Status.DRAINED is carried_out(row, {ONE: {ACK: TEN}}).status
    some = {ACK: Runs.span(0, 8), REJECT: Runs.span(9, 9)}
    assert Status.SEALED is carried_out(row, {ONE: some}).status


def test_r14_what_is_rejected_joins_no_set_that_is_closed() -> None:
    """Its mover may have read that one already."""
    old = DeadSet(set_id=UUID(int=5), runs=Runs.span(9, 9), deliveries=1, reason="no such order")
    row = sealed(leases=(lease(ONE, Runs.span(0, 3)),), dead=(old,))

    after = carried_out(row, {ONE: {REJECT: Runs.span(0, 3)}})

    assert [old, UUID(int=1_000)] == [after.dead[0], after.dead[1].set_id]


def test_an_updated_message_dies_with_its_revision_and_an_acked_one_loses_it() -> None:
    row = sealed(leases=(lease(ONE, TEN),), revisions=((1, 77), (2, 88)))

    after = carried_out(row, {ONE: {REJECT: Runs.span(1, 1), ACK: Runs.span(2, 2)}})

    assert ((1, 77),) == after.revisions


def test_all_parts_of_a_delivery_that_was_extended_in_part_are_its_own() -> None:
    parts = (lease(ONE, Runs.span(0, 4)), lease(ONE, Runs.span(5, 9), until_us=NOW + 9))
    row = sealed(leases=parts)

    assert () == carried_out(row, {ONE: {REJECT: TEN}}).leases


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_anothers_delivery_by_now_is_stale(action: Action) -> None:
    row = sealed(leases=(lease(TWO, TEN, count=2),))

    judged = rules.judge(row, {ONE: {action: Runs.span(2, 3)}})

    assert Judged(stale={ONE: Runs.span(2, 3)}) == judged


def test_what_came_back_is_stale_for_an_ack_and_done_for_a_release() -> None:
    row = sealed(
        returned=(Returned(deliveries=1, runs=Runs.span(0, 1)),),
        delayed=(Delayed(due_us=NOW, runs=Runs.span(2, 2), deliveries=1),),
        dead=(DeadSet(set_id=TWO, runs=Runs.span(3, 3)),),
    )
    runs = Runs.span(0, 3)

    assert {ONE: runs} == rules.judge(row, {ONE: {ACK: runs}}).stale
    released = rules.judge(row, {ONE: {RELEASE: runs}})
    assert (Runs.span(0, 2), Runs.span(3, 3)) == (
        released.repeated[RELEASE],
        released.stale[ONE],
    )
    dead = rules.judge(row, {ONE: {REJECT: runs}})
    assert (Runs.span(3, 3), Runs.span(0, 2)) == (dead.repeated[REJECT], dead.stale[ONE])


@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_over_is_acked_and_what_never_was_is_unknown(action: Action) -> None:
    row = sealed(status=Status.DRAINED)

    assert Judged(acked=Runs.span(8, 9), never={ONE: Runs.span(10, 11)}) == rules.judge(
        row, {ONE: {action: Runs.span(8, 11)}}
    )


PLACES = ("fresh", "returned", "delayed", "one", "two", "dead", "acked")
ASKED = (None, *ACTIONS)


@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@given(
    places=st.lists(st.sampled_from(PLACES), min_size=10, max_size=10),
    told=st.lists(
        st.tuples(st.sampled_from(ASKED), st.sampled_from((ONE, GONE))), min_size=10, max_size=10
    ),
)
def test_actions_move_what_their_lease_holds_nothing_else_and_once(
    places: list[str], told: list[tuple[Action | None, UUID]]
) -> None:
    """Against a plain list of places: every message in one place, before and after."""

    def at(place: str) -> Runs:
        return Runs.from_offsets(number for number, where in enumerate(places) if where == place)

    row = sealed(
        fresh=at("fresh"),
        returned=tuple(Returned(deliveries=1, runs=runs) for runs in [at("returned")] if runs),
        delayed=tuple(
            Delayed(due_us=NOW * 2, runs=runs, deliveries=1) for runs in [at("delayed")] if runs
        ),
        leases=tuple(
            lease(lease_id, runs) for lease_id, runs in ((ONE, at("one")), (TWO, at("two"))) if runs
        ),
        dead=tuple(DeadSet(set_id=TWO, runs=runs) for runs in [at("dead")] if runs),
    )
    asked: dict[UUID, dict[Action, Runs]] = {}
    for number, (action, lease_id) in enumerate(told):
        if action is not None:
            by_action = asked.setdefault(lease_id, {})
            by_action[action] = by_action.get(action, EMPTY) | Runs.span(number, number)

    after = carried_out(row, asked)
    again = carried_out(after, asked)

    goes_to = {ACK: "acked", RELEASE: "returned", REJECT: "dead"}
    expected = [
        goes_to[action] if place == "one" and lease_id == ONE and action else place
        for place, (action, lease_id) in zip(places, told, strict=True)
    ]
    assert expected == [_place(after, number) for number in range(10)]
    assert after == again


def _place(row: Bucket, number: int) -> str:
    parts = {
        "fresh": [row.fresh],
        "returned": [part.runs for part in row.returned],
        "delayed": [part.runs for part in row.delayed],
        "one": [part.runs for part in row.leases if part.lease_id == ONE],
        "two": [part.runs for part in row.leases if part.lease_id == TWO],
        "dead": [part.runs for part in row.dead],
    }
    found = [place for place, all_runs in parts.items() for runs in all_runs if number in runs]
    assert len(found) <= 1
    return found[0] if found else "acked"


def test_why_a_set_died_is_stored_and_whether_it_is_open() -> None:
    rejected = DeadSet(set_id=ONE, runs=TEN, deliveries=2, died_us=NOW, reason="no such order")
    ended = DeadSet(set_id=TWO, runs=TEN, deliveries=5, died_us=NOW, is_open=True)

    encoded = encode_dead((rejected, ended))

    assert ["no such order", OUT_OF_DELIVERIES] == encoded[1]
    assert (rejected, ended) == decode_dead(encoded)


def run_of(row: Bucket, lease_id: UUID) -> UUID | None:
    (found,) = (lease.run for lease in row.leases if lease.lease_id == lease_id)
    return found


@pytest.mark.invariant("I3")
def test_r17_a_lease_is_extended_for_its_run_only_and_taken_over_from_any() -> None:
    old, new = UUID(int=7), UUID(int=8)
    row = sealed(leases=(replace(lease(ONE, TEN), run=old),))
    later = Extend(visibility_us=9, of_run=new)

    assert Judged(stale={ONE: TEN}) == rules.judge(row, {ONE: {later: TEN}})
    assert Judged() == rules.judge(row, {ONE: {later: None}, GONE: {later: None}})

    after = carried_out(row, {ONE: {TakeOver(run=new, visibility_us=5): None}})
    assert (new, NOW + 5) == (run_of(after, ONE), after.leases[0].until_us)
    assert NOW + 9 == carried_out(after, {ONE: {later: None}}).leases[0].until_us


@pytest.mark.parametrize("has_body", [True, False])
def test_an_update_takes_effect_once_and_never_on_what_a_batch_holds(has_body: bool) -> None:
    action = Update(new_lease_id=TWO, revision=77 if has_body else None, visibility_us=9)
    asked = {ONE: {action: Runs.span(3, 3)}}
    row = sealed(leases=(lease(ONE, TEN),))

    after = carried_out(row, asked)

    assert [Runs.of((0, 2), (4, 9)), Runs.span(3, 3)] == [one.runs for one in after.leases]
    assert ((3, 77),) * has_body == after.revisions
    assert Judged(repeated={action: Runs.span(3, 3)}) == rules.judge(after, asked)
    of_a_batch = sealed(leases=(replace(lease(ONE, TEN), run=GONE),))
    assert {ONE: Runs.span(3, 3)} == rules.judge(of_a_batch, asked).stale


def test_an_update_that_gives_back_leaves_no_lease() -> None:
    action = Update(new_lease_id=TWO, gives_back=True)
    after = carried_out(
        sealed(leases=(lease(ONE, Runs.span(3, 3)),)), {ONE: {action: Runs.span(3, 3)}}
    )
    assert ((), [Runs.span(3, 3)]) == (after.leases, [part.runs for part in after.returned])


def test_only_what_comes_back_by_time_needs_a_hint() -> None:
    row = sealed(leases=(lease(ONE, TEN),))
    one = Runs.span(0, 0)
    timed: list[Action] = [
        RELEASE,
        Extend(visibility_us=0),
        TakeOver(run=GONE, visibility_us=0),
        Update(new_lease_id=TWO),
    ]
    for action in (*timed, ACK, REJECT):
        expected = one if action in timed else EMPTY
        assert expected == rules.judge(row, {ONE: {action: one}}).timed
