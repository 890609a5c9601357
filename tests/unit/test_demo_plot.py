"""The plot that `make demo` ends with shows each number that was noted, and where."""

from __future__ import annotations

import importlib
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = Path(__file__).with_name("demo-numbers.json")
SVG = "{http://www.w3.org/2000/svg}"
LEGS = ["put into 'flights'", "late ones to 'late-flights'", "table per carrier"]


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "jobs"))
    return importlib.import_module("history")


@pytest.fixture
def noted(history: ModuleType) -> dict[str, list[Any]]:
    """A run of the demo on a busy machine, every fifth look."""
    found = json.loads(NUMBERS.read_text("utf-8"))
    return {
        "looks": [history.Look(**one) for one in found["looks"]],
        "pieces": [history.Piece(**one) for one in found["pieces"]],
    }


def drawn(noted: dict[str, list[Any]], path: Path) -> ET.Element:
    importlib.import_module("plot").draw(noted["looks"], noted["pieces"], path)
    return ET.parse(path).getroot()  # noqa: S314 - ditto


def points(root: ET.Element, series: str) -> list[tuple[float, float]]:
    """The corners of a line or of a bar, as the file has them: y grows downwards."""
    (group,) = (one for one in root.iter(f"{SVG}g") if one.get("id") == series)
    line = group.find(f"{SVG}path")
    assert line is not None
    words = [word for word in line.attrib["d"].split() if word not in {"M", "L", "z"}]
    numbers = [float(word) for word in words]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_depth_and_lag_have_a_point_for_each_look(
    noted: dict[str, list[Any]], tmp_path: Path
) -> None:
    root = drawn(noted, tmp_path / "demo.svg")

    for queue in ("flights", "late-flights"):
        looks = [one for one in noted["looks"] if one.queue == queue]
        for kind, values in (
            ("depth", [one.depth for one in looks]),
            ("lag", [one.lag_s for one in looks]),
        ):
            found = points(root, f"{kind}-{queue}")
            assert len(looks) == len(found), (kind, queue)
            heights = [-y for _, y in found]
            assert_same_shape([one.at_s for one in looks], [x for x, _ in found])
            assert_same_shape(values, heights)


def test_each_write_and_micro_batch_has_a_bar_of_its_rate(
    noted: dict[str, list[Any]], tmp_path: Path
) -> None:
    root = drawn(noted, tmp_path / "demo.svg")

    pieces = noted["pieces"]
    assert LEGS == list(dict.fromkeys(one.leg for one in pieces))
    bars = [points(root, f"rate-{number}") for number in range(len(pieces))]
    begins = [min(x for x, _ in bar) for bar in bars]
    ends = [max(x for x, _ in bar) for bar in bars]
    assert_same_shape(
        [one.begin_s for one in pieces] + [one.end_s for one in pieces], begins + ends
    )
    heights = [max(y for _, y in bar) - min(y for _, y in bar) for bar in bars]
    assert_same_shape([0.0] + [one.rate for one in pieces], [0.0, *heights])


def test_a_micro_batch_is_as_long_as_spark_says(history: ModuleType) -> None:
    progress = {
        "timestamp": "2026-11-24T21:26:17.835Z",
        "numInputRows": 50_000,
        "durationMs": {"addBatch": 3_320, "triggerExecution": 4_000},
    }
    piece = history.Piece.of_progress("late", progress)

    assert (50_000, 12_500) == (piece.messages, piece.rate)
    assert 4.0 == pytest.approx(piece.end_s - piece.begin_s)
    assert 1_795_555_577.835 == pytest.approx(piece.begin_s, abs=1e-3)


@pytest.mark.parametrize(
    ("rates", "warm"), [([7], 7), ([1, 9], 9), ([1, 8, 9], 8.5), ([1, 2, 100, 10, 12], 12)]
)
def test_a_warm_rate_leaves_the_earlier_half_out(
    history: ModuleType, rates: list[int], warm: float
) -> None:
    pieces = [
        history.Piece(leg="late", begin_s=at, end_s=at + 1, messages=rate)
        for at, rate in enumerate(rates)
    ]

    assert warm == history.warm_rate(pieces)


def assert_same_shape(values: list[float], drawn_at: list[float]) -> None:
    """One is the other, moved and stretched."""
    low, high = min(values), max(values)
    first, last = drawn_at[values.index(low)], drawn_at[values.index(high)]
    assert last > first
    expected = [first + (one - low) * (last - first) / (high - low) for one in values]
    assert expected == pytest.approx(drawn_at, abs=0.01)
