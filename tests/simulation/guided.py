"""``python -m tests.simulation.guided``: look for seeds that miss a rule, with trouble near it.

A seed that reaches a rule is played without it, with one to three more spots: a client dies, stands
still, or loses an answer near the statement at which some client reached the rule, or another one
does so at the same row. What goes wrong is played with the rule as well, and must be right there.
Then the spots that are not needed are left out. `found.json` keeps the plans that were found.
"""

# ruff: noqa: T201 - a program that prints what it found

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from tests.ablations import ABLATIONS, Ablation
from tests.simulation.__main__ import KEPT, code_hash
from tests.simulation.ablated import is_missed, load, module_of, parser_of
from tests.simulation.aims import aims_of
from tests.simulation.classes import why_outside
from tests.simulation.draws import Draws
from tests.simulation.reached import Place, reach
from tests.simulation.shrink import fewest
from tests.simulation.spots import ACTIONS, Spot

FOUND: Final = Path(__file__).with_name("found.json")
AT_ONCE: Final = 10
LONGEST_S: Final = 20
MOST_SEEDS: Final = 40
MOST_LAST_S: Final = (4.0, 12.0, 12.0, 45.0)


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
        # Several at once: those that it can spare are left out in the end.
        aims = [_aim(one) for one in groups[turn % len(groups)]] * draws.choice([1, 3, 4])
    spots: dict[Place, str] = {}
    before: Place = ("", 0, "")
    point: list[Place] = []
    for whose, action, wanted, lasts_s in aims:
        if whose == "&":
            same = [(wanted, before[1] + 1, before[2])] if wanted == before[0] else []
            theirs = [one for one in _named(wanted, [*near, *anywhere]) if one[2] == before[2]]
            places = same or theirs
        elif whose == "@":
            places = [one for one in _named(wanted, [point]) if one[2] != before[2]]
        else:
            point = draws.choice([one for one in near if _named(wanted, [one])] or near)
            places = _named(wanted, [point]) or _named(wanted, anywhere)
        if places:
            statement, number, client = before = draws.choice(places)
            spot = Spot(statement, action, lasts_s, client=client, number=number)
            spots[before] = spot.name
    return seed, list(spots.values())


def _named(statement: str, points: list[list[Place]]) -> list[Place]:
    found = [(name, number, client) for some in points for name, number, client in some]
    return [one for one in found if statement in ("", one[0])]


def _aim(text: str) -> tuple[str, str, str, float]:
    """Read such as ``& stall after write_message 12``: whose statement, and a spot."""
    whose = text[0] if text[0] in "&@" else ""
    *action, statement, lasts_s = text.removeprefix(whose).split()
    return whose, " ".join(action), statement, float(lasts_s)


def without(work: Work) -> dict[str, Any]:
    """Play plans without a rule, until one goes wrong; leave out the spots that it can spare."""
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
                    run(seed, spots=[one for one in spots if one not in out], longest_s=LONGEST_S)[
                        "wrong"
                    ]
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
    """Play a plan that was found, with the rule and without it, in a process of its own."""
    rule = ABLATIONS[told["number"]]
    right = load({})(told["seed"], spots=told["spots"])["wrong"]
    wrong = load({module_of(rule): rule.applied_to})(told["seed"], spots=told["spots"])["wrong"]
    return {**told, "with": right, "wrong": wrong[0][:300] if wrong else ""}


def named(rule: Ablation) -> str:
    """The name of a rule in what is kept."""
    return f"{rule.mark}: {rule.rule}"


def kept() -> dict[str, dict[str, Any]]:
    """The plans that were found, by rule."""
    return (
        {one["rule"]: one for one in json.loads(FOUND.read_text("utf-8"))} if FOUND.exists() else {}
    )


def _keep(told: dict[str, Any]) -> None:
    found = kept()
    rule = named(ABLATIONS[told["number"]])
    found[rule] = {
        "rule": rule,
        "seed": told["seed"],
        "spots": told["spots"],
        "wrong": told["wrong"].partition(":")[0],
    }
    order = [named(one) for one in ABLATIONS]
    lines = [json.dumps(found[one]) for one in order if one in found]
    FOUND.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


