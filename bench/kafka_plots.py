"""Drawings of what ``bench.against_kafka`` has found: speeds with their spreads, and delays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.drawings import bars, save, shares
from bench.kafka_rounds import OURS, SPARK, THEIRS, TRICKLE

if TYPE_CHECKING:
    from pathlib import Path

COLOURS: Final = {OURS: "#1f5fa8", THEIRS: "#b5562b", SPARK: "#8a8a8a"}
TITLES: Final = {
    OURS: "cassieq_spark",
    THEIRS: "Kafka, by Spark's connector",
    SPARK: "Spark's own: a source that looks at a file",
}
WAITS: Final = {"fsync": "fsync", "periodic": "fsync later", "default": "no fsync"}
BOTH: Final = {side: TITLES[side] for side in (OURS, THEIRS)}


def draw(found: dict[str, Any], folder: Path, *, name: str) -> None:
    """Into ``<name>-*.svg``, whatever was measured; the same file for the same figures."""
    with rc_context({"svg.hashsalt": "cassieq", "font.size": 9, "svg.fonttype": "none"}):
        if found["cases"]:
            save(_speeds(found["cases"]), folder / f"{name}-throughput.svg")
        if TRICKLE in found:
            save(_delays(found[TRICKLE]["samples_s"]), folder / f"{name}-latency.svg")


def _speeds(cases: dict[str, Any]) -> Figure:
    """A row for each case, a pair of bars for each leg, with whiskers from least to most."""
    figure = Figure(figsize=(9, 2.6 * len(cases)), layout="constrained")
    axes = figure.subplots(len(cases), 1, squeeze=False)
    for axis, case in zip(axes[:, 0], cases.values(), strict=True):
        speeds = {leg: one["messages_per_s"] for leg, one in case["legs"].items()}
        bars(axis, speeds, BOTH, COLOURS)
        axis.set_ylabel("messages a second")
        durability = case["durability"]
        axis.set_title(
            f"{case['messages']:,} x {case['body_bytes']:,} B; {WAITS[durability[OURS]]} here, "
            f"{WAITS[durability[THEIRS]]} there"
        )
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _delays(samples: dict[str, list[float]]) -> Figure:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axis = figure.subplots()
    shares(axis, samples, TITLES, COLOURS)
    axis.set_xlabel("ms from the beginning of a put until foreachBatch has its row")
    return figure
