"""Measure on real nodes what a statement costs: a single one, then a ring of three, all here.

CPU of the nodes says how much work a statement is, and is hardly disturbed by what else the machine
does; latencies are. So the model takes CPU from here, and of latencies only what CPU and fsyncs do
not explain. Each figure is a median with least and most.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import psutil

import cassieq_spark as cassieq
from bench import report
from bench.scale.parameters import ROUNDS, Cost, Kind
from cassieq_spark import metrics
from cassieq_spark.clock import SystemClock
from cassieq_spark.embedded import EmbeddedCassandra
from cassieq_spark.entropy import generator, new_uuid
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.outcome import Applied
from cassieq_spark.model.sizes import CHUNK_BYTES
from cassieq_spark.store import portal, statements
from cassieq_spark.store.tables.lanes import Monoton
from cassieq_spark.store.tables.messages import ChunkRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cassieq_spark.queue.lane import Lane

KEYSPACE: Final = "cassieq"
SMALL_BYTES: Final = 1_024
CHUNKS_A_BUCKET: Final = 32
LEAST_SHARE, MOST_SHARE = 0.4, 0.9
"""A replica's part of a single node's work, whatever the noise of a measurement says."""

LEAST_S: Final = 1e-4

IDLE_S: Final = 3.0
REST_S: Final = 11.0
"""A bucket that is done rests for ten seconds before it is dropped."""

HINT_IN_US: Final = 60_000_000
NODES: Final = {"single": 1, "ring": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure.

    Attributes:
        warm_up_s: Of all primitives together: Java compiles meanwhile.
        each_s: Of each primitive in each round.
        rounds: Of the primitives; they take turns.
    """

    warm_up_s: float
    each_s: float
    rounds: int


FULL: Final = Effort(warm_up_s=20.0, each_s=1.0, rounds=4)
SMOKE: Final = Effort(warm_up_s=0.5, each_s=0.1, rounds=1)


@dataclass(slots=True)
class Samples:
    """What was measured of one primitive: one entry a call, or a round."""

    latency_s: list[float] = field(default_factory=list)
    client_s: list[float] = field(default_factory=list)
    nodes_s: list[float] = field(default_factory=list)

    def result(self) -> dict[str, Any]:
        """Medians and spreads."""
        tenth = quantiles(self.latency_s, n=10)[0] if len(self.latency_s) > 1 else self.latency_s[0]
        return {
            "latency_s": report.spread(self.latency_s) | {"p10": tenth},
            "client_s": report.spread(self.client_s),
            "nodes_s": report.spread(self.nodes_s),
            "calls": len(self.latency_s),
        }


class Primitives:
    """One statement of each kind, again and again, on a queue of its own."""

    def __init__(self, client: cassieq.Client) -> None:
        self._queue = client.create_queue(f"primitives.{new_uuid().hex[:8]}", bucket_size=50_000)
        self._lane: Lane = self._queue._lane  # noqa: SLF001 - below the API
        self._session = self._lane.store.session
        self._random = generator(7)
        self._bucket = BucketNo(1_000_000)
        self._number = 0
        self._large = self._random.randbytes(CHUNK_BYTES)
        found = portal.run(self._lane.monotons.read())
        if found is None:
            raise SystemExit("the queue that was just made has no monoton row")
        self._known = found
        self._stale = found
        self._row = BucketNo(2_000_000)
        portal.run(
            self._lane.buckets.insert(self._row, rules.sealing(now_us=self._lane.clock.now_us()))
        )
        self._written: dict[int, list[tuple[BucketNo, int]]] = {}

    def all(self) -> dict[str, Callable[[], object]]:
        """Each by its name."""
        return {
            Kind.LWT: self._lwt,
            Kind.REFUSED: self._refused,
            Kind.WRITE: self._hint,
            Kind.READ: self._read_row,
            Kind.CHUNK_WRITE: lambda: self._chunk(CHUNK_BYTES),
            "small_write": lambda: self._chunk(SMALL_BYTES),
            Kind.CHUNK_READ: lambda: self._read_chunk(CHUNK_BYTES),
            "small_read": lambda: self._read_chunk(SMALL_BYTES),
        }

    def _lwt(self) -> None:
        new = Monoton(next_id=self._known.value.next_id + 1, reserved_us=1)
        outcome = portal.run(self._lane.monotons.update(self._known, new))
        if not isinstance(outcome, Applied):
            raise SystemExit("an LWT lost a race against nobody")
        self._known = outcome.now

    def _refused(self) -> None:
        version = self._stale.version
        params = (1, 1, *version.columns, self._lane.lane_id, new_uuid())
        portal.run(self._session.run_once(statements.RESERVE, params))

    def _hint(self) -> None:
        now_us = self._lane.clock.now_us()
        portal.run(self._lane.hints.write([(self._bucket, now_us + HINT_IN_US)], now_us=now_us))

    def _read_row(self) -> None:
        portal.run(self._lane.buckets.read(self._row))

    def _chunk(self, size: int) -> None:
        if self._number % CHUNKS_A_BUCKET == 0:
            self._bucket = BucketNo(self._bucket + 1)
        writer = self._lane.store.chunk_writer(writes_in_flight=1)
        first = self._number
        self._number += 1
        portal.run(
            writer.write(
                self._lane.place(self._bucket),
                ChunkRow(first=first, count=1, payload=self._large[:size], enqueued_us=1),
            )
        )
        portal.run(writer.flush())
        self._written.setdefault(size, []).append((self._bucket, first))

    def _read_chunk(self, size: int) -> None:
        # One of the last: it is in memory, as it is for a consumer that follows its producer.
        written = self._written[size]
        bucket, first = written[-1 - self._random.randrange(min(8, len(written)))]
        portal.run(
            self._session.run(statements.READ_MESSAGES, (self._lane.lane_id, bucket, first, first))
        )


