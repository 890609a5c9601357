"""Two runs of a benchmark side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bench", reason="the benchmarks are not in a source distribution")
from bench.compare import Figure, compare, figures

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


def run(rate: float, **more: Any) -> dict[str, Any]:
    spread = {"median": rate, "min": rate * 0.9, "max": rate * 1.1}
    return {
        "put": {"messages_per_s": spread, "samples_s": [1.0, 2.0], "lwts": 0.5},
        "command": "python -m bench.some --smoke",
        "machine": {"cores": 2},
        **more,
    }


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_result_that_is_kept_has_figures_and_equals_itself(path: Path) -> None:
    found = json.loads(path.read_text("utf-8"))
    named = dict(figures(found))
    assert len(named) >= 3
    lines = compare(found, found)
    assert len(named) + 2 == len(lines)
    assert not any("apart" in line for line in lines)


def test_only_spreads_that_do_not_touch_are_apart() -> None:
    slow, same, fast = run(100.0), run(110.0), run(200.0)
    assert " 1.10 |  |" in compare(slow, same)[2]
    assert (
        "| 100.0 (90.0 to 110.0) | 200.0 (180.0 to 220.0) | 2.00 | apart |"
        in compare(slow, fast)[2]
    )
    assert not Figure(1, 0, 2).is_apart(Figure(2, 2, 3))
