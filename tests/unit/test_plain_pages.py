"""Pages and docstrings for users have no marks of the design in them, and name no tests."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tests.fixtures.public import offered

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs" / name for name in ("index.md", "getting-started.md", "installing.md")),
        *(ROOT / "docs" / "guides").glob("*.md"),
        *(ROOT / "docs" / "operations").glob("*.md"),
        *(ROOT / "docs" / "reference").glob("*.md"),
    ]
)
INSIDE = re.compile(
    r"\[[PRTUG]\d+(?:, [PRTUG]\d+)*\]|\([IG]\d+(?:, [IG]\d+)*\)|\[ADR \d+\](?!\()"
    r"|\btest_\w+|\btests/\w+"
)
SAMPLE = re.compile(r"^```python.*?^```", re.DOTALL | re.MULTILINE)


def inside_words(text: str) -> list[str]:
    return [found[0] for found in INSIDE.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_for_users_has_no_mark_and_names_no_test(page: Path) -> None:
    # A user's own test may stand in a sample.
    prose = SAMPLE.sub("", page.read_text("utf-8"))
    assert [] == inside_words(prose)


@pytest.mark.parametrize("name", offered())
def test_a_public_docstring_has_no_mark_and_names_no_test(name: str) -> None:
    shown = offered()[name]
    members = [] if not inspect.isclass(shown) else [one for one in dir(shown) if one[0] != "_"]
    texts = {name: inspect.getdoc(shown)}
    texts |= {one: inspect.getdoc(getattr(shown, one, None)) for one in members}
    assert {} == {one: words for one, text in texts.items() if (words := inside_words(text or ""))}
