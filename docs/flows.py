"""Draws how messages flow in a guide or an example; `generate.py` writes the pictures."""

from __future__ import annotations

from html import escape
from typing import Final, NamedTuple

BOX: Final = (168, 48)
STEP: Final = (300, 92)
MARGIN: Final = 14

STYLE: Final = """
  text { font: 13px sans-serif; fill: #1f2328; text-anchor: middle; }
  .label { font-size: 11px; fill: #57606a; }
  .queue { fill: #fff4d6; stroke: #b08800; }
  .work { fill: #eaf2ff; stroke: #0969da; }
  .other { fill: #f6f8fa; stroke: #57606a; }
  .way { stroke: #57606a; fill: none; marker-end: url(#tip); }
  #tip path { fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .label { fill: #9da7b1; }
    .queue { fill: #3a2f0b; stroke: #d4a72c; }
    .work { fill: #10243f; stroke: #58a6ff; }
    .other { fill: #161b22; stroke: #9da7b1; }
    .way { stroke: #9da7b1; }
    #tip path { fill: #9da7b1; }
  }
"""


class Box(NamedTuple):
    """A part of the picture: a queue, a program that works, or something else."""

    kind: str
    column: int
    row: int


class Way(NamedTuple):
    """What goes from one part to another."""

    begin: str
    end: str
    label: str = ""


class Flow(NamedTuple):
    """A picture.

    Attributes:
        boxes: By their text.
    """

    boxes: dict[str, Box]
    ways: list[Way]


FLOWS: Final = {
    "docs/guides/worker.svg": Flow(
        {
            "queue": Box("queue", 0, 1),
            "cassieq worker": Box("work", 1, 1),
            "process 1": Box("work", 2, 0),
            "process 2": Box("work", 2, 2),
            "dead-letter queue": Box("queue", 0, 3),
        },
        [
            Way("queue", "cassieq worker", "get ahead, renew"),
            Way("cassieq worker", "queue", "ack, or release later"),
            Way("cassieq worker", "process 1", "message"),
            Way("cassieq worker", "process 2", "message"),
            Way("queue", "dead-letter queue", "after max_deliveries, by repair"),
        ],
    ),
    "docs/guides/example-etl_verdicts.svg": Flow(
        {
            "etl": Box("queue", 0, 0),
            "foreachBatch": Box("work", 1, 0),
            "Parquet: orders": Box("other", 2, 0),
            "etl.dead": Box("queue", 0, 1),
        },
        [
            Way("etl", "foreachBatch", "batch, leased"),
            Way("foreachBatch", "etl", "ack, release, reject"),
            Way("foreachBatch", "Parquet: orders", "good rows"),
            Way("etl", "etl.dead", "rejected, by repair"),
        ],
    ),
    "docs/guides/example-fan_out.svg": Flow(
        {
            "fan.orders": Box("queue", 0, 1),
            "foreachBatch": Box("work", 1, 1),
            "fan.audit": Box("queue", 2, 0),
            "fan.large": Box("queue", 2, 2),
        },
        [
            Way("fan.orders", "foreachBatch", "400 a batch"),
            Way("foreachBatch", "fan.audit", "all"),
            Way("foreachBatch", "fan.large", "900 and more"),
        ],
    ),
    "docs/guides/example-retry_backoff.svg": Flow(
        {
            "payments": Box("queue", 0, 0),
            "cassieq worker": Box("work", 1, 0),
            "bank": Box("other", 2, 0),
            "payments.dead": Box("queue", 0, 1),
        },
        [
            Way("payments", "cassieq worker", "message"),
            Way("cassieq worker", "payments", "error: again later"),
            Way("cassieq worker", "bank", "charge"),
            Way("payments", "payments.dead", "4 deliveries, by repair"),
        ],
    ),
    "docs/guides/example-dead_letters.svg": Flow(
        {
            "mail.out": Box("queue", 0, 0),
            "mail.dead": Box("queue", 0, 1),
            "readStream": Box("work", 1, 1),
            "Parquet: letters": Box("other", 2, 1),
            "df.write, mended": Box("work", 1, 0),
        },
        [
            Way("mail.out", "mail.dead", "rejected, by repair"),
            Way("mail.dead", "readStream"),
            Way("readStream", "Parquet: letters", "exactly once"),
            Way("Parquet: letters", "df.write, mended"),
            Way("df.write, mended", "mail.out", "exactly once"),
        ],
    ),
    "docs/guides/example-scheduled.svg": Flow(
        {
            "producer": Box("work", 0, 0),
            "reminders.example": Box("queue", 1, 0),
            "consumer": Box("work", 2, 0),
        },
        [
            Way("producer", "reminders.example", "due_at, cancel"),
            Way("reminders.example", "consumer", "when it is due"),
        ],
    ),
    "docs/guides/example-stateful.svg": Flow(
        {
            "state.orders": Box("queue", 0, 0),
            "groupBy, sum": Box("work", 1, 0),
            "Parquet: totals": Box("other", 2, 0),
            "checkpoint": Box("other", 1, 1),
        },
        [
            Way("state.orders", "groupBy, sum", "batch"),
            Way("groupBy, sum", "Parquet: totals", "all totals"),
            Way("groupBy, sum", "checkpoint", "state"),
        ],
    ),
    "docs/guides/example-json_orders.svg": Flow(
        {
            "json.orders": Box("queue", 0, 1),
            "foreachBatch": Box("work", 1, 1),
            "json.valid": Box("queue", 2, 0),
            "json.counted": Box("queue", 2, 1),
            "json.dead": Box("queue", 0, 2),
            "count a minute": Box("work", 3, 1),
            "Parquet: counts": Box("other", 3, 2),
        },
        [
            Way("json.orders", "foreachBatch", "batch, leased"),
            Way("foreachBatch", "json.valid", "valid, once"),
            Way("foreachBatch", "json.counted", "valid, once"),
            Way("json.orders", "json.dead", "rejected, by repair"),
            Way("json.counted", "count a minute"),
            Way("count a minute", "Parquet: counts", "minutes that are over"),
        ],
    ),
    "docs/guides/example-fastapi_producer.svg": Flow(
        {
            "client": Box("other", 0, 0),
            "FastAPI": Box("work", 1, 0),
            "api.orders": Box("queue", 2, 0),
        },
        [
            Way("client", "FastAPI", "POST /orders"),
            Way("FastAPI", "client", "202, message id"),
            Way("FastAPI", "api.orders", "put, once a key"),
        ],
    ),
}


