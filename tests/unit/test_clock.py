"""Cluster time is the nodes's, whatever happens to this machine's clock (G6)."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.clock import (
    AWAY_AFTER_S,
    COUNTS_SLEEP,
    MEASURE_EVERY_S,
    RETRY_AFTER_S,
    Answers,
    Ask,
    Clock,
    ClusterClock,
    Reading,
    SystemClock,
)
from cassieq_spark.errors import StoreUnavailable, UsageError
from cassieq_spark.model.lease import EXPIRY_MARGIN_US
from cassieq_spark.testing.manual import START_US, ManualClock

HOUR_US = 3_600_000_000


class Machine(ManualClock):
    """One whose wall clock can be set, and which can sleep."""

    def __init__(self, base: ManualClock | None = None, *, wrong_by_us: int = 0) -> None:
        super().__init__(base)
        self.wrong_by_us = wrong_by_us

    def now_us(self) -> int:
        return super().now_us() + self.wrong_by_us


class Nodes:
    """Of one data centre: each tells the true time, wrong by its own error, ``there_s`` after it
    was asked; the answer takes ``back_s``. Some are away."""

    def __init__(
        self,
        true: ManualClock,
        errors_us: dict[str, int] | None = None,
        trips: Iterator[tuple[float, float]] | None = None,
    ) -> None:
        self.true = true
        self.errors_us = {"a": 0} if errors_us is None else errors_us
        self.trips = trips
        self.asked = 0
        self.away: set[str] = set()

    @property
    def is_up(self) -> bool:
        return not self.away

    @is_up.setter
    def is_up(self, value: bool) -> None:
        self.away = set() if value else set(self.errors_us)

    async def __call__(self, base: Clock, but: Collection[str]) -> Answers:
        self.asked += 1
        asked = [node for node in self.errors_us if node not in but]
        return Answers(
            readings=tuple(self._reading(one, base) for one in asked if one not in self.away),
            silent=frozenset(asked) & self.away,
        )

    def _reading(self, node: str, base: Clock) -> Reading:
        there_s, back_s = (0.0, 0.0) if self.trips is None else next(self.trips)
        sent = base.monotonic()
        self.true.advance(there_s)
        answer = self.true.now_us() + self.errors_us[node]
        self.true.advance(back_s)
        return Reading(node=node, sent_s=sent, back_s=base.monotonic(), there_us=answer)


def clock_of(base: Clock, ask: Ask, **more: Any) -> ClusterClock:
    """A clock that measures as soon as it is asked for a time that it does not know."""
    return ClusterClock(base, ask, spawn=asyncio.run, **more)


def measured(
    errors_us: dict[str, int] | None = None, **more: Any
) -> tuple[Machine, Nodes, ClusterClock]:
    """A machine with the true time, its nodes, and its clock, which has asked them."""
    machine = Machine()
    nodes = Nodes(machine, errors_us)
    clock = clock_of(machine, nodes, **more)
    clock.now_us()
    return machine, nodes, clock


def error_us(clock: ClusterClock, true: ManualClock) -> int:
    """How far it is from the true time, once it has answered."""
    now_us = clock.now_us()
    return now_us - true.now_us()


def test_clients_with_clocks_hours_apart_agree() -> None:
    early, late = Machine(wrong_by_us=-5 * HOUR_US), Machine(wrong_by_us=7 * HOUR_US)
    nodes = Nodes(ManualClock())

    times = {clock_of(machine, nodes).now_us() for machine in (early, late)}

    assert {START_US} == times


def test_time_goes_on_between_measurements_without_asking() -> None:
    machine, nodes, clock = measured()
    asked = nodes.asked

    machine.advance(MEASURE_EVERY_S - 0.5)

    assert START_US + 59_500_000 == clock.now_us()
    assert asked == nodes.asked


def test_it_is_measured_again_after_a_minute() -> None:
    machine, cluster = Machine(), ManualClock()
    clock = clock_of(machine, Nodes(cluster))
    clock.now_us()

    cluster.advance(MEASURE_EVERY_S + 0.005)  # 5 ms of drift
    machine.advance(MEASURE_EVERY_S)

    assert cluster.now_us() == clock.now_us()


trip_s = st.integers(0, 100).map(lambda ms: ms / 1000)
slow_trip_s = st.integers(0, 2_000).map(lambda ms: ms / 1000)


@given(trips=st.lists(st.tuples(trip_s, trip_s), min_size=5, max_size=5))
def test_the_error_is_at_most_half_the_fastest_round_trip(
    trips: list[tuple[float, float]],
) -> None:
    true = ManualClock()
    clock = clock_of(Machine(true, wrong_by_us=HOUR_US), Nodes(true, trips=iter(trips)))

    wrong_us = error_us(clock, true)

    fastest_s = min(there_s + back_s for there_s, back_s in trips)
    assert abs(wrong_us) <= fastest_s * 1e6 / 2 + 1


@pytest.mark.parametrize("set_by_us", [HOUR_US, -HOUR_US])
def test_setting_the_machines_clock_moves_nothing(set_by_us: int) -> None:
    # Else a client would re-claim live leases, or shorten its own, until the next measurement (I2).
    machine, cluster = Machine(), ManualClock()
    nodes = Nodes(cluster)
    clock = clock_of(machine, nodes)
    clock.now_us()
    nodes.is_up = False

    machine.wrong_by_us = set_by_us

    assert START_US == clock.now_us()


def test_a_machine_that_slept_measures_at_once() -> None:
    machine, cluster = Machine(), ManualClock()
    clock = clock_of(machine, Nodes(cluster))
    clock.now_us()

    # Linux' monotonic clock stands still meanwhile, the wall clock is right again.
    machine.wrong_by_us = HOUR_US
    cluster.advance(3_600)

    assert START_US + HOUR_US == clock.now_us()


def test_a_cluster_that_never_answered_has_no_time() -> None:
    machine = Machine()
    nodes = Nodes(machine)
    nodes.is_up = False
    clock = clock_of(machine, nodes)

    with pytest.raises(StoreUnavailable, match="0 of 1 nodes of this data centre told their time"):
        clock.now_us()

    nodes.is_up = True
    assert 0 == error_us(clock, machine)


def test_a_cluster_that_is_away_later_is_asked_again_now_and_then() -> None:
    machine, nodes, clock = measured()
    nodes.is_up = False

    machine.advance(MEASURE_EVERY_S)
    seen = [(clock.now_us(), nodes.asked) for _ in range(2)]
    machine.advance(RETRY_AFTER_S)
    seen.append((clock.now_us(), nodes.asked))

    assert [
        (START_US + 60_000_000, 6),
        (START_US + 60_000_000, 6),
        (START_US + 61_000_000, 7),
    ] == seen


async def test_calls_that_come_together_measure_once() -> None:
    nodes = Nodes(ManualClock())
    clock = clock_of(Machine(), nodes)

    await asyncio.gather(*(clock.settle() for _ in range(8)))

    assert START_US == clock.now_us()
    assert 5 == nodes.asked


def test_a_later_measurement_keeps_nobody_waiting_and_is_begun_once() -> None:
    machine = Machine()
    begun: list[Coroutine[Any, Any, None]] = []
    clock = ClusterClock(machine, Nodes(machine), spawn=begun.append)
    asyncio.run(clock.settle())
    machine.advance(MEASURE_EVERY_S)

    assert [START_US + 60_000_000] * 2 == [clock.now_us() for _ in range(2)]
    (measuring,) = begun
    asyncio.run(measuring)
    machine.advance(MEASURE_EVERY_S)
    clock.now_us()
    assert 2 == len(begun)
    begun[1].close()


def test_a_clock_that_cannot_begin_to_measure_goes_on() -> None:
    """The interpreter ends: the thread of the event loop is gone."""

    def refuse(work: Coroutine[Any, Any, None]) -> None:
        work.close()
        raise UsageError("it has ended")

    machine = Machine()
    clock = ClusterClock(machine, Nodes(machine), spawn=refuse)
    with pytest.raises(StoreUnavailable, match="too few"):
        clock.now_us()
    asyncio.run(clock.settle())
    machine.advance(MEASURE_EVERY_S)
    assert START_US + 60_000_000 == clock.now_us()


# --- whose clock is wrong -------------------------------------------------------------------------


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("wrong_by_us", [HOUR_US, -HOUR_US, 24 * HOUR_US])
@pytest.mark.parametrize("node", ["a", "b", "c"])
def test_t7_one_node_whose_clock_is_wrong_moves_nothing(node: str, wrong_by_us: int) -> None:
    told: list[Mapping[str, float]] = []
    nodes = Nodes(ManualClock(), {"a": 0, "b": 0, "c": 0} | {node: wrong_by_us})

    clock = clock_of(Machine(), nodes, tell=told.append)

    assert START_US == clock.now_us()
    assert [{node: wrong_by_us / 1e6}] == told


def test_t7_clocks_that_agree_are_nothing_to_tell_of() -> None:
    told: list[Mapping[str, float]] = []
    clock = clock_of(Machine(), Nodes(ManualClock(), {"a": 0, "b": 900_000}), tell=told.append)

    clock.now_us()

    assert [] == told


@given(
    right=st.lists(st.integers(-40_000, 40_000), min_size=3, max_size=3),
    wrong=st.lists(st.integers(-HOUR_US, HOUR_US), min_size=2, max_size=2),
    order=st.permutations("abcde"),
)
@pytest.mark.invariant("I2")
def test_t7_two_wrong_nodes_of_five_are_outvoted(
    right: list[int], wrong: list[int], order: list[str]
) -> None:
    nodes = Nodes(ManualClock(), dict(zip(order, [*right, *wrong], strict=True)))

    wrong_us = clock_of(Machine(), nodes).now_us() - START_US

    assert min(right) <= wrong_us <= max(right)


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("wrong_by_us", [HOUR_US, -HOUR_US])
def test_t7_a_first_measurement_waits_for_a_majority(wrong_by_us: int) -> None:
    """Two answer, an hour apart: the third is just now busy, and decides."""
    machine = Machine()
    nodes = Nodes(machine, {"wrong": wrong_by_us, "right": 0, "busy": 0})
    nodes.away = {"busy"}

    class Waiting(Machine):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            nodes.away.clear()

    clock = clock_of(Waiting(machine), nodes)

    assert 0 == error_us(clock, machine)


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("ahead_us", [0, HOUR_US])
def test_t7_of_two_that_disagree_for_long_the_earlier_is_believed_at_first(ahead_us: int) -> None:
    """Who is behind endangers its own leases, who is ahead those of all others."""
    machine = Machine()
    nodes = Nodes(machine, {"a": ahead_us, "b": HOUR_US - ahead_us})

    assert 0 == error_us(clock_of(machine, nodes), machine)


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("wrong_by_us", [HOUR_US, -HOUR_US])
def test_t7_of_two_that_disagree_a_clock_that_runs_believes_the_one_like_itself(
    wrong_by_us: int,
) -> None:
    machine, nodes, clock = measured({"wrong": wrong_by_us, "right": 0, "gone": 0})
    nodes.away = {"gone"}

    machine.advance(MEASURE_EVERY_S)

    assert 0 == error_us(clock, machine)


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("wrong_by_us", [HOUR_US, -HOUR_US])
def test_t7_a_wrong_node_that_is_the_only_one_to_answer_moves_nothing(wrong_by_us: int) -> None:
    """Nothing has a quorum then; when it has again, a minute of a wrong time would be to come."""
    machine, nodes, clock = measured({"wrong": wrong_by_us, "b": 0, "c": 0})
    nodes.away = {"b", "c"}

    machine.advance(MEASURE_EVERY_S)
    assert 0 == error_us(clock, machine)

    fresh = clock_of(machine, nodes)
    with pytest.raises(StoreUnavailable, match="1 of 3 nodes of this data centre"):
        fresh.now_us()
    nodes.away.clear()
    assert 0 == error_us(fresh, machine)


@pytest.mark.parametrize(("there", "away"), [(1, 1), (2, 2), (2, 3), (3, 2)])
def test_t7_a_half_that_agrees_is_believed_before_long(there: int, away: int) -> None:
    """A program that starts while nodes are down for hours is not held up by them."""
    machine = Machine()
    nodes = Nodes(machine, dict.fromkeys("abcde"[: there + away], 0))
    nodes.away = set("abcde"[:away])
    clock = clock_of(machine, nodes)

    if there * 2 < away + there:
        with pytest.raises(StoreUnavailable, match="2 of 5 nodes"):
            clock.now_us()
    else:
        assert 0 == error_us(clock, machine)
        assert machine.monotonic() <= AWAY_AFTER_S + 1


def test_t7_a_node_whose_clock_was_set_while_it_was_asked_counts_as_it_is_now() -> None:
    nodes = Nodes(ManualClock(), {"a": HOUR_US})

    async def ask(base: Clock, but: Collection[str]) -> Answers:
        if nodes.asked == 2:
            nodes.errors_us["a"] = 0
        return await nodes(base, but)

    assert START_US == clock_of(Machine(), ask).now_us()


# --- under load -----------------------------------------------------------------------------------


@pytest.mark.invariant("I2")
def test_t7_a_first_sample_that_took_seconds_is_not_used() -> None:
    """All of it may have been the way back: a second is four times the margin of a re-claim."""
    machine = Machine()
    trips = iter([(0.0, 1.5)] * 5 + [(0.0, 0.002)] * 5)

    assert abs(error_us(clock_of(machine, Nodes(machine, trips=trips)), machine)) <= 1_000


@given(trips=st.lists(st.tuples(slow_trip_s, slow_trip_s), min_size=1, max_size=8))
@pytest.mark.invariant("I2")
def test_t7_however_slow_the_answers_two_clients_are_no_further_apart_than_the_margin(
    trips: list[tuple[float, float]],
) -> None:
    machine = Machine()
    clock = clock_of(machine, Nodes(machine, trips=itertools.cycle(trips)))
    try:
        wrong_us = error_us(clock, machine)
    except StoreUnavailable:
        return
    assert 2 * abs(wrong_us) < EXPIRY_MARGIN_US


def test_t7_a_clock_that_can_be_measured_by_slow_answers_only_has_no_time() -> None:
    machine = Machine()
    nodes = Nodes(machine, trips=itertools.repeat((0.0, 0.3)))

    with pytest.raises(StoreUnavailable, match="0 of 1 nodes"):
        clock_of(machine, nodes).now_us()


@pytest.mark.invariant("I2")
def test_t7_a_later_measurement_that_is_slow_corrects_nothing() -> None:
    machine, nodes, clock = measured()
    nodes.trips = itertools.repeat((0.0, 2.0))

    machine.advance(MEASURE_EVERY_S)

    assert 0 == error_us(clock, machine)


def test_t7_answers_that_were_slow_on_one_way_each_tell_the_time_together() -> None:
    machine = Machine()
    nodes = Nodes(machine, trips=itertools.cycle([(0.0, 0.5), (0.5, 0.0)]))

    assert 0 == error_us(clock_of(machine, nodes), machine)


# --- a machine that was suspended -----------------------------------------------------------------


@pytest.mark.invariant("I2")
def test_t13_time_goes_on_while_the_machine_sleeps_and_cassandra_is_away() -> None:
    """Else it would hand out, and keep leased in its mind, what is others' long since."""
    machine, nodes, clock = measured(counts_sleep=False)
    nodes.is_up = False

    machine.wrong_by_us += HOUR_US  # a monotonic clock that stood still, a wall clock that did not
    first = clock.now_us()
    machine.advance(RETRY_AFTER_S)
    second = clock.now_us()

    assert (START_US + HOUR_US, START_US + HOUR_US + 1_000_000) == (first, second)


