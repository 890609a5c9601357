"""``python -m tests.simulation --seeds 100``: run seeds, and say which went wrong.

What was run is kept by the hash of the package and of the simulation, so that a run goes on where
it stopped.
"""

# ruff: noqa: T201 - a program that prints what it does

from __future__ import annotations

import argparse
import gc
import json
import logging
import multiprocessing
import signal
import sys
from collections import Counter
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from cassieq_spark.clock import SystemClock
from tests.simulation.limits import RARE
from tests.simulation.run import run

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = ROOT / ".simulation"
ABOUT_SEEDS: Final = {
    "__main__.py",
    "ablated.py",
    "aims.py",
    "classes.py",
    "guided.py",
    "shrink.py",
}
"""Modules that change nothing in a seed."""

LONGEST_S: Final = 180
MANY: Final = 10_000
"""From so many seeds on, a rare state that none has reached is a failure."""


def main() -> int:
    """Run it; exit code 1 if a seed went wrong."""
    given = _parser().parse_args()
    logging.disable(logging.CRITICAL)  # a world's faults are logged as a program's would be
    if given.seed is not None:
        return _show(given.seed, given.only, spots=given.spot, is_outside=given.outside)
    file = KEPT / f"{'outside-' * given.outside}{code_hash()}.jsonl"
    KEPT.mkdir(exist_ok=True)
    wanted = range(given.first, given.first + given.seeds)
    done = {one["seed"]: one for one in _read(file)}
    left = [seed for seed in wanted if seed not in done]
    began = SystemClock().monotonic()
    with file.open("a") as out:
        for one in _run_all(left, given.processes, is_outside=given.outside):
            out.write(f"{json.dumps(one)}\n")
            out.flush()
            done[one["seed"]] = one
            if one["wrong"]:
                print(f"seed {one['seed']}: {one['wrong'][0]}", flush=True)
                if given.until_wrong:
                    return 1
    took_s = SystemClock().monotonic() - began
    return _summary([done[seed] for seed in wanted], len(left), took_s)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, help="run this one alone, and show what it sent")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="with --seed: play only these"
    )
    parser.add_argument(
        "--outside", action="store_true", help="worlds outside of what the cluster's page permits"
    )
    parser.add_argument(
        "--spot",
        action="append",
        default=[],
        help="with --seed: trouble, such as 'lose update_bucket 7 of client 2 for 1.0 s'",
    )
    parser.add_argument("--until-wrong", action="store_true", help="end with the first wrong one")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    return parser


def code_hash() -> str:
    """The hash of all that a result depends on."""
    found = blake2b(digest_size=8)
    for folder in ("cassieq_spark", "tests/simulation", "tests/storm"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.name not in ABOUT_SEEDS and not file.name.startswith("test_"):
                found.update(file.read_bytes())
    return found.hexdigest()


def _read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    lines = file.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


class TookTooLong(KeyboardInterrupt):
    """A seed probably never ends. The engine would take an `Exception` for an error of its own."""


def _took_too_long(*_: Any) -> None:
    raise TookTooLong("it runs for so long that it probably never ends")


def result_of(seed: int, *, longest_s: int = LONGEST_S, **played: Any) -> dict[str, Any]:
    """Run a seed; what is kept of it.

    Args:
        played: As `run` takes it.
    """
    signal.signal(signal.SIGVTALRM, _took_too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, longest_s)  # of its own: others use the machine, too
    try:
        found = run(seed, **played)
    except (Exception, TookTooLong) as error:  # noqa: BLE001 - the simulation's, or a client's
        return {"seed": seed, "wrong": [f"error: {error!r}"[:1000]], "statements": 0}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return {
        "seed": seed,
        "wrong": [f"{one.kind}: {one.what}"[:1000] for one in found.anomalies],
        "digest": found.digest,
        "statements": found.statements,
        "virtual_s": round(found.virtual_s, 3),
        "seen": dict(found.seen),
    }


def _run_all(seeds: list[int], processes: int, *, is_outside: bool) -> Iterator[dict[str, Any]]:
    """Run seeds side by side, each in a process of its own, which has seen no other."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    fork = multiprocessing.get_context("fork")
    gc.freeze()  # what was imported is no garbage of a child, whose collector would copy its pages
    with (
        Progress(*columns, disable=not sys.stderr.isatty()) as progress,
        fork.Pool(processes, maxtasksperchild=1) as pool,
    ):
        task = progress.add_task("seeds", total=len(seeds))
        for one in pool.imap_unordered(partial(result_of, is_outside=is_outside), seeds):
            progress.advance(task)
            yield one


def _summary(done: list[dict[str, Any]], ran: int, took_s: float) -> int:
    wrong = [one["seed"] for one in done if one["wrong"]]
    seen: Counter[str] = Counter()
    for one in done:
        seen.update(one.get("seen", {}))
    statements = sum(one["statements"] for one in done)
    hours = sum(one.get("virtual_s", 0.0) for one in done) / 3600
    print(
        f"{len(done)} seeds, {ran} of them now in {took_s:.0f} s: {len(wrong)} wrong {wrong[:20]}\n"
        f"{statements:,} statements in {hours:.1f} virtual hours\n"
        + ", ".join(f"{name} {count:,}" for name, count in sorted(seen.items()))
    )
    never = [name for name in RARE if not seen[name]]
    if never:
        print(f"never reached: {', '.join(never)}")
    return bool(wrong or (never and len(done) >= MANY))


def _show(seed: int, only: list[str], **played: Any) -> int:
    trace: list[tuple[Any, ...]] = []
    play = partial(run, seed, **played)
    without = set(play().parts) - set(only) if only else set()
    found = play(trace=trace, without=without)
    lines = [(at, f"{who:<10} {name:<22} {rows[:120]}") for at, who, name, rows in trace]
    for entry in found.history:
        rest = {name: one for name, one in entry.items() if name not in {"at", "who", "what"}}
        lines.append((entry["at"], f"{entry['who']}: {entry['what'].upper()} {rest}"[:200]))
    for at, line in sorted(lines, key=lambda one: one[0]):
        print(f"{at:12.6f} {line}")
    for anomaly in found.anomalies:
        print(f"WRONG {anomaly.kind}: {anomaly.what}")
    print(f"{found.statements} statements, hash {found.digest}, {dict(found.seen)}")
    return bool(found.anomalies)


if __name__ == "__main__":
    sys.exit(main())