def table() -> str:
    """Write what docs/design/simulation.md shows of the plans that were found."""
    rules = {named(one): one for one in ABLATIONS}
    plans = kept()
    first = sum(not why_outside(one) for one in ABLATIONS)
    missed = sum(not why_outside(rules[name]) for name in plans)
    lines = [
        f"{missed} of the {first} rules of the first class are missed by a plan that is kept:",
        "",
        "| Mark | Rule | A plan that misses it | What goes wrong |",
        "| --- | --- | --- | --- |",
    ]
    for name, one in plans.items():
        rule = rules[name]
        spots = "".join(f"; {spot}" for spot in one["spots"])
        lines.append(f"| {rule.mark} | {rule.rule} | seed {one['seed']}{spots} | {one['wrong']} |")
    return "\n".join(lines)


def again(numbers: list[int], pool: Any) -> int:
    """Play the plans that were found; return how many do not miss their rule any more."""
    plans = kept()
    failed = 0
    todo = [
        {"number": number, **plans[named(ABLATIONS[number])]}
        for number in numbers
        if named(ABLATIONS[number]) in plans
    ]
    for one in pool.imap(control, todo):
        is_found = not one["with"] and is_missed([one["wrong"]])
        failed += not is_found
        print(f"{one['rule'][:70]} | {one['with'] or one['wrong'][:100] or 'nothing wrong'}")
    return failed


def _asked(marks: list[str]) -> list[int]:
    """Return the numbers of the rules that are asked for; of none: all of the first class."""
    return [
        number
        for number, rule in enumerate(ABLATIONS)
        if (rule.mark in marks or str(number) in marks) or (not marks and not why_outside(rule))
    ]


def main() -> int:
    """Run it, and print a line for each rule."""
    given = _parser().parse_args()
    if given.table:
        print(table())
        return 0
    KEPT.mkdir(exist_ok=True)
    numbers = _asked(given.marks)
    fork = multiprocessing.get_context("fork")
    with fork.Pool(given.processes, maxtasksperchild=1) as pool:
        if given.again:
            return again(numbers, pool)
        reached = _reached(given.seeds, pool)
        file = KEPT / f"guided-{code_hash()}.jsonl"
        tried: Counter[int] = Counter()
        for line in file.read_text().splitlines() if file.exists() else []:
            before = json.loads(line)
            tried[before["number"]] += before["tried"]
        plans = kept()
        works = []
        for number in numbers:
            rule = ABLATIONS[number]
            plan = plans.get(named(rule))
            seeds = _seeds_of(number, reached)
            if plan is not None and not given.marks:
                continue
            if not seeds:
                print(f"{number:3} {rule.mark:<5} not reached {rule.rule[:80]}", flush=True)
                continue
            begins_with = ((plan["seed"], plan["spots"]),) if plan else ()
            works.append(Work(number, seeds, begins_with, tried[number], given.tries))
        with file.open("a") as out:
            for one in pool.imap_unordered(without, works):
                _note(pool.apply(control, (one,)) if one["seed"] is not None else one, out)
    return 0


def _note(one: dict[str, Any], out: TextIO) -> None:
    """Write down and print what was found about a rule."""
    out.write(f"{json.dumps(one)}\n")
    out.flush()
    rule = ABLATIONS[one["number"]]
    verdict = f"0 of {one['tried']}"
    if one.get("with"):
        verdict = f"WRONG WITH ALL RULES: seed {one['seed']} {one['spots']}: {one['with']}"
    elif one["seed"] is not None and is_missed([one["wrong"]]):
        _keep(one)
        verdict = f"seed {one['seed']} {one['spots']}"
    about = f"{one['number']:3} {rule.mark:<5} {rule.rule[:60]}"
    print(f"{about} | {verdict} | {one['wrong'][:120]}", flush=True)


def _parser() -> argparse.ArgumentParser:
    none = "all of the first class that no plan misses"
    parser = parser_of("guided", __doc__, seeds=100, none=none)
    parser.add_argument("--again", action="store_true", help="play only what was found before")
    parser.add_argument("--table", action="store_true", help="write the table of the page")
    return parser


def _seeds_of(number: int, reached: dict[int, dict[str, Any]]) -> tuple[Any, ...]:
    """Return the seeds that reach a rule: first those that do so among faults, the short first."""
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
