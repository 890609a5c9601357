"""Draws what happened while the demo ran: depth of the queues, rates of the queries, lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from history import Look, Piece
    from matplotlib.axes import Axes

COLOURS: Final = ("#0969da", "#bc4c00", "#1a7f37", "#8250df")
THOUSANDS: Final = StrMethodFormatter("{x:,.0f}")
SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # text stays text, so that it can be searched and copied
    "svg.hashsalt": "cassieq",  # the same numbers give the same file
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(looks: Sequence[Look], pieces: Sequence[Piece], path: Path) -> None:
    """Write an SVG file: three panels over the same seconds.

    Each series has an id: ``depth-QUEUE`` and ``lag-QUEUE`` have a point for each look, and
    ``rate-N`` is the bar of the Nth write or micro-batch, as wide as it took.

    Args:
        looks: In the order of their times.
        pieces: The same; legs are in the order of their first pieces.
    """
    zero_s = min([one.begin_s for one in pieces] + [one.at_s for one in looks], default=0.0)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(10, 9), layout="constrained")
        depth, rate, lag = figure.subplots(3, 1, sharex=True)
        _series(depth, "depth", looks, [float(one.depth) for one in looks], zero_s)
        _rates(rate, pieces, zero_s)
        _series(lag, "lag", looks, [one.lag_s for one in looks], zero_s)
        depth.set_title("Depth: messages in each queue that are not acked", loc="left")
        rate.set_title("Rate: messages a second of each write and micro-batch", loc="left")
        lag.set_title(
            "Lag: age of the oldest message in each queue that is not acked, in seconds", loc="left"
        )
        lag.set_xlabel("seconds since Cassandra and Spark had started")
        for panel in (depth, rate, lag):
            panel.yaxis.set_major_formatter(THOUSANDS)
            panel.set_ylim(bottom=0)
            panel.legend(loc="upper left")  # all series begin with nothing
        figure.savefig(path, format="svg", metadata={"Date": None})


def _series(
    panel: Axes, kind: str, looks: Sequence[Look], values: Sequence[float], zero_s: float
) -> None:
    for colour, queue in zip(COLOURS, dict.fromkeys(one.queue for one in looks), strict=False):
        at = [number for number, one in enumerate(looks) if one.queue == queue]
        panel.plot(
            [looks[number].at_s - zero_s for number in at],
            [values[number] for number in at],
            color=colour,
            marker=".",
            label=f"queue '{queue}'",
            gid=f"{kind}-{queue}",
        )


def _rates(panel: Axes, pieces: Sequence[Piece], zero_s: float) -> None:
    legs = list(dict.fromkeys(one.leg for one in pieces))
    for colour, leg in zip(COLOURS, legs, strict=False):
        numbers = [number for number, one in enumerate(pieces) if one.leg == leg]
        of_leg = [pieces[number] for number in numbers]
        bars = panel.bar(
            [one.begin_s - zero_s for one in of_leg],
            [one.rate for one in of_leg],
            width=[one.end_s - one.begin_s for one in of_leg],
            align="edge",
            color=colour,
            alpha=0.8,
            edgecolor="white",
            label=leg,
        )
        for number, bar in zip(numbers, bars, strict=True):
            bar.set_gid(f"rate-{number}")
