"""Rows that are removed, and born again by copies of what made them: every interleaving of a few
movers, creators, deleters and writers keeps I1, I7, I9 and I10 (explicit states).

`moves`, `lives` and `fixed` say what is kept out. Each negative control takes one rule away, and
must be caught by the invariant that rests on it.
"""

# ruff: noqa: T201 - how many states there were is the result

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from tests.explicit import fixed, lives, moves
from tests.explicit.explore import Explored, explore
from tests.explicit.fixed import FIRST, SECOND, FixedLanes
from tests.explicit.lives import Lives
from tests.explicit.moves import Moves

if TYPE_CHECKING:
    from tests.explicit.lwt import State

LIMIT = 200_000
FEWEST = 4_000
"""A world with fewer states has lost some of its steps."""

pytestmark = [
    pytest.mark.invariant("I1"),
    pytest.mark.invariant("I7"),
    pytest.mark.invariant("I9"),
    pytest.mark.invariant("I10"),
]

World = Moves | Lives | FixedLanes


def search(world: World) -> Explored[State]:
    explored = explore(world, limit=LIMIT)
    print(explored)
    return explored


def moved(**size: object) -> Moves:
    rules = {name: size.pop(name) for name in [*size] if hasattr(moves.Rules(), name)}
    return Moves(rules=moves.Rules(**rules), **size)  # type: ignore[arg-type]


def lived(*roles: str, **size: object) -> Lives:
    rules = {name: size.pop(name) for name in [*size] if hasattr(lives.Rules(), name)}
    return Lives(roles=roles, rules=lives.Rules(**rules), **size)  # type: ignore[arg-type]


def laned(*puts: int, **size: object) -> FixedLanes:
    rules = {name: size.pop(name) for name in [*size] if hasattr(fixed.Rules(), name)}
    return FixedLanes(puts=puts, rules=fixed.Rules(**rules), **size)  # type: ignore[arg-type]


PUT = ("create", "delete", "open")
RACE = ("create", "create", "delete", "open")
TWICE = ("create", "delete", "delete", "open")
COMMIT = ("create", "create", "delete", "task")
MOVE = ("create", "create", "delete", "move")

