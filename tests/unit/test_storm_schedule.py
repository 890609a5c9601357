"""A storm is drawn from its seed: the same again, never more than the ring is told to bear."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

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