class Cpu:
    """CPU time of nodes, without what they take when nobody asks anything of them."""

    def __init__(self, cassandra: EmbeddedCassandra) -> None:
        self._nodes = [psutil.Process(node.pid) for node in cassandra.nodes if node.pid]
        self.idle = 0.0

    def settle(self) -> None:
        """Measure what they take when idle: once they are warm, as Java compiles before."""
        began, before = perf_counter(), self._now()
        _wait(IDLE_S)
        self.idle = (self._now() - before) / (perf_counter() - began)

    def _now(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self._nodes)

    def mark(self) -> tuple[float, float]:
        """Now, for `since`."""
        return perf_counter(), self._now()

    def since(self, mark: tuple[float, float]) -> float:
        """CPU seconds that what was asked for took since then."""
        began, before = mark
        return max(0.0, self._now() - before - self.idle * (perf_counter() - began))

    def in_all(self, mark: tuple[float, float]) -> float:
        """CPU seconds since then, idle work and all."""
        return self._now() - mark[1]


def primitives(client: cassieq.Client, cpu: Cpu, effort: Effort) -> dict[str, Any]:
    """Each primitive, in turns."""
    made = Primitives(client)
    work = made.all()
    until = perf_counter() + effort.warm_up_s
    while perf_counter() < until:
        for call in work.values():
            call()
    cpu.settle()
    found = {name: Samples() for name in work}
    for _ in range(effort.rounds):
        for name, call in work.items():
            _measure(call, cpu, effort.each_s, found[name])
    return {str(name): one.result() for name, one in found.items()}


def _measure(call: Callable[[], object], cpu: Cpu, for_s: float, into: Samples) -> None:
    call()
    mark, process = cpu.mark(), time.process_time()
    began = perf_counter()
    count = 0
    while (now := perf_counter()) - began < for_s or not count:
        call()
        into.latency_s.append(perf_counter() - now)
        count += 1
    into.client_s.append((time.process_time() - process) / count)
    into.nodes_s.append(cpu.since(mark) / count)


