"""``python -m bench.against_queues``: our queue and others, by programs, interleaved.

PostgreSQL with ``SKIP LOCKED``, quorum queues of RabbitMQ, CassieQ's statements, and a table of
rows written by the Spark Cassandra Connector: each real, started here, and skipped with one line if
it cannot be had. See ``docs/benchmarks.md`` for what the figures say.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cassieq_spark as cassieq
from bench import queue_plots, report, runs
from bench.__main__ import HEAP, ROOT, set_environment, spark_session
from bench.fleet import OURS, Fleet
from bench.peers import cassieq as original
from bench.peers import postgres, rabbitmq
from bench.peers.peer import PeerMissing
from bench.queue_loads import AFTER, FSYNC, LATER, Cell, Loads, Side
from cassieq_spark.embedded import EmbeddedCassandra
from cassieq_spark.embedded.software import CASSANDRA_VERSION
from cassieq_spark.spark import spark_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.fleet import Opener

KEYSPACE = "cassieq"
PEERS = ("postgres", "rabbitmq", "cassieq", "rows")
LOADS = ("rates", "latency", "history", "rows", "ring")
SIZES, PROCESSES, AT_ONCE = (96, 1_024, 102_400), (1, 4, 16), (1, 100)
BODY_BYTES = 96
PERIODIC = {"commitlog_sync": "periodic", "commitlog_sync_period": "10000ms"}
FULL = {
    "rounds": 5,
    "warm_up": 1,
    "seconds": 1.0,
    "samples": 100,
    "backlog": 2_000_000,
    "probes": 100,
}
SMOKE = {
    "rounds": 1,
    "warm_up": 0,
    "seconds": 0.3,
    "samples": 4,
    "backlog": 2_000,
    "probes": 4,
}
SMOKE_PROCESSES = (2,)
TURNS = 2

CYCLES = 400
"""Messages that each side puts, gets and acks before its delays are measured: until then a server
in Java compiles what they need, and its first hundred take twice as long."""
SLOWER = 500
"""CassieQ's backlog is smaller by this: it puts and takes messages one by one."""

ROWS, SMOKE_ROWS = 1_000_000, 50_000
HISTORY_TARGET = 1.1
"""What a call of ours may cost after its history, of the first day."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print and save the figures."""
    asked = _asked(arguments)
    set_environment()  # Spark's workers are started by the load "rows"
    folder, name = Path(asked.results), "peers-smoke" if asked.smoke else "peers"
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "rounds": asked.rounds,
        "seed": asked.seed,
        "heaps": {"cassandra": HEAP},
        "targets": {"history": HISTORY_TARGET},
    } | report.circumstances("python -m bench.against_queues", sys.argv[1:])
    path = folder / f"{name}.json"
    kept = runs.kept(path, asked.loads, about["machine"]) if asked.keep else {}
    found: dict[str, Any] = {}
    every = kept
    # An hour is long: what was found is kept, whatever becomes of the loads after it.
    for more in Bench(asked).measure():
        found |= more
        every = runs.together(kept, found, about, asked.loads)
        path.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    queue_plots.draw(every, folder, name=name)
    print(_as_text(found))
    return 0


