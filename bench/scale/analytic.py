"""What a message costs a cluster, by the utilisation law: no simulation, any size.

A resource that is busy for D seconds a message is busy for the share U = X D / n at X messages a
second on n of them. So the most that n can do at a share U is n U / D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.scale.model import ROW_BYTES
from bench.scale.parameters import ROUNDS, TARGET_UTILISATION, Kind
from cassieq_spark.queue.get.getter import (
    LONGEST_PAUSE_S,
    PAUSES_S,
    READS_A_LOOK,
    READS_PER_S,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.scale.parameters import Cost, Parameters
    from bench.scale.recipes import Use

QUORUM: Final = 2
MEMTABLE_BYTES: Final = 1e9
"""What a node collects before it writes a table."""

TIER: Final = 4
"""Tables of a size before compaction merges them: `T4` of the message table (`store/schema.py`)."""

MEAN_PAUSE: Final = 0.625
"""`jitter` draws a quarter to all of a pause."""

NOT_YET_COMPACTED: Final = 2.0
"""Space of data and of what was dropped and is still on disk, of the data (docs: sizing)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one message asks of the whole cluster.

    Attributes:
        cpu_s: Core seconds of all nodes together, at a speed of 1.
        disk_bytes: Bytes written to disks: commit logs, tables, and what compaction writes again.
        log_bytes: The part of commit logs.
        in_bytes, out_bytes: Through the network cards of nodes.
        space_bytes: On disks, while it is there and until compaction has run.
        lwts, statements: Of clients.
    """

    cpu_s: float
    disk_bytes: float
    log_bytes: float
    in_bytes: float
    out_bytes: float
    space_bytes: float
    lwts: float
    statements: float


def cpu_of(cost: Cost, kind: Kind, size: float = 0.0) -> float:
    """Core seconds of all nodes for one statement with so much payload."""
    asked = ROUNDS[kind][0].asked
    return cost.coordinator_s + asked * cost.replica_s + (1 + asked) * size * cost.per_byte_s


def amplification(live_bytes: float) -> float:
    """How often compaction writes a byte again, with so many bytes on a node.

    Tables of a size are merged by fours, so each byte moves up a tier as often as four fit. What is
    dropped before takes no part: a short life costs nothing here.
    """
    return max(0.0, math.log(max(1.0, live_bytes / MEMTABLE_BYTES), TIER))


def demand(
    use: Use, parameters: Parameters, *, per_s: float, nodes: int, life_s: float = 60.0
) -> Demand:
    """What a message asks for.

    Args:
        per_s: Messages a second: with their life it says how much is on disks.
        life_s: From a message's put to the drop of its bucket.
    """
    kinds = use.by_kind()
    copies = parameters.replication
    cpu_s = 0.0
    log = 0.0
    for kind, count in kinds.items():
        cpu_s += count * cpu_of(parameters.costs[kind], kind)
        syncs = sum(one.syncs for one in ROUNDS[kind])
        log += count * syncs * ROW_BYTES * copies
    write, read = parameters.costs[Kind.CHUNK_WRITE], parameters.costs[Kind.CHUNK_READ]
    size = back = use.body_bytes  # each is read once: a get takes what its seal has read
    cpu_s += size * (1 + copies) * write.per_byte_s + back * (1 + QUORUM) * read.per_byte_s
    log += size * copies
    live = per_s * size * copies * life_s / nodes
    return Demand(
        cpu_s=cpu_s,
        log_bytes=log,
        disk_bytes=log + size * copies * (1 + amplification(live)),
        in_bytes=size * copies,
        out_bytes=size * (copies - 1) + back,
        space_bytes=size * copies * NOT_YET_COMPACTED * life_s,
        lwts=kinds[Kind.LWT],
        statements=sum(kinds.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A resource, and how many messages a second it takes.

    Attributes:
        moves: Which option moves it.
    """

    name: str
    per_s: float
    moves: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A cluster for a load.

    Attributes:
        lanes: Shards of one queue, or as many queues.
        producers, consumers: Processes that put, and take: programs, or tasks of Spark.
        repairs: Processes, or tasks of Spark, that drop buckets.
        shares: How busy each resource is: by name, 0 to 1.
        limits: The most that each takes, in messages a second; the first one breaks first.
    """

    use: Use
    per_s: float
    nodes: int
    lanes: int
    producers: int
    consumers: int
    repairs: int
    shares: Mapping[str, float]
    limits: tuple[Limit, ...]
    demand: Demand

    @property
    def first(self) -> Limit:
        """What breaks first."""
        return self.limits[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What one lane and one process can do, as the simulation or a measurement found.

    Attributes:
        reservations_per_s: Of one `monoton` row, by many producers.
        taken_per_s: Messages that consumers get and ack from one lane.
        put_s, take_s: Seconds of one producer, or consumer, for a message.
        drops_per_s: Buckets that one process of repair drops.
        buckets_per_reservation: Of a task of the sink more than one.
    """

    reservations_per_s: float
    taken_per_s: float
    put_s: float
    take_s: float
    drops_per_s: float
    buckets_per_reservation: float = 1.0


