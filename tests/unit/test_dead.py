"""Dead sets: filled while they are open, moved when they are closed, few in a row (ADR 19)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model import dead as rules
from cassieq_spark.model.bucket import without_dead
from cassieq_spark.model.dead import DeadSet
from cassieq_spark.model.ids import QueueName, Runs
from cassieq_spark.model.row_limits import (
    CLOSED_SETS,
    FURTHER_REASONS,
    REASONS_BYTES,
    REDRIVEN_SETS,
)
from cassieq_spark.store.tables import claims
from tests.fixtures.rows import ids, sealed

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


def test_each_message_of_an_entry_has_its_own_time() -> None:
    dead: rules.Dead = ()
    for at in (3, 1, 7, 5):  # the clocks of clients differ by a little
        dead = died(dead, at, "a")
    (entry,) = rules.add_dead(
        dead, [(1, Runs.span(8, 9))], ids(), reason="a", now_us=dead[0].died_us
    )
    assert NOW + 7 == entry.died_us
    assert [
        (NOW + 1, Runs.span(1, 1)),
        (NOW + 3, Runs.span(3, 3)),
        (NOW + 5, Runs.span(5, 5)),
        (NOW + 7, Runs.span(7, 9)),
    ] == list(entry.deaths())
    assert Runs.of((1, 1), (3, 3), (5, 5), (7, 9)) == entry.runs


@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.sampled_from("abc")), min_size=1, max_size=60),
    st.integers(0, 12),
)
def test_t2_times_above_the_budget_of_a_row_are_rounded_up_by_a_small_share(
    deaths: list[tuple[int, str]], limit: int
) -> None:
    """So a row has few of them, and no time says that a message died before it did."""
    dead: rules.Dead = ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "TIMES_OF_DEATH", limit or 1)
        for at, (us, reason) in enumerate(deaths):
            dead = rules.add_dead(
                dead, [(1, Runs.span(at, at))], ids(), reason=reason, now_us=NOW + us
            )
    assert sum(len(one.earlier) for one in dead) <= (limit or 1)
    shown = {at: us - NOW for one in dead for us, runs in one.deaths() for at in runs.offsets()}
    assert shown.keys() == set(range(len(deaths)))
    span = max(us for us, _ in deaths) - min(us for us, _ in deaths)
    of_one = len({reason for _, reason in deaths}) == 1
    for at, (us, _) in enumerate(deaths):
        assert us <= shown[at]
        if of_one:
            assert shown[at] - us <= max(0, 8 * span / (limit or 1))


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from("ab")), max_size=20), st.booleans()
)
def test_a_row_keeps_the_times_and_an_older_release_reads_the_last(
    deaths: list[tuple[int, str]], is_closed: bool
) -> None:
    dead: rules.Dead = ()
    for at, (us, reason) in enumerate(deaths):
        span = Runs.span(at, at)
        dead = rules.add_dead(dead, [(1, span)], ids(), reason=reason, now_us=NOW + us)
    row = sealed(manifest=Runs.span(0, 99), dead=rules.closed(dead) if is_closed else dead)
    encoded = claims.encode(row)

    assert row == replace(row, **claims.decode(encoded))

    parts = msgpack.unpackb(encoded)
    parts.pop("deaths", None)  # it knows no such part, and leaves it out of what it writes
    seen = replace(row, **claims.decode(msgpack.packb(parts)))
    assert tuple(replace(one, earlier=()) for one in row.dead) == seen.dead


def test_t2_a_message_that_died_by_itself_takes_no_more_than_its_share_of_a_row() -> None:
    count = 1_000
    dead: rules.Dead = ()
    for at in range(count):
        span = Runs.span(2 * at, 2 * at)
        dead = rules.add_dead(dead, [(1, span)], ids(), reason="a", now_us=NOW + 10**10 * at)
    empty, full = (
        len(claims.encode(sealed(manifest=Runs.span(0, 2 * count), dead=some)))
        for some in ((), dead)
    )
    assert full - empty < 35 * count


def test_r14_a_mover_takes_closed_sets_only() -> None:
    """Entries of one id are one set; what is open may grow yet."""
    dead = died(died((), 0, "a"), 1, "b")
    assert [] == rules.movable(dead)
    assert [rules.closed(dead)] == rules.movable(rules.closed(dead))


def test_r14_a_set_that_was_moved_is_taken_out_alone() -> None:
    new_id = ids()
    moved = rules.closed(rules.add_dead((), [(1, Runs.span(0, 4))], new_id, reason="a", now_us=NOW))
    both = rules.add_dead(moved, [(1, Runs.span(5, 9))], new_id, reason="a", now_us=NOW)
    row = without_dead(sealed(dead=both), moved[0].set_id, now_us=NOW)
    assert both[1:] == row.dead
    assert Runs.span(5, 9) == row.unacked


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
