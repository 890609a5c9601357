"""What a storm can be made red with still stands in the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storm.processes import ROOT
from tests.storm.weakened import OURS, copy_without, rule


@pytest.mark.parametrize("mark", [one.mark for one in OURS])
def test_a_rule_is_where_it_was_and_a_copy_is_without_it(mark: str, tmp_path: Path) -> None:
    one = rule(mark)
    copy = copy_without(one, tmp_path)
    source = (ROOT / one.path).read_text("utf-8")
    assert one.applied_to(source) == (copy / one.path).read_text("utf-8") != source
    assert (copy / "tests" / "children" / "producer.py").exists()
