"""``python -m tests.storm --seeds 5``: storms on a ring of three; see docs/reliability.md.

Exit code 0: nothing was broken. 1: something was; its history is kept.
"""

# ruff: noqa: T201 - a program that prints what it does

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.testing import EmbeddedCassandra
from tests.fixtures.cassandra import await_peers
from tests.storm.run import storms
from tests.storm.stage import Stage

RING_SETTINGS: Final[dict[str, object]] = {
    # What a replica missed it has missed: a hint would make it look whole.
    "hinted_handoff_enabled": False,
    # The least there is: a killed node is noticed in 12 s of silence, not in 18.
    "phi_convict_threshold": 5,
}


def main() -> int:
    """Run it; the exit code."""
    given = _parser().parse_args()
    drawn = generator().randrange(1 << 20) if given.first is None else given.first
    first = drawn if given.seed is None else given.seed
    seeds = [first] if given.seed is not None else list(range(first, first + given.seeds))
    directory = Path(given.directory or tempfile.mkdtemp(prefix="cassieq-storm-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seeds {seeds[0]} to {seeds[-1]}, {given.seconds:g} s each, in {directory}", flush=True)
    if given.schedule:
        return _print_schedules(seeds, given.seconds, has_spark=not given.no_spark)
    with EmbeddedCassandra(nodes=3, settings=RING_SETTINGS) as ring:
        await_peers(ring)
        try:
            with Stage(
                ring, directory, has_spark=not given.no_spark, keeps_all=given.keep
            ) as stage:
                reports = storms(stage, seeds, given.seconds)
        finally:
            ring.resume()
            ring.kill()
    red = [report for report in reports if not report.is_green]
    print(f"{len(reports)} seeds, {len(red)} red")
    return 1 if red else 0


def _print_schedules(seeds: list[int], seconds: float, *, has_spark: bool) -> int:
    from tests.storm.schedule import draw  # noqa: PLC0415 - only this needs it
    from tests.storm.stage import cast_of  # noqa: PLC0415 - as above

    for seed in seeds:
        print(draw(seed, seconds, cast_of(seed, has_spark=has_spark)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="so many, one after the other")
    parser.add_argument("--first", type=int, help="the first of them; default: drawn")
    parser.add_argument("--seed", type=int, help="this one alone, again")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each storm")
    parser.add_argument("--no-spark", action="store_true", help="Python processes only")
    parser.add_argument("--keep", action="store_true", help="the histories of green seeds, too")
    parser.add_argument("--schedule", action="store_true", help="print the faults, do nothing")
    parser.add_argument("--directory", help="for histories; default: a temporary one")
    return parser


if __name__ == "__main__":
    started = SystemClock().monotonic()
    code = main()
    print(f"{SystemClock().monotonic() - started:.0f} s in all")
    sys.exit(code)
