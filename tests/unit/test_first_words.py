"""Docstrings begin with a verb or a noun: a label such as "What ..." leaves the subject to guess.

The documentation of a constant or of a field, a text right below its assignment, counts as well.
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cassieq_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(cassieq_spark.__file__).parent
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LABEL = re.compile(
    r"\W*(anything|as|at|everything|how|if|in|its?|none|nothing|of|on|one|others|so|some|something"
    r"|these|this|those|what|whatever|when|where|which|who|whoever|whose|why|with)\b",
    re.IGNORECASE,
)


def docs(tree: ast.AST) -> Iterator[str]:
    """Yield the docstrings of modules, classes and functions, and those of assigned names."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            if text := ast.get_docstring(node):
                yield text
            for before, after in pairwise(node.body):
                if isinstance(before, ast.Assign | ast.AnnAssign) and (text := _text(after)):
                    yield text


def _text(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            return text
    return ""


def labels(tree: ast.AST) -> list[str]:
    lines = [text.strip().split("\n")[0] for text in docs(tree)]
    return [line for line in lines if LABEL.match(line)]


def unended(tree: ast.AST) -> list[str]:
    """Return the first lines of docstrings that are cut in the middle of a sentence."""
    texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    lines = [text.split("\n")[0] for text in texts if text]
    return [line for line in lines if not line.endswith(".")]


@pytest.mark.parametrize(
    "module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_a_docstring_begins_with_a_verb_or_a_noun_and_its_first_line_is_whole(module: Path) -> None:
    tree = ast.parse(module.read_text("utf-8"))

    assert [] == labels(tree)
    assert [] == unended(tree)


def test_labels_and_lines_that_are_cut_are_noticed() -> None:
    tree = ast.parse(
        '"""What is in here."""\n'
        "LIMIT = 1\n"
        '"""How many there are."""\n'
        "class Limit:\n"
        '    """The limit of\n\n    what follows."""\n'
        "    most: int\n"
        '    """Of one account."""\n'
        "    async def most(self) -> int:\n"
        '        """Return the most."""\n'
    )

    assert ["How many there are.", "Of one account.", "What is in here."] == sorted(labels(tree))
    assert ["The limit of"] == unended(tree)
