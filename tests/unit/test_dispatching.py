"""Passes beside a program: a failure ends one pass only; see `cassieq_spark.schedules`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from cassieq_spark import schedules
from cassieq_spark.errors import UsageError
from cassieq_spark.repair.lead import LEASE_S
from cassieq_spark.schedules import dispatching
from cassieq_spark.testing import wait_until

if TYPE_CHECKING:
    import pytest

SHORTEST_HORIZON_S = 60


class Failing:
    """Schedules whose first pass fails, as by an error that nobody foresaw."""

    def __init__(self) -> None:
        self.passes = 0
        self.has_gone_on = threading.Event()

    def dispatch_as_leader(self) -> None:
        self.passes += 1
        if self.passes == 1:
            raise RuntimeError("nobody foresaw it")
        self.has_gone_on.set()


def test_a_pass_that_fails_is_told_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedules, "PASS_EVERY_S", 0.01)
    failing: Any = Failing()
    with dispatching(failing):
        assert failing.has_gone_on.wait(30)
    assert "nobody foresaw it" in caplog.text
    assert not [one for one in threading.enumerate() if one.name == "cassieq-schedules"]


def test_a_program_that_may_not_dispatch_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedules, "PASS_EVERY_S", 0.001)
    passes: list[int] = []

    class Refused:
        def dispatch_as_leader(self) -> None:
            passes.append(1)
            raise UsageError("its role may not read the timetable")

    refused: Any = Refused()
    with dispatching(refused):
        wait_until(lambda: "its role may not" in caplog.text)
        wait_until(lambda: "cassieq-schedules" not in [one.name for one in threading.enumerate()])
    assert [1] == passes


def test_a_leader_that_dies_is_followed_before_the_shortest_horizon_is_over() -> None:
    """So nobody notices: its lease ends, and whoever waits for it looks within a pause."""
    assert LEASE_S + schedules.PASS_EVERY_S < SHORTEST_HORIZON_S
