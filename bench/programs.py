"""``python -m bench.programs``: what a message costs a program, and how fast sixteen of them drain.

See ``docs/benchmarks.md`` for what the figures say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq
from bench import report
from bench.fleet import Fleet
from cassieq_spark import metrics
from cassieq_spark.embedded import EmbeddedCassandra
from cassieq_spark.entropy import generator
from cassieq_spark.store.statements import Kind, every_statement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[1]
KEYSPACE = "cassieq"
HEAP = "1g"
CONSUMERS = 16
PREFETCH = 1_000
THREADS = 64
BUCKET = 10_000
BODY_BYTES = 96
AT_ONCE = 10_000
FULL, SMOKE = (200_000, 300, 5, 3), (40_000, 50, 1, 1)
"""Messages of a drain and of what goes one by one, rounds, and rounds of warm-up."""

HISTORY = 1_000_000
"""Messages that are drained before an empty get and a put are counted again."""

LWTS = {one.name for one in every_statement() if one.kind is Kind.CAS}

TARGETS = {"one": 5, "hundred": 0.06, "load": 0.03}
"""LWTs a message, its bucket's drop among them."""

FLEET_TARGET = 20_000
"""Messages a second."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures; 1 if a message was lost or came twice."""
    asked = _parser().parse_args(arguments)
    messages, singles, rounds, warm_up = SMOKE if asked.smoke else FULL
    seconds: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, Counter[str]] = {}
    with (
        EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra,
        cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE) as client,
    ):
        client.bootstrap()
        bench = Programs(client, messages=messages, singles=singles, seed=asked.seed)
        ours = partial(cassieq.connect, cassandra.contact_points, keyspace=KEYSPACE)
        with Fleet(CONSUMERS, ours=ours) as fleet:
            for number in range(-warm_up, rounds):
                began = perf_counter()
                times, costs = bench.round(f"r{number}", fleet)
                if number >= 0:
                    for name, took_s in times.items():
                        seconds[name].append(took_s)
                print(f"round {number + 1}: {perf_counter() - began:.0f} s", file=sys.stderr)
            grown = bench.grow(
                fleet, cassandra.contact_points, HISTORY // (25 if asked.smoke else 1)
            )
    found = _result(seconds, costs, bench) | {"history": grown}
    found |= {"rounds": rounds, "seed": asked.seed, "heaps": {"cassandra": HEAP}}
    found |= report.circumstances("python -m bench.programs", sys.argv[1:])
    folder = Path(asked.results)
    folder.mkdir(parents=True, exist_ok=True)
    name = "programs-smoke" if asked.smoke else "programs"
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(_as_text(found))
    return 0


