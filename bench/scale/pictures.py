"""Draw the figures of docs/scale.md from ``bench/results/scale.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

SIZE = (7.0, 3.6)


def draw(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every picture; return their files."""
    # The same figures make the same file: no date, no random ids.
    settings = {"svg.hashsalt": "cassieq", "svg.fonttype": "none", "font.size": 9}
    made = []
    with mpl.rc_context(settings):
        for name, one in {
            "validation": _validation,
            "nodes": _nodes,
            "rows": _rows,
            "lwt": _lwt,
        }.items():
            figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
            one(found, axes)
            axes.grid(visible=True, which="major", alpha=0.3)
            file = folder / f"scale-{name}.svg"
            figure.savefig(file, metadata={"Date": None})
            plt.close(figure)
            # matplotlib ends lines with blanks, which editors take away.
            text = file.read_text(encoding="utf-8").splitlines()
            file.write_text("\n".join(line.rstrip() for line in text) + "\n", encoding="utf-8")
            made.append(file)
    return made


def _validation(found: Mapping[str, Any], axes: Axes) -> None:
    most = 1.0
    titles = {"quiet": "single node, quiet", "single": "single node", "ring": "ring of three"}
    for (cluster, title), marker in zip(titles.items(), "so^", strict=True):
        compared = found["validation"][cluster]
        real = [one["measured_per_s"]["median"] for one in compared]
        said = [one["predicted_per_s"] for one in compared]
        most = max(most, *real, *said)
        axes.plot(real, said, marker, label=title, alpha=0.8)
    axes.plot([1, most], [1, most], "-", color="grey", linewidth=1, label="exact")
    axes.fill_between([1, most], [0.5, most / 2], [2, most * 2], color="grey", alpha=0.1)
    axes.set(xscale="log", yscale="log", xlabel="measured, a second", ylabel="model, a second")
    axes.legend()


def _nodes(found: Mapping[str, Any], axes: Axes) -> None:
    for use in found["uses"]:
        some = [one for one in found["plans"] if one["use"] == use and one["nodes"]]
        axes.plot([one["per_s"] for one in some], [one["nodes"] for one in some], "o-", label=use)
    axes.set(xscale="log", yscale="log", xlabel="messages a second", ylabel="nodes")
    axes.legend()


def _rows(found: Mapping[str, Any], axes: Axes) -> None:
    for group in sorted({one["group"] for one in found["consumers"]}):
        for shards in sorted({one["shards"] for one in found["consumers"]}):
            some = [
                one
                for one in found["consumers"]
                if one["group"] == group and one["shards"] == shards
            ]
            label = f"groups of {group:,}, {shards} lane{'s' if shards > 1 else ''}"
            axes.plot(
                [one["consumers"] for one in some],
                [one["per_s"] for one in some],
                "o-",
                label=label,
            )
    axes.set(xscale="log", yscale="log", xlabel="consumers", ylabel="got and acked, a second")
    axes.legend()


def _lwt(found: Mapping[str, Any], axes: Axes) -> None:
    for sync_ms, rates in found["lwt"].items():
        label = "no answer waits for an fsync" if sync_ms == "0" else f"fsync {sync_ms} ms"
        axes.plot([float(rtt) for rtt in rates], list(rates.values()), "o-", label=label)
    axes.set(yscale="log", xlabel="round trip, ms", ylabel="LWTs a second on one row")
    axes.legend()
