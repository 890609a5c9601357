"""Worlds outside of what is permitted go wrong, but only as docs/reliability.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.outside import WEATHERS, Weather
from tests.simulation.run import run
from tests.storm.checker import Anomaly

BY_NAME = {one.name: one for one in WEATHERS}
SEEDS = 6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_else_goes_wrong_outside(seed: int) -> None:
    assert [] == run(seed, is_outside=True).anomalies


def test_wrong_clocks_excuse_a_second_holder_but_no_message_that_is_lost() -> None:
    accepts = BY_NAME["two wrong clocks"].accepts
    later = "m: delivery 1 is a's until 5.000, b had delivery 2 by 4.000"
    assert accepts(Anomaly(kind="two_leases", what=later))
    same = "m at here: delivery 1 went to ['a', 'b']"
    assert not accepts(Anomaly(kind="two_leases", what=same))
    assert not accepts(Anomaly(kind="lost", what="m: acknowledged, never acked"))


@pytest.mark.parametrize("weather", WEATHERS, ids=lambda one: one.name)
def test_no_weather_excuses_a_queue_that_stands_still(weather: Weather) -> None:
    assert not weather.accepts(Anomaly(kind="stuck", what="1 message is left"))


def test_each_weather_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "reliability.md"
    text = page.read_text()
    assert [] == [one.name for one in WEATHERS if f"| {one.name} |" not in text]
