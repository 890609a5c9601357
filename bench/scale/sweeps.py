"""All figures of docs/scale.md, from one calibration."""

from __future__ import annotations

from dataclasses import asdict, replace
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Final

import simpy

from bench.scale import analytic, cluster_run
from bench.scale.analytic import Rows
from bench.scale.model import Cluster
from bench.scale.parameters import (
    ACROSS_ZONES,
    REFERENCE,
    SOURCES,
    TARGET_UTILISATION,
    Kind,
    Parameters,
)
from bench.scale.programs import LINGER_S, Lane, Program, Tally
from bench.scale.recipes import BUCKET_SIZE, SINK_RESERVE, Use
from cassieq_spark.entropy import generator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOADS: Final = (1_000.0, 10_000.0, 100_000.0, 1_000_000.0, 10_000_000.0)
PRODUCERS: Final = (1, 4, 16, 64)
CONSUMERS: Final = (1, 4, 16)
SHARDS: Final = (1, 4)
BODIES: Final = (100, 1_000, 10_000)
RTTS: Final = (0.0, 0.1e-3, 0.2e-3, 0.5e-3, 1e-3, 2e-3, 5e-3)
SYNCS: Final = (0.0, 0.1e-3, 1e-3, 5e-3)
LANES: Final = (1, 4, 16, 64)
WAITING: Final = (10, 100, 1_000, 10_000)
SHARES: Final = (0.1, 0.5, 0.8)

USES: Final = (
    Use(name="one at a time", group=1, bucket=1),
    Use(name="groups of 100", group=100, bucket=BUCKET_SIZE),
    Use(name="groups of 1,000", group=1_000, bucket=BUCKET_SIZE),
    Use(name="Spark", group=BUCKET_SIZE, bucket=BUCKET_SIZE, is_bulk=True),
)
SPARK: Final = USES[3]


def all_of(
    found: Mapping[str, Any], *, seed: int, is_smoke: bool, tasks: Mapping[str, float]
) -> dict[str, Any]:
    """Every sweep, on reference hardware.

    Args:
        tasks: Messages a second that one Spark task puts, and takes, as measured.
    """
    calibration = found["calibration"]
    rack = Parameters.calibrated(calibration, REFERENCE)
    zones = Parameters.calibrated(calibration, ACROSS_ZONES)
    few = is_smoke
    uses = [kept_up(use, zones) for use in USES]
    rows = {
        use.name: rows_of(use, zones, found, seed=seed, is_smoke=few, tasks=tasks) for use in uses
    }
    return {
        "reference": asdict(REFERENCE),
        "share": TARGET_UTILISATION,
        "sources": [asdict(one) for one in SOURCES],
        "tasks": dict(tasks),
        "uses": {use.name: _use(use, zones) for use in uses},
        "lwt": lwt_table(rack),
        "ids": ids(rack, zones, seed=seed, is_smoke=few),
        "consumers": consumers(rack, seed=seed, is_smoke=few),
        "rows": {name: asdict(one) for name, one in rows.items()},
        "plans": plans(uses, zones, rows),
        "bodies": bodies(uses[2:], zones, rows),
        "checks": checks(uses, zones, rows, seed=seed, is_smoke=few),
        "latency": latency(uses[1], rack, zones, seed=seed, is_smoke=few),
        "hot": hot(zones, seed=seed, is_smoke=few),
        "idle": idle(rack),
        "queues": queues(rack, found),
    }


def kept_up(use: Use, parameters: Parameters) -> Use:
    """A use as it is where consumers keep up: they seal a bucket after ``linger``, however full.

    So it holds what one producer has put by then. Full buckets are for Spark, and for a backlog.
    """
    if use.is_bulk or use.bucket == 1:
        return use
    calls = int(LINGER_S / put_call_s(use, parameters))
    return replace(use, bucket=min(use.bucket, use.group * max(1, calls)))


def put_call_s(use: Use, parameters: Parameters) -> float:
    """A put of a group into a bucket that is open, alone on an idle cluster."""
    statements = {Kind.CHUNK_WRITE: 1.0, Kind.READ: 2.0}
    return analytic.call_s(parameters, statements) + use.group * parameters.put_message_s


