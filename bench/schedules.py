"""``python -m bench.schedules``: what a keyspace of many schedules costs those who dispatch them.

Each schedule puts a message a minute. Passes follow each other every half minute of a clock that
nobody waits for. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import cassieq_spark as cassieq
from bench import report
from cassieq_spark.embedded import EmbeddedCassandra
from cassieq_spark.store import statements
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[1]
HEAP = "2g"
CREATORS = 16
PASS_EVERY_S: Final = 30
QUEUES: Final = 4
BODY: Final = b"x" * 96

FULL, SMOKE = (10_000, timedelta(hours=1), 40), (100, timedelta(minutes=1), 5)
"""Schedules, their horizon, and passes."""

CASES: Final = frozenset(
    one.name
    for one in vars(statements).values()
    if isinstance(one, Statement) and one.kind is Kind.CAS
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures; it ends if a pass had a problem."""
    asked = _parser().parse_args(arguments)
    schedules, horizon, passes = SMOKE if asked.smoke else FULL
    schedules = asked.schedules or schedules
    with (
        EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra,
        cassieq.connect(cassandra.contact_points) as client,
    ):
        client.bootstrap()
        store = client._store  # noqa: SLF001 - its time: nobody waits for half a minute
        store.clock = clock = ManualClock(store.clock)
        for at in range(QUEUES):
            client.create_queue(f"of-schedules-{at}")

        def create(at: int) -> None:
            queue = f"of-schedules-{at % QUEUES}"
            client.schedules.create(
                f"s{at}", queue=queue, cron="* * * * *", body=BODY, horizon=horizon
            )

        def run() -> tuple[float, Counter[str], Any]:
            before, began = client._session.counts.copy(), perf_counter()  # noqa: SLF001
            done = client.schedules.dispatch_as_leader()  # as gateways and workers do
            if done is None or done.problems:
                raise SystemExit(f"a pass: {done}")
            return perf_counter() - began, client._session.counts - before, done  # noqa: SLF001

        create_s = _timed(lambda: _each(create, schedules))
        print(f"created {schedules:,} in {create_s:.0f} s", file=sys.stderr)
        idle = [run() for _ in range(3)]
        clock.advance(horizon.total_seconds())  # from now on, all are touched within one horizon
        busy = []
        for number in range(passes):
            clock.advance(PASS_EVERY_S)
            busy.append(run())
            print(f"pass {number + 1}: {busy[-1][0]:.2f} s", file=sys.stderr)
    sent = sum((counts for _, counts, _ in busy), Counter[str]())
    virtual_s = passes * PASS_EVERY_S
    found: dict[str, Any] = {
        "schedules": schedules,
        "horizon_s": horizon.total_seconds(),
        "passes": passes,
        "create_s": create_s,
        "idle_pass_s": report.spread([seconds for seconds, _, _ in idle]),
        "pass_s": report.spread([seconds for seconds, _, _ in busy]),
        "slowest_pass_s": max(seconds for seconds, _, _ in busy),
        "touched_per_s": sum(done.looked_at for _, _, done in busy) / virtual_s,
        "put_per_s": sum(done.put for _, _, done in busy) / virtual_s,
        "cas_per_s": sum(sent[name] for name in CASES) / virtual_s,
        "cas_by_name": {name: sent[name] for name in sorted(CASES & sent.keys())},
        "heaps": {"cassandra": HEAP},
    }
    found |= report.circumstances("python -m bench.schedules", sys.argv[1:])
    name = "schedules-smoke" if asked.smoke else "schedules"
    folder = Path(asked.results)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(_as_text(found))
    return 0


def _each(work: Callable[[int], None], count: int) -> None:
    with ThreadPoolExecutor(CREATORS) as pool:
        for _ in pool.map(work, range(count)):
            pass


def _timed(work: Callable[[], None]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def _as_text(found: dict[str, Any]) -> str:
    return (
        f"{found['schedules']:,} schedules of a minute, horizon {found['horizon_s']:.0f} s\n"
        f"a pass: {found['pass_s']['median']:.2f} s, {found['slowest_pass_s']:.2f} s at most; "
        f"with nothing to do {found['idle_pass_s']['median']:.2f} s\n"
        f"per second: {found['touched_per_s']:.2f} touched, {found['put_per_s']:.0f} put, "
        f"{found['cas_per_s']:.2f} CASes"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.schedules", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small: does it run")
    parser.add_argument("--schedules", type=int, help="another number of them")
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
