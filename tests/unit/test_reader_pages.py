"""Pages and public docstrings are for users: no marks of the design, and no names of tests."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import cassieq_spark as cassieq

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("guides/*.md"),
    *(ROOT / "docs").glob("operations/*.md"),
    *(ROOT / "docs").glob("reference/*.md"),
    *(ROOT / "docs" / name for name in ("getting-started.md", "installing.md", "index.md")),
]
INSIDE = re.compile(r"\[[PRTU]\d+(?:, [PRTU]\d+)*\]|\(I\d+(?:, I\d+)*\)|\btest_\w+|tests/")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_for_users_names_no_mark_and_no_test(page: Path) -> None:
    assert [] == INSIDE.findall(page.read_text("utf-8"))


@pytest.mark.parametrize("name", cassieq.__all__)
def test_a_public_docstring_names_no_mark_and_no_test(name: str) -> None:
    found = getattr(cassieq, name)
    members = (
        [one for key, one in vars(found).items() if not key.startswith("_")]
        if (inspect.isclass(found))
        else []
    )
    said = [inspect.getdoc(one) or "" for one in (found, *members)]
    assert [] == INSIDE.findall("\n".join(said))
