"""Two releases side by side: the tree of this checkout, and an earlier one, by turns on one node.

Each has a keyspace of its own: nobody of one release works on a queue of the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Self

from bench import report
from cassieq_spark.embedded import EmbeddedCassandra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Case = Callable[["Release"], dict[str, float]]
    """Does its work with the processes of one release, and returns figures."""

ROOT = Path(__file__).resolve().parents[1]
CHILD = Path(__file__).with_name("one_release.py")
HEAP = "1g"
AFTER: Final = "after"
"""The tree of this checkout; the other side is called ``before``."""

VISIBILITY_S = 600.0
"""Longer than any round: what came twice was given out twice."""


class Release:
    """So many processes of one release. A context manager, as `Fleet` is.

    Args:
        tree: A directory that holds the package: a checkout, or where a wheel was unpacked.
    """

    def __init__(self, tree: Path, contact_points: str, keyspace: str, size: int) -> None:
        self.tree = tree.resolve()
        self._numbers = count()
        command = [sys.executable, "-P", str(CHILD), contact_points, keyspace, str(size)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(self.tree),
        )
        found = Path(self._answer()["file"])
        if not found.is_relative_to(self.tree):
            raise SystemExit(f"{self.tree} holds no cassieq_spark: {found} would be measured")

    def run(self, *asked: dict[str, Any]) -> dict[str, Any]:
        """The first processes together, each its own ``work``; see ``bench/one_release.py``."""
        if self._process.stdin is None:
            raise RuntimeError("it was started with a pipe")
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._answer()

    @contextmanager
    def queue(self, **settings: Any) -> Iterator[str]:
        """A queue for one case, by its name."""
        name = f"bench.{next(self._numbers)}"
        settings = {"visibility_timeout": VISIBILITY_S} | settings
        self.run({"work": "create", "queue": name, **settings})
        yield name
        self.run({"work": "delete", "queue": name})

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit(f"the processes of {self.tree} have ended")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise SystemExit(f"{self.tree}: {said['error']}")
        return said

    def __enter__(self) -> Self:
        """They are connected already."""
        return self

    def __exit__(self, *exc: object) -> None:
        """End them."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)


def bootstrap(tree: Path, contact_points: str, keyspace: str) -> None:
    """Make the tables of this release, by this release."""
    with Release(tree, contact_points, keyspace, 1) as one:
        one.run({"work": "bootstrap"})


def environment(tree: Path) -> dict[str, str]:
    """What makes a new interpreter, started with ``-P``, import the release of this tree."""
    return os.environ | {"PYTHONPATH": str(tree)}


@contextmanager
def releases(before: Path | None, size: int) -> Iterator[dict[str, Release]]:
    """The tree, and the earlier release if there is one, on one node, their tables made."""
    trees = ({"before": before} if before else {}) | {AFTER: ROOT}
    with EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra, ExitStack() as stack:
        sides = {}
        for name, tree in trees.items():
            points, keyspace = cassandra.contact_points, f"bench_{name}"
            bootstrap(tree, points, keyspace)
            sides[name] = stack.enter_context(Release(tree, points, keyspace, size))
        yield sides


def all_came_once(done: dict[str, Any], messages: int) -> None:
    """End the run if a message was lost or came twice.

    Raises:
        SystemExit: So it is.
    """
    if done["messages"] != done["unique"]:
        raise SystemExit(f"{done['messages'] - done['unique']} messages came twice")
    if done["messages"] != messages:
        raise SystemExit(f"{messages} in, {done['messages']} out")


def compared(rounds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Spreads of each figure of each side, and those of after / before in the same round.

    Args:
        rounds: By side, the figures of each round.
    """
    found: dict[str, Any] = {
        name: {figure: report.spread([one[figure] for one in each]) for figure in each[0]}
        for name, each in rounds.items()
    }
    if "before" in rounds:
        pairs = list(zip(rounds["before"], rounds[AFTER], strict=True))
        found["ratio"] = {
            figure: report.spread([after[figure] / before[figure] for before, after in pairs])
            for figure in rounds[AFTER][0]
            if all(before[figure] for before, _ in pairs)
        }
    return found


def latency_ms(done: dict[str, Any]) -> float:
    """Median time from the beginning of a put until its message was got."""
    return 1e3 * median(at - done["put_at"][name] for name, at in done["got_at"].items())


def take_turns(
    sides: dict[str, Release],
    cases: dict[str, Case],
    *,
    rounds: int,
    warm_up: int,
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Go through all cases, so many times: by case and side, the figures of each round."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        case: {name: [] for name in sides} for case in cases
    }
    for number in range(-warm_up, rounds):
        began = perf_counter()
        # None has always the better moment: who begins changes with each round.
        order = list(sides) if number % 2 else list(reversed(sides))
        for case, work in cases.items():
            for name in order:
                figures = work(sides[name])
                if number >= 0:
                    found[case][name].append(figures)
        print(f"round {number + 1}: {perf_counter() - began:.0f} s", file=sys.stderr)
    return found


def parser(program: str, about: str | None) -> argparse.ArgumentParser:
    """The arguments of a comparison of releases."""
    made = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    add_before(made)
    made.add_argument("--smoke", action="store_true", help="small: does it run, do counts agree")
    made.add_argument("--rounds", type=int, help="that count; default: 5")
    made.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    return made


def add_before(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names an earlier release."""
    parser.add_argument(
        "--before",
        type=Path,
        metavar="PATH",
        help="a directory with an earlier release of the package: a checkout, or an unpacked wheel",
    )


def save(
    found: dict[str, Any], name: str, asked: argparse.Namespace, argv: Sequence[str]
) -> dict[str, Any]:
    """Into ``<name>.json``, with the circumstances; return it."""
    found |= {"heaps": {"cassandra": HEAP}, "releases": commits(asked.before)}
    # Where the other tree was says nothing to others.
    argv = ["PATH" if one == str(asked.before) else one for one in argv]
    found |= report.circumstances(f"python -m bench.{name}", argv)
    folder: Path = asked.results
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}{'-smoke' if asked.smoke else ''}.json"
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def commits(before: Path | None) -> dict[str, str | None]:
    """The commit of each side."""
    earlier = {} if before is None else {"before": report.commit_of(before)}
    return earlier | {AFTER: report.commit_of(ROOT)}