class Bench:
    """All sides, and the loads that were asked for."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        self._stack = ExitStack()
        self._sides: dict[str, Side] = {}
        self._openers: dict[str, Opener] = {}
        self._skipped: dict[str, str] = {}
        self._processes = max(2, *asked.processes)

    def measure(self) -> Iterator[dict[str, Any]]:
        """The figures of one load after the other, with the sides so far."""
        asked = self._asked
        if {"rates", "latency", "history"} & set(asked.loads):
            with ExitStack() as self._stack:
                self._ours(OURS, FSYNC, {})
                self._ours("ours_periodic", LATER, PERIODIC)
                self._peers()
                with Fleet(self._processes, **self._openers) as fleet:
                    for found in self._programs(Loads(fleet, seed=asked.seed)):
                        yield found | self._about()
        if "rows" in asked.loads and "rows" in asked.peers:
            yield self._rows() | self._about()
        if "ring" in asked.loads:
            with ExitStack() as self._stack:
                yield self._ring() | self._about()

    def _about(self) -> dict[str, Any]:
        return {
            "sides": {
                name: {
                    "title": side.title,
                    "durability": side.durability,
                    "version": side.version,
                }
                for name, side in self._sides.items()
            },
            "skipped": self._skipped,
        }

    # --- sides ------------------------------------------------------------------------------------

    def _ours(self, name: str, durability: str, settings: dict[str, object], nodes: int = 1) -> str:
        heap = HEAP if nodes == 1 else None
        cluster = self._stack.enter_context(
            EmbeddedCassandra(nodes=nodes, heap=heap, settings=settings, optimize=True)
        )
        points = cluster.contact_points
        opener = partial(cassieq.connect, points, keyspace=KEYSPACE)
        client = self._stack.enter_context(opener())
        client.bootstrap(
            {"class": "NetworkTopologyStrategy", cluster.datacenter: nodes} if nodes > 1 else None
        )
        title = "ours" if nodes == 1 else f"ours, a ring of {nodes}"
        version = f"cassieq_spark {cassieq.__version__}, Cassandra {CASSANDRA_VERSION}"
        source = {"contactPoints": points, "keyspace": KEYSPACE}
        side = Side(name, title, durability, version, client.create_queue, source=source)
        self._add(side, opener)
        return points

    def _peers(self) -> None:
        peers: dict[str, Callable[[], None]] = {
            "postgres": self._postgres,
            "rabbitmq": self._rabbitmq,
            "cassieq": self._cassieq,
        }
        for name, start in peers.items():
            if name not in self._asked.peers:
                continue
            try:
                start()
            except PeerMissing as missing:
                self._skipped[name] = str(missing)
                print(f"{name} is skipped: {missing}", file=sys.stderr)

    def _postgres(self) -> None:
        dsn = self._stack.enter_context(postgres.server())
        version = postgres.version(dsn)
        for name, title, durability, how in (
            ("postgres", "PostgreSQL", FSYNC, {}),
            ("postgres_later", "PostgreSQL", LATER, {"is_synchronous": False}),
            ("postgres_notify", "PostgreSQL, `LISTEN`", FSYNC, {"notify": True}),
        ):
            opener = partial(postgres.Client, dsn, **how)
            client = self._stack.enter_context(opener())
            self._add(Side(name, title, durability, version, client.create_queue), opener)

    def _rabbitmq(self) -> None:
        port = self._stack.enter_context(rabbitmq.server())
        opener = partial(rabbitmq.Client, port)
        client = self._stack.enter_context(opener())
        version = rabbitmq.version(port)
        self._add(Side("rabbitmq", "RabbitMQ", FSYNC, version, client.create_queue), opener)

    def _cassieq(self) -> None:
        points = self._openers[OURS].args[0]  # type: ignore[attr-defined]  # of its partial
        opener = partial(original.Client, points)
        client = self._stack.enter_context(opener())
        client.bootstrap()
        side = Side(
            "cassieq",
            "CassieQ, re-created",
            FSYNC,
            "statements of 3856962 (2016)",
            client.create_queue,
            most=1,
        )
        self._add(side, opener)

    def _add(self, side: Side, opener: Opener) -> None:
        self._sides[side.name] = side
        self._openers[side.name] = opener

    # --- loads ------------------------------------------------------------------------------------

    def _programs(self, loads: Loads) -> Iterator[dict[str, Any]]:
        asked = self._asked
        sides = list(self._sides.values())
        # To listen costs each put, and changes only how long a get waits.
        usual = [side for side in sides if side.name != "postgres_notify"]
        if "rates" in asked.loads:
            yield self._rates(loads, usual, asked.sizes)
        if "latency" in asked.loads:
            yield self._latency(loads, sides)
        if "history" in asked.loads:
            durable = [side for side in usual if side.durability == FSYNC]
            yield {"history": {side.name: self._history(loads, side) for side in durable}}

    def _rates(self, loads: Loads, sides: Sequence[Side], sizes: Sequence[int]) -> dict[str, Any]:
        asked = self._asked
        cells = [
            Cell(size, processes, at_once)
            for size in sizes
            for processes in asked.processes
            for at_once in AT_ONCE
        ]
        return loads.rates(
            sides, cells, rounds=asked.rounds, warm_up=asked.warm_up, seconds=asked.seconds
        )

    def _latency(self, loads: Loads, sides: Sequence[Side]) -> dict[str, Any]:
        smoke = self._asked.smoke
        return loads.latency(
            sides,
            samples=self._asked.samples,
            cycles=5 if smoke else CYCLES,
            warm_up=2 if smoke else 10,
            turns=TURNS,
            size=BODY_BYTES,
        )

    def _history(self, loads: Loads, side: Side) -> dict[str, Any]:
        asked = self._asked
        backlog = max(40, asked.backlog // SLOWER) if side.most == 1 else asked.backlog
        found = loads.history(
            side,
            messages=backlog,
            times=asked.probes,
            processes=min(4, self._processes),
            size=BODY_BYTES,
            cycles=5 if asked.smoke else CYCLES,
        )
        print(f"history of {side.name}: {found.get('failure', found)}"[:200], file=sys.stderr)
        return found

    def _ring(self) -> dict[str, Any]:
        asked = self._asked
        self._ours("ours_ring", FSYNC, {}, nodes=3)
        side = self._sides["ours_ring"]
        with Fleet(self._processes, **{side.name: self._openers[side.name]}) as fleet:
            loads = Loads(fleet, seed=asked.seed)
            return {"ring": self._rates(loads, [side], [BODY_BYTES]) | self._latency(loads, [side])}

    def _rows(self) -> dict[str, Any]:
        from bench import rows_load  # noqa: PLC0415 - PySpark is not for the other loads

        asked = self._asked
        messages = SMOKE_ROWS if asked.smoke else ROWS
        with (
            tempfile.TemporaryDirectory(prefix="cassieq-bench-") as folder,
            EmbeddedCassandra(heap=HEAP, optimize=True) as cassandra,
            cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE) as client,
        ):
            client.bootstrap()
            spark = spark_session(folder, **spark_config(cassandra.contact_points))
            try:
                return {
                    "rows": rows_load.compare(
                        spark,
                        client,
                        cassandra.contact_points,
                        messages=messages,
                        rounds=asked.rounds,
                        warm_up=asked.warm_up,
                        seed=asked.seed,
                        folder=Path(folder),
                    )
                }
            finally:
                spark.stop()


def _as_text(found: dict[str, Any]) -> str:
    lines = []
    for cell, phases in found.get("rates", {}).items():
        for phase, sides in ((name, one) for name, one in phases.items() if name != "samples"):
            rates = ", ".join(f"{name} {one['median']:,.0f}" for name, one in sides.items())
            lines.append(f"{cell}, {phase}: {rates}")
    for name, one in found.get("latency_ms", {}).items():
        lines.append(f"latency, {name}: p50 {one['p50']:.1f} ms, p99 {one['p99']:.1f} ms")
    for name, one in found.get("history", {}).items():
        if "failure" in one:
            lines.append(f"after its history, {name}: {one['failure']}")
            continue
        for what, each in (
            ("the first day", one["of_first_day"][AFTER]),
            ("a new queue", one["of_new_queue"]),
        ):
            ratios = ", ".join(f"{call} {ratio:.2f}" for call, ratio in each.items())
            lines.append(f"after its history, of {what}, {name}: {ratios}")
    for work, sides in found.get("rows", {}).get("messages_per_s", {}).items():
        lines.append(f"rows, {work}: {sides['median']:,.0f}")
    return "\n".join(lines)


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.against_queues", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small: does it run, do counts agree")
    parser.add_argument("--peers", type=_some(PEERS), default=PEERS, help="some of these, by comma")
    parser.add_argument("--loads", type=_some(LOADS), default=LOADS, help="some of these, by comma")
    parser.add_argument(
        "--keep", action="store_true", help="what earlier results have of the other loads"
    )
    parser.add_argument("--sizes", type=_numbers, default=SIZES, help="bytes of a body, by comma")
    parser.add_argument("--processes", type=_numbers, help="how many programs, by comma")
    parser.add_argument("--rounds", type=int, help="of each load")
    parser.add_argument("--warm-up", type=int, help="rounds before them that do not count")
    parser.add_argument("--seconds", type=float, help="of each put, and of each get and ack")
    parser.add_argument("--samples", type=int, help="of the latency of each side")
    parser.add_argument(
        "--backlog",
        type=int,
        help="messages of a history; 2,000,000 take about ten minutes, 10,000,000 an hour",
    )
    parser.add_argument("--probes", type=int, help="times that each call is timed, for a history")
    parser.add_argument("--seed", type=int, default=20131)
    parser.add_argument("--results", default=str(ROOT / "bench" / "results"))
    asked = parser.parse_args(arguments)
    for name, value in (SMOKE if asked.smoke else FULL).items():
        if getattr(asked, name) is None:
            setattr(asked, name, value)
    asked.processes = asked.processes or (SMOKE_PROCESSES if asked.smoke else PROCESSES)
    return asked


def _some(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}"
            )
        return names

    return parse


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
