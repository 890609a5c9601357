"""Drawings of what ``bench.against_queues`` has found: bars with spreads, delays, history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.drawings import bars, save, shares
from bench.queue_loads import LATER, NEW

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

COLOURS: Final = {
    "ours": "#1f5fa8",
    "ours_periodic": "#8fb8e8",
    "ours_ring": "#0b2c52",
    "postgres": "#b5562b",
    "postgres_later": "#edb08f",
    "postgres_notify": "#7a2f0f",
    "rabbitmq": "#3d8f4f",
    "cassieq": "#8a8a8a",
}
PHASES: Final = ("put", "get and ack")
_CALLS: Final = ("put", "get", "ack", "idle poll", "idle trigger")


def draw(found: dict[str, Any], folder: Path, *, name: str) -> None:
    """Into ``<name>-*.svg``, whatever was measured; the same file for the same figures."""
    with rc_context({"svg.hashsalt": "cassieq", "font.size": 9, "svg.fonttype": "none"}):
        titles = {side: _title(one) for side, one in found["sides"].items()}
        for size, cells in _by_size(found.get("rates", {})).items():
            save(_rates(size, cells, titles), folder / f"{name}-{size.replace(' ', '')}.svg")
        if delays := {
            side: one
            for side, one in found.get("latency_samples_s", {}).items()
            if side in found["latency_ms"]
        }:
            save(_delays(delays, titles), folder / f"{name}-latency.svg")
        if history := {
            side: one for side, one in found.get("history", {}).items() if "failure" not in one
        }:
            save(_history(history, titles), folder / f"{name}-history.svg")


def _title(side: dict[str, str]) -> str:
    later = " (fsync later)" if side["durability"] == LATER else ""
    return side["title"].replace("`", "") + later


def _by_size(rates: dict[str, Any]) -> dict[str, dict[tuple[str, str], Any]]:
    """Cells by size; there by processes and by how many at once."""
    found: dict[str, dict[tuple[str, str], Any]] = {}
    for cell, phases in rates.items():
        size, processes, at_once = cell.split(", ")
        found.setdefault(size, {})[processes, at_once] = phases
    return found


def _rates(size: str, cells: dict[tuple[str, str], Any], titles: dict[str, str]) -> Figure:
    groups = list(dict.fromkeys(at_once for _, at_once in cells))
    figure = Figure(figsize=(10, 3.2 * len(groups)), layout="constrained")
    axes = figure.subplots(len(groups), 2, squeeze=False)
    for row, at_once in zip(axes, groups, strict=True):
        for axis, phase in zip(row, PHASES, strict=True):
            some = {
                processes: phases[phase]
                for (processes, how), phases in cells.items()
                if how == at_once
            }
            bars(axis, some, titles, COLOURS)
            axis.set_title(f"{phase}, {at_once}")
            axis.set_ylabel("messages a second")
            axis.set_yscale("log")
    figure.suptitle(f"{size}: median, least and most")
    _legend(figure, axes[0][0])
    return figure


def _delays(delays: dict[str, list[float]], titles: dict[str, str]) -> Figure:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axis = figure.subplots()
    shares(axis, delays, titles, COLOURS)
    axis.set_xscale("log")
    axis.set_xlabel("ms from the beginning of a put to the return of a get that waits")
    return figure


def _history(history: dict[str, Any], titles: dict[str, str]) -> Figure:
    ratios = {
        side: {moment: each for moment, each in one["of_first_day"].items() if moment != NEW}
        | {"after it, of a new queue": one["of_new_queue"]}
        for side, one in history.items()
    }
    moments = list(next(iter(ratios.values())))
    figure = Figure(figsize=(14, 3.6), layout="constrained")
    axes = figure.subplots(1, len(moments), squeeze=False, sharey=True)
    for axis, moment in zip(axes[0], moments, strict=True):
        groups: dict[str, dict[str, Any]] = {}
        for call in _CALLS:
            sides = {
                side: {"median": one[moment][call]}
                for side, one in ratios.items()
                if call in one[moment]
            }
            if sides:
                groups[call] = {
                    side: one | {"min": one["median"], "max": one["median"]}
                    for side, one in sides.items()
                }
        bars(axis, groups, titles, COLOURS)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_title(moment)
    axes[0][0].set_ylabel("times the first day's, or a new queue's")
    _legend(figure, axes[0][-1])
    return figure


def _legend(figure: Figure, axis: Axes) -> None:
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4)
