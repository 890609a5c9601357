"""``python -m bench.engine --before TREE``: programs on this release and on an older one, by turns.

Both run on one node, each on queues of its own, as programs of their own (``engine_case.py``).
``--choice`` asks instead what claims cost when 1 to 64 processes drain 1 to 64 buckets.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq
from bench import report
from bench.engine_case import KEYSPACE
from cassieq_spark.embedded import EmbeddedCassandra

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
HEAP = "1g"
CASE_S = 600.0
"""The limit of one case: it ends a run that hangs."""

ENGINE = {
    "cycle": ["cycle", 200],
    "blocking": ["blocking", 60],
    "consumer": ["consumer", 20_000],
    "fifty": ["fifty", 1_500],
    "puts": ["puts", 3_200],
    "polls": ["polls", 0],
    "drain 16 of 64": ["drain", 64_000, 16, 64],
    "drain_consumer 16 of 64": ["drain_consumer", 64_000, 16, 64],
}
CHOICE = {
    f"{processes} of {buckets}": ["drain", max(6_400, 100 * processes), processes, buckets]
    for processes in (1, 4, 16, 64)
    for buckets in (1, 4, 16, 64)
}
SMOKE = {
    "cycle": ["cycle", 20],
    "blocking": ["blocking", 10],
    "consumer": ["consumer", 1_000],
    "fifty": ["fifty", 100],
    "puts": ["puts", 128],
    "drain 2 of 4": ["drain", 800, 2, 4],
}
ROUNDS, WARM_UP = 5, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures."""
    asked = _parser().parse_args(arguments)
    name = "choice" if asked.choice else "engine"
    cases: dict[str, list[Any]] = CHOICE if asked.choice else ENGINE
    rounds, warm_up = asked.rounds or ROUNDS, WARM_UP
    if asked.smoke:
        name, cases, rounds, warm_up = "engine-smoke", SMOKE, 1, 0
    if asked.only:
        cases = {case: of for case, of in cases.items() if asked.only in case}
    trees = {"after": ROOT}
    if asked.before is not None:
        trees = {"before": asked.before.resolve(), **trees}
    samples: dict[str, dict[str, dict[str, list[float]]]] = {
        case: {side: defaultdict(list) for side in trees} for case in cases
    }
    with (
        EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra,
        cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE) as client,
    ):
        client.bootstrap()
        for number in range(-warm_up, rounds):
            sides = list(trees) if number % 2 else list(reversed(trees))
            for case, of in cases.items():
                for side in sides:
                    queue = f"{side}.{number + warm_up}.{case}".replace(" ", "-")
                    found = _run(trees[side], cassandra.contact_points, queue, of)
                    print(f"round {number + 1}, {case}, {side}: {found}", file=sys.stderr)
                    client.queue(queue).delete()
                    for figure, value in found.items() if number >= 0 else ():
                        samples[case][side][figure].append(value)
    result = {
        "cases": {
            case: {
                side: {figure: report.spread(values) for figure, values in figures.items()}
                for side, figures in of.items()
            }
            for case, of in samples.items()
        },
        "arguments": cases,
        "samples": samples,
        "rounds": rounds,
        "heaps": {"cassandra": HEAP},
    } | report.circumstances("python -m bench.engine", sys.argv[1:])
    folder = Path(asked.results)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(_as_text(result))
    return 0


def _run(tree: Path, contact: str, queue: str, case: list[Any]) -> dict[str, float]:
    """Run one case by the package of this tree.

    Raises:
        SystemExit: It failed, or it imported another package.
    """
    program = str(ROOT / "bench" / "engine_case.py")
    done = subprocess.run(
        [sys.executable, program, contact, queue, *map(str, case)],
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=CASE_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{queue}: {done.stderr[-2_000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if tree not in Path(found.pop("package")).parents:
        raise SystemExit(f"{queue}: the package is not that of {tree}")
    return found


def _as_text(result: dict[str, Any]) -> str:
    lines = ["| case | figure | before | after | after / before |", "|---|---|---|---|---|"]
    for case, sides in result["cases"].items():
        for figure, after in sides["after"].items():
            before = sides.get("before", {}).get(figure)
            ratio = f"{after['median'] / before['median']:.2f}" if _has(before) else ""
            lines.append(f"| {case} | {figure} | {_text(before)} | {_text(after)} | {ratio} |")
    return "\n".join(lines)


def _has(one: dict[str, float] | None) -> bool:
    return one is not None and bool(one["median"])


def _text(one: dict[str, float] | None) -> str:
    if one is None:
        return ""
    return f"{one['median']:,.4g} ({one['min']:,.4g} to {one['max']:,.4g})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of an older release")
    parser.add_argument("--choice", action="store_true", help="1 to 64 processes and buckets")
    parser.add_argument("--only", help="only cases whose name has this in it")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--smoke", action="store_true", help="small: does it run, do counts agree")
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
