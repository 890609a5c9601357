"""Put, get and ack in loops: by processes on real nodes, and by the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import psutil
import simpy

from bench import report
from bench.scale.model import Cluster, Host, as_it_is, exponential
from bench.scale.parameters import Hardware, Parameters
from bench.scale.programs import Lane, Program, Tally
from cassieq_spark.entropy import generator, new_uuid
from cassieq_spark.store.statements import Kind as StatementKind
from cassieq_spark.store.statements import every_statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import cassieq_spark as cassieq
    from bench.fleet import Fleet
    from bench.scale.calibrate import Cpu

BODY_BYTES: Final = 96
LWTS: Final = {one.name for one in every_statement() if one.kind is StatementKind.CAS}
CONTENTIONS: Final = (1.0, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop, the same for real processes and for the model.

    Attributes:
        work: ``put``, ``drain``, ``cycle`` or ``reserve``.
        clients: So many processes, each with a client of its own.
        calls: Of each process; of a drain: gets of all processes together.
        at_once: Messages of a call.
        bucket_size: Of the queue.
    """

    work: str
    clients: int
    calls: int
    at_once: int = 1
    bucket_size: int = 2_000

    @property
    def name(self) -> str:
        """As it is called in the results."""
        group = "" if self.work == "reserve" else f" {self.at_once}"
        return f"{self.work}{group}, {self.clients} client{'s' if self.clients > 1 else ''}"

    @property
    def messages(self) -> int:
        """Messages that go through, or buckets that are reserved."""
        each = 1 if self.work == "drain" else self.clients
        return each * self.calls * self.at_once


