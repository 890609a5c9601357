"""``python -m bench.scheduled``: what a million messages scheduled over a year cost everybody else.

See ``docs/benchmarks.md`` for what the figures say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import cassieq_spark as cassieq
from bench import report
from cassieq_spark.embedded import EmbeddedCassandra
from cassieq_spark.model.moments import time_of
from cassieq_spark.repair.cleanup import TURN_US
from cassieq_spark.store import portal
from cassieq_spark.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
HEAP = "1g"
BODY = b"x" * 96
PUTTERS = 8
WAIT_S: Final = 10.0
"""How long an idle consumer waits in one call."""

FULL, SMOKE = (8_750, 115, 5, 2, 300), (100, 5, 1, 0, 20)
"""Hours ahead, messages in each, rounds, rounds of warm-up, and messages of each round."""

SETTINGS: Final[dict[str, Any]] = {"bucket_size": 1_000, "repair_timeout": 0.2, "linger": 0.02}
SIDES: Final = ("put", "get", "idle", "pass")


@dataclass(slots=True)
class Side:
    """What one queue has cost: an entry for each round, and all statements."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statements: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


class Queue:
    """One of the two queues, and the statements of the client that works on it."""

    def __init__(self, client: cassieq.Client, name: str) -> None:
        self._client = client
        self.queue = client.create_queue(name, **SETTINGS)
        store = client._store  # noqa: SLF001 - its time: nobody waits for ten minutes
        store.clock = self._clock = ManualClock(store.clock)

    def schedule(self, hours: int, each: int) -> float:
        """Put messages due in each of the next hours; return the seconds that it took."""
        begin = time_of(self._client._store.clock.now_us()) + timedelta(hours=1)  # noqa: SLF001

        def put(hour: int) -> None:
            for minute in range(5):
                share = each // 5 + (minute < each % 5)
                due_at = begin + timedelta(hours=hour, minutes=12 * minute)
                self.queue.put_many([BODY] * share, due_at=due_at)

        began = perf_counter()
        with ThreadPoolExecutor(PUTTERS) as pool:
            for _ in pool.map(put, range(hours)):
                pass
        return perf_counter() - began

    def round(self, messages: int, into: Side) -> None:
        """Put messages one by one, get and ack them, wait at what is empty then, and repair."""
        self._timed("put", into, lambda: [self.queue.put(BODY) for _ in range(messages)])
        got: list[cassieq.Delivery] = []

        def drain() -> None:
            while found := self.queue.get(100):
                got.extend(found)
                self.queue.ack(found)

        self._timed("get", into, drain)
        if {messages} != {len(got), len({one.message_id for one in got})}:
            raise SystemExit(f"{messages} in, {len(got)} out")
        self._timed("idle", into, lambda: self.queue.get(wait=WAIT_S))
        self._timed("pass", into, self.repair)

    def repair(self) -> None:
        """One pass over this queue."""
        problems = self._client.repair(self.queue.name).problems
        if problems:
            raise SystemExit(f"repair: {problems[0]}")

    def turn(self) -> tuple[float, int]:
        """Seconds and statements of the pass that heals lanes that have not begun: their share."""
        self.repair()
        self._clock.advance(TURN_US / 1e6)
        return self.timed_once(self.repair)

    def timed_once(self, act: Callable[[], object]) -> tuple[float, int]:
        """Seconds and statements of one call."""
        side = Side()
        self._timed("once", side, act)
        return side.seconds["once"][0], side.statements["once"].total()

    @property
    def dropped(self) -> int:
        """How many buckets of ordinary messages repair has dropped for good."""
        return portal.run(self.queue._lane.read_pointers()).repair  # noqa: SLF001 - what it is about

    def _timed(self, name: str, into: Side, act: Callable[[], object]) -> None:
        counts = self._client._session.counts  # noqa: SLF001 - its statements
        before = counts.copy()
        began = perf_counter()
        act()
        into.seconds[name].append(perf_counter() - began)
        into.statements[name] += counts - before


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures; it ends if a message was lost or came twice."""
    asked = _parser().parse_args(arguments)
    hours, each, rounds, warm_up, messages = SMOKE if asked.smoke else FULL
    sides = {"empty": Side(), "scheduled": Side()}
    with EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra, _clients(cassandra) as clients:
        clients[0].bootstrap()
        queues = {name: Queue(client, name) for name, client in zip(sides, clients, strict=True)}
        put_s = queues["scheduled"].schedule(hours, each)
        print(f"scheduled {hours * each:,} messages in {put_s:.0f} s", file=sys.stderr)
        turn = {name: queue.turn() for name, queue in queues.items()}
        for number in range(-warm_up, rounds):
            # In turns, so that none has the better moment.
            for name, queue in queues.items():
                queue.round(messages, sides[name] if number >= 0 else Side())
            print(f"round {number + 1}", file=sys.stderr)
        stats = {name: queue.timed_once(queue.queue.stats) for name, queue in queues.items()}
        found_scheduled = queues["scheduled"].queue.stats().scheduled
        dropped = {name: queue.dropped for name, queue in queues.items()}
    if found_scheduled != hours * each:
        raise SystemExit(f"{hours * each} scheduled, {found_scheduled} there")
    found: dict[str, Any] = {
        "sides": {name: _side(side, messages) for name, side in sides.items()},
        "of_empty": {
            work: report.spread(
                [
                    ours / theirs
                    for ours, theirs in zip(
                        sides["scheduled"].seconds[work], sides["empty"].seconds[work], strict=True
                    )
                ]
            )
            for work in SIDES
        },
        "turn": {name: {"seconds": one[0], "statements": one[1]} for name, one in turn.items()},
        "stats": {name: {"seconds": one[0], "statements": one[1]} for name, one in stats.items()},
        "dropped": dropped,
        "scheduled": hours * each,
        "lanes": hours,
        "put_s": put_s,
        "messages": messages,
        "rounds": rounds,
        "heaps": {"cassandra": HEAP},
    }
    found |= report.circumstances("python -m bench.scheduled", sys.argv[1:])
    folder = Path(asked.results)
    folder.mkdir(parents=True, exist_ok=True)
    name = "scheduled-smoke" if asked.smoke else "scheduled"
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(_as_text(found))
    return 0


@contextmanager
def _clients(cassandra: EmbeddedCassandra) -> Iterator[list[cassieq.Client]]:
    """Two clients: each counts the statements of its own queue."""
    with (
        cassieq.connect(cassandra.contact_points) as one,
        cassieq.connect(cassandra.contact_points) as other,
    ):
        yield [one, other]


def _side(side: Side, messages: int) -> dict[str, Any]:
    per = {"put": messages, "get": messages, "idle": WAIT_S, "pass": 1}
    return {
        work: {
            "seconds": report.spread(side.seconds[work]),
            "statements": side.statements[work].total() / (len(side.seconds[work]) * per[work]),
            "samples_s": side.seconds[work],
        }
        for work in SIDES
    }


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"{'':<12}{'of empty':>10}{'statements':>14}{'of empty queue':>16}"]
    for work in SIDES:
        ours, theirs = (found["sides"][name][work]["statements"] for name in ("scheduled", "empty"))
        lines.append(
            f"{work:<12}{found['of_empty'][work]['median']:>10.2f}{ours:>14.2f}{theirs:>16.2f}"
        )
    for name in ("turn", "stats"):
        ours, theirs = found[name]["scheduled"], found[name]["empty"]
        lines.append(
            f"{name}: {ours['seconds']:.2f} s and {ours['statements']} statements, empty "
            f"{theirs['seconds']:.2f} s and {theirs['statements']}"
        )
    lines.append(f"buckets dropped: {found['dropped']}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduled", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small: does it run, do counts agree")
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
