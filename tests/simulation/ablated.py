"""``python -m tests.simulation.ablated``: take each rule away in turn; which seed goes wrong?

First the seeds run with all rules, and tell which of them each one reaches. Then a rule is taken
away, and the first seeds that reach it are run until one goes wrong. What was run is kept by the
hash of the code, so the command goes on where it stopped.
"""

# ruff: noqa: T201 - a program that prints what it found

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, Final

from tests.ablations import ABLATIONS, Ablation
from tests.simulation.__main__ import KEPT, code_hash
from tests.simulation.classes import why_outside

OURS: Final = ("cassieq_spark", "tests.simulation", "tests.storm", "tests.children")
AT_ONCE: Final = 10

PROMISED: Final = ("AssertionError", "IllegalMove", "RowCorrupt")
"""Errors that are a broken promise, too: a program's own, and those of a row that is wrong."""

Change = Callable[[str], Any]
"""Takes the source of a module; returns what is compiled in its place."""


class _Changing(SourceFileLoader):
    changes: dict[str, Change]

    def get_code(self, fullname: str) -> Any:
        """Compile what the source was changed to."""
        source = Path(self.path).read_text("utf-8")
        return compile(self.changes[fullname](source), self.path, "exec")


class _Finder:
    def __init__(self, changes: dict[str, Change]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Let a changed module be loaded as such."""
        spec = PathFinder.find_spec(name, path, target) if name in self._changes else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Changing(name, spec.origin)
            spec.loader.changes = self._changes
        return spec


def load(changes: dict[str, Change]) -> Callable[..., dict[str, Any]]:
    """Import all anew in this process, with changed modules; return what runs a seed."""
    for name in [name for name in sys.modules if name.startswith(OURS)]:
        del sys.modules[name]
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, _Finder)]
    sys.meta_path.insert(0, _Finder(changes))  # type: ignore[arg-type]
    logging.disable(logging.CRITICAL)
    from tests.simulation.__main__ import result_of  # noqa: PLC0415 - the changed one

    return result_of


def module_of(rule: Ablation) -> str:
    """Return the name of the module that has a rule."""
    return rule.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass(frozen=True, slots=True)
class Work:
    """A rule to take away, and the seeds to try."""

    number: int
    seeds: tuple[int, ...]

    @property
    def key(self) -> str:
        """Its name in what is kept: one that is worded anew is run again."""
        one = ABLATIONS[self.number]
        text = f"{one.mark} {one.rule} {one.old} {one.new} {self.seeds}"
        return blake2b(text.encode(), digest_size=8).hexdigest()


def is_missed(wrong: list[str]) -> bool:
    """Whether a promise was broken: other errors say that the code around the rule is broken."""
    return bool(wrong) and (
        not wrong[0].startswith("error")
        or any(wrong[0].startswith(f"error: {name}") for name in PROMISED)
    )


def without(work: Work) -> dict[str, Any]:
    """Run seeds without a rule, until one goes wrong."""
    rule = ABLATIONS[work.number]
    told = {"key": work.key, "seed": None, "wrong": "", "tried": 0}
    try:
        run = load({module_of(rule): rule.applied_to})
    except Exception as error:  # noqa: BLE001 - the rule's replacement does not even load
        return {**told, "wrong": f"it did not run: {error!r}"}
    for seed in work.seeds:
        told["tried"] += 1
        wrong = run(seed)["wrong"]
        if is_missed(wrong):
            return {**told, "seed": seed, "wrong": wrong[0][:300]}
        if wrong:
            told["wrong"] = wrong[0][:300]
    return told


def _reach(seeds: list[int]) -> list[dict[str, Any]]:
    from tests.simulation.reached import reach  # noqa: PLC0415 - it loads by what is here

    return [{name: one[name] for name in one if name != "points"} for one in reach(seeds)]


def parser_of(name: str, about: str | None, *, seeds: int, none: str) -> argparse.ArgumentParser:
    """Return the parser of a command that tries rules; ``none`` says which if none is named."""
    parser = argparse.ArgumentParser(prog=f"tests.simulation.{name}", description=about)
    parser.add_argument(
        "marks", nargs="*", metavar="MARK", help=f"P1, or 17 for that place; none: {none}"
    )
    parser.add_argument("--seeds", type=int, default=seeds, help="the seeds that are there")
    parser.add_argument("--tries", type=int, default=20, help="how many tries for each rule")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    return parser


def main() -> int:
    """Run it, and print a line for each rule."""
    given = parser_of("ablated", __doc__, seeds=60, none="all of the first class").parse_args()
    KEPT.mkdir(exist_ok=True)
    file = KEPT / f"ablated-{code_hash()}.jsonl"
    kept = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {one["key"]: one for one in kept if "key" in one}
    reached = {one["seed"]: one for one in kept if "rules" in one}
    left = [seed for seed in range(given.seeds) if seed not in reached]
    fork = multiprocessing.get_context("fork")
    with file.open("a") as out, fork.Pool(given.processes, maxtasksperchild=1) as pool:
        chunks = [left[at : at + AT_ONCE] for at in range(0, len(left), AT_ONCE)]
        for some in pool.imap_unordered(_reach, chunks):
            for one in some:
                out.write(f"{json.dumps(one)}\n")
                reached[one["seed"]] = one
                if one["wrong"]:
                    print(
                        f"seed {one['seed']} is wrong with all rules: {one['wrong'][0][:200]}",
                        flush=True,
                    )
            out.flush()
        right = [seed for seed in range(given.seeds) if not reached[seed]["wrong"]]
        # Those in which much happens first.
        right.sort(key=lambda seed: -reached[seed]["n"] * (1 + reached[seed]["trouble"]))
        works = [
            Work(
                number,
                tuple(seed for seed in right if number in reached[seed]["rules"])[: given.tries],
            )
            for number, one in enumerate(ABLATIONS)
            if (one.mark in given.marks or str(number) in given.marks)
            or (not given.marks and not why_outside(one))
        ]
        for one in pool.imap_unordered(without, [one for one in works if one.key not in known]):
            out.write(f"{json.dumps(one)}\n")
            out.flush()
            known[one["key"]] = one
            (work,) = (work for work in works if work.key == one["key"])
            print(_line(work, one), flush=True)
    found = [known[one.key] for one in works]
    print(f"{sum(one['seed'] is not None for one in found)} of {len(found)} rules are missed")
    return 0


def _line(work: Work, one: dict[str, Any]) -> str:
    rule = ABLATIONS[work.number]
    verdict = f"0 of {one['tried']}" if one["seed"] is None else f"seed {one['seed']}"
    return f"{work.number:3} {rule.mark:<5} {verdict:<9} {rule.rule[:80]}  {one['wrong'][:120]}"


if __name__ == "__main__":
    sys.exit(main())
