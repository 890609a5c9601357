"""A whole cluster under a load, with batches of statements in place of single ones.

Ten million messages a second are too many to follow. Their statements are known for each bucket
(`recipes`), so the run sends as many statements of each kind as the load has, put together to
batches, each to the partitions of one bucket. Which buckets are written at a time is simulated: a
bucket lies on three nodes, so few of them keep few nodes busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING, Final

import simpy

from bench.scale.analytic import cpu_of
from bench.scale.model import Client, Cluster
from bench.scale.parameters import Kind
from cassieq_spark.entropy import generator

if TYPE_CHECKING:
    from bench.scale.model import Meter, Steps
    from bench.scale.parameters import Parameters
    from bench.scale.recipes import Use

JOBS: Final = 3_000
"""About how many batches are simulated; a larger load has larger batches."""

CHUNKS: Final = {Kind.CHUNK_WRITE, Kind.CHUNK_READ}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was simulated.

    Attributes:
        busy: Share of all cores that were busy; ``said``: the same by the utilisation law.
        busiest: Of the node that was busy most.
        lwt_s: Median and 99th percentile of an LWT.
        in_flight: Statements under way, the mean over time; ``by_little``: rate times latency.
        batch: Statements of a batch.
    """

    nodes: int
    per_s: float
    busy: float
    said: float
    busiest: float
    lwt_s: tuple[float, float]
    in_flight: float
    by_little: float
    batch: float
    backlog: float


def run(
    use: Use,
    parameters: Parameters,
    *,
    per_s: float,
    nodes: int,
    open_buckets: int,
    seconds: float = 0.5,
    seed: int = 1,
    jobs: int = JOBS,
    batched: bool = True,
) -> Run:
    """Simulate so many seconds of a load.

    Args:
        open_buckets: How many buckets are written, and as many read, at a time.
        batched: Whether statements are put together; if not, a shorter time is simulated.
    """
    env = simpy.Environment()
    rng = generator(seed)
    cluster = Cluster(env, parameters, nodes=nodes, rng=rng)
    kinds = {kind: count * per_s for kind, count in use.by_kind().items() if count}
    total = sum(kinds.values())
    times = max(1, round(total * seconds / jobs)) if batched else 1
    if not batched:
        seconds = min(seconds, jobs / total)
    each = {
        Kind.CHUNK_WRITE: use.body_bytes * per_s / kinds[Kind.CHUNK_WRITE],
        Kind.CHUNK_READ: use.body_bytes * per_s / kinds[Kind.CHUNK_READ],
    }
    client = Client(env, None)

    def arrive(kind: Kind, rate: float) -> Steps:
        while True:
            yield env.timeout(rng.expovariate(rate / times))
            # LWTs and small reads are of buckets in all stages; chunks of those that are open.
            among = open_buckets if kind in CHUNKS else 8 * open_buckets
            key = f"{int(env.now)}/{rng.randrange(among)}"
            size = each.get(kind, 0.0) * times
            env.process(cluster.send(client, kind, key, size=size, times=times))

    for kind, rate in kinds.items():
        env.process(arrive(kind, rate))
    env.run(until=seconds)
    return _result(use, cluster, per_s=per_s, seconds=seconds, times=times)


def _result(use: Use, cluster: Cluster, *, per_s: float, seconds: float, times: int) -> Run:
    hosts = [node.host for node in cluster.nodes]
    shares = [host.busy_s / seconds / host.cores for host in hosts]
    meter = cluster.meter
    lwts = meter.latencies.get(Kind.LWT, [])
    cuts = quantiles(lwts, n=100) if len(lwts) > 1 else [0.0] * 99
    answered = sum(meter.answered.values())
    return Run(
        nodes=len(hosts),
        per_s=per_s,
        busy=sum(shares) / len(shares),
        said=said_busy(use, cluster.parameters, per_s=per_s, nodes=len(hosts)),
        busiest=max(shares),
        lwt_s=(cuts[49], cuts[98]),
        in_flight=in_flight(meter, seconds),
        by_little=meter.seconds / seconds,
        batch=times,
        backlog=1 - answered / max(1, meter.sent),
    )


def in_flight(meter: Meter, seconds: float) -> float:
    """Statements under way, the mean over time."""
    return (meter.area + meter.under_way * (seconds - meter.changed_at)) / seconds


def said_busy(use: Use, parameters: Parameters, *, per_s: float, nodes: int) -> float:
    """The share of cores that are busy, by the utilisation law."""
    costs, machine = parameters.costs, parameters.hardware
    kinds = use.by_kind()
    sizes = {
        Kind.CHUNK_WRITE: use.body_bytes / kinds[Kind.CHUNK_WRITE],
        Kind.CHUNK_READ: use.body_bytes / kinds[Kind.CHUNK_READ],
    }
    work_s = sum(
        count * cpu_of(costs[kind], kind, sizes.get(kind, 0.0)) for kind, count in kinds.items()
    )
    return per_s * work_s / (nodes * machine.cores * machine.speed)
