"""``python -m bench.shards``: what shards bring to sixteen processes, and cost an idle consumer.

See ``docs/benchmarks.md`` for what the figures say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq
from bench import report
from bench.fleet import Fleet
from cassieq_spark.embedded import EmbeddedCassandra
from cassieq_spark.store.statements import Kind, every_statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.fleet import Done

ROOT = Path(__file__).resolve().parents[1]
KEYSPACE = "cassieq"
HEAP = "1g"
PROCESSES = 16
SHARDS = (1, 4, 16)
BUCKET = 1_000
"""Small, so that producers and consumers meet often at the rows that shards are to spread."""

AT_ONCE = 100
BODY_BYTES = 96
IDLE_S = 2.0
"""How long a consumer waits for producers that work beside it."""

IDLE_QUEUES = {1: (1, 1), 4: (2, 2), 16: (4, 4), 64: (8, 8)}
"""Priorities and shards, by lanes."""

WARM_UP_S = 1.0
FULL, SMOKE = (64_000, 5, 2, 20.0), (1_600, 1, 0, 1.0)
"""Messages of each side, rounds, rounds of warm-up, and seconds that a consumer is idle."""

SMOKE_SHARDS = (1, 4)

LWTS = {one.name for one in every_statement() if one.kind is Kind.CAS}
READS = {one.name for one in every_statement() if one.kind not in {Kind.CAS, Kind.WRITE}}


@dataclass(slots=True)
class Side:
    """What was measured with one number of shards, or of lanes: an entry for each round."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statements: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    cpu_s: list[float] = field(default_factory=list)

    def add(self, name: str, done: Done) -> None:
        """Note what processes did."""
        self.seconds[name].append(done.seconds)
        self.statements[name] += done.statements


class Shards:
    """The sides of one round, each on a queue of its own."""

    def __init__(self, client: cassieq.Client, fleet: Fleet, *, messages: int, seed: int) -> None:
        self._client = client
        self._fleet = fleet
        self.messages = messages
        self._seed = seed

    def busy(self, name: str, shards: int, into: Side) -> None:
        """Put by all processes, drained by all; then both at once, half of them each."""
        queue = self._client.create_queue(f"{name}.apart", bucket_size=BUCKET, shards=shards)
        into.add("put", self._fleet.run(self._putting(queue, PROCESSES)))
        drained = self._fleet.run(_draining(queue, PROCESSES))
        self._check(drained)
        into.add("get", drained)
        queue.delete()

        queue = self._client.create_queue(f"{name}.beside", bucket_size=BUCKET, shards=shards)
        half = PROCESSES // 2
        both = self._fleet.run([*self._putting(queue, half), *_draining(queue, half)])
        self._check(both)
        into.add("both", both)
        queue.delete()

    def idle(self, name: str, lanes: int, seconds: float, into: Side) -> None:
        """One consumer waits at an empty queue."""
        priorities, shards = IDLE_QUEUES[lanes]
        queue = self._client.create_queue(name, priorities=priorities, shards=shards)
        asked = {"work": "wait", "queue": queue.name}
        self._fleet.run([{**asked, "seconds": WARM_UP_S}])
        done = self._fleet.run([{**asked, "seconds": seconds}])
        into.add("idle", done)
        into.cpu_s.append(done.cpu_s)
        queue.delete()

    def _putting(self, queue: cassieq.Queue, processes: int) -> list[dict[str, Any]]:
        """No key: each process keeps to a shard that it has drawn, as programs do."""
        one = {"work": "put", "queue": queue.name, "at_once": AT_ONCE, "size": BODY_BYTES}
        share = self.messages // processes
        return [{**one, "messages": share, "seed": self._seed + at} for at in range(processes)]

    def _check(self, done: Done) -> None:
        if len(set(done.ids)) != len(done.ids) or done.redelivered:
            raise SystemExit("a message came twice inside its visibility")
        if len(done.ids) != self.messages:
            raise SystemExit(f"{self.messages} in, {len(done.ids)} out")