LOOPS: Final = (
    *(Loop(work="reserve", clients=n, calls=max(8, 60 // n)) for n in (1, 4, 16)),
    *(Loop(work="put", clients=n, calls=max(15, 100 // n)) for n in (1, 4, 16)),
    *(Loop(work="put", clients=n, calls=max(10, 60 // n), at_once=100) for n in (1, 4, 16)),
    Loop(work="cycle", clients=1, calls=20),
    *(
        Loop(work="drain", clients=n, calls=calls, at_once=100)
        for n, calls in ((1, 20), (4, 40), (16, 80))
    ),
    Loop(work="put", clients=1, calls=6, at_once=10_000, bucket_size=10_000),
    Loop(work="drain", clients=1, calls=6, at_once=10_000, bucket_size=10_000),
)

SMOKE: Final = (
    Loop(work="reserve", clients=2, calls=3),
    Loop(work="put", clients=1, calls=3),
    Loop(work="drain", clients=2, calls=4, at_once=100),
    Loop(work="put", clients=1, calls=1, at_once=10_000, bucket_size=10_000),
    Loop(work="drain", clients=1, calls=1, at_once=10_000, bucket_size=10_000),
)


# --- on real nodes --------------------------------------------------------------------------------


def measure(loop: Loop, client: cassieq.Client, fleet: Fleet, cpu: Cpu) -> dict[str, float]:
    """One loop of real processes.

    Raises:
        SystemExit: A message was lost, or came twice inside its visibility.
    """
    queue = client.create_queue(f"loop.{new_uuid().hex[:12]}", bucket_size=loop.bucket_size)
    asked: dict[str, Any] = {"work": loop.work, "queue": queue.name}
    if loop.work == "drain":
        body = generator(3).randbytes(BODY_BYTES)
        for _ in range(loop.messages // loop.bucket_size or 1):
            queue.put_many([body] * min(loop.bucket_size, loop.messages))
        asked |= {"prefetch": loop.at_once}
    elif loop.work == "put":
        asked |= {"messages": loop.calls * loop.at_once, "at_once": loop.at_once}
        asked |= {"size": BODY_BYTES, "seed": 1}
    else:
        asked |= {"calls": loop.calls}
        asked |= {"at_once": 1, "size": BODY_BYTES, "seed": 1} if loop.work == "cycle" else {}
    mark, busy, began = cpu.mark(), _busy_s(), perf_counter()
    done = fleet.run([dict(asked) for _ in range(loop.clients)])
    elapsed_s = perf_counter() - began
    others = (_busy_s() - busy - cpu.in_all(mark) - done.cpu_s) / elapsed_s
    if done.ids and (len(set(done.ids)) != loop.messages or done.redelivered):
        raise SystemExit(f"{loop.name}: {loop.messages} in, {len(set(done.ids))} out")
    lwts = sum(count for name, count in done.statements.items() if name in LWTS)
    queue.delete()
    return {
        "per_s": loop.messages / done.seconds,
        "lwts": lwts / loop.messages,
        "statements": sum(done.statements.values()) / loop.messages,
        "client_s": done.cpu_s / loop.messages,
        "nodes_s": cpu.since(mark) / loop.messages,
        "others": max(0.0, others),
    }


def _busy_s() -> float:
    now = psutil.cpu_times()
    return sum(now) - now.idle - now.iowait - now.guest - now.guest_nice


def together(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The rounds of one loop."""
    found: dict[str, Any] = {
        name: median(one[name] for one in rounds) for name in rounds[0] if name != "per_s"
    }
    return found | {"per_s": report.spread([one["per_s"] for one in rounds])}


# --- by the model ---------------------------------------------------------------------------------


def here(found: Mapping[str, Any], *, others: float, cores: int) -> Parameters:
    """This machine, as the calibration found it, beside others that take so many cores."""
    hardware = Hardware(
        cores=cores,
        speed=max(0.2, (cores - others) / cores),
        sync_s=found["sync_s"]["median"],
        log_bytes_per_s=found["bytes_per_s"]["median"],
        disk_bytes_per_s=found["bytes_per_s"]["median"],
        network_bytes_per_s=5e9,
        rtt_s=0.0,  # loopback: in the overhead
    )
    return Parameters.calibrated(found, hardware)


def predict(
    loop: Loop, parameters: Parameters, *, nodes: int, seed: int = 1, varies: bool = True
) -> dict[str, float]:
    """The same loop by the model: all nodes and clients share one machine, as they do here."""
    env = simpy.Environment()
    rng = generator(seed)
    draw = exponential(rng) if varies else as_it_is
    machine = parameters.hardware
    host = Host(env, machine.cores, machine.speed, draw)
    cluster = Cluster(env, parameters, nodes=nodes, rng=rng, host=host)
    lane, tally = Lane(env, "lane"), Tally()
    if loop.work == "drain":
        for _ in range(loop.messages // loop.bucket_size or 1):
            lane.add(min(loop.bucket_size, loop.messages))
    for _ in range(loop.clients):
        one = Program(
            cluster, [lane], tally, host=host, body_bytes=BODY_BYTES, bucket_size=loop.bucket_size
        )
        steps = {
            "put": lambda one=one: one.put(loop.calls, loop.at_once),
            "drain": lambda one=one: one.drain(loop.at_once),
            "cycle": lambda one=one: one.cycle(loop.calls, loop.at_once),
            "reserve": lambda one=one: one.reserve(loop.calls),
        }[loop.work]
        env.process(steps())
    env.run()
    return {
        "per_s": loop.messages / tally.ended_at,
        "lwts": cluster.meter.lwts / loop.messages,
        "busy": host.busy_s / tally.ended_at / host.cores,
    }


def contention(
    measured: Mapping[str, Any], found: Mapping[str, Any], *, nodes: int, loops: Sequence[Loop]
) -> float:
    """The factor by which an LWT is longer where others wait: of the loop with most of them."""
    loop = max((one for one in loops if one.work == "reserve"), key=lambda one: one.clients)
    real = measured[loop.name]
    base = here(found, others=real["others"], cores=psutil.cpu_count() or 1)

    def off(factor: float) -> float:
        said = predict(loop, replace(base, contention=factor), nodes=nodes)
        return abs(said["per_s"] / real["per_s"]["median"] - 1)

    return min(CONTENTIONS, key=off)


def compare(
    measured: Mapping[str, Any], found: Mapping[str, Any], *, nodes: int, loops: Sequence[Loop]
) -> list[dict[str, Any]]:
    """Each loop with what was measured, what the model says, and by how much it is off."""
    compared = []
    for loop in loops:
        real = measured[loop.name]
        base = here(found, others=real["others"], cores=psutil.cpu_count() or 1)
        said = predict(loop, base, nodes=nodes)
        compared.append(
            {
                "loop": loop.name,
                "measured_per_s": real["per_s"],
                "predicted_per_s": said["per_s"],
                "error": said["per_s"] / real["per_s"]["median"] - 1,
                "measured_lwts": real["lwts"],
                "predicted_lwts": said["lwts"],
                "others": real["others"],
            }
        )
    return compared


QUIET: Final = {
    "put": Loop(work="put", clients=1, calls=100),
    "one": Loop(work="cycle", clients=1, calls=30),
    "hundred": Loop(work="cycle", clients=1, calls=15, at_once=100),
    "load": Loop(work="drain", clients=1, calls=60, at_once=100),
}
"""Sides of ``python -m bench.programs``, which runs on a machine that does nothing else."""


def against_programs(programs: Mapping[str, Any], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The model beside `bench/results/programs.json`: one client, a single node, nobody else.

    The model's LWTs are without the drop of a bucket, which that file counts.
    """
    base = here(found, others=0.0, cores=programs["machine"]["cores"])
    compared = []
    for side, loop in QUIET.items():
        said, real = predict(loop, base, nodes=1), programs["messages_per_s"][side]
        counted = programs["statements_per_message"][side]
        compared.append(
            {
                "loop": f"{side}: {loop.name}",
                "measured_per_s": real,
                "predicted_per_s": said["per_s"],
                "error": said["per_s"] / real["median"] - 1,
                "measured_lwts": sum(counted.get(name, 0.0) for name in LWTS),
                "predicted_lwts": said["lwts"],
                "others": 0.0,
            }
        )
    return compared