class Programs:
    """The sides of one round, each on a queue of its own."""

    def __init__(self, client: cassieq.Client, *, messages: int, singles: int, seed: int) -> None:
        self._client = client
        self.messages = messages
        self.singles = singles
        rng = generator(seed)
        self._bodies = [rng.randbytes(BODY_BYTES) for _ in range(AT_ONCE)]

    def round(self, name: str, fleet: Fleet) -> tuple[dict[str, float], dict[str, Counter[str]]]:
        """Seconds of each side, and its statements."""
        times: dict[str, float] = {}
        costs: dict[str, Counter[str]] = {}
        for side, work in {
            "put": self._put_singly,
            "put_together": self._put_by_threads,
            "one": lambda queue: self._cycles(queue, 1),
            "hundred": lambda queue: self._cycles(queue, 100),
            "load": self._load,
        }.items():
            times[side], costs[side] = self._timed(f"{name}.{side}", work)
        for side, one_by_one in (("fleet", False), ("fleet_consumer", True)):
            queue = self._client.create_queue(f"{name}.{side}", bucket_size=BUCKET)
            self._fill(queue, self.messages)
            # A consumer claims half of its prefetch at a time.
            prefetch = 2 * PREFETCH if one_by_one else PREFETCH
            drained = fleet.drain(queue.name, prefetch=prefetch, one_by_one=one_by_one)
            if len(set(drained.ids)) != len(drained.ids) or drained.redelivered:
                raise SystemExit(f"{side}: a message came twice inside its visibility")
            if len(drained.ids) != self.messages:
                raise SystemExit(f"{side}: {self.messages} in, {len(drained.ids)} out")
            times[side], costs[side] = drained.seconds, drained.statements
            queue.delete()
        return times, costs

    def grow(self, fleet: Fleet, contact_points: str, messages: int) -> dict[str, Any]:
        """What an empty get and a put cost on the first day, and after so many messages."""
        queue = self._client.create_queue("history", bucket_size=BUCKET)
        first_day = _cost_of_a_day(queue.name, contact_points)
        self._fill(queue, messages)
        drained = fleet.drain(queue.name, prefetch=PREFETCH, one_by_one=False)
        if len(set(drained.ids)) != messages:
            raise SystemExit(f"history: {messages} in, {len(set(drained.ids))} out")
        after = _cost_of_a_day(queue.name, contact_points)
        if first_day != after:
            raise SystemExit(f"history: {first_day} on the first day, {after} afterwards")
        queue.delete()
        return {"messages": messages, **after}

    def count(self, side: str) -> int:
        """Messages of a side."""
        few = {"put": self.singles, "one": self.singles, "hundred": 100 * (self.singles // 10)}
        few["put_together"] = THREADS * (self.singles // 10)
        return few.get(side, self.messages)

    def _timed(
        self, name: str, work: Callable[[cassieq.Queue], None]
    ) -> tuple[float, Counter[str]]:
        queue = self._client.create_queue(name, bucket_size=2_000)
        queue.put(b"this client has a bucket open now")
        if work != self._put_singly:
            queue.ack(queue.get())
        before, began = Counter(metrics.STATEMENTS.values), perf_counter()
        work(queue)
        took_s = perf_counter() - began
        spent = Counter(metrics.STATEMENTS.values) - before
        queue.delete()
        return took_s, spent

    def _put_singly(self, queue: cassieq.Queue) -> None:
        for body in self._bodies[: self.singles]:
            queue.put(body)

    def _put_by_threads(self, queue: cassieq.Queue) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(queue.put, self._bodies[: self.count("put_together")]))

    def _cycles(self, queue: cassieq.Queue, at_once: int) -> None:
        cycles = self.singles if at_once == 1 else self.singles // 10
        for _ in range(cycles):
            queue.put_many(self._bodies[:at_once])
            queue.ack(queue.get(at_once))

    def _load(self, queue: cassieq.Queue) -> None:
        """2,000 a bucket, runs of 100: put by thousands, then drained."""
        self._fill(queue, self.messages // 10, at_once=2_000)
        while found := queue.get(100):
            queue.ack(found)

    def _fill(self, queue: cassieq.Queue, count: int, at_once: int = AT_ONCE) -> None:
        for _ in range(count // at_once):
            queue.put_many(self._bodies[:at_once])


def _cost_of_a_day(queue: str, contact_points: str) -> dict[str, dict[str, int]]:
    """Statements of an empty get and of a put, of a client that has no memory of the queue."""
    with cassieq.connect(contact_points, keyspace=KEYSPACE) as client:
        opened = client.queue(queue)
        opened.get()  # moves the pointers over what was finished since somebody looked
        counts = [Counter(metrics.STATEMENTS.values)]
        for work in (opened.get, lambda: opened.put(b"one")):
            work()
            counts.append(Counter(metrics.STATEMENTS.values))
        opened.ack(opened.get())
    before, got, put = counts
    return {"empty_get": dict(got - before), "put": dict(put - got)}


def _result(
    seconds: dict[str, list[float]], costs: dict[str, Counter[str]], bench: Programs
) -> dict[str, Any]:
    counts = {side: bench.count(side) for side in seconds} | {"load": bench.messages // 10}
    return {
        "messages_per_s": {
            side: report.spread([counts[side] / one for one in values])
            for side, values in seconds.items()
        },
        "lwts_per_message": {
            # Repair drops each sealed bucket later, by one more.
            side: (sum(spent[name] for name in LWTS) + spent["fill_bucket"]) / counts[side]
            for side, spent in costs.items()
        },
        "statements_per_message": {
            side: {name: round(number / counts[side], 5) for name, number in spent.most_common()}
            for side, spent in costs.items()
        },
        "targets": TARGETS,
        "fleet_target": FLEET_TARGET,
        "consumers": CONSUMERS,
        "prefetch": PREFETCH,
        "messages": bench.messages,
        "body_bytes": BODY_BYTES,
        "samples_s": dict(seconds),
    }


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"{'':<16}{'messages/s':>12}{'least':>10}{'most':>10}{'LWTs each':>12}{'target':>8}"]
    for side, one in found["messages_per_s"].items():
        lines.append(
            f"{side:<16}{one['median']:>12,.0f}{one['min']:>10,.0f}{one['max']:>10,.0f}"
            f"{found['lwts_per_message'][side]:>12.5f}{found['targets'].get(side, ''):>8}"
        )
    grown = found["history"]
    lines.append(
        f"after {grown['messages']:,} messages as on the first day: an empty get is "
        f"{sum(grown['empty_get'].values())} statements, a first put {sum(grown['put'].values())}"
    )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.programs", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small: does it run, do counts agree")
    parser.add_argument("--seed", type=int, default=20131)
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
