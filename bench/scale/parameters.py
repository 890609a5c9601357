"""What a statement costs, and what hardware does: numbers with units and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.store.statements import Kind as StatementKind
from cassieq_spark.store.statements import every_statement

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kind(StrEnum):
    """What a statement is to a cluster: as many statements, as few kinds as cost alike."""

    LWT = "lwt"
    REFUSED = "refused"
    WRITE = "write"
    READ = "read"
    CHUNK_WRITE = "chunk_write"
    CHUNK_READ = "chunk_read"


CHUNK_READS: Final = {"scan_messages", "read_messages", "read_overlay"}
CHUNK_WRITES: Final = {"write_message", "write_overlay"}


def _kind(name: str, kind: StatementKind) -> Kind:
    if kind is StatementKind.CAS:
        return Kind.LWT
    if kind is StatementKind.WRITE:
        return Kind.CHUNK_WRITE if name in CHUNK_WRITES else Kind.WRITE
    return Kind.CHUNK_READ if name in CHUNK_READS else Kind.READ


KIND_OF: Final = {one.name: _kind(one.name, one.kind) for one in every_statement()}
"""The kind of each statement of the package, by its name in ``metrics.STATEMENTS``."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round trip between the coordinator and the replicas.

    Attributes:
        asked: How many replicas are asked, of three.
        needed: How many have to answer.
        syncs: Commit-log writes of each replica before it answers, one after the other.
        has_payload: Whether the payload goes to the replicas with it.
    """

    asked: int
    needed: int
    syncs: int
    has_payload: bool = False


ROUNDS: Final[dict[Kind, tuple[Round, ...]]] = {
    # Paxos v2, commit at LOCAL_QUORUM: prepare with the read, propose, commit. A replica writes the
    # promise, the proposal, then the row and the end of the proposal (Cassandra 5.0: PaxosState).
    Kind.LWT: (Round(3, 2, 1), Round(3, 2, 1), Round(3, 2, 2)),
    # A condition that does not hold ends after the first round ("fast failed write" of Paxos.java).
    Kind.REFUSED: (Round(3, 2, 1),),
    Kind.WRITE: (Round(3, 2, 1),),
    Kind.CHUNK_WRITE: (Round(3, 2, 1, has_payload=True),),
    Kind.READ: (Round(2, 2, 0),),
    Kind.CHUNK_READ: (Round(2, 2, 0),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one statement of a kind takes, beside waiting.

    Attributes:
        client_s: CPU of the client, in Python.
        coordinator_s: CPU of the coordinator.
        replica_s: CPU of each replica that is asked, all rounds together.
        overhead_s: What is left of its latency when nothing else runs: threads that wake up.
        per_byte_s: CPU for each byte of payload, of the coordinator and of each replica.
    """

    client_s: float
    coordinator_s: float
    replica_s: float
    overhead_s: float = 0.0
    per_byte_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A node, and what is between nodes.

    Attributes:
        cores: Cores of a node that Cassandra may use.
        speed: Speed of a core; 1: one of the machine of the calibration.
        sync_s: One fsync of the commit log; 0: ``commitlog_sync: periodic``, nobody waits for it.
        log_bytes_per_s: Sequential writes of the commit log's disk.
        disk_bytes_per_s: All writes of the data disks.
        network_bytes_per_s: Each way.
        rtt_s: Round trip between two nodes, or a client and a node.
    """

    cores: int
    speed: float = 1.0
    sync_s: float = 0.0
    log_bytes_per_s: float = 1e9
    disk_bytes_per_s: float = 1e9
    network_bytes_per_s: float = 1.25e9
    rtt_s: float = 0.2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """All that the model knows.

    Attributes:
        costs: By kind of statement.
        hardware: Of each node.
        put_message_s: Client CPU to pack one more message, without its statements.
        get_message_s: Client CPU to hand one more message out and to ack it.
        contention: By how much an LWT is longer if others wait for the same row; 1: not at all.
        replication: Copies of everything.
    """

    costs: Mapping[Kind, Cost]
    hardware: Hardware
    put_message_s: float = 0.0
    get_message_s: float = 0.0
    contention: float = 1.0
    replication: int = 3

    @classmethod
    def calibrated(cls, found: Mapping[str, Any], hardware: Hardware) -> Parameters:
        """The costs of ``calibration`` in ``bench/results/scale.json``, on other hardware."""
        costs = {Kind(kind): Cost(**one) for kind, one in found["costs"].items()}
        return cls(
            costs=costs,
            hardware=hardware,
            put_message_s=found["put_message_s"],
            get_message_s=found["get_message_s"],
            contention=found["contention"],
        )

    def on(self, **changes: Any) -> Parameters:
        """The same on other hardware."""
        return replace(self, hardware=replace(self.hardware, **changes))

    def without_overhead(self) -> Parameters:
        """Without what is left of latencies: for what counts work only."""
        costs = {kind: replace(one, overhead_s=0.0) for kind, one in self.costs.items()}
        return replace(self, costs=costs)

    def lwt_s(self, kind: Kind = Kind.LWT) -> float:
        """How long an LWT holds its row on an idle cluster: its rounds, CPU and fsyncs."""
        cost, machine = self.costs[kind], self.hardware
        rounds = ROUNDS[kind]
        cpu_s = (cost.coordinator_s + cost.replica_s) / machine.speed
        syncs = sum(one.syncs for one in rounds)
        return cpu_s + len(rounds) * machine.rtt_s + syncs * machine.sync_s + cost.overhead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a number of the reference hardware comes from."""

    name: str
    value: str
    source: str


