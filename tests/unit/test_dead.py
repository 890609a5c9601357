"""Dead sets: filled while they are open, moved when they are closed, few in a row (ADR 19)."""

from __future__ import annotations

from uuid import UUID

from cassieq_spark.model import dead as rules
from cassieq_spark.model.dead import DeadSet
from cassieq_spark.model.ids import QueueName, Runs
from cassieq_spark.model.row_limits import (
    CLOSED_SETS,
    FURTHER_REASONS,
    REASONS_BYTES,
    REDRIVEN_SETS,
)
from tests.fixtures.rows import ids

NOW = 1_700_000_000_000_000


def died(dead: rules.Dead, at: int, reason: str, deliveries: int = 1) -> rules.Dead:
    new_id = ids()
    return rules.add_dead(
        dead, [(deliveries, Runs.span(at, at))], new_id, reason=reason, now_us=NOW + at
    )


def test_what_died_for_one_reason_after_as_many_deliveries_is_one_entry() -> None:
    dead: rules.Dead = ()
    for at, (reason, deliveries) in enumerate([("a", 1), ("b", 1), ("a", 1), ("a", 2)]):
        dead = died(dead, at, reason, deliveries)

    assert [
        ("a", 1, Runs.of((0, 0), (2, 2)), NOW + 2),
        ("b", 1, Runs.span(1, 1), NOW + 1),
        ("a", 2, Runs.span(3, 3), NOW + 3),
    ] == [(one.reason, one.deliveries, one.runs, one.died_us) for one in dead]
    assert {(UUID(int=1_000), True)} == {(one.set_id, one.is_open) for one in dead}


def test_r14_a_mover_takes_closed_sets_only() -> None:
    """Entries of one id are one set; what is open may grow yet."""
    dead = died(died((), 0, "a"), 1, "b")
    assert [] == rules.movable(dead)
    assert [rules.closed(dead)] == rules.movable(rules.closed(dead))


def test_t2_reasons_above_the_budget_of_a_row_are_joined() -> None:
    """One that the row has already costs nothing more."""
    dead: rules.Dead = ()
    for at in range(400):
        dead = died(dead, at, f"{at}".ljust(200, "\N{SNAKE}"))
    reasons = {one.reason for one in dead}
    assert FURTHER_REASONS in reasons
    words = sum(len(one.encode()) for one in reasons - {FURTHER_REASONS})
    assert REASONS_BYTES - 1_000 < words <= REASONS_BYTES
    again = died(dead, 999, "0".ljust(200, "\N{SNAKE}"))
    assert Runs.of((0, 0), (999, 999)) == again[0].runs


def test_t2_closed_sets_that_cannot_move_do_not_become_more() -> None:
    """As where the dead-letter queue is gone: what dies then is in one set, and waits with them."""
    dead: rules.Dead = ()
    for at in range(CLOSED_SETS):
        new_id = UUID(int=at + 1)
        entry = DeadSet(set_id=new_id, runs=Runs.span(at, at), is_open=True)
        assert rules.may_close((*dead, entry))
        dead = rules.closed((*dead, entry))
    for at in range(CLOSED_SETS, 3 * CLOSED_SETS):
        dead = died(dead, at, "too late")
        assert not rules.may_close(dead)
    assert CLOSED_SETS + 1 == len(dead)


def test_r6_redriven_sets_wait_for_those_before_them() -> None:
    dead = tuple(
        DeadSet(set_id=UUID(int=at + 1), runs=Runs.span(at, at), target=QueueName("q"))
        for at in range(REDRIVEN_SETS - 1)
    )
    assert rules.may_redrive(dead, 1)
    assert not rules.may_redrive(dead, 2)
