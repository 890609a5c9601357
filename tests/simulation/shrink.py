"""``python -m tests.simulation.shrink SEED``: find the fewest parts with which a seed goes wrong.

A seed is a plan: programs, faults, small limits, a leap. Each has draws of its own, so what is left
plays on much as before. Parts are left out by halves, then one by one, as long as the same kind of
promise is broken (delta debugging).
"""

# ruff: noqa: T201 - a program that prints what it found

from __future__ import annotations

import argparse
import logging
import multiprocessing
import shlex
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.run import run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def fewest(parts: list[str], is_wrong: Callable[[Collection[str]], bool]) -> list[str]:
    """Return parts without any of which nothing is wrong.

    Args:
        is_wrong: Whether it is, without these parts.
    """
    kept = list(dict.fromkeys(parts))
    out: set[str] = set()
    size = len(kept)
    while size:
        size = max(1, size // 2)
        has_shrunk = False
        for start in range(0, len(kept), size):
            chunk = {one for one in kept[start : start + size] if one not in out}
            if chunk and is_wrong(out | chunk):
                out |= chunk
                has_shrunk = True
        kept = [one for one in kept if one not in out]
        if size == 1 and not has_shrunk:
            return kept
    return kept


def kinds(seed: int, without: Collection[str], *, is_outside: bool) -> set[str]:
    """Run a plan; return the kinds of promises that it breaks."""
    try:
        return {one.kind for one in run(seed, without=without, is_outside=is_outside).anomalies}
    except Exception as error:  # noqa: BLE001 - the simulation's own, or what a client raised
        return {f"error {type(error).__name__}"}


def main() -> None:
    """Print the parts, and how to see what happens with them."""
    parser = argparse.ArgumentParser(prog="tests.simulation.shrink", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--outside", action="store_true", help="of `python -m tests.simulation`")
    given = parser.parse_args()
    seed = given.seed
    logging.disable(logging.CRITICAL)
    parts = run(seed, is_outside=given.outside).parts
    fork = multiprocessing.get_context("fork")
    with fork.Pool(1, maxtasksperchild=1) as pool:  # each in a process that has seen no other

        def broken(without: Collection[str]) -> set[str]:
            return pool.apply(partial(kinds, seed, without, is_outside=given.outside))

        wanted = broken(())
        if not wanted:
            raise SystemExit(f"seed {seed} is not wrong")
        left = fewest(parts, lambda without: bool(wanted & broken(without)))
    print(f"seed {seed} breaks {', '.join(sorted(wanted))} with {len(left)} of {len(parts)} parts:")
    print("\n".join(left))
    only = " ".join(f"--only {shlex.quote(one)}" for one in left)
    outside = "--outside " if given.outside else ""
    print(f"To see it:\npython -m tests.simulation {outside}--seed {seed} {only}")


if __name__ == "__main__":
    main()
