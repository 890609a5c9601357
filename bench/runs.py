"""Results of ``bench.against_queues`` from several runs: each load says which run has found it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

KEYS: Final = {
    "rates": ("rates", "failures", "rounds"),
    "latency": ("latency_ms", "latency_samples_s", "latency_failures"),
    "history": ("history",),
    "rows": ("rows",),
    "ring": ("ring",),
}
"""What each load finds."""

_OF_RUN: Final = ("command", "date", "commit")


def kept(path: Path, loads: Collection[str], machine: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run has found by loads other than these.

    Raises:
        SystemExit: There is none, or it was on another machine: that is not one table.
    """
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SystemExit(f"--keep: no earlier results: {error}") from error
    if earlier["machine"] != machine:
        raise SystemExit(f"--keep: {path} is of another machine: {earlier['machine']}")
    others = [load for load, keys in KEYS.items() if load not in loads and keys[0] in earlier]
    found = {key: earlier[key] for load in others for key in KEYS[load] if key in earlier}
    runs = earlier.get("runs", {})
    return found | {
        "sides": earlier["sides"],
        "runs": {load: runs.get(load) or _run(earlier) for load in others},
    }


def together(
    kept: dict[str, Any], found: dict[str, Any], about: dict[str, Any], loads: Collection[str]
) -> dict[str, Any]:
    """All of it: what this run has found by these loads, and what was kept of an earlier one."""
    return (
        about
        | kept
        | found
        | {
            "sides": kept.get("sides", {}) | found["sides"],
            "runs": kept.get("runs", {}) | {load: _run(about) for load in loads},
        }
    )


def _run(of: dict[str, Any]) -> dict[str, str]:
    return {key: of[key] for key in _OF_RUN}