@pytest.mark.invariant("I2")
def test_t13_a_wall_clock_that_was_set_back_does_not_turn_time_back() -> None:
    machine, nodes, clock = measured(counts_sleep=False)
    nodes.is_up = False

    machine.wrong_by_us -= HOUR_US

    assert START_US == clock.now_us()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this platform has no such clock")
def test_t13_monotonic_time_counts_what_a_suspended_machine_sleeps() -> None:
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    now_s = SystemClock().monotonic()
    after_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert COUNTS_SLEEP
    assert before_s <= now_s <= after_s


def test_waiting_and_monotonic_time_are_the_machines() -> None:
    machine = Machine()
    clock = clock_of(machine, Nodes(ManualClock()))

    clock.wait(2.5)

    assert 2.5 == machine.monotonic() == clock.monotonic()


def test_system_time_is_microseconds_since_the_epoch(tmp_path: Path) -> None:
    written = tmp_path / "now"
    written.touch()

    assert abs(SystemClock().now_us() - written.stat().st_mtime_ns // 1000) < HOUR_US


def test_waiting_for_no_time_or_less_returns() -> None:
    before = threading.active_count()

    SystemClock().wait(0)
    SystemClock().wait(-1)  # time.sleep would raise

    assert before == threading.active_count()


def test_a_manual_clock_on_a_base_is_ahead_of_it_and_waits_by_it() -> None:
    base = ManualClock(start_us=1_000)
    clock = ManualClock(base)
    clock.advance(30)

    base.advance(1)
    clock.wait(0.5)

    assert (1_500_000 + 1_000, 1.5) == (base.now_us(), base.monotonic())
    assert (31_500_000 + 1_000, 31.5) == (clock.now_us(), clock.monotonic())


def test_a_manual_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match=r"time does not go back: advance\(-1\)"):
        ManualClock().advance(-1)


def test_a_manual_clock_loses_nothing_when_another_thread_advances_in_the_middle() -> None:
    clock = ManualClock(start_us=0)
    other = threading.Thread(target=clock.advance, args=[1])

    class Interrupted(float):
        """Lets the other thread in after the old time was read and before the new one is kept."""

        def __mul__(self, factor: float) -> float:
            other.start()
            other.join(0.05)  # it waits for us, if it is right
            return float(self) * factor

    clock.advance(Interrupted(10))
    other.join()

    assert 11_000_000 == clock.now_us()
