"""Who still leads or works, by the time in a row."""

from __future__ import annotations

import pytest

from cassieq_spark.store.tables.at_work import is_at_work, leads

NOW_US = 1_000_000_000


@pytest.mark.parametrize(
    ("age_s", "still_leads", "still_works"),
    [
        (0, True, True),
        (30, True, True),
        (30.1, False, False),
        (-30, True, True),
        (-30.1, False, True),  # a later heartbeat could not replace it
    ],
)
def test_a_sign_of_life_counts_for_as_long_as_it_says(
    age_s: float, still_leads: bool, still_works: bool
) -> None:
    at_us = NOW_US - round(age_s * 1e6)
    assert still_leads == leads(at_us, now_us=NOW_US, lease_s=30)
    assert still_works == is_at_work(at_us, now_us=NOW_US, timeout_s=30)