WORLDS: Mapping[str, World] = {
    # The third mover comes when all is over, and makes the row again.
    "three movers": moved(tries=1),
    # A mover's INSERT, its take-over, a removal: two of them were sent twice, and land whenever.
    "two movers, two answers lost": moved(movers=2, lost=2, removals=2),
    "create, put, delete": lived(*PUT, lost=2, tries=2),
    "two creators of one name": lived(*RACE, is_raced=True),
    "two deleters beside a put": lived(*TWICE, begins=True, lost=0),
    "a sink's commit beside delete and create": lived(*COMMIT, begins=True),
    "a mover beside delete and create": lived(*MOVE, begins=True),
    "a queue of two lanes is given up, put into and deleted": laned(SECOND, deletes=2, lost=2),
    "a queue of two lanes that is given up has two producers": laned(SECOND, SECOND, lost=2),
    "a queue of two lanes that is given up is used by both": laned(FIRST, SECOND, deletes=2),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
def test_no_interleaving_breaks_an_invariant(world: World) -> None:
    explored = search(world)
    assert explored.trace is None, str(explored)
    assert explored.is_complete, str(explored)
    assert FEWEST <= explored.states, str(explored)


def test_t3_what_a_mover_only_read_holds_as_long_as_rows_rest() -> None:
    """While nothing is on its way and nobody at work when a row is removed, and not beyond that."""
    explored = search(moved(tries=1, takes_the_row=False, rests=True))
    assert (None, True) == (explored.trace, explored.is_complete), str(explored)


# --- negative controls: one rule less, and what notices ------------------------------------------

CONTROLS: Mapping[str, tuple[World, str, str]] = {
    "a mover commits on a row that it has only read [T3]": (
        *(moved(movers=2, takes_the_row=False), "I7"),
        "M1 rolls forward",
    ),
    "a mover commits on a row of which a copy is on its way [T3]": (
        *(moved(movers=2, writes_it_once=False), "I7"),
        "M0 rolls forward",
    ),
    "a mover tries its commit on another row [T3]": (
        *(moved(tries=1, lost=0, commits_on_that=False), "I7"),
        "M0 rolls forward",
    ),
    "a mover looks before it has its row [P24]": (
        *(moved(movers=2, lost=0, looks_after=False), "I7"),
        "M1 rolls forward",
    ),
    "the row of a move goes while its set is there": (
        *(moved(movers=2, lost=0, removes_when_gone=False), "I7"),
        "M1 rolls forward",
    ),
    "a set is taken out, and its row removed, before its copy is visible [R14]": (
        *(
            moved(movers=2, lost=0, rolls_before_taking_out=False, rolls_before_removal=False),
            "I1",
        ),
        "R's removal is applied",
    ),
    "an active row over a dead lane is a queue [T14]": (
        *(lived(*PUT, judges_by_low=False), "I10"),
        "create0's insert is applied",
    ),
    "who lost a name keeps the lane [T14]": (
        *(lived(*RACE, is_raced=True, gives_up=False), "G3"),
        "a copy of create0's insert lands",
    ),
    "who lost a name ends a lane that is in use [T14]": (
        *(lived(*RACE, is_raced=True, closes_unused=False), "I1"),
        "create0 raises L of its lane",
    ),
    "a put does not read L [R25]": (
        *(lived(*PUT, put_reads_low=False), "I1"),
        "open2 is acknowledged",
    ),
    "nobody notes where the ids end [T15]": (
        *(lived(*TWICE, begins=True, lost=0, notes_end=False), "I9"),
        "removal is applied",
    ),
    "the monoton row goes whatever was reserved since [T15]": (
        *(lived(*TWICE, begins=True, lost=0, removes_as_read=False), "I9"),
        "removal is applied",
    ),
    "the pointers are read before the monoton row [T15]": (
        *(lived(*TWICE, begins=True, lost=0, reads_row_first=False), "I9"),
        "removal is applied",
    ),
    "a batch is committed into the queue that has the name now [T6]": (
        *(lived(*COMMIT, begins=True, refuses_other_lane=False), "I7"),
        "task3 has succeeded",
    ),
    "a committer does not read L after its CAS [T6]": (
        *(lived(*COMMIT, begins=True, commit_reads_low=False), "I7"),
        "task3 has succeeded",
    ),
    "a mover does not read L before it takes the set out": (
        *(lived(*MOVE, begins=True, move_reads_low=False), "I1"),
        "move3 takes the set out",
    ),
    "a second lane is used before the first lane's row has changed (ADR 24)": (
        *(laned(SECOND, touches_first=False), "I1"),
        "put0 is acknowledged",
    ),
    "whoever changed that row does not read what became of it (ADR 24)": (
        *(laned(SECOND, reads_again=False), "I1"),
        "put0 is acknowledged",
    ),
    "nor whether it was the row of a lane that has ended (ADR 24)": (
        *(laned(SECOND, lost=2, reads_low=False), "I1"),
        "put0 is acknowledged",
    ),
    "who gives a queue up closes another lane before the first (ADR 24)": (
        *(laned(SECOND, closes_first=False), "I10"),
        "a copy of creator's insert lands",
    ),
    "and another lane though the first was in use (ADR 24)": (
        *(laned(SECOND, asks_first=False), "I10"),
        "creator's closing is applied",
    ),
    "and raises L of a lane that it has not closed (ADR 24)": (
        *(laned(SECOND, closes_before_raising=False), "I1"),
        "put0 is acknowledged",
    ),
}


@pytest.mark.parametrize(("world", "invariant", "last"), CONTROLS.values(), ids=CONTROLS.keys())
def test_a_rule_that_is_taken_away_is_missed(world: World, invariant: str, last: str) -> None:
    trace = search(world).trace

    assert trace is not None
    assert invariant == trace.invariant.partition(":")[0], str(trace)
    assert last in trace.steps[-1], str(trace)
