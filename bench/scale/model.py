"""The cluster as queues of work: cores, commit logs, networks, rows that take LWTs one by one.

Simulated by SimPy. What is random comes from one seeded generator, so a run can be repeated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import simpy

from bench.scale.parameters import ROUNDS, Kind

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Generator, Sequence

    from bench.scale.parameters import Parameters, Round

    Steps = Generator[simpy.Event, Any, None]
    Answers = Generator[simpy.Event, Any, bool]
    Draw = Callable[[float], float]

WRITES: Final = {Kind.LWT, Kind.WRITE, Kind.CHUNK_WRITE}
ROW_BYTES: Final = 600
"""What a small statement writes to the commit log: a bucket row, or one of Paxos."""


def as_it_is(mean: float) -> float:
    """Every piece of work takes its mean."""
    return mean


def exponential(rng: random.Random) -> Draw:
    """Pieces of work vary as much as independent ones do."""
    return lambda mean: rng.expovariate(1 / mean)


class Host:
    """Cores that work is done on, in the order in which it came.

    Attributes:
        busy_s: How long cores were busy, all together.
    """

    def __init__(self, env: simpy.Environment, cores: int, speed: float, draw: Draw) -> None:
        self._env = env
        self._cores = simpy.Resource(env, capacity=cores)
        self._speed = speed
        self._draw = draw
        self.cores = cores
        self.busy_s = 0.0

    def work(self, seconds: float) -> Steps:
        """Take a core for so long, at a speed of 1."""
        if seconds <= 0:
            return
        took_s = self._draw(seconds) / self._speed
        with self._cores.request() as turn:
            yield turn
            yield self._env.timeout(took_s)
            self.busy_s += took_s


class Pipe:
    """A network card or a disk, one way: bytes go through one after the other."""

    def __init__(self, env: simpy.Environment, bytes_per_s: float) -> None:
        self._env = env
        self._turns = simpy.Resource(env, capacity=1)
        self._bytes_per_s = bytes_per_s
        self.busy_s = 0.0
        self.sent_bytes = 0.0

    def send(self, size: float) -> Steps:
        """Wait until so many bytes are through."""
        took_s = size / self._bytes_per_s
        with self._turns.request() as turn:
            yield turn
            yield self._env.timeout(took_s)
        self.busy_s += took_s
        self.sent_bytes += size


class Log:
    """A commit log whose fsync takes all that waits for one; with ``sync_s=0`` nobody waits.

    Attributes:
        writes: How many writes it took.
        syncs: How many fsyncs that took.
    """

    def __init__(self, env: simpy.Environment, sync_s: float, bytes_per_s: float) -> None:
        self._env = env
        self._sync_s = sync_s
        self._bytes_per_s = bytes_per_s
        self._waiting: list[tuple[simpy.Event, float]] = []
        self._is_syncing = False
        self.writes = 0
        self.syncs = 0
        self.busy_s = 0.0

    def write(self, size: float) -> Steps:
        """Wait until so many bytes are as safe as the setting says."""
        self.writes += 1
        if not self._sync_s:
            self.busy_s += size / self._bytes_per_s
            return
        done = self._env.event()
        self._waiting.append((done, size))
        if not self._is_syncing:
            self._is_syncing = True
            self._env.process(self._sync())
        yield done

    def _sync(self) -> Steps:
        while self._waiting:
            some, self._waiting = self._waiting, []
            took_s = self._sync_s + sum(size for _, size in some) / self._bytes_per_s
            yield self._env.timeout(took_s)
            self.busy_s += took_s
            self.syncs += 1
            for done, _ in some:
                done.succeed()
        self._is_syncing = False


class Node:
    """One node of the cluster."""

    def __init__(self, env: simpy.Environment, host: Host, parameters: Parameters) -> None:
        machine = parameters.hardware
        self.host = host
        self.log = Log(env, machine.sync_s, machine.log_bytes_per_s)
        self.incoming = Pipe(env, machine.network_bytes_per_s)
        self.outgoing = Pipe(env, machine.network_bytes_per_s)


class Row:
    """A row that is changed by LWTs only: one at a time, each conditional on the version read."""

    def __init__(self, env: simpy.Environment, key: str) -> None:
        self.key = key
        self.version = 0
        self.exists = False
        self.turns = simpy.Resource(env, capacity=1)


@dataclass(slots=True)
class Meter:
    """What was sent, and how long it took: enough for Little's law.

    Attributes:
        sent: Statements that were begun.
        answered: Those that ended, by kind.
        seconds: The time that all answered ones took together.
        latencies: Of each, by kind.
    """

    sent: int = 0
    answered: Counter[Kind] = field(default_factory=Counter)
    seconds: float = 0.0
    latencies: dict[Kind, list[float]] = field(default_factory=dict)
    under_way: int = 0
    area: float = 0.0
    changed_at: float = 0.0

    def begin(self, now: float) -> None:
        """A statement was sent."""
        self._move(now, 1)
        self.sent += 1

    def end(self, kind: Kind, began: float, now: float) -> None:
        """It was answered."""
        self._move(now, -1)
        self.answered[kind] += 1
        self.seconds += now - began
        self.latencies.setdefault(kind, []).append(now - began)

    def _move(self, now: float, by: int) -> None:
        self.area += self.under_way * (now - self.changed_at)
        self.changed_at = now
        self.under_way += by

    @property
    def lwts(self) -> int:
        """LWTs that were answered, applied or not."""
        return self.answered[Kind.LWT] + self.answered[Kind.REFUSED]


class Client:
    """A process that sends statements: one interpreter, which does one thing at a time."""

    def __init__(self, env: simpy.Environment, host: Host | None) -> None:
        self._interpreter = simpy.Resource(env, capacity=1)
        self._host = host

    def work(self, seconds: float) -> Steps:
        """CPU of the program. A client without a host is not looked at: others pay for it."""
        if self._host is None or seconds <= 0:
            return
        with self._interpreter.request() as turn:
            yield turn
            yield from self._host.work(seconds)


class Cluster:
    """Nodes in a ring, with three copies of each partition on neighbours."""

    def __init__(
        self,
        env: simpy.Environment,
        parameters: Parameters,
        *,
        nodes: int,
        rng: random.Random,
        host: Host | None = None,
        draw: Draw | None = None,
    ) -> None:
        """Make the nodes.

        Args:
            host: The machine that all of them share; None: one for each.
            draw: How long a piece of work takes, given its mean; None: exponential.
        """
        machine = parameters.hardware
        draw = draw or exponential(rng)
        self.env = env
        self.parameters = parameters
        self.meter = Meter()
        self.rng = rng
        hosts = [host or Host(env, machine.cores, machine.speed, draw) for _ in range(nodes)]
        self.nodes = [Node(env, one, parameters) for one in hosts]

    def replicas(self, key: str) -> Sequence[Node]:
        """The nodes that hold a partition: by a hash, and the next ones."""
        first = crc32(key.encode()) % len(self.nodes)
        copies = min(self.parameters.replication, len(self.nodes))
        return [self.nodes[(first + at) % len(self.nodes)] for at in range(copies)]

    def send(
        self, client: Client, kind: Kind, key: str, *, size: float = 0.0, times: int = 1
    ) -> Steps:
        """One plain statement, or so many alike that go together, from the client and back."""
        cost = self.parameters.costs[kind]
        yield from client.work(cost.client_s * times)
        began = self.env.now
        self.meter.begin(began)
        replicas = self._turned(key)
        yield from self._there(replicas[0], kind, size, times)
        for one in ROUNDS[kind]:
            yield from self._round(kind, one, replicas, size=size, times=times)
        yield from self._back(replicas[0], kind, size)
        self.meter.end(kind, began, self.env.now)

    def cas(self, client: Client, row: Row, seen: int | None) -> Answers:
        """One LWT on a row, conditional on the version seen (None: that there is none)."""
        parameters = self.parameters
        yield from client.work(parameters.costs[Kind.LWT].client_s)
        began = self.env.now
        self.meter.begin(began)
        replicas = self._turned(row.key)
        yield self.env.timeout(parameters.hardware.rtt_s / 2)
        is_alone = not row.turns.users
        with row.turns.request() as turn:
            yield turn
            holds = row.version == seen if seen is not None else not row.exists
            if holds:
                yield from self._paxos(Kind.LWT, replicas)
                if not is_alone:
                    # Ballots of others make it begin again: measured as one factor.
                    yield self.env.timeout((parameters.contention - 1) * parameters.lwt_s())
                row.version += 1
                row.exists = True
        kind = Kind.LWT if holds else Kind.REFUSED
        if not holds:
            # It ends after its first round, and others need not wait for it.
            yield from self._paxos(kind, replicas)
        yield self.env.timeout(parameters.hardware.rtt_s / 2)
        self.meter.end(kind, began, self.env.now)
        return holds

    def _paxos(self, kind: Kind, replicas: Sequence[Node]) -> Steps:
        cost = self.parameters.costs[kind]
        yield self.env.timeout(cost.overhead_s)
        yield from replicas[0].host.work(cost.coordinator_s)
        for one in ROUNDS[kind]:
            yield from self._round(kind, one, replicas, size=0.0, times=1)

    def _turned(self, key: str) -> list[Node]:
        """The replicas with the coordinator first: the driver takes one of them at random."""
        replicas = list(self.replicas(key))
        at = self.rng.randrange(len(replicas))
        return replicas[at:] + replicas[:at]

    def _there(self, coordinator: Node, kind: Kind, size: float, times: int) -> Steps:
        cost = self.parameters.costs[kind]
        yield self.env.timeout(self.parameters.hardware.rtt_s / 2 + cost.overhead_s)
        if kind is Kind.CHUNK_WRITE and size:
            yield from coordinator.incoming.send(size)
        yield from coordinator.host.work(cost.coordinator_s * times + cost.per_byte_s * size)

    def _back(self, coordinator: Node, kind: Kind, size: float) -> Steps:
        if kind is Kind.CHUNK_READ and size:
            yield from coordinator.outgoing.send(size)
        yield self.env.timeout(self.parameters.hardware.rtt_s / 2)

    def _round(
        self, kind: Kind, one: Round, replicas: Sequence[Node], *, size: float, times: int
    ) -> Steps:
        asked = replicas[: one.asked]
        needed = min(one.needed, len(asked))
        enough = self.env.event()
        answers = 0

        def ask(node: Node) -> Steps:
            nonlocal answers
            yield from self._replica(kind, one, (replicas[0], node), size=size, times=times)
            answers += 1
            if answers == needed:
                enough.succeed()

        for node in asked:
            self.env.process(ask(node))
        yield enough

    def _replica(
        self, kind: Kind, one: Round, way: tuple[Node, Node], *, size: float, times: int
    ) -> Steps:
        coordinator, node = way
        cost, rounds = self.parameters.costs[kind], len(ROUNDS[kind])
        half_s = 0.0 if node is coordinator else self.parameters.hardware.rtt_s / 2
        if half_s:
            yield self.env.timeout(half_s)
        if one.has_payload and size and node is not coordinator:
            yield from coordinator.outgoing.send(size)
            yield from node.incoming.send(size)
        payload = size if one.has_payload or kind is Kind.CHUNK_READ else 0.0
        yield from node.host.work(cost.replica_s * times / rounds + cost.per_byte_s * payload)
        for _ in range(one.syncs):
            yield from node.log.write(ROW_BYTES * times + payload)
        if half_s:
            yield self.env.timeout(half_s)
