"""Lay out the buckets of a lane as a picture: a square each, with the places of R and L."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.server.rates import MINUTES

if TYPE_CHECKING:
    from cassieq_spark.queue.inspect.facts import BucketFacts
    from cassieq_spark.queue.inspect.stats import LaneLook
    from cassieq_spark.server.rates import Rate

COLUMNS: Final = 20
CELL: Final = 18
ROW: Final = 32
TOP: Final = 12
"""Room above each row for the marks of R and L."""


BAR: Final = 6
CHART: Final = 40
"""The height of a chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state of a bucket, as the picture shows it.

    Attributes:
        sign: What is written in the square, so that nobody needs to see its colour.
        kind: The class of its square.
    """

    sign: str
    kind: str
    name: str
    meaning: str


OPEN: Final = State(sign="o", kind="open", name="open", meaning="takes messages")
SEALED: Final = State(sign="s", kind="sealed", name="sealed", meaning="has messages to give")
LEASED: Final = State(sign="l", kind="leased", name="leased", meaning="consumers hold some of it")
DEAD: Final = State(sign="x", kind="broken", name="dead", meaning="some of it waits for repair")
DRAINED: Final = State(sign="d", kind="drained", name="drained", meaning="all of it is done")
PREPARED: Final = State(
    sign="p", kind="prepared", name="prepared", meaning="a transaction of Spark writes it"
)
AWAY: Final = State(
    sign="?", kind="broken", name="unknown", meaning="its row did not answer, or cannot be read"
)
STATES: Final = (OPEN, SEALED, LEASED, DEAD, DRAINED, PREPARED, AWAY)

_BY_STATUS: Final = {
    "open": OPEN,
    "sealing": OPEN,
    "writing": PREPARED,
    "prepared": PREPARED,
    "void": DRAINED,
    "drained": DRAINED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One square.

    Attributes:
        mark: What points at it: R, L, or both.
        is_after_gap: Whether buckets before it are left out.
    """

    bucket: int
    state: State
    x: int
    y: int
    mark: str
    is_after_gap: bool
    facts: BucketFacts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A lane.

    Attributes:
        beyond: Marks that point at no square, with their buckets.
        title: It in words.
    """

    look: LaneLook
    cells: tuple[Cell, ...]
    width: int
    height: int
    beyond: tuple[tuple[str, int], ...]
    title: str


def state_of(facts: BucketFacts) -> State:
    """What a bucket is shown as; the first that fits."""
    if facts.status != "sealed":
        return _BY_STATUS.get(facts.status, AWAY)
    if facts.leased:
        return LEASED
    if facts.dead:
        return DEAD
    return DRAINED if facts.acked == facts.messages else SEALED


def picture(look: LaneLook) -> Picture:
    """Lay out a lane."""
    found: dict[int, BucketFacts] = {one.bucket: one for one in look.buckets}
    shown = sorted({*found, *look.away})
    cells = []
    for at, bucket in enumerate(shown):
        facts = found.get(bucket)
        row, column = divmod(at, COLUMNS)
        cells.append(
            Cell(
                bucket=bucket,
                state=AWAY if facts is None else state_of(facts),
                x=column * CELL,
                y=row * ROW + TOP,
                mark="R" * (bucket == look.reader) + "L" * (bucket == look.repair),
                is_after_gap=at > 0 and shown[at - 1] != bucket - 1,
                facts=facts,
            )
        )
    marks = (("R", look.reader), ("L", look.repair))
    rows = -(-len(cells) // COLUMNS)
    return Picture(
        look=look,
        cells=tuple(cells),
        width=COLUMNS * CELL + 1,
        height=rows * ROW + 1,
        beyond=tuple((mark, at) for mark, at in marks if at not in set(shown)),
        title=_title(cells),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """An hour of one kind of work.

    Attributes:
        bars: x, y and height of each minute in which there was any.
    """

    rate: Rate
    bars: tuple[tuple[int, float, float], ...]


def chart(rate: Rate) -> Chart:
    """Lay out an hour: the last minute is on the right, and the busiest as high as the picture."""
    first = MINUTES - len(rate.minutes)
    bars = []
    for at, count in enumerate(rate.minutes):
        if count:
            height = max(1.0, round(CHART * count / rate.most, 1))
            bars.append(((first + at) * BAR, round(CHART - height, 1), height))
    return Chart(rate=rate, bars=tuple(bars))


def _title(cells: list[Cell]) -> str:
    counts = {state: sum(cell.state is state for cell in cells) for state in STATES}
    return ", ".join(f"{count:,} {state.name}" for state, count in counts.items() if count)