def _draining(queue: cassieq.Queue, processes: int) -> list[dict[str, Any]]:
    one = {"work": "drain", "queue": queue.name, "prefetch": AT_ONCE, "idle_s": IDLE_S}
    return [dict(one) for _ in range(processes)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures; it ends if a message was lost or came twice."""
    asked = _parser().parse_args(arguments)
    messages, rounds, warm_up, idle_s = SMOKE if asked.smoke else FULL
    rounds = asked.rounds or rounds
    each = SMOKE_SHARDS if asked.smoke else SHARDS
    busy: dict[int, Side] = defaultdict(Side)
    idle: dict[int, Side] = defaultdict(Side)
    with (
        EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra,
        cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE) as client,
    ):
        client.bootstrap()
        ours = partial(cassieq.connect, cassandra.contact_points, keyspace=KEYSPACE)
        with Fleet(PROCESSES, ours=ours) as fleet:
            bench = Shards(client, fleet, messages=messages, seed=asked.seed)
            for number in range(-warm_up, rounds):
                began = perf_counter()
                # In turns, so that none has the better moment.
                for shards in each:
                    bench.busy(
                        f"r{number}.{shards}", shards, busy[shards] if number >= 0 else Side()
                    )
                for lanes in IDLE_QUEUES if number >= 0 else ():
                    bench.idle(f"i{number}.{lanes}", lanes, idle_s, idle[lanes])
                print(f"round {number + 1}: {perf_counter() - began:.0f} s", file=sys.stderr)
    found = _result(busy, idle, messages)
    found |= {"rounds": rounds, "seed": asked.seed, "heaps": {"cassandra": HEAP}}
    found |= report.circumstances("python -m bench.shards", sys.argv[1:])
    folder = Path(asked.results)
    folder.mkdir(parents=True, exist_ok=True)
    name = "shards-smoke" if asked.smoke else "shards"
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(_as_text(found))
    return 0


def _result(busy: dict[int, Side], idle: dict[int, Side], messages: int) -> dict[str, Any]:
    first = busy[SHARDS[0]].seconds
    return {
        "busy": {
            str(shards): {
                name: {
                    "messages_per_s": report.spread([messages / one for one in values]),
                    # Of the same round: the machine's moment is the same.
                    "of_one_shard": report.spread(
                        [one / ours for one, ours in zip(first[name], values, strict=True)]
                    ),
                    "lwts_per_message": _count(side.statements[name], LWTS)
                    / (messages * len(values)),
                    "samples_s": values,
                }
                for name, values in side.seconds.items()
            }
            for shards, side in busy.items()
        },
        "idle": {
            str(lanes): {
                "reads_per_s": _count(side.statements["idle"], READS) / sum(side.seconds["idle"]),
                "cpu": report.spread(
                    [
                        cpu_s / took_s
                        for cpu_s, took_s in zip(side.cpu_s, side.seconds["idle"], strict=True)
                    ]
                ),
            }
            for lanes, side in idle.items()
        },
        "processes": PROCESSES,
        "bucket_size": BUCKET,
        "at_once": AT_ONCE,
        "messages": messages,
        "body_bytes": BODY_BYTES,
    }


def _count(statements: Counter[str], names: set[str]) -> int:
    return sum(statements[name] for name in names)


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"{'':<20}{'messages/s':>12}{'of one':>10}{'LWTs each':>12}"]
    for shards, sides in found["busy"].items():
        for name, one in sides.items():
            lines.append(
                f"{shards + ' shards, ' + name:<20}{one['messages_per_s']['median']:>12,.0f}"
                f"{one['of_one_shard']['median']:>10.2f}{one['lwts_per_message']:>12.5f}"
            )
    for lanes, one in found["idle"].items():
        lines.append(
            f"{lanes} lanes, idle: {one['reads_per_s']:.1f} reads a second, "
            f"{one['cpu']['median']:.1%} of a core"
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.shards", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small: does it run, do counts agree")
    parser.add_argument("--rounds", type=int, help="that count; default: 5")
    parser.add_argument("--seed", type=int, default=20131)
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
