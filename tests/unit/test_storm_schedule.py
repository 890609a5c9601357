"""A storm is drawn from its seed: the same again, never more than the ring is told to bear."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from cassandra import OperationTimedOut, Unavailable
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.store.statements import READ_BUCKET
from tests.storm.dials import Dials
from tests.storm.history import Recorder, read
from tests.storm.schedule import BOOT_S, BUCKETS, DRIVER, NODES, REPAIR_JOB, Cast, Kind, draw
from tests.storm.stage import REPAIR_JOB_EVERY, cast_of

SEEDS = st.integers(0, 1 << 32)
SECONDS = st.floats(5, 120)


@given(SEEDS, SECONDS)
def test_the_same_seed_draws_the_same_storm(seed: int, seconds: float) -> None:
    cast = cast_of(seed, has_spark=True)
    assert draw(seed, seconds, cast) == draw(seed, seconds, cast)


@given(SEEDS, SECONDS)
def test_every_storm_kills_pauses_and_misleads_a_node_and_never_hurts_two_groups_at_once(
    seed: int, seconds: float
) -> None:
    faults = [fault for fault in draw(seed, seconds, Cast()).faults if fault.lane == NODES]
    assert {Kind.KILL, Kind.PAUSE, Kind.NODE_CLOCK} == {fault.kind for fault in faults}
    for before, after in pairwise(faults):
        boot_s = BOOT_S if before.kind is Kind.KILL else 0.0
        assert after.at_s >= before.at_s + before.for_s + boot_s
    for fault in faults:
        assert 1 <= len(set(fault.targets)) == len(fault.targets) <= 2
        assert len(fault.targets) == 1 or fault.kind is Kind.PAUSE
        assert len(fault.targets) == 1 or fault.for_s <= 3.0
        assert bool(fault.value) == (fault.kind is Kind.NODE_CLOCK)


@given(SEEDS, SECONDS)
def test_faults_of_one_lane_do_not_overlap(seed: int, seconds: float) -> None:
    cast = cast_of(seed, has_spark=True)
    for lane in draw(seed, seconds, cast).lanes().values():
        for before, after in pairwise(lane):
            assert after.at_s >= round(before.at_s + before.for_s, 2) - 0.02


@given(SEEDS)
def test_only_those_who_are_there_are_hurt(seed: int) -> None:
    cast = cast_of(seed, has_spark=False)
    lanes = {fault.lane for fault in draw(seed, 20, cast).faults}
    assert lanes <= {NODES, BUCKETS, *cast.children}
    with_spark = {fault.lane for fault in draw(seed, 20, cast_of(seed, has_spark=True)).faults}
    assert DRIVER in with_spark
    assert (REPAIR_JOB in with_spark) <= (seed % REPAIR_JOB_EVERY == 0)


@given(SEEDS)
def test_some_buckets_are_away_and_never_all_of_them(seed: int) -> None:
    faults = [fault for fault in draw(seed, 60, Cast()).faults if fault.lane == BUCKETS]
    assert faults
    assert {Kind.BUCKETS_AWAY} == {fault.kind for fault in faults}
    assert all(0 < fault.value < 1 and len(fault.targets) == 1 for fault in faults)


def test_the_same_buckets_are_away_for_all_who_are_told_the_same(tmp_path: Path) -> None:
    dials = [Dials(tmp_path / f"{number}.dials") for number in range(2)]
    assert set() == _away(dials[0])
    for one in dials:
        one.away = (0.3, 7)
    first = _away(dials[0])
    assert 150 < len(first) < 450
    assert first == _away(dials[1])
    dials[0].away = (0.3, 8)
    assert first != _away(dials[0])
    dials[0].away = (0.0, 0)
    assert set() == _away(dials[0])
    assert (0.0, 0.0) == (dials[0].ahead_s, dials[0].loss)


def _away(dials: Dials) -> set[int]:
    """Of a thousand buckets."""
    found = set()
    for bucket in range(1_000):
        try:
            dials.refuse(READ_BUCKET, ("lane", bucket))
        except (OperationTimedOut, Unavailable):
            found.add(bucket)
    return found


def test_a_history_is_read_in_order_of_time_and_without_a_line_that_was_cut(
    tmp_path: Path,
) -> None:
    first, second = Recorder(tmp_path, "first"), Recorder(tmp_path, "second")
    op = second.begin("puts", keys=["m"], delay=0)
    first.say("got", named=[])
    second.say("put", op=op, stored=["m"], unknown=[])
    with (tmp_path / "second.history").open("a") as file:
        file.write('{"at": 1, "who": "second", "wha')
    for one in (first, second):
        one.close()
    assert ["puts", "got", "put"] == [entry["what"] for entry in read(tmp_path)]
