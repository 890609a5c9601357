"""How long a failed message waits."""

from __future__ import annotations

import pytest

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.backoff import Backoff


def test_the_delay_doubles_up_to_its_limit() -> None:
    backoff = Backoff(base_s=2, most_s=30, jitter=0)
    assert [2, 4, 8, 16, 30, 30] == [backoff.delay_s(number, 0.3) for number in range(1, 7)]


def test_jitter_takes_a_part_of_the_delay_away() -> None:
    backoff = Backoff(base_s=8, most_s=100, jitter=0.25)
    assert [8, 7, 6] == [backoff.delay_s(1, drawn) for drawn in (0.0, 0.5, 1.0)]


@pytest.mark.parametrize("deliveries", [60, 1_000, 10**9])
def test_any_number_of_deliveries_has_a_delay(deliveries: int) -> None:
    assert 600 == Backoff(jitter=0).delay_s(deliveries, 1.0)


@pytest.mark.parametrize(
    "wrong", [{"base_s": -1}, {"most_s": 31 * 86_400}, {"jitter": 2}, {"base_s": float("nan")}]
)
def test_what_no_queue_can_keep_is_no_backoff(wrong: dict[str, float]) -> None:
    with pytest.raises(OptionInvalid, match="is no backoff, allowed"):
        Backoff(**wrong)


def test_no_base_is_no_delay() -> None:
    assert 0 == Backoff(base_s=0).delay_s(9, 0.0)
