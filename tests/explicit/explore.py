"""Breadth first through every state of a model: what breaks comes with a shortest trace."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

S = TypeVar("S", bound="Hashable")


class Model(Protocol[S]):
    """What is explored. States are values: equal ones are one state."""

    def start(self) -> S:
        """Where every trace begins."""

    def steps(self, state: S) -> Iterable[tuple[str, S]]:
        """Each thing that may happen next: its name, and the state after it."""

    def broken(self, state: S) -> str | None:
        """The invariant that this state breaks, in words; None: it holds them all."""

    def describe(self, state: S) -> str:
        """The state for a reader of a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A shortest way to a broken invariant."""

    invariant: str
    steps: tuple[str, ...]
    end: str

    def __str__(self) -> str:
        lines = [f"{self.invariant}, after {len(self.steps)} steps:"]
        lines += [f"{number:4d}. {step}" for number, step in enumerate(self.steps, start=1)]
        return "\n".join([*lines, "      " + self.end])


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored(Generic[S]):
    """What a search saw.

    Attributes:
        states: Different ones.
        transitions: Steps between them.
        depth: Steps to the farthest one.
        is_complete: Whether there is no other: false after a violation, or at the limit.
        trace: To the first violation; None: nothing broke.
    """

    states: int
    transitions: int
    depth: int
    is_complete: bool
    trace: Trace | None

    def __str__(self) -> str:
        extent = "all of them" if self.is_complete else "not exhausted"
        counts = f"{self.states:,} states ({extent}), {self.transitions:,} transitions"
        return f"{counts}, depth {self.depth}" + (f"\n{self.trace}" if self.trace else "")


@contextmanager
def _no_collector() -> Iterator[None]:
    """States are values without cycles: it would look at millions of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_no_collector()
def explore(model: Model[S], *, limit: int) -> Explored[S]:
    """Visit every state that can be reached, nearest first; stop at the first that is broken."""
    start = model.start()
    came: dict[S, tuple[S, str] | None] = {start: None}
    transitions = depth = 0
    trace = _trace(model, came, start)
    layer = [start]
    while layer and trace is None and len(came) < limit:
        depth += 1
        after: list[S] = []
        for state in layer:
            for name, found in model.steps(state):
                transitions += 1
                if found in came:
                    continue
                came[found] = (state, name)
                after.append(found)
                if model.broken(found) is not None:
                    trace = _trace(model, came, found)
                    break
            if trace is not None or len(came) >= limit:
                break
        layer = after
    return Explored(
        states=len(came),
        transitions=transitions,
        depth=depth - (not layer),
        is_complete=trace is None and len(came) < limit,
        trace=trace,
    )


def _trace(model: Model[S], came: dict[S, tuple[S, str] | None], state: S) -> Trace | None:
    invariant = model.broken(state)
    if invariant is None:
        return None
    steps: list[str] = []
    at = state
    while (before := came[at]) is not None:
        at, name = before
        steps.append(name)
    return Trace(invariant=invariant, steps=tuple(reversed(steps)), end=model.describe(state))