def disk(folder: Path) -> dict[str, dict[str, float]]:
    """An fsync of a small write, and bytes a second of a large one."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        small = []
        for _ in range(200):
            os.write(file.fileno(), b"x" * 512)
            began = perf_counter()
            os.fdatasync(file.fileno())
            small.append(perf_counter() - began)
        large = []
        for _ in range(5):
            began = perf_counter()
            os.write(file.fileno(), b"x" * 2**25)
            os.fdatasync(file.fileno())
            large.append(2**25 / (perf_counter() - began))
    return {
        "sync_s": report.spread(small) | {"p10": quantiles(small, n=10)[0]},
        "bytes_per_s": report.spread(large),
    }


def running(nodes: int) -> Iterator[tuple[EmbeddedCassandra, cassieq.Client]]:
    """Real nodes with the tables of the package, ended at the end."""
    with (
        EmbeddedCassandra(nodes=nodes, optimize=True) as cassandra,
        cassieq.connect(
            cassandra.contact_points, keyspace=KEYSPACE, datacenter=cassandra.datacenter
        ) as client,
    ):
        client.bootstrap()
        yield cassandra, client
        cassandra.kill()  # its data is thrown away


def repair(client: cassieq.Client, *, buckets: int) -> dict[str, float]:
    """How fast one process drops buckets that are done, and what a pass costs that finds none."""
    size = 100
    queue = client.create_queue(f"repair.{new_uuid().hex[:8]}", bucket_size=size)
    queue.put_many([b"m"] * size * buckets)
    while messages := queue.get(10_000):
        queue.ack(messages)
    queue.get()  # moves the reader pointer
    _wait(REST_S)
    before, began = Counter(metrics.STATEMENTS.values), perf_counter()
    client.repair(queue.name)
    took_s = perf_counter() - began
    spent = Counter(metrics.STATEMENTS.values) - before
    before = Counter(metrics.STATEMENTS.values)
    client.repair(queue.name)
    idle = Counter(metrics.STATEMENTS.values) - before
    dropped = spent["delete_bucket"]
    queue.delete()
    return {
        "buckets": dropped,
        "buckets_per_s": dropped / took_s,
        "statements_per_bucket": (sum(spent.values()) - sum(idle.values())) / max(1, dropped),
        "lwts_per_bucket": spent["delete_bucket"] / max(1, dropped),
        "idle_statements": sum(idle.values()),
    }


def fit(measured: dict[str, Any]) -> dict[str, Cost]:
    """Costs from the primitives of a single node and of a ring, as where nothing else runs.

    The single node is coordinator and only replica: c + r. In the ring there is one coordinator,
    and as many replicas as are asked: c + n r. So the difference says r. Of each primitive's rounds
    it takes the one with the least CPU, and of its calls the best tenth. CPU that is more than this
    latency was Java's own beside it, or lost to others: the statement waited for none of it.
    """
    single, ring = measured["single"]["primitives"], measured["ring"]["primitives"]
    sync_s = measured["single"]["disk"]["sync_s"]["p10"]
    costs = {}
    for kind, rounds in ROUNDS.items():
        small = {Kind.CHUNK_WRITE: "small_write", Kind.CHUNK_READ: "small_read"}.get(kind, kind)
        one, three = (found[small]["nodes_s"]["min"] for found in (single, ring))
        asked = rounds[0].asked
        replica_s = min(max((three - one) / (asked - 1), LEAST_SHARE * one), MOST_SHARE * one)
        client_s = single[small]["client_s"]["min"]
        waited_s = min(found[small]["latency_s"]["p10"] for found in (single, ring))
        waited_s = max(waited_s - sync_s * sum(each.syncs for each in rounds), LEAST_S)
        real = min(1.0, waited_s / (client_s + one))
        slope = 0.0
        if small != kind:
            more = single[kind]["nodes_s"]["min"] - one
            slope = max(0.0, more / (CHUNK_BYTES - SMALL_BYTES)) / 2  # coordinator and replica
        costs[str(kind)] = Cost(
            client_s=client_s * real,
            coordinator_s=(one - replica_s) * real,
            replica_s=replica_s * real,
            overhead_s=waited_s - (client_s + one) * real,
            per_byte_s=slope * real,
        )
    return costs


def calibration(measured: dict[str, Any]) -> dict[str, Any]:
    """What `Parameters.calibrated` takes."""
    loops = measured["single"]["loops"]
    return {
        "costs": {kind: asdict(one) for kind, one in fit(measured).items()},
        "put_message_s": loops["put_message_s"],
        "get_message_s": loops["get_message_s"],
        "contention": 1.0,
        "sync_s": measured["single"]["disk"]["sync_s"],
        "bytes_per_s": measured["single"]["disk"]["bytes_per_s"],
    }


def say(text: str) -> None:
    """To whoever waits for it."""
    print(text, file=sys.stderr, flush=True)


def _wait(seconds: float) -> None:
    SystemClock().wait(seconds)
