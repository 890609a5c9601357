"""Draws the pictures of the guides, by the rules of the code; `generate.py` writes them."""

from __future__ import annotations

from html import escape
from typing import Final, NamedTuple
from uuid import UUID

from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.lanes import DueLane, Fixed, shard_of

PRIORITIES: Final = 3
SHARDS: Final = 4
KEY: Final = "customer 7"
OWN_SHARD: Final = 2
"""Where the producer of the picture puts messages without a key."""

PERIODS: Final = {480_009: "due 9:00 to 10:00", 480_014: "due 14:00 to 15:00"}
"""Periods of an hour, and what the picture calls them."""

CELL: Final = (104, 52)
LEFT, TOP, GAP = 290, 40, 8
WIDTH, HEIGHT = 966, 250

STYLE: Final = """
  text { font: 13px sans-serif; fill: #1f2328; }
  .small { font-size: 11px; fill: #57606a; }
  .due { fill: #fff4d6; stroke: #b08800; }
  .fixed { fill: #eaf2ff; stroke: #0969da; }
  .taken { stroke-width: 3; }
  .way { stroke: #57606a; fill: none; marker-end: url(#tip); }
  #tip path { fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .small { fill: #9da7b1; }
    .due { fill: #3a2f0b; stroke: #d4a72c; }
    .fixed { fill: #10243f; stroke: #58a6ff; }
    .way { stroke: #9da7b1; }
    #tip path { fill: #9da7b1; }
  }
"""


class Put(NamedTuple):
    """A put of the picture, and the lane that its message takes."""

    call: str
    lane: LaneId


def lanes() -> str:
    """Which lane a message takes, and in which order a get asks lanes; SVG."""
    fixed = Fixed(
        ids=[LaneId(UUID(int=number + 1)) for number in range(PRIORITIES * SHARDS)],
        priorities=PRIORITIES,
        shards=SHARDS,
    )
    due = {
        (priority, period): DueLane(period, priority).lane_id(fixed.first)
        for priority in range(PRIORITIES)
        for period in PERIODS
    }
    order = sorted([*fixed.ids, *due.values()], key=fixed.rank)
    puts = [
        Put("put(b, priority=2)", fixed.lane(2, OWN_SHARD)),
        Put(f'put(b, priority=1, key="{KEY}")', fixed.lane(1, shard_of(KEY, SHARDS))),
        Put("put(b, due_at=today at 14:30)", due[0, 480_014]),
    ]
    places: dict[LaneId, tuple[int, int]] = {}
    for row, priority in enumerate(reversed(range(PRIORITIES))):
        for column, period in enumerate(PERIODS):
            places[due[priority, period]] = (column, row)
        for shard in range(SHARDS):
            places[fixed.lane(priority, shard)] = (len(PERIODS) + shard, row)

    drawn = [_heading(column, text) for column, text in enumerate(PERIODS.values())]
    drawn += [_heading(len(PERIODS) + shard, f"shard {shard}") for shard in range(SHARDS)]
    taken = {one.lane for one in puts}
    for number, lane in enumerate(order, 1):
        kind = "due" if fixed.due(lane) else "fixed"
        drawn.append(_cell(places[lane], kind + " taken" * (lane in taken), number))
    for row, priority in enumerate(reversed(range(PRIORITIES))):
        drawn.append(_text(LEFT - 12, _at(0, row)[1] - 4, f"priority {priority}", "small", "end"))
    for row, one in enumerate(puts):
        drawn.append(_way(row, one, places[one.lane]))
    drawn.append(
        _text(LEFT, HEIGHT - 14, "The numbers: in which order a get asks the lanes.", "small")
    )
    title = "Which lane a message takes, and in which order lanes are read"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}">\n<title>{title}</title>\n<style>{STYLE}</style>\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _at(column: int, row: int) -> tuple[int, int]:
    """The upper left corner of a cell."""
    return LEFT + column * (CELL[0] + GAP), TOP + row * (CELL[1] + GAP)


def _heading(column: int, text: str) -> str:
    return _text(_at(column, 0)[0] + CELL[0] // 2, TOP - 14, text, "small", "middle")


def _cell(place: tuple[int, int], kind: str, number: int) -> str:
    x, y = _at(*place)
    box = f'<rect class="{kind}" x="{x}" y="{y}" width="{CELL[0]}" height="{CELL[1]}" rx="6"/>'
    return box + _text(x + CELL[0] - 10, y + 20, str(number), "", "end")


def _way(row: int, put: Put, place: tuple[int, int]) -> str:
    """From a call to its lane: through the gap above the lane's row."""
    x, y = _at(*place)
    begin_y = _at(0, row)[1] + 20
    end_x, end_y = x + CELL[0] // 2, y + CELL[1] - 8
    path = f"M{LEFT - 14} {begin_y} C{LEFT + 40} {begin_y} {end_x - 90} {end_y} {end_x} {end_y}"
    text = _text(12, begin_y + 4, put.call, "", "start")
    return f'{text}<path class="way" d="{path}"/>'


def _text(x: int, y: int, text: str, kind: str, anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
