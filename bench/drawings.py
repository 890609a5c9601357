"""What drawings of benchmarks have in common: bars with spreads, shares of delays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def bars(
    axis: Axes,
    groups: Mapping[str, Mapping[str, Any]],
    titles: Mapping[str, str],
    colours: Mapping[str, str],
) -> None:
    """A bar for each side in each group, as high as its median, with a whisker for its spread."""
    sides = [side for side in titles if any(side in one for one in groups.values())]
    width = 0.8 / max(1, len(sides))
    for at, side in enumerate(sides):
        has = [(place, one[side]) for place, one in enumerate(groups.values()) if side in one]
        heights = [one["median"] for _, one in has]
        errors = [
            [one["median"] - one["min"] for _, one in has],
            [one["max"] - one["median"] for _, one in has],
        ]
        places = [place + (at - (len(sides) - 1) / 2) * width for place, _ in has]
        axis.bar(
            places,
            heights,
            width,
            yerr=errors,
            capsize=2,
            color=colours[side],
            label=titles[side],
            error_kw={"linewidth": 0.8},
        )
    axis.set_xticks(range(len(groups)), list(groups))
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)


def shares(
    axis: Axes,
    delays: Mapping[str, Sequence[float]],
    titles: Mapping[str, str],
    colours: Mapping[str, str],
) -> None:
    """Which share of each side's delays, in seconds, is at most so many milliseconds."""
    for side, each in delays.items():
        ordered = sorted(one * 1e3 for one in each)
        parts = [(at + 1) / len(ordered) for at in range(len(ordered))]
        axis.step(ordered, parts, where="post", color=colours[side], label=titles[side])
    axis.set_ylabel("share of the messages")
    axis.grid(alpha=0.3)
    axis.legend()


def save(figure: Figure, path: Path) -> None:
    """As SVG, the same file for the same figures."""
    figure.savefig(path, format="svg", metadata={"Date": None})
