"""The pictures of the guides show what the rules say."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from cassieq_spark.model.lanes import shard_of
from tests.fixtures import scripts

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"

pictures = scripts.load("pictures")


def test_lanes_are_numbered_as_they_are_asked_and_the_right_ones_are_taken() -> None:
    drawn = ElementTree.fromstring(pictures.lanes())  # noqa: S314 - our own
    cells = drawn.findall(f"{SVG}rect")
    columns = sorted({int(cell.attrib["x"]) for cell in cells})
    rows = sorted({int(cell.attrib["y"]) for cell in cells})
    assert (6, 3) == (len(columns), len(rows))
    # What is due comes first in its class, then the shards: as the cells are read.
    assert cells == sorted(cells, key=lambda cell: (int(cell.attrib["y"]), int(cell.attrib["x"])))
    taken = {
        (rows.index(int(cell.attrib["y"])), columns.index(int(cell.attrib["x"])))
        for cell in cells
        if "taken" in cell.attrib["class"]
    }
    keyed = 2 + shard_of("customer 7", 4)
    assert {(0, 4), (1, keyed), (2, 1)} == taken
