"""Pointers and the time grid of the expiry hints.

See docs/design/consistency.md and docs/design/returns-and-hints.md.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model import pointer as rules
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import (
    DELETED,
    HINT_SPARE_S,
    MINUTE_US,
    PASS_AFTER_US,
    REACH_MINUTES,
    Pointers,
    Slice,
)

MINUTE = 28_000_000


def test_r25_only_the_mark_of_deletion_is_a_deleted_lane() -> None:
    assert not Pointers(repair=BucketNo(DELETED - 1)).is_deleted
    assert Pointers(repair=BucketNo(DELETED)).is_deleted


@given(st.integers(0, 10**8), st.integers(0, 300))
@pytest.mark.invariant("I10")
def test_slices_cover_each_minute_once_in_its_own_hour(first: int, more: int) -> None:
    parts = rules.slices(first, first + more)
    covered = [minute for part in parts for minute in range(part.first, part.last + 1)]
    assert list(range(first, first + more + 1)) == covered
    assert all(rules.hour_of(part.first) == part.hour == rules.hour_of(part.last) for part in parts)


@pytest.mark.invariant("I9")
def test_r13_a_month_without_a_look_is_one_slice_an_hour() -> None:
    assert 30 * 24 == len(rules.slices(60 * 1_000, 60 * 1_000 + 30 * 24 * 60 - 1))
    assert (Slice(hour=1_000, first=60_005, last=60_007),) == rules.slices(60_005, 60_007)
    assert () == rules.slices(8, 7)


def test_p17_a_minute_is_passed_only_when_late_hints_had_their_time() -> None:
    end = (MINUTE + 1) * MINUTE_US
    assert not rules.is_passable(MINUTE, now_us=end + PASS_AFTER_US)
    assert rules.is_passable(MINUTE, now_us=end + PASS_AFTER_US + 1)


NOWS = st.integers(MINUTE - 400, MINUTE + 400)


@given(minute=NOWS, now=NOWS, passed=NOWS)
@pytest.mark.invariant("I10")
def test_t7_a_hint_is_written_where_it_will_be_found(minute: int, now: int, passed: int) -> None:
    """By who looks when it is due, and by who looks only when now has reached the pointer."""
    written = rules.hint_minutes(minute, now=now, passed=passed)

    due = max(minute, now)
    sought_from = rules.first_minute(passed, created=0, now=due)
    assert any(sought_from <= one <= due for one in written)
    later = max(due, passed + 1)
    assert any(passed <= one <= later for one in written)
    assert 1 == len(written) or passed > now


@given(now=NOWS, passed=NOWS)
@pytest.mark.invariant("I9")
def test_t7_a_pointer_that_is_not_ahead_is_where_a_look_begins(now: int, passed: int) -> None:
    first = rules.first_minute(passed, created=MINUTE - 200, now=now)
    assert first == max(MINUTE - 200, passed if passed <= now else now - REACH_MINUTES)


def test_r13_a_hint_outlives_what_it_points_at_by_days_and_then_ends() -> None:
    now = MINUTE * MINUTE_US
    assert 60 + HINT_SPARE_S == rules.hint_ttl_s(now + 60_000_000, now_us=now)
    assert HINT_SPARE_S == rules.hint_ttl_s(now - 60_000_000, now_us=now)
    assert MINUTE == rules.minute_of(now + MINUTE_US - 1)
