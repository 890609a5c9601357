"""What ``python -m bench.against_kafka`` found, as JSON, text and drawings."""

from __future__ import annotations

import json
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

from bench.kafka_rounds import FIRST_ROW, OURS, SPARK, TARGETS, THEIRS, TRICKLE
from bench.report import spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.kafka_rounds import Case, Samples

LATER_TARGETS_S: Final = {"first_query": 0.4, "second_query": 0.3, "trickle": 0.08}
"""At most so much later than Kafka's; of the trickle: than Spark's own source."""


def of_case(samples: Samples, case: Case) -> dict[str, Any]:
    """Of each leg our speed against theirs, round by round, and the speeds."""
    legs = {}
    for leg, sides in samples.seconds.items():
        legs[leg] = {
            "ratio": spread(
                [theirs / ours for ours, theirs in zip(sides[OURS], sides[THEIRS], strict=True)]
            ),
            "messages_per_s": {
                side: spread([case.messages / one for one in values])
                for side, values in sides.items()
            },
        }
    return {
        "legs": legs,
        "durability": {OURS: case.ours, THEIRS: case.theirs},
        "messages": case.messages,
        "body_bytes": case.body_bytes,
        "batches": samples.batches,
        "samples_s": samples.seconds,
    }


def of_first_rows(found: Mapping[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Of each query how much later than theirs; the walls are those of the whole query."""
    return {
        query: {
            "seconds": {side: spread(values) for side, values in sides.items()},
            "later_s": median(sides[OURS]) - median(sides[THEIRS]),
            "samples_s": sides,
        }
        for query, sides in found.items()
    }


def of_trickle(found: Mapping[str, list[float]]) -> dict[str, Any]:
    """Percentiles of all sides, and how far ours is behind Spark's own."""
    return {
        "seconds": {side: percentiles(values) for side, values in found.items()},
        "later_s": median(found[OURS]) - median(found[SPARK]),
        "samples_s": found,
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Half, most and nearly all of them."""
    cuts = quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "max": max(values)}


def missed(found: dict[str, Any]) -> list[str]:
    """Every target of the main case and of the latencies that was not reached."""
    lines = []
    for leg, one in found["cases"].get("main", {"legs": {}})["legs"].items():
        if one["ratio"]["median"] < TARGETS[leg]:
            lines.append(f"{leg}: {one['ratio']['median']:.2f} of Kafka, target {TARGETS[leg]}")
    latencies = dict(found.get(FIRST_ROW, {}))
    latencies |= {TRICKLE: found[TRICKLE]} if TRICKLE in found else {}
    for name, target in LATER_TARGETS_S.items():
        if name in latencies and latencies[name]["later_s"] > target:
            later = latencies[name]["later_s"]
            lines.append(f"{name}: {later:.3f} s later, target {target} s")
    return lines


def as_text(found: dict[str, Any]) -> str:
    """A line for each leg, then the latencies, then what was missed."""
    lines = []
    for name, case in found["cases"].items():
        lines.append(
            f"{name}: {case['messages']:,} x {case['body_bytes']:,} B, durability "
            f"{case['durability'][OURS]} against {case['durability'][THEIRS]}"
        )
        lines.append(f"  {'':<22}{'ratio':>7}{'least':>7}{'most':>7}{'ours, k/s':>12}{'theirs':>9}")
        for leg, one in case["legs"].items():
            ratio, speed = one["ratio"], one["messages_per_s"]
            lines.append(
                f"  {leg:<22}{ratio['median']:>7.2f}{ratio['min']:>7.2f}{ratio['max']:>7.2f}"
                f"{speed[OURS]['median'] / 1e3:>12.1f}{speed[THEIRS]['median'] / 1e3:>9.1f}"
            )
    for query, one in found.get(FIRST_ROW, {}).items():
        ours, theirs = (one["seconds"][side]["median"] for side in (OURS, THEIRS))
        lines.append(f"{query}: {ours:.3f} s, theirs {theirs:.3f} s, later {one['later_s']:.3f} s")
    if TRICKLE in found:
        for side, one in found[TRICKLE]["seconds"].items():
            lines.append(f"trickle, {side}: p50 {one['p50']:.3f} s, p99 {one['p99']:.3f} s")
        lines.append(f"trickle: {found[TRICKLE]['later_s']:.3f} s behind Spark's own")
    return "\n".join([*lines, *(f"missed: {line}" for line in missed(found))])


def save(found: dict[str, Any], folder: Path, *, name: str) -> None:
    """Into ``<name>.json``, and drawings beside it."""
    from bench import kafka_plots  # noqa: PLC0415 - matplotlib, for this alone

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    kafka_plots.draw(found, folder, name=name)
