"""Each rule is of one class, and the page shows the second one."""

from __future__ import annotations

from tests.ablations import ABLATIONS, ROOT
from tests.simulation.classes import OUTSIDE, table, why_outside


def test_each_name_stands_for_one_rule() -> None:
    named = [one for rules in OUTSIDE.values() for one in rules]
    assert len(named) == len(set(named)) == sum(bool(why_outside(one)) for one in ABLATIONS)


def test_the_page_shows_the_second_class() -> None:
    """Else: write what `table` returns between the markers."""
    page = (ROOT / "docs/design/simulation.md").read_text("utf-8")
    assert f"<!-- classes:begin -->\n{table()}\n<!-- classes:end -->" in page
