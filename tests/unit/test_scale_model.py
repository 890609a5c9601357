"""The model of large clusters keeps the laws that any model has to keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import simpy

from bench.scale import analytic, cluster_run
from bench.scale.model import Client, Cluster, Host, Log, Row, as_it_is, exponential
from bench.scale.parameters import KIND_OF, Cost, Hardware, Kind, Parameters
from bench.scale.programs import Lane, Program, Tally
from bench.scale.recipes import DROP, Use
from cassieq_spark.entropy import generator
from cassieq_spark.store.statements import every_statement

if TYPE_CHECKING:
    from bench.scale.model import Steps

ROOT = Path(__file__).resolve().parents[2]
COST = Cost(client_s=2e-4, coordinator_s=3e-4, replica_s=2e-4, overhead_s=1e-4, per_byte_s=1e-9)
PARAMETERS = Parameters(
    costs=dict.fromkeys(Kind, COST),
    hardware=Hardware(cores=4, sync_s=0.5e-3, rtt_s=0.2e-3),
    put_message_s=1e-6,
    get_message_s=1e-6,
    contention=1.5,
)
HUNDREDS = Use(name="hundreds", group=100, bucket=1_000)
BULK = Use(name="bulk", group=50_000, bucket=50_000, is_bulk=True)


def cluster(*, nodes: int = 3, seed: int = 1, parameters: Parameters = PARAMETERS) -> Cluster:
    return Cluster(simpy.Environment(), parameters, nodes=nodes, rng=generator(seed))


# --- queues that have a known answer --------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "factor"),
    [
        # Waiting of M/M/1 is rho / (1 - rho) services, and of M/D/1 half of that.
        (exponential(generator(3)), 1.0),
        (as_it_is, 0.5),
    ],
    ids=["M/M/1", "M/D/1"],
)
def test_one_core_waits_as_the_formula_says(draw: Callable[[float], float], factor: float) -> None:
    env, rng = simpy.Environment(), generator(5)
    host, waits = Host(env, 1, 1.0, draw), []
    service_s, rho, count = 1.0, 0.6, 6_000

    def job() -> Steps:
        began = env.now
        busy_before = host.busy_s
        yield from host.work(service_s)
        waits.append(env.now - began)
        assert host.busy_s > busy_before

    def arrive() -> Steps:
        for _ in range(count):
            yield env.timeout(rng.expovariate(rho / service_s))
            env.process(job())

    env.process(arrive())
    env.run()

    expected = service_s + factor * service_s * rho / (1 - rho)
    assert expected == pytest.approx(sum(waits) / count, rel=0.08)
    assert rho == pytest.approx(host.busy_s / env.now, rel=0.03)


def test_an_fsync_takes_all_that_waits_and_nobody_is_answered_before_one() -> None:
    env = simpy.Environment()
    log = Log(env, 1.0, 1e9)
    ended: list[float] = []

    def write(at: float) -> Steps:
        yield env.timeout(at)
        yield from log.write(0)
        ended.append(env.now)

    for at in (0.0, 0.2, 0.4):
        env.process(write(at))
    env.run()

    # The first is alone; the others came meanwhile, and share the next one.
    assert ([1.0, 2.0, 2.0], 2, 3) == (ended, log.syncs, log.writes)


# --- a cluster ------------------------------------------------------------------------------------


def test_an_idle_lwt_takes_what_the_formula_says() -> None:
    env = simpy.Environment()
    made = Cluster(env, PARAMETERS, nodes=3, rng=generator(1), draw=as_it_is)
    row = Row(env, "row")
    row.exists = True
    client = Client(env, None)
    answers: list[bool] = []

    def once() -> Steps:
        answers.append((yield from made.cas(client, row, row.version)))

    env.process(once())
    env.run()

    travel_s = PARAMETERS.hardware.rtt_s
    assert [True] == answers
    assert PARAMETERS.lwt_s() + travel_s == pytest.approx(made.meter.seconds, rel=0.01)


def test_of_many_that_saw_the_same_version_one_changes_the_row() -> None:
    made = cluster()
    row = Row(made.env, "row")
    row.exists = True
    answers: list[bool] = []

    def once() -> Steps:
        answers.append((yield from made.cas(Client(made.env, None), row, 0)))

    for _ in range(10):
        made.env.process(once())
    made.env.run()

    assert [False] * 9 + [True] == sorted(answers)
    assert (1, 9) == (made.meter.answered[Kind.LWT], made.meter.answered[Kind.REFUSED])


def test_two_lwts_on_one_row_do_not_overlap_and_on_two_rows_they_do() -> None:
    def took_s(keys: list[str]) -> float:
        made = Cluster(simpy.Environment(), PARAMETERS, nodes=99, rng=generator(1), draw=as_it_is)
        rows = {key: Row(made.env, key) for key in keys}

        def once(key: str) -> Steps:
            yield from made.cas(Client(made.env, None), rows[key], None)

        for key in keys:
            made.env.process(once(key))
        made.env.run()
        return made.env.now

    alone_s = took_s(["a"])
    assert took_s(["a", "c"]) == pytest.approx(alone_s, rel=0.2)
    assert took_s(["a", "a"]) > 1.2 * alone_s


@pytest.mark.parametrize("work", ["put", "drain", "cycle", "reserve"])
def test_no_message_is_lost_or_made_up_and_no_statement_is_left_under_way(work: str) -> None:
    made = cluster()
    lane, tally = Lane(made.env, "lane"), Tally()
    if work == "drain":
        for _ in range(3):
            lane.add(1_000)
    for _ in range(4):
        one = Program(made, [lane], tally, bucket_size=1_000)
        steps = {
            "put": lambda one=one: one.put(5, 100),
            "drain": lambda one=one: one.drain(100),
            "cycle": lambda one=one: one.cycle(3, 10),
            "reserve": lambda one=one: one.reserve(5),
        }[work]
        made.env.process(steps())
    made.env.run()

    there = sum(bucket.total for bucket in lane.buckets)
    assert sum(bucket.left for bucket in lane.buckets) == there - tally.acked
    assert tally.got == tally.acked
    assert made.meter.sent == sum(made.meter.answered.values())
    assert 0 == made.meter.under_way
    expected = {"put": 2_000, "drain": 3_000, "cycle": 120, "reserve": 0}[work]
    assert expected == there
    assert tally.acked == {"put": 0, "reserve": 0}.get(work, expected)
    assert tally.reserved == made.meter.answered[Kind.LWT] if work == "reserve" else True


def test_littles_law_and_the_utilisation_law_hold_in_a_simulated_cluster() -> None:
    parameters = PARAMETERS.on(sync_s=0.0)
    full = cluster_run.said_busy(HUNDREDS, parameters, per_s=1.0, nodes=5)
    one = cluster_run.run(
        HUNDREDS,
        parameters,
        per_s=0.5 / full,
        nodes=5,
        open_buckets=500,
        jobs=3_000,
        batched=False,
        seconds=2.0,
    )

    assert 0.5 == pytest.approx(one.said)
    assert one.said == pytest.approx(one.busy, rel=0.1)
    assert one.by_little == pytest.approx(one.in_flight, rel=0.1)
    assert one.busy <= one.busiest <= 1


def test_what_is_too_much_keeps_all_cores_busy_and_no_more_than_that() -> None:
    full = cluster_run.said_busy(HUNDREDS, PARAMETERS, per_s=1.0, nodes=3)
    one = cluster_run.run(
        HUNDREDS, PARAMETERS, per_s=4 / full, nodes=3, open_buckets=300, jobs=1_500, batched=False
    )

    assert 0.5 < one.busy <= one.busiest <= 1
    assert one.backlog > 0.2


# --- plans ----------------------------------------------------------------------------------------

ROWS = analytic.Rows(
    reservations_per_s=100.0, taken_per_s=10_000.0, put_s=1e-4, take_s=1e-4, drops_per_s=50.0
)


def test_twice_the_load_takes_twice_the_nodes_and_nothing_is_busier_than_asked() -> None:
    small, large = (analytic.plan(HUNDREDS, PARAMETERS, ROWS, per_s=per_s) for per_s in (2e5, 4e5))
    assert small is not None
    assert large is not None

    assert 3 < small.nodes
    assert 2 * small.nodes - large.nodes in (0, 1)  # each is rounded up
    for one in (small, large):
        assert max(one.shares.values()) <= 0.5 + 1e-9
        assert one.first.per_s == min(limit.per_s for limit in one.limits)
        assert one.first.per_s >= 2 * one.per_s * (1 - 1e-9)


@pytest.mark.parametrize(("side", "group"), [("one", 1), ("hundred", 100)])
def test_the_recipe_is_what_the_benchmark_of_programs_has_counted(side: str, group: int) -> None:
    """The one producer there reserves without a read (ADR 29), and a get that follows a single
    message peeks once and not twice. A run is in one half of a minute or in the other.
    """
    found = json.loads((ROOT / "bench" / "results" / "programs.json").read_text("utf-8"))
    counted = {
        name: round(group * count)
        for name, count in found["statements_per_message"][side].items()
        if round(group * count)
    }
    said = Use(name=side, group=group, bucket=group).statements()
    for name, count in DROP.items():
        said[name] -= count  # repair did that later

    said["read_monoton"] -= 1
    said["peek_bucket"] -= side == "one"
    assert counted == {name: count for name, count in said.items() if count}


def test_bytes_are_written_once_for_each_copy_and_more_often_the_longer_they_stay() -> None:
    def disk_bytes(life_s: float) -> float:
        one = analytic.demand(BULK, PARAMETERS, per_s=1e7, nodes=10, life_s=life_s)
        return one.disk_bytes - one.log_bytes

    assert 300 == disk_bytes(1.0)
    assert disk_bytes(3_600) > disk_bytes(60) > 300


@pytest.mark.parametrize(("lanes", "reads"), [(1, 2.0), (4, 8.0), (16, 32.0), (64, 64.0)])
def test_an_idle_consumer_reads_as_often_as_was_measured(lanes: int, reads: float) -> None:
    """`python -m bench.shards` measured 2.0, 7.8, 32.9 and 65.0."""
    assert reads == pytest.approx(analytic.idle_reads_per_s(lanes))


def test_each_statement_of_the_package_has_a_kind() -> None:
    assert {one.name for one in every_statement()} <= KIND_OF.keys()
    assert Kind.LWT is KIND_OF["reserve"]
    assert Kind.CHUNK_WRITE is KIND_OF["write_message"]