REFERENCE: Final = Hardware(
    cores=16,
    speed=1.0,
    sync_s=0.0,
    log_bytes_per_s=1e9,
    disk_bytes_per_s=1e9,
    network_bytes_per_s=1.25e9,
    rtt_s=0.2e-3,
)
"""A node of today: 16 cores, NVMe, 10 Gb/s, in one rack, ``commitlog_sync: periodic``."""

ACROSS_ZONES: Final = replace(REFERENCE, rtt_s=1.0e-3)
"""The same with its three copies in three zones of a region."""

TARGET_UTILISATION: Final = 0.5
"""How busy a node may be: one of three zones may fail, and compaction and repair have to run."""

SOURCES: Final = (
    Source(
        name="CPU of each statement",
        value="a table of this page",
        source="measured here, single node and ring",
    ),
    Source(
        name="LWTs and statements of each operation",
        value="a table of this page",
        source="counted here (`metrics.STATEMENTS`)",
    ),
    Source(
        name="round trips of an LWT",
        value="3, or 1 if refused",
        source="Cassandra 5.0, Paxos v2, commit at LOCAL_QUORUM",
    ),
    Source(
        name="commit-log writes of an LWT, each replica",
        value="4",
        source="Cassandra 5.0: promise, proposal, row, end of the proposal",
    ),
    Source(name="cores of a node", value="16, each as fast as one here", source="assumed"),
    Source(name="round trip", value="0.2 ms in a rack, 1 ms across zones", source="assumed"),
    Source(name="network of a node", value="10 Gb/s each way", source="assumed"),
    Source(name="disk of a node", value="1 GB/s of writes, sustained", source="assumed (NVMe)"),
    Source(
        name="commit log",
        value="`periodic`: no answer waits for an fsync",
        source="as most clusters of three copies run",
    ),
    Source(
        name="Spark tasks",
        value="half of what two do in `bench/results/queue.json`",
        source="measured, with the node on the same two cores",
    ),
    Source(name="replication", value="3, quorum of 2", source="the package's rule (G1)"),
    Source(
        name="a node's busy share",
        value="0.5 at most",
        source="assumed: a zone may fail, compaction has to run",
    ),
)
