"""Cluster time is the coordinator's, whatever happens to this machine's clock (G6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.clock import MEASURE_EVERY_S, RETRY_AFTER_S, ClusterClock, SystemClock
from cassieq_spark.errors import StoreUnavailable
from cassieq_spark.testing import wait_until
from cassieq_spark.testing.clock import START_US, ManualClock

if TYPE_CHECKING:
    from pathlib import Path

HOUR_US = 3_600_000_000


class Machine(ManualClock):
    """One whose wall clock can be set, and which can sleep."""

    def __init__(self, base: ManualClock | None = None, *, wrong_by_us: int = 0) -> None:
        super().__init__(base)
        self.wrong_by_us = wrong_by_us

    def now_us(self) -> int:
        return super().now_us() + self.wrong_by_us


class Coordinator:
    """Answers with the true time, ``there_s`` after it was asked; the answer takes ``back_s``."""

    def __init__(self, true: ManualClock, trips: Iterator[tuple[float, float]] | None = None):
        self.true = true
        self.trips = trips
        self.asked = 0
        self.is_up = True

    def __call__(self) -> int:
        self.asked += 1
        if not self.is_up:
            raise StoreUnavailable("nobody is there")
        there_s, back_s = (0.0, 0.0) if self.trips is None else next(self.trips)
        self.true.advance(there_s)
        answer = self.true.now_us()
        self.true.advance(back_s)
        return answer


def test_nothing_is_measured_before_time_is_asked_for() -> None:
    coordinator = Coordinator(ManualClock())

    ClusterClock(ManualClock(), coordinator)

    assert 0 == coordinator.asked


def test_clients_with_clocks_hours_apart_agree() -> None:
    early, late = Machine(wrong_by_us=-5 * HOUR_US), Machine(wrong_by_us=7 * HOUR_US)
    coordinator = Coordinator(ManualClock())

    times = {ClusterClock(machine, coordinator).now_us() for machine in (early, late)}

    assert {START_US} == times


def test_time_goes_on_between_measurements_without_asking() -> None:
    machine = Machine()
    coordinator = Coordinator(machine)
    clock = ClusterClock(machine, coordinator)
    clock.now_us()
    asked = coordinator.asked

    machine.advance(MEASURE_EVERY_S - 0.5)

    assert START_US + 59_500_000 == clock.now_us()
    assert asked == coordinator.asked


def test_it_is_measured_again_after_a_minute() -> None:
    machine, cluster = Machine(), ManualClock()
    clock = ClusterClock(machine, Coordinator(cluster))
    clock.now_us()

    cluster.advance(MEASURE_EVERY_S + 0.005)  # 5 ms of drift
    machine.advance(MEASURE_EVERY_S)

    assert cluster.now_us() == clock.now_us()


trip_s = st.integers(0, 2_000).map(lambda ms: ms / 1000)


@given(trips=st.lists(st.tuples(trip_s, trip_s), min_size=5, max_size=5))
def test_the_error_is_at_most_half_the_fastest_round_trip(
    trips: list[tuple[float, float]],
) -> None:
    true = ManualClock()
    clock = ClusterClock(Machine(true, wrong_by_us=HOUR_US), Coordinator(true, iter(trips)))

    error_us = clock.now_us() - true.now_us()

    fastest_s = min(there_s + back_s for there_s, back_s in trips)
    assert abs(error_us) <= fastest_s * 1e6 / 2 + 1


@pytest.mark.parametrize("set_by_us", [HOUR_US, -HOUR_US])
def test_setting_the_machines_clock_moves_nothing(set_by_us: int) -> None:
    # Else a client would re-claim live leases, or shorten its own, until the next measurement (I2).
    machine, cluster = Machine(), ManualClock()
    coordinator = Coordinator(cluster)
    clock = ClusterClock(machine, coordinator)
    clock.now_us()
    coordinator.is_up = False

    machine.wrong_by_us = set_by_us

    assert START_US == clock.now_us()


def test_a_machine_that_slept_measures_at_once() -> None:
    machine, cluster = Machine(), ManualClock()
    clock = ClusterClock(machine, Coordinator(cluster))
    clock.now_us()

    # Linux' monotonic clock stands still meanwhile, the wall clock is right again.
    machine.wrong_by_us = HOUR_US
    cluster.advance(3_600)

    assert START_US + HOUR_US == clock.now_us()


def test_a_cluster_that_never_answered_has_no_time() -> None:
    coordinator = Coordinator(ManualClock())
    coordinator.is_up = False
    clock = ClusterClock(Machine(), coordinator)

    with pytest.raises(StoreUnavailable, match="nobody is there"):
        clock.now_us()

    coordinator.is_up = True
    assert START_US == clock.now_us()


def test_a_cluster_that_is_away_later_is_asked_again_now_and_then() -> None:
    machine = Machine()
    coordinator = Coordinator(machine)
    clock = ClusterClock(machine, coordinator)
    clock.now_us()
    coordinator.is_up = False

    machine.advance(MEASURE_EVERY_S)
    seen = [(clock.now_us(), coordinator.asked) for _ in range(2)]
    machine.advance(RETRY_AFTER_S)
    seen.append((clock.now_us(), coordinator.asked))

    assert [
        (START_US + 60_000_000, 6),
        (START_US + 60_000_000, 6),
        (START_US + 61_000_000, 7),
    ] == seen


def test_threads_that_come_together_measure_once() -> None:
    coordinator = Coordinator(ManualClock())
    all_are_here = threading.Barrier(8)
    times = []

    def measure() -> int:
        if coordinator.asked == 0:
            all_are_here.wait(30)  # the others ask for the time while this one measures
        return coordinator()

    clock = ClusterClock(Machine(), measure)

    def ask() -> None:
        all_are_here.wait(30)
        times.append(clock.now_us())

    with running([clock.now_us, *[ask] * 7]):
        pass

    assert [START_US] * 7 == times
    assert 5 == coordinator.asked


def test_a_later_measurement_keeps_nobody_else_waiting() -> None:
    machine = Machine()
    coordinator = Coordinator(machine)
    measuring, answer = threading.Event(), threading.Event()

    def measure() -> int:
        if clock._anchor is not None:
            measuring.set()
            answer.wait(30)
        return coordinator()

    clock = ClusterClock(machine, measure)
    clock.now_us()
    machine.advance(MEASURE_EVERY_S)

    with running([clock.now_us]):
        wait_until(measuring.is_set, describe="one thread to measure")
        time_us = clock.now_us()  # would hang
        answer.set()

    assert START_US + 60_000_000 == time_us


def test_waiting_and_monotonic_time_are_the_machines() -> None:
    machine = Machine()
    clock = ClusterClock(machine, Coordinator(ManualClock()))

    clock.wait(2.5)

    assert 2.5 == machine.monotonic() == clock.monotonic()


def test_system_time_is_microseconds_since_the_epoch(tmp_path: Path) -> None:
    written = tmp_path / "now"
    written.touch()

    assert abs(SystemClock().now_us() - written.stat().st_mtime_ns // 1000) < HOUR_US


def test_system_monotonic_time_never_goes_back() -> None:
    clock = SystemClock()

    times = [clock.monotonic() for _ in range(1000)]

    assert sorted(times) == times


def test_waiting_for_no_time_or_less_returns() -> None:
    before = threading.active_count()

    SystemClock().wait(0)
    SystemClock().wait(-1)  # time.sleep would raise

    assert before == threading.active_count()


def test_a_manual_clock_alone_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock()

    assert (START_US, 0.0) == (clock.now_us(), clock.monotonic())
    clock.advance(1.5)
    assert (START_US + 1_500_000, 1.5) == (clock.now_us(), clock.monotonic())


def test_a_manual_clock_alone_moves_on_instead_of_waiting() -> None:
    clock = ManualClock(start_us=0)

    clock.wait(3_600)
    clock.wait(-1)

    assert (HOUR_US, 3_600.0) == (clock.now_us(), clock.monotonic())


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


@contextmanager
def running(work: list[Callable[[], object]]) -> Iterator[None]:
    """Threads that have ended at the end of the block."""
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()
