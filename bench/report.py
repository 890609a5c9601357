"""What the benchmark found: ratios with their samples, as text, JSON and a drawing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from cassieq_spark.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.sides import Timed

TARGETS = {"sink": 0.8, "source": 0.8}
_PACKAGES = ("cassieq_spark", "pyspark", "pyarrow", "cassandra-driver", "numpy")
_SINKS = ("sink_batch", "sink_stream")
_SOURCES = ("source_all", "source_body")


@dataclass(slots=True)
class Samples:
    """Seconds of every side, a list with one entry per round (``empty``: two)."""

    messages: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    timed: dict[str, list[Timed]] = field(default_factory=lambda: defaultdict(list))

    def add(self, side: str, seconds: float) -> None:
        """A sample of a raw side."""
        self.seconds[side].append(seconds)

    def add_timed(self, side: str, timed: Timed) -> None:
        """A sample of a side that Spark runs."""
        self.seconds[side].append(timed.seconds)
        self.timed[side].append(timed)


def result(
    samples: Samples, *, seed: int, cassandra_heap: str, argv: Sequence[str]
) -> dict[str, Any]:
    """Ratios per round, then their median, least and most.

    What a ratio compares with is the median of the same round's raw samples.
    """
    rounds = len(samples.seconds[_SINKS[0]])
    raw_write = _by_round(samples.seconds["raw_write"], rounds)
    raw_read = _by_round(samples.seconds["raw_read"], rounds)
    per_batch = [timed.seconds / timed.batches for timed in samples.timed["empty"]]
    seconds = samples.seconds
    ratios = {
        "sink_batch": [
            raw / ours for raw, ours in zip(raw_write, seconds["sink_batch"], strict=True)
        ],
        "sink_stream": [
            (raw + spark) / ours
            for raw, spark, ours in zip(
                raw_write, seconds["nowhere"], seconds["sink_stream"], strict=True
            )
        ],
    }
    for side in _SOURCES:
        batches = [timed.batches for timed in samples.timed[side]]
        ratios[side] = [
            (raw + count * median(per_batch)) / ours
            for raw, ours, count in zip(raw_read, seconds[side], batches, strict=True)
        ]
    return {
        "ratios": {side: spread(values) for side, values in ratios.items()},
        "targets": {side: TARGETS[side.partition("_")[0]] for side in ratios},
        "messages_per_s": {
            side: spread([samples.messages / one for one in values])
            for side, values in seconds.items()
            if side != "empty"
        },
        "empty_micro_batch_s": spread(per_batch),
        "lwts_per_message": {
            side: samples.timed[side][-1].lwts / samples.messages for side in _SINKS + _SOURCES
        },
        "micro_batches": {side: samples.timed[side][-1].batches for side in _SINKS + _SOURCES},
        "durations_ms": {
            side: samples.timed[side][-1].phases
            for side in _SINKS + _SOURCES
            if samples.timed[side][-1].phases
        },
        "samples_s": dict(seconds),
        "messages": samples.messages,
        "body_bytes": 96,
        "rounds": rounds,
        "seed": seed,
        "heaps": {"cassandra": cassandra_heap, "spark": "2g"},
    } | circumstances("python -m bench", argv)


def circumstances(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """What was run, when, where, and on what."""
    return {
        "command": " ".join([command, *argv]),
        "date": datetime.fromtimestamp(SystemClock().now_us() / 1e6, UTC).date().isoformat(),
        "commit": commit_of(Path(__file__).resolve().parents[1]),
        "machine": _machine(),
        "versions": {name: version(name) for name in _PACKAGES}
        | {"python": platform.python_version()},
    }


def save(found: dict[str, Any], folder: Path, *, name: str) -> None:
    """Into ``<name>.json`` and ``<name>.svg``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (folder / f"{name}.svg").write_text(as_svg(found), encoding="utf-8")


def as_text(found: dict[str, Any]) -> str:
    """The ratios and the speeds, a line each."""
    lines = [f"{'ratio':<14}{'median':>8}{'least':>8}{'most':>8}{'target':>8}"]
    for side, one in found["ratios"].items():
        lines.append(
            f"{side:<14}{one['median']:>8.2f}{one['min']:>8.2f}{one['max']:>8.2f}"
            f"{found['targets'][side]:>8.1f}"
        )
    lines.append(f"{'thousands/s':<14}{'median':>8}{'least':>8}{'most':>8}")
    for side, one in found["messages_per_s"].items():
        lines.append(
            f"{side:<14}{one['median'] / 1e3:>8.0f}{one['min'] / 1e3:>8.0f}{one['max'] / 1e3:>8.0f}"
        )
    empty = found["empty_micro_batch_s"]["median"]
    lwts = ", ".join(f"{side} {each:.5f}" for side, each in found["lwts_per_message"].items())
    return "\n".join([*lines, f"empty micro-batch {empty:.3f} s", f"LWTs a message: {lwts}"])


def as_svg(found: dict[str, Any]) -> str:
    """A bar per ratio, a whisker from least to most, a line at its target."""
    left, width, row = 110, 420, 34
    scale = width / max(1.0, *(one["max"] for one in found["ratios"].values()))
    height = row * len(found["ratios"]) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 70}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="100%" height="100%" fill="white"/><text x="10" y="18">Share of the raw '
        f"limit, {found['messages']:,} messages of {found['body_bytes']} B, "
        f"{found['rounds']} rounds</text>",
    ]
    for at, (side, one) in enumerate(found["ratios"].items()):
        top = 30 + at * row
        middle = top + 11
        target = left + found["targets"][side] * scale
        low, high = left + one["min"] * scale, left + one["max"] * scale
        parts += [
            f'<text x="10" y="{top + 16}">{side}</text>',
            f'<rect x="{left}" y="{top}" width="{one["median"] * scale:.1f}" height="22" '
            'fill="#4878a8"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="black" stroke-width="2"/>',
            f'<path d="M{target:.1f} {top - 3}v28" stroke="#c03030" stroke-dasharray="3"/>',
            f'<text x="{high + 8:.1f}" y="{top + 16}">{one["median"]:.2f}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _by_round(values: Sequence[float], rounds: int) -> list[float]:
    each = len(values) // rounds
    return [median(values[at : at + each]) for at in range(0, len(values), each)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def _machine() -> dict[str, Any]:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def commit_of(root: Path) -> str | None:
    """The commit, with ``+`` if files of the package differ from it; None outside a checkout."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None

    def run(*words: str) -> str:
        done = subprocess.run([git, *words], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = run("status", "--porcelain", "--untracked-files=no", "--", "cassieq_spark")
    return run("rev-parse", "--short", "HEAD") + ("+" if changed else "")
