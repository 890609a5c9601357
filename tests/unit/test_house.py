"""The house stays small and names things in one way: what every file of the package keeps to."""

from __future__ import annotations

import ast
from pathlib import Path

import cassieq_spark

LIMIT_LINES = 600
PACKAGE = Path(cassieq_spark.__file__).parent


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text("utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }

    assert len(lengths) > 50
    assert {} == {name: lines for name, lines in lengths.items() if lines > LIMIT_LINES}


def test_no_event_names_a_bucket_without_its_lane() -> None:
    """Each lane counts its buckets from 0: `Lane.as_fields` says which is meant."""
    named: list[str] = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "event":
                keys = {keyword.arg for keyword in node.keywords}
                if "bucket" in keys:
                    named.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")

    assert [] == named