def draw(flow: Flow) -> str:
    """The picture as SVG."""
    width = 2 * MARGIN + BOX[0] + STEP[0] * max(box.column for box in flow.boxes.values())
    height = 2 * MARGIN + BOX[1] + STEP[1] * max(box.row for box in flow.boxes.values())
    back = {(way.end, way.begin) for way in flow.ways}
    drawn = [_box(text, box) for text, box in flow.boxes.items()]
    for way in flow.ways:
        aside = 12 if (way.begin, way.end) in back else 0
        drawn.append(_way(flow.boxes[way.begin], flow.boxes[way.end], way.label, aside))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n'
        f"<style>{STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _middle(box: Box) -> tuple[int, int]:
    return (
        MARGIN + BOX[0] // 2 + box.column * STEP[0],
        MARGIN + BOX[1] // 2 + box.row * STEP[1],
    )


def _box(text: str, box: Box) -> str:
    x, y = _middle(box)
    corner = f'x="{x - BOX[0] // 2}" y="{y - BOX[1] // 2}"'
    rounded = 22 if box.kind == "queue" else 6
    size = f'width="{BOX[0]}" height="{BOX[1]}" rx="{rounded}"'
    return (
        f'<rect class="{box.kind}" {corner} {size}/><text x="{x}" y="{y + 4}">{escape(text)}</text>'
    )


def _way(begin: Box, end: Box, label: str, aside: int) -> str:
    """A line between two edges; of two that go there and back, each is to its own side."""
    (x, y), (to_x, to_y) = _middle(begin), _middle(end)
    if begin.column == end.column:
        down = 1 if to_y > y else -1
        x, to_x = x + down * aside, to_x + down * aside
        y, to_y = y + down * BOX[1] // 2, to_y - down * BOX[1] // 2
    else:
        right = 1 if to_x > x else -1
        y, to_y = y - right * aside, to_y - right * aside
        x, to_x = x + right * BOX[0] // 2, to_x - right * BOX[0] // 2
    at_x, at_y = (x + to_x) // 2, (y + to_y) // 2 + (16 if to_x < x and aside else -6)
    if begin.column == end.column:
        at_x, at_y = at_x + 92, at_y + 10
    line = f'<path class="way" d="M{x} {y} L{to_x} {to_y}"/>'
    return f'{line}<text class="label" x="{at_x}" y="{at_y}">{escape(label)}</text>'
