"""``python -m tests.simulation.ablated``: take each rule away in turn; which seed goes wrong?

A rule that no seed misses either belongs to what is not simulated, or the world lacks a fault, or
the rule is none. What was run is kept by the hash of the code, so the command goes on where it
stopped. Each rule takes up to ``--seeds`` runs of a second.
"""

# ruff: noqa: T201 - a program that prints what it found

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from tests.ablations import ABLATIONS, Ablation, _copy_to
from tests.simulation.__main__ import KEPT, code_hash

LONGEST_S: Final = 1_800


@dataclass(frozen=True, slots=True)
class Work:
    """A rule to take away, and the seeds to try."""

    number: int
    seeds: int

    @property
    def rule(self) -> Ablation:
        """The rule."""
        return ABLATIONS[self.number]

    @property
    def key(self) -> str:
        """Its name in what is kept: one that is worded anew is run again."""
        one = self.rule
        text = f"{one.mark} {one.rule} {one.old} {one.new} {self.seeds}"
        return blake2b(text.encode(), digest_size=8).hexdigest()


def main() -> int:
    """Run it, and print a line for each rule."""
    parser = argparse.ArgumentParser(prog="tests.simulation.ablated", description=__doc__)
    parser.add_argument("marks", nargs="*", metavar="MARK", help="P1 ... U18; none: all")
    parser.add_argument("--seeds", type=int, default=40, help="how many for each rule")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    given = parser.parse_args()
    file = KEPT / f"ablated-{code_hash()}.jsonl"
    KEPT.mkdir(exist_ok=True)
    known = {}
    if file.exists():
        known = {one["key"]: one for one in map(json.loads, file.read_text().splitlines())}
    wanted = [
        Work(number, given.seeds)
        for number, one in enumerate(ABLATIONS)
        if not given.marks or one.mark in given.marks
    ]
    left = [one for one in wanted if one.key not in known]
    fork = multiprocessing.get_context("fork")
    with file.open("a") as out, fork.Pool(given.processes) as pool:
        for one in pool.imap_unordered(without, left):
            out.write(f"{json.dumps(one)}\n")
            out.flush()
            known[one["key"]] = one
            print(_line(one), flush=True)
    found = [known[one.key] for one in wanted]
    missed = [one for one in found if one["seed"] is None]
    print(f"{len(found) - len(missed)} of {len(found)} rules are missed within {given.seeds} seeds")
    return 0


def without(work: Work) -> dict[str, Any]:
    """Run seeds without a rule, until one goes wrong."""
    rule = work.rule
    told = {"key": work.key, "mark": rule.mark, "rule": rule.rule, "seed": None, "wrong": ""}
    with tempfile.TemporaryDirectory(prefix="cassieq-ablated-") as directory:
        copy = Path(directory)
        _copy_to(copy)
        module = copy / rule.path
        module.write_text(rule.applied_to(module.read_text("utf-8")), "utf-8")
        command = [sys.executable, "-m", "tests.simulation", "--until-wrong", "--processes", "1"]
        try:
            done = subprocess.run(
                [*command, "--seeds", str(work.seeds)],
                cwd=copy,
                env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                check=False,
                timeout=LONGEST_S,
            )
        except subprocess.TimeoutExpired:
            return {**told, "wrong": "took too long"}
    if " seeds, " not in done.stdout and "seed " not in done.stdout:
        return {**told, "wrong": f"it did not run: {done.stderr[-200:]}"}
    for line in done.stdout.splitlines():
        if line.startswith("seed "):
            number, _, wrong = line.removeprefix("seed ").partition(": ")
            # Any other error says that the code around the rule is broken.
            is_proof = not wrong.startswith("error") or "AssertionError" in wrong
            told |= {"seed": int(number) if is_proof else None, "wrong": wrong[:200]}
            break
    return told


def _line(one: dict[str, Any]) -> str:
    verdict = "not missed" if one["seed"] is None else f"seed {one['seed']}"
    return f"{one['mark']:<4} {verdict:<10}  {one['rule'][:90]}  {one['wrong'][:90]}"


if __name__ == "__main__":
    sys.exit(main())