def node_limits(
    use: Use, parameters: Parameters, *, per_s: float, nodes: int, life_s: float, share: float
) -> tuple[Demand, dict[str, float]]:
    """Messages a second at which each resource of the nodes is busy for this share."""
    machine = parameters.hardware
    one = demand(use, parameters, per_s=per_s, nodes=nodes, life_s=life_s)
    return one, {
        "cores": nodes * machine.cores * machine.speed * share / one.cpu_s,
        "disks": nodes * machine.disk_bytes_per_s * share / one.disk_bytes,
        "network": nodes * machine.network_bytes_per_s * share / max(one.in_bytes, one.out_bytes),
    }


MOVES: Final = {
    "cores": "nodes, or larger groups: fewer LWTs a message",
    "disks": "nodes, or a shorter life: repair oftener",
    "network": "nodes, or smaller bodies",
    "ids": "`shards`, or larger `bucket_size`",
    "bucket rows": "`shards`, or larger groups (`prefetch`)",
    "repair": "repair as a Spark job, or larger `bucket_size`",
}


def plan(
    use: Use,
    parameters: Parameters,
    rows: Rows,
    *,
    per_s: float,
    life_s: float = 60.0,
    share: float = TARGET_UTILISATION,
    most_nodes: int = 1_000,
) -> Plan | None:
    """The smallest cluster that takes a load, its nodes at most so busy; None: there is none."""
    nodes = 3
    while True:
        one, limits = node_limits(
            use, parameters, per_s=per_s, nodes=nodes, life_s=life_s, share=share
        )
        least = min(limits.values())
        if least >= per_s:
            break
        nodes = max(nodes + 1, math.ceil(nodes * per_s / least))
        if nodes > most_nodes:
            return None
    each_lane = {
        "ids": rows.reservations_per_s * rows.buckets_per_reservation * use.filled,
        "bucket rows": rows.taken_per_s,
    }
    lanes = max(1, math.ceil(per_s / (share * min(each_lane.values()))))
    most = {name: limit / share for name, limit in limits.items()}
    most |= {name: limit * lanes for name, limit in each_lane.items()}
    drops = rows.drops_per_s * use.filled
    repairs = max(1, math.ceil(per_s / (share * drops)))
    most["repair"] = drops * repairs
    return Plan(
        use=use,
        per_s=per_s,
        nodes=nodes,
        lanes=lanes,
        producers=max(1, math.ceil(per_s * rows.put_s)),
        consumers=max(1, math.ceil(per_s * rows.take_s)),
        repairs=repairs,
        shares={name: per_s / limit for name, limit in most.items()},
        limits=tuple(
            sorted(
                (Limit(name=name, per_s=x, moves=MOVES[name]) for name, x in most.items()),
                key=lambda limit: limit.per_s,
            )
        ),
        demand=one,
    )


def idle_reads_per_s(lanes: int) -> float:
    """Reads a second of one consumer that waits at an empty queue, by the package's own pauses."""
    pause_s = MEAN_PAUSE * PAUSES_S[-1]
    if lanes > 1:
        pause_s = min(LONGEST_PAUSE_S, max(pause_s, READS_A_LOOK * lanes / READS_PER_S))
    return READS_A_LOOK * lanes / pause_s


def idle_cores(parameters: Parameters, *, lanes: int, consumers: int) -> float:
    """Cores of all nodes that idle consumers keep busy."""
    cost = cpu_of(parameters.costs[Kind.READ], Kind.READ)
    return consumers * idle_reads_per_s(lanes) * cost / parameters.hardware.speed


def passes_cores(
    parameters: Parameters, *, queues: int, every_s: float, statements: float
) -> float:
    """Cores of all nodes for passes of repair over queues without any message."""
    cost = cpu_of(parameters.costs[Kind.READ], Kind.READ)
    return queues * statements / every_s * cost / parameters.hardware.speed


def call_s(parameters: Parameters, statements: Mapping[Kind, float]) -> float:
    """How long statements take on an idle cluster, one after the other."""
    machine = parameters.hardware
    total = 0.0
    for kind, count in statements.items():
        cost, rounds = parameters.costs[kind], ROUNDS[kind]
        nodes_s = (cost.client_s + cost.coordinator_s + cost.replica_s) / machine.speed
        syncs = sum(one.syncs for one in rounds)
        rtts = (1 + len(rounds)) * machine.rtt_s
        total += count * (nodes_s + rtts + syncs * machine.sync_s + cost.overhead_s)
    return total
