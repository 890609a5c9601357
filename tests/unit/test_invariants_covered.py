"""Each invariant of docs/invariants.md has a test that carries its mark."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
NAMED = re.findall(r"^## (I\d+) ", (TESTS.parent / "docs/invariants.md").read_text(), re.M)


def marked(tree: ast.AST) -> set[str]:
    """The arguments of every ``pytest.mark.invariant(...)`` in a module."""
    return {
        argument.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.invariant"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


MARKED = set().union(
    *(marked(ast.parse(path.read_text())) for path in sorted(TESTS.rglob("test_*.py")))
)


def test_the_eleven_invariants_are_documented() -> None:
    assert [f"I{number}" for number in range(1, 12)] == NAMED


@pytest.mark.parametrize("name", NAMED)
def test_an_invariant_has_a_test(name: str) -> None:
    assert name in MARKED


def test_no_test_names_an_invariant_that_is_not_there() -> None:
    assert set() == MARKED - set(NAMED)
