"""Which clients of a seed reach which rules, and at which of their statements."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from tests.ablations import ABLATIONS
from tests.simulation.ablated import load, module_of
from tests.simulation.classes import why_outside

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

POINTS: Final = 6
"""So many moments at which a seed reaches a rule are kept."""

BEFORE, AFTER, THEIRS, NEAR = 2, 4, 3, 80
"""So many statements of the client before and after it, and of others at the same row, so near."""

LEADS: Final = ("transport", "session", "_session", "store", "_store", "lane", "_lane", "first")
"""Attributes by which an object of the engine leads to its client's connections."""

ENGINE: Final = tuple(
    f"cassieq_spark.{room}." for room in ("queue", "store", "repair", "spark", "client")
)

Place = tuple[str, int, str]
"""A statement: its name, which one of its client's by that name, and the client."""


def marked(source: str, numbers: list[int]) -> ast.Module:
    """Parse a module, with a call before each statement that has a rule."""
    tree = ast.parse(source)
    for number in numbers:
        words = r"\s+".join(re.escape(word) for word in ABLATIONS[number].old.split())
        (found,) = re.finditer(words, source)
        line = source.count("\n", 0, found.start()) + 1
        place = _innermost(tree, line)
        if place is None:
            builtins.reached.add(number)  # type: ignore[attr-defined]
            continue
        call = ast.parse(f"reached.add({number})").body[0]
        ast.copy_location(call, place[0][place[1]])  # else the next rule takes it for line 1
        place[0].insert(place[1], call)
    return ast.fix_missing_locations(tree)


def _innermost(tree: ast.Module, line: int) -> tuple[list[ast.stmt], int] | None:
    """Return the list and place of the innermost statement of a function at this line."""
    found = None
    functions = [
        one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = [one for one in functions if one.body[0].lineno <= line <= (one.end_lineno or 0)]
    nodes: list[Any] = inside[-1:]
    while nodes:
        lists = [
            some
            for node in nodes
            for some in (
                getattr(node, name, None)
                for name in ("body", "orelse", "finalbody", "handlers", "cases")
            )
            if isinstance(some, list)
        ]
        nodes = []
        for some in lists:
            for at, one in enumerate(some):
                first = getattr(one, "lineno", None) or one.pattern.lineno
                last = getattr(one, "end_lineno", None) or one.body[-1].end_lineno
                if first <= line <= last:
                    if isinstance(one, ast.stmt):
                        found = (some, at)
                    nodes = [one]
    return found


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
            kept = (
                some
                if len(some) <= POINTS
                else [some[at * len(some) // POINTS] for at in range(POINTS)]
            )
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
                "points": {
                    number: points.get(number, [])
                    for number in points
                    if not why_outside(ABLATIONS[number])
                },
            }
        )
    return told
