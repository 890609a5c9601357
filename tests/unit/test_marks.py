"""Every mark of the design has a rule and a test that fails without it, or a reason why not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.ablations import ABLATIONS, ROOT, Ablation, main, table

PAGE = (ROOT / "docs/marks.md").read_text(encoding="utf-8")
BUILT = {one.mark for one in ABLATIONS}
OF_LANES = {
    "lanes",
    "U2",
    "U3",
    "U4",
    "U5",
    "U6",
    "U7",
    "U8",
    "U9",
    "U12",
    "U13",
    "U14",
    "U15",
    "U16",
    "U18",
}
NOT_BUILT = set(re.findall(r"^\| ([PRT]\d+) \|", PAGE.partition("## Not built")[2], re.MULTILINE))


def marks_in(path: Path) -> set[str]:
    """What it cites: [P1], or several as in [P18, R21]."""
    cited = re.findall(r"\[([PRTU]\d+(?:, [PRTU]\d+)*)\]", path.read_text(encoding="utf-8"))
    return {mark for group in cited for mark in group.split(", ")}


@cache
def names_in(path: Path) -> frozenset[str]:
    """The functions of a test module."""
    return frozenset(
        re.findall(r"^ *(?:async )?def (\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    )


@pytest.mark.parametrize("one", ABLATIONS, ids=lambda one: f"{one.mark}: {one.rule}")
def test_a_rule_can_be_taken_away_and_its_tests_are_there(one: Ablation) -> None:
    source = (ROOT / one.path).read_text(encoding="utf-8")
    without = one.applied_to(source)
    assert source != without
    ast.parse(without)
    assert one.tests
    for test in one.tests:
        path, _, name = test.partition("::")
        assert name in names_in(ROOT / path), test


@pytest.mark.parametrize(("old", "times"), [("not there", 0), ("twice ", 2)])
def test_what_stands_nowhere_or_twice_is_no_rule(old: str, times: int) -> None:
    one = Ablation(mark="P1", rule="", old=old, new="", tests=())
    with pytest.raises(ValueError, match=f"P1: {times} times in its module"):
        one.applied_to("twice twice ")


@pytest.mark.parametrize("old", ["no such words", "from __future__ import annotations"])
def test_words_of_no_module_or_of_several_name_none(old: str) -> None:
    with pytest.raises(ValueError, match=r"P1: in \d+ modules, name one"):
        print(Ablation(mark="P1", rule="", old=old, new="", tests=()).path)  # noqa: T201


def test_a_rule_is_found_however_it_is_laid_out() -> None:
    one = Ablation(mark="P1", rule="", old="if a:\n    b()\n", new="if a:\n    c()\n", tests=())
    assert "x\n    if a:\n        c()\ny\n" == one.applied_to("x\n    if a:\n            b()\ny\n")


def test_a_mark_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["P1", "P99"])
    assert "no ablation of P99" in capsys.readouterr().err


def test_readers_are_told_what_is_tested() -> None:
    """Else: ``python -m tests.ablations --table``, and between the markers with it."""
    assert f"<!-- ablations:begin -->\n{table()}\n<!-- ablations:end -->" in PAGE


def test_every_mark_of_the_design_is_built_or_says_what_builds_it() -> None:
    reviews = {"P": 29, "R": 26, "T": 24}
    known = {f"{of}{at}" for of, last in reviews.items() for at in range(1, last + 1)}
    known |= OF_LANES
    assert known == BUILT | NOT_BUILT
    chapters = list((ROOT / "docs/design").glob("*.md"))
    assert len(chapters) > 10
    assert set() == set().union(*(marks_in(path) for path in chapters)) - known


def test_the_tests_that_the_second_table_names_are_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    there = set().union(*(names_in(path) for path in (ROOT / "tests").rglob("test_*.py")))
    assert named
    assert set() == named - there


def test_a_mark_that_the_code_cites_is_in_one_of_the_tables() -> None:
    marks = set().union(*(marks_in(path) for path in (ROOT / "cassieq_spark").rglob("*.py")))
    assert len(marks) > 40
    assert set() == marks - BUILT - NOT_BUILT