def _use(use: Use, parameters: Parameters) -> dict[str, Any]:
    one = analytic.demand(use, parameters, per_s=1e5, nodes=10)
    return {
        "lwts": one.lwts,
        "statements": one.statements,
        "cpu_s": one.cpu_s,
        "bucket": use.filled,
        "group": use.group,
    }


# --- one row --------------------------------------------------------------------------------------


def lwt_table(rack: Parameters) -> dict[str, Any]:
    """LWTs a second on one partition, one client after the other, by round trip and fsync."""
    return {
        f"{sync_s * 1e3:g}": {
            f"{rtt_s * 1e3:g}": 1 / rack.on(rtt_s=rtt_s, sync_s=sync_s).lwt_s() for rtt_s in RTTS
        }
        for sync_s in SYNCS
    }


def ids(
    rack: Parameters, zones: Parameters, *, seed: int, is_smoke: bool
) -> dict[str, list[dict[str, float]]]:
    """Buckets that one `monoton` row hands out in a second, by how many ask for them at a time."""
    some = PRODUCERS[:2] if is_smoke else PRODUCERS
    return {
        name: [{"producers": n, **reservations(parameters, n, seed=seed)} for n in some]
        for name, parameters in (("rack", rack), ("zones", zones))
    }


def reservations(parameters: Parameters, producers: int, *, seed: int) -> dict[str, float]:
    """So many producers that do nothing but reserve, each on its own machine."""
    env, cluster = _cluster(parameters, nodes=9, seed=seed)
    lane, tally = Lane(env, "lane"), Tally()
    calls = max(3, 100 // producers)
    for _ in range(producers):
        env.process(Program(cluster, [lane], tally).reserve(calls))
    env.run()
    return {
        "per_s": tally.reserved / tally.ended_at,
        "lwts": cluster.meter.lwts / tally.reserved,
        "p99_s": quantiles(tally.latencies, n=100)[98],
    }


# --- one lane, or a few ---------------------------------------------------------------------------


def consumers(rack: Parameters, *, seed: int, is_smoke: bool) -> list[dict[str, float]]:
    """Messages a second that consumers take, by how many they are, by shards and by group."""
    found = []
    for group, bucket in ((100, 10_000), (1_000, BUCKET_SIZE)):
        for shards in SHARDS[:1] if is_smoke else SHARDS:
            for count in CONSUMERS[:2] if is_smoke else CONSUMERS:
                one = taken(
                    rack, consumers=count, group=group, bucket=bucket, shards=shards, seed=seed
                )
                found.append(
                    {"group": group, "bucket": bucket, "shards": shards, "consumers": count} | one
                )
    return found


def taken(
    parameters: Parameters,
    *,
    consumers: int,
    group: int,
    bucket: int,
    shards: int,
    seed: int,
    calls: int = 400,
) -> dict[str, float]:
    """Consumers that drain a backlog: as many buckets as a busy queue has before them."""
    env, cluster = _cluster(parameters, nodes=9, seed=seed)
    total = max(calls * group, consumers * group * 4)
    lanes = [Lane(env, f"lane {at}") for at in range(shards)]
    for at in range(max(shards, -(-total // bucket))):
        lanes[at % shards].add(bucket)
    tally = Tally()
    for _ in range(consumers):
        program = Program(cluster, lanes, tally, body_bytes=100, bucket_size=bucket)
        env.process(program.drain(group))
    # A time, and not until all is gone: the end of a drain is no load.
    env.run(until=max(0.25, 10 * one_call_s(parameters, group)))
    return {
        "per_s": tally.acked / env.now,
        "lwts": cluster.meter.lwts / max(1, tally.acked),
        "p99_s": quantiles(tally.latencies, n=100)[98] if len(tally.latencies) > 1 else 0.0,
    }


def one_call_s(parameters: Parameters, group: int) -> float:
    """A get and its ack, alone on an idle cluster."""
    statements = {Kind.READ: 6.0, Kind.WRITE: 1.0, Kind.CHUNK_READ: 1.0, Kind.LWT: 2.0}
    return analytic.call_s(parameters, statements) + group * parameters.get_message_s


def rows_of(
    use: Use,
    parameters: Parameters,
    found: Mapping[str, Any],
    *,
    seed: int,
    is_smoke: bool,
    tasks: Mapping[str, float],
) -> Rows:
    """What one lane, one producer and one consumer can do: of each curve its best point."""
    drops = found["measured"]["ring"]["repair"]["buckets_per_s"]
    counts = (2,) if is_smoke else (4, 16)
    asked = [reservations(parameters, count, seed=seed)["per_s"] for count in counts]
    if use.is_bulk:
        return Rows(
            reservations_per_s=max(asked),
            # A query claims whole buckets, 16 at a time, each by a row of its own.
            taken_per_s=use.filled * 16 / (2 * parameters.lwt_s()),
            put_s=1 / tasks["put"],
            take_s=1 / tasks["take"],
            drops_per_s=drops,
            buckets_per_reservation=1 / SINK_RESERVE,
        )
    fresh_s = analytic.call_s(parameters, {Kind.LWT: 1.0, Kind.READ: 1.0})
    best = max(
        taken(
            parameters,
            consumers=count,
            group=use.group,
            bucket=use.filled,
            shards=1,
            seed=seed,
        )["per_s"]
        for count in counts
    )
    return Rows(
        reservations_per_s=max(asked),
        taken_per_s=best,
        put_s=put_call_s(use, parameters) / use.group + fresh_s / use.filled,
        take_s=one_call_s(parameters, use.group) / use.group,
        drops_per_s=drops,
    )


# --- a cluster ------------------------------------------------------------------------------------


def plans(
    uses: Sequence[Use], parameters: Parameters, rows: Mapping[str, Rows]
) -> list[dict[str, Any]]:
    """The smallest cluster for each load and use."""
    return [_plan(use, parameters, rows[use.name], per_s) for use in uses for per_s in LOADS]


def bodies(
    uses: Sequence[Use], parameters: Parameters, rows: Mapping[str, Rows]
) -> list[dict[str, Any]]:
    """The same for larger messages, in the two ways that large loads are moved."""
    return [
        _plan(replace(use, body_bytes=size), parameters, rows[use.name], per_s)
        for use in uses
        for size in BODIES
        for per_s in LOADS[2:]
    ]


def _plan(use: Use, parameters: Parameters, rows: Rows, per_s: float) -> dict[str, Any]:
    found = analytic.plan(use, parameters, rows, per_s=per_s)
    named = {"use": use.name, "per_s": per_s, "body_bytes": use.body_bytes}
    if found is None:
        return named | {"nodes": None}
    machine = parameters.hardware
    one = found.demand
    return named | {
        "nodes": found.nodes,
        "lanes": found.lanes,
        "bucket": use.filled,
        "producers": found.producers,
        "consumers": found.consumers,
        "lwts_per_s": one.lwts * per_s,
        "cores": one.cpu_s * per_s / machine.speed,
        "disk_bytes_per_s": one.disk_bytes * per_s,
        "network_bytes_per_s": max(one.in_bytes, one.out_bytes) * per_s,
        "space_bytes": one.space_bytes * per_s,
        "shares": dict(found.shares),
        "first": {"name": found.first.name, "per_s": found.first.per_s, "moves": found.first.moves},
        "drops_per_s": per_s / use.filled,
        "repairs": found.repairs,
    }


def checks(
    uses: Sequence[Use],
    parameters: Parameters,
    rows: Mapping[str, Rows],
    *,
    seed: int,
    is_smoke: bool,
) -> list[dict[str, Any]]:
    """Simulated clusters beside the utilisation law and Little's law, up to 1,000 nodes."""
    _, hundreds, thousands, spark = uses
    asked = [
        (hundreds, 1_000.0, None),
        (hundreds, 100_000.0, None),
        (hundreds, 1_000_000.0, None),
        (thousands, 1_000_000.0, None),
        (thousands, 10_000_000.0, None),
        (spark, 1_000_000.0, None),
        (spark, 10_000_000.0, None),
        (spark, 10_000_000.0, 1_000),
    ]
    found = []
    for use, per_s, nodes in asked[:1] if is_smoke else asked:
        made = analytic.plan(use, parameters, rows[use.name], per_s=per_s)
        size = nodes or (made.nodes if made else 1_000)
        one = cluster_run.run(
            use, parameters, per_s=per_s, nodes=size, open_buckets=20 * size, seed=seed
        )
        found.append({"use": use.name} | asdict(one))
    return found


def latency(
    use: Use, rack: Parameters, zones: Parameters, *, seed: int, is_smoke: bool
) -> dict[str, list[dict[str, float]]]:
    """How long a put and an LWT take on nine nodes, by how busy these are."""
    found: dict[str, list[dict[str, float]]] = {}
    for name, parameters in (("rack", rack), ("zones", zones)):
        full = cluster_run.said_busy(use, parameters, per_s=1.0, nodes=9)
        found[name] = []
        for share in SHARES[:1] if is_smoke else SHARES:
            one = cluster_run.run(
                use,
                parameters,
                per_s=share / full,
                nodes=9,
                open_buckets=900,
                seed=seed,
                batched=False,
                seconds=5.0,
                jobs=500 if is_smoke else 3_000,
            )
            found[name].append(
                {"share": share, "busy": one.busy, "p50_s": one.lwt_s[0], "p99_s": one.lwt_s[1]}
            )
    return found


def hot(parameters: Parameters, *, seed: int, is_smoke: bool) -> list[dict[str, float]]:
    """How uneven nodes are busy, by how many buckets are written at a time."""
    use = SPARK
    per_s = 0.3 / cluster_run.said_busy(use, parameters, per_s=1.0, nodes=30)
    found = []
    for open_buckets in (30,) if is_smoke else (3, 30, 300):
        one = cluster_run.run(
            use, parameters, per_s=per_s, nodes=30, open_buckets=open_buckets, seed=seed
        )
        found.append({"open_buckets": open_buckets, "busy": one.busy, "busiest": one.busiest})
    return found


# --- what waits -----------------------------------------------------------------------------------


def idle(rack: Parameters) -> list[dict[str, float]]:
    """What consumers cost that wait at empty queues."""
    return [
        {
            "lanes": lanes,
            "consumers": count,
            "reads_per_s": count * analytic.idle_reads_per_s(lanes),
            "cores": analytic.idle_cores(rack, lanes=lanes, consumers=count),
        }
        for lanes in LANES
        for count in WAITING
    ]


def queues(rack: Parameters, found: Mapping[str, Any]) -> list[dict[str, float]]:
    """What passes of repair over many empty queues cost."""
    each = found["measured"]["ring"]["repair"]["idle_statements"]
    return [
        {
            "queues": count,
            "statements_per_s": count * each / 60.0,
            "cores": analytic.passes_cores(rack, queues=count, every_s=60.0, statements=each),
        }
        for count in WAITING
    ]


def _cluster(parameters: Parameters, *, nodes: int, seed: int) -> tuple[simpy.Environment, Cluster]:
    env = simpy.Environment()
    return env, Cluster(env, parameters, nodes=nodes, rng=generator(seed))


def as_text(found: Mapping[str, Any]) -> str:
    """The agreement with measurement, and the plans."""
    lines = []
    for cluster, compared in found["validation"].items():
        lines.append(
            f"{cluster:<28}{'measured/s':>12}{'model/s':>12}{'off':>8}{'LWTs':>9}{'model':>9}"
        )
        lines += [
            f"{one['loop']:<28}{one['measured_per_s']['median']:>12,.0f}"
            f"{one['predicted_per_s']:>12,.0f}{one['error']:>+8.0%}"
            f"{one['measured_lwts']:>9.4f}{one['predicted_lwts']:>9.4f}"
            for one in compared
        ]
    for one in found["plans"]:
        said = "more than 1,000" if one["nodes"] is None else f"{one['nodes']:,}"
        first = f", first: {one['first']['name']}" if one["nodes"] else ""
        lines.append(f"{one['use']:<18}{one['per_s']:>12,.0f}/s: {said} nodes{first}")
    return "\n".join(lines)
