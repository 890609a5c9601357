"""``python -m bench.compare before.json after.json``: what two runs of one benchmark say.

Absolute speeds differ by half from hour to hour: believe ratios, and only spreads that lie apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ABOUT: Final = frozenset(
    {"machine", "versions", "heaps", "targets", "later_targets_s", "seed", "rounds"}
)
"""What a run was, and not what it found. Differences in these are told first."""

UNLIKE: Final = ("machine", "versions", "heaps", "messages", "body_bytes", "rounds")


@dataclass(frozen=True, slots=True)
class Figure:
    """A median with the least and the most, or one number."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        """As in a table."""
        if self.least == self.most:
            return _number(self.median)
        return f"{_number(self.median)} ({_number(self.least)} to {_number(self.most)})"

    def is_apart(self, other: Figure) -> bool:
        """Whether no sample of the one lies among those of the other."""
        return self.most < other.least or other.most < self.least


def figures(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Figure]]:
    """Every figure of a run, by its place in the file. Lists are samples, and left out."""
    match found:
        case {"median": float() | int() as median, "min": least, "max": most}:
            yield " ".join(path), Figure(median, least, most)
        case dict():
            for key, value in found.items():
                if path or key not in ABOUT:
                    yield from figures(value, (*path, key))
        case bool() | str() | None:
            return
        case float() | int():
            yield " ".join(path), Figure(found, found, found)


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """A Markdown table of all figures that both have, and what makes the runs unlike.

    Raises:
        ValueError: They are of different benchmarks.
    """
    programs = [str(run.get("command", "")).split(" --")[0] for run in (before, after)]
    if programs[0] != programs[1]:
        raise ValueError(f"these are two benchmarks: {programs[0]!r} and {programs[1]!r}")
    lines = [
        f"Unlike in both: {name}: {before.get(name)} and {after.get(name)}"
        for name in UNLIKE
        if before.get(name) != after.get(name)
    ]
    lines += [""] if lines else []
    lines += ["| | before | after | after / before | |", "| --- | --- | --- | --- | --- |"]
    now = dict(figures(after))
    for name, was in figures(before):
        if name in now:
            ratio = f"{now[name].median / was.median:.2f}" if was.median else ""
            apart = "apart" if was.is_apart(now[name]) else ""
            lines.append(f"| {name} | {was} | {now[name]} | {ratio} | {apart} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    asked = parser.parse_args(arguments)
    runs = []
    for path in (asked.before, asked.after):
        try:
            runs.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            parser.error(f"{path} is no result of a benchmark: {error}")
    try:
        lines = compare(*runs)
    except ValueError as error:
        parser.error(str(error))
    print("\n".join(lines))
    return 0


def _number(value: float) -> str:
    for least, form in ((1_000, ",.0f"), (10, ".1f"), (0.01, ".3f"), (0, ".6f")):
        if abs(value) >= least:
            return format(value, form)
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
