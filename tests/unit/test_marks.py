"""Every mark of the design has a rule and a test that misses it, or is in the list of the rest."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.ablations import ABLATIONS, ROOT, Ablation

MARK = re.compile(r"\[([PR]\d+)\b")
ROW = re.compile(r"^\| ([PR]\d+) \|", re.MULTILINE)
BUILT, REST = (
    set(ROW.findall(part))
    for part in (ROOT / "docs/marks.md").read_text(encoding="utf-8").split("## Not to be")
)


def names_in(path: Path) -> set[str]:
    """The functions of a test module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("one", ABLATIONS, ids=lambda one: f"{one.mark}-{Path(one.path).stem}")
def test_a_rule_is_where_it_was_and_so_are_its_tests(one: Ablation) -> None:
    assert 1 == (ROOT / one.path).read_text(encoding="utf-8").count(one.old)
    assert one.old != one.new
    for test in one.tests:
        path, _, name = test.partition("::")
        assert name in names_in(ROOT / path)


def test_what_is_said_to_be_built_can_be_taken_away() -> None:
    assert {one.mark for one in ABLATIONS} == BUILT


def test_every_mark_of_the_design_is_in_one_of_the_lists() -> None:
    design = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    missing = set(MARK.findall(design)) - BUILT - REST
    assert set() == missing
    assert set() == BUILT & REST


def test_a_mark_in_the_code_is_built_or_says_why_not() -> None:
    marks = {
        mark
        for path in (ROOT / "cassieq_spark").rglob("*.py")
        for mark in MARK.findall(path.read_text(encoding="utf-8"))
    }
    assert set() == marks - BUILT - REST
