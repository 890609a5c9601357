"""``python -m tests.simulation.guided``: look for seeds that miss a rule, with trouble where it acts.

A seed that reaches a rule is played without it, with one to three more spots: a client dies, stands
still, or loses an answer near the statement at which some client reached the rule, or another one
does so at the same row. What goes wrong is played with the rule as well, and must be right there.
Then the spots that are not needed are left out. `found.json` keeps the plans that were found.
"""

# ruff: noqa: T201 - a program that prints what it found

from __future__ import annotations

import argparse
import builtins
import json
import multiprocessing
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.ablations import ABLATIONS, Ablation
from tests.simulation.__main__ import KEPT, code_hash
from tests.simulation.aims import aims_of
from tests.simulation.ablated import load, marked, module_of
from tests.simulation.classes import why_outside
from tests.simulation.draws import Draws
from tests.simulation.shrink import fewest
from tests.simulation.spots import ACTIONS, LASTS_S, Spot

FOUND: Final = Path(__file__).with_name("found.json")
AT_ONCE: Final = 10
POINTS: Final = 6
"""So many moments at which a seed reaches a rule are kept."""

BEFORE, AFTER, THEIRS, NEAR = 2, 4, 3, 80
"""So many statements of the client before and after it, and of others at the same row, so near."""

LONGEST_S: Final = 20
MOST_SEEDS: Final = 40
MOST_LAST_S: Final = (4.0, 12.0, 12.0, 45.0)
LEADS: Final = ("transport", "session", "_session", "store", "_store", "lane", "_lane", "first")
"""Attributes by which an object of the engine leads to its client's connections."""

ENGINE: Final = tuple(f"cassieq_spark.{room}." for room in ("queue", "store", "repair", "spark", "client"))

Place = tuple[str, int, str]
"""A statement: its name, which one of its client's by that name, and the client."""


