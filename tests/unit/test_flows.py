"""The pictures of data flow: each way joins two boxes, and no two boxes are at one place."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.fixtures import scripts

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"

flows = scripts.load("flows")


@pytest.mark.parametrize("path", flows.FLOWS)
def test_a_picture_shows_each_box_and_way_once(path: str) -> None:
    flow = flows.FLOWS[path]
    drawn = ElementTree.fromstring(flows.draw(flow))  # noqa: S314 - our own
    boxes = drawn.findall(f"{SVG}rect")

    assert len(flow.boxes) == len(boxes)
    assert len(boxes) == len({(box.attrib["x"], box.attrib["y"]) for box in boxes})
    assert len(flow.ways) == len(drawn.findall(f"{SVG}path[@class='way']"))
    assert {box.kind for box in flow.boxes.values()} <= {"queue", "work", "other"}
    pages = (ROOT / path).parent.glob("*.md")
    assert any(f"({Path(path).name})" in page.read_text("utf-8") for page in pages)