class Reached:
    """The moments at which the clients of a world reach rules, in its time of faults."""

    def __init__(self) -> None:
        self.rules: set[int] = set()
        self.moments: dict[int, dict[tuple[str, int], None]] = defaultdict(dict)
        self._counts: Counter[int] = Counter()
        self._next: dict[int, int] = defaultdict(lambda: 1)

    def add(self, number: int) -> None:
        """Note a rule that the caller is about to follow; seldom, if it is followed often."""
        self.rules.add(number)
        self._counts[number] += 1
        if self._counts[number] < self._next[number]:
            return
        transport = _transport_of(sys._getframe(1))
        if transport is None:
            return
        world = transport._world
        if world.has_faults and transport in world.transports_in_use:
            self.moments[number][transport.name, world.statements] = None
            self._next[number] = 1 + self._counts[number] * 5 // 4

    def points(self, trace: list[tuple[Any, ...]]) -> dict[int, list[list[Place]]]:
        """Return the statements around some moments, for each rule."""
        places = list(_places(trace))
        found = {}
        for number, moments in self.moments.items():
            some = list(moments)
            kept = some if len(some) <= POINTS else [some[at * len(some) // POINTS] for at in range(POINTS)]
            found[number] = [_around(trace, places, *one) for one in kept]
        return found


def _places(trace: list[tuple[Any, ...]]) -> Iterator[Place]:
    sent: Counter[tuple[str, str]] = Counter()
    for _, who, name, _ in trace:
        sent[who, name] += 1
        yield name, sent[who, name], who


def _row(line: tuple[Any, ...]) -> str:
    """The lane and the bucket of a statement, or what else its values begin with."""
    return ",".join(line[3].split(",", 2)[:2])


def _around(trace: list[tuple[Any, ...]], places: list[Place], who: str, at: int) -> list[Place]:
    """Return the statements of a client around a moment, and those of others at the same row."""
    lower, upper = max(0, at - NEAR), min(len(trace), at + NEAR)
    before = [n for n in range(lower, at) if trace[n][1] == who][-BEFORE:]
    after = [n for n in range(at, upper) if trace[n][1] == who][:AFTER]
    rows = {_row(trace[n]) for n in (*before, *after)}
    near = [n for n in range(lower, upper) if trace[n][1] != who and _row(trace[n]) in rows]
    near.sort(key=lambda n: abs(n - at))
    return [places[n] for n in (*before, *after, *near[:THEIRS])]


def _transport_of(frame: FrameType | None) -> Any:
    """Return the connections of the client on whose behalf something runs."""
    while frame is not None:
        for value in frame.f_locals.values():
            found = _led_to(value, 3)
            if found is not None:
                return found
        frame = frame.f_back
    return None


def _led_to(value: Any, steps: int) -> Any:
    if type(value).__name__ == "WorldTransport":
        return value
    home = type(value).__module__
    if steps and home.startswith(ENGINE):
        for name in LEADS:
            found = _led_to(getattr(value, name, None), steps - 1)
            if found is not None:
                return found
    return None


def reach(seeds: list[int]) -> list[dict[str, Any]]:
    """Run seeds with all rules; tell which rules each reaches, and where."""
    builtins.reached = Reached()  # type: ignore[attr-defined]
    by_module = defaultdict(list)
    for number, rule in enumerate(ABLATIONS):
        by_module[module_of(rule)].append(number)
    run = load(
        {
            name: lambda source, numbers=numbers: marked(source, numbers)
            for name, numbers in by_module.items()
        }
    )
    for name in by_module:
        __import__(name)
    always = builtins.reached.rules  # type: ignore[attr-defined]
    told = []
    for seed in seeds:
        builtins.reached = reached = Reached()  # type: ignore[attr-defined]
        trace: list[tuple[Any, ...]] = []
        found = run(seed, trace=trace)
        points = reached.points(trace)
        told.append(
            {
                "seed": seed,
                "wrong": found["wrong"],
                "n": found["statements"],
                "rules": sorted(reached.rules),
                "always": sorted(always),
                "points": {number: points.get(number, []) for number in points if not why_outside(ABLATIONS[number])},
            }
        )
    return told


@dataclass(frozen=True, slots=True)
class Work:
    """A rule, and the plans to try without it.

    Attributes:
        seeds: Each with the statements around some moments at which it reaches the rule, and all
            others that are near any rule.
        plans: What was found before.
        first: How many were tried before.
    """

    number: int
    seeds: tuple[tuple[int, list[list[Place]], list[list[Place]]], ...]
    plans: tuple[tuple[int, list[str]], ...]
    first: int
    tries: int


def _plan(work: Work, turn: int) -> tuple[int, list[str]]:
    """Draw a seed's spots: in turn some that are aimed at, and some of any kind."""
    seed, near, anywhere = work.seeds[turn % len(work.seeds)]
    draws = Draws(seed, f"guided {work.number} {turn}")
    groups = aims_of(ABLATIONS[work.number])
    if not groups or turn % (1 + 2 * len(groups)) == 2 * len(groups):
        aims = [
            ("", draws.choice(ACTIONS), "", draws.choice(MOST_LAST_S))
            for _ in range(draws.choice([1, 2, 3]))
        ]
    else:
        aims = [_aim(one) for one in groups[turn % len(groups)]]
    spots: dict[Place, str] = {}
    before: Place = ("", 0, "")
    for is_next, action, wanted, lasts_s in aims:
        places = [one for one in draws.choice(near) if wanted in ("", one[0])]
        places = places or _named(wanted, near) or _named(wanted, anywhere)
        if is_next:
            theirs = [one for one in _named(wanted, [*near, *anywhere]) if one[2] == before[2]]
            same = wanted == before[0]
            places = [(wanted, before[1] + 1, before[2])] if same else theirs
        if places:
            statement, number, client = before = draws.choice(places)
            spot = Spot(statement, action, lasts_s, client=client, number=number)
            spots[before] = spot.name
    return seed, list(spots.values())


def _named(statement: str, points: list[list[Place]]) -> list[Place]:
    return [one for some in points for one in map(tuple, some) if one[0] == statement]


def _aim(text: str) -> tuple[str, str, str, float]:
    """Read such as ``& stall after write_message 12``: whether it is the next, and a spot."""
    is_next = text.startswith("& ")
    *action, statement, lasts_s = text.removeprefix("& ").split()
    return "&" if is_next else "", " ".join(action), statement, float(lasts_s)


def is_missed(wrong: list[str]) -> bool:
    """Whether a promise was broken: another error says that the code around the rule is broken."""
    return bool(wrong) and (not wrong[0].startswith("error") or "AssertionError" in wrong[0])


def without(work: Work) -> dict[str, Any]:
    """Play plans without a rule, until one goes wrong; leave out the spots that it does not need."""
    rule = ABLATIONS[work.number]
    told: dict[str, Any] = {"number": work.number, "tried": 0, "first": work.first, "seed": None}
    try:
        run = load({module_of(rule): rule.applied_to})
    except Exception as error:  # noqa: BLE001 - the rule's replacement does not even load
        return {**told, "wrong": f"it did not run: {error!r}"}
    other: Counter[str] = Counter()
    plans = [*work.plans, *(_plan(work, work.first + turn) for turn in range(work.tries))]
    for seed, spots in plans:
        told["tried"] += 1
        wrong = run(seed, spots=spots, longest_s=LONGEST_S)["wrong"]
        if is_missed(wrong):
            left = fewest(
                spots,
                lambda out, seed=seed, spots=spots: is_missed(
                    run(seed, spots=[one for one in spots if one not in out], longest_s=LONGEST_S)["wrong"]
                ),
            )
            wrong = run(seed, spots=left, longest_s=LONGEST_S)["wrong"]
            return {**told, "seed": seed, "spots": left, "wrong": wrong[0][:300] if wrong else "?"}
        if wrong:
            other[wrong[0][:200]] += 1
            if other.total() > 2:
                break
    return {**told, "wrong": str(dict(other)) if other else ""}


def control(told: dict[str, Any]) -> dict[str, Any]:
    """Play a plan that was found with the rule, and without it, in a process that has seen no other."""
    rule = ABLATIONS[told["number"]]
    right = load({})(told["seed"], spots=told["spots"])["wrong"]
    wrong = load({module_of(rule): rule.applied_to})(told["seed"], spots=told["spots"])["wrong"]
    return {**told, "with": right, "wrong": wrong[0][:300] if wrong else ""}


def named(rule: Ablation) -> str:
    """The name of a rule in what is kept."""
    return f"{rule.mark}: {rule.rule}"


def kept() -> dict[str, dict[str, Any]]:
    """The plans that were found, by rule."""
    return {one["rule"]: one for one in json.loads(FOUND.read_text("utf-8"))} if FOUND.exists() else {}


def _keep(told: dict[str, Any]) -> None:
    found = kept()
    rule = named(ABLATIONS[told["number"]])
    found[rule] = {"rule": rule, "seed": told["seed"], "spots": told["spots"], "wrong": told["wrong"].partition(":")[0]}
    order = [named(one) for one in ABLATIONS]
    lines = [json.dumps(found[one]) for one in order if one in found]
    FOUND.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


def main() -> int:
    """Run it, and print a line for each rule."""
    parser = argparse.ArgumentParser(prog="tests.simulation.guided", description=__doc__)
    parser.add_argument("marks", nargs="*", metavar="MARK", help="P1, or 17 for that place; none: all of the first class that no plan misses")
    parser.add_argument("--seeds", type=int, default=100, help="the seeds that are there")
    parser.add_argument("--tries", type=int, default=20, help="how many plans for each rule")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    given = parser.parse_args()
    KEPT.mkdir(exist_ok=True)
    fork = multiprocessing.get_context("fork")
    with fork.Pool(given.processes, maxtasksperchild=1) as pool:
        reached = _reached(given.seeds, pool)
        file = KEPT / f"guided-{code_hash()}.jsonl"
        tried = Counter({})
        if file.exists():
            for line in file.read_text().splitlines():
                one = json.loads(line)
                tried[one["number"]] = max(tried[one["number"]], one["first"] + given.tries)
        plans = kept()
        works = []
        for number, rule in enumerate(ABLATIONS):
            is_asked = rule.mark in given.marks or str(number) in given.marks
            if is_asked or (not given.marks and not why_outside(rule) and named(rule) not in plans):
                seeds = _seeds_of(number, reached)
                plan = plans.get(named(rule))
                before = ((plan["seed"], plan["spots"]),) if plan else ()
                if seeds:
                    works.append(Work(number, seeds, before, tried[number], given.tries))
                else:
                    print(f"{number:3} {rule.mark:<5} not reached {rule.rule[:80]}", flush=True)
        with file.open("a") as out:
            for one in pool.imap_unordered(without, works):
                if one["seed"] is not None:
                    one = pool.apply(control, (one,))
                out.write(f"{json.dumps(one)}\n")
                out.flush()
                if one.get("with"):
                    print(f"WRONG WITH ALL RULES: {one}", flush=True)
                elif one["seed"] is not None and is_missed([one["wrong"]]):
                    _keep(one)
                rule = ABLATIONS[one["number"]]
                verdict = f"0 of {one['tried']}" if one["seed"] is None else f"seed {one['seed']} {one['spots']} after {one['tried']}"
                print(f"{one['number']:3} {rule.mark:<5} {rule.rule[:60]} | {verdict} | {one['wrong'][:120]}", flush=True)
    return 0


def _seeds_of(number: int, reached: dict[int, dict[str, Any]]) -> tuple[Any, ...]:
    """Return the seeds that reach a rule, those in which it is near trouble and of few statements first."""
    found = []
    for seed, one in reached.items():
        near = one["points"].get(str(number), [])
        anywhere = [point for some in one["points"].values() for point in some]
        if not one["wrong"] and (near or number in (*one["rules"], *one["always"])):
            found.append((not near, one["n"], seed, near or anywhere, anywhere))
    return tuple(one[2:] for one in sorted(found)[:MOST_SEEDS])


def _reached(seeds: int, pool: Any) -> dict[int, dict[str, Any]]:
    file = KEPT / f"points-{code_hash()}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    found = {one["seed"]: one for one in map(json.loads, lines)}
    left = [seed for seed in range(seeds) if seed not in found]
    with file.open("a") as out:
        chunks = [left[at : at + AT_ONCE] for at in range(0, len(left), AT_ONCE)]
        for some in pool.imap_unordered(reach, chunks):
            for one in some:
                line = json.dumps(one)
                out.write(f"{line}\n")
                found[one["seed"]] = json.loads(line)
                if one["wrong"]:
                    print(f"seed {one['seed']} is wrong with all rules: {one['wrong'][0][:200]}")
            out.flush()
    return found


if __name__ == "__main__":
    sys.exit(main())
