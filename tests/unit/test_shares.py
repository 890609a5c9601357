"""What many share: nobody takes all of it, and nothing is remembered of who has gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model.shares import Holding, Shares


def greedy(shares: Shares, parties: list[str]) -> None:
    """Let each take one more in turn, until none may."""
    while asking := [one for one in parties if shares.admits(one)]:
        for one in asking:
            if shares.admits(one):
                shares.change(one, 1)


@given(most=st.integers(1, 300), greedy_ones=st.integers(1, 9))
def test_greedy_parties_leave_an_equal_part_to_whoever_comes_next(
    most: int, greedy_ones: int
) -> None:
    shares = Shares(most)
    parties = [f"party {at}" for at in range(greedy_ones)]

    greedy(shares, parties)

    part = most // (greedy_ones + 1)
    assert all(shares.held_by(one) <= part + 1 for one in parties)
    assert most - shares.used >= part
    assert shares.admits("whoever comes next", part)


@pytest.mark.parametrize(("who", "taken"), [("one", 50), (None, 100)])
def test_one_party_has_half_and_who_speaks_for_many_has_all(who: str | None, taken: int) -> None:
    shares = Shares(100)

    while shares.admits(who):
        shares.change(who, 1)

    assert taken == shares.used


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1000))))
def test_what_ends_is_given_back_and_nothing_is_remembered(
    wanted: list[tuple[str | None, int]],
) -> None:
    shares = Shares(10)
    holdings = [(Holding(shares, who), size) for who, size in wanted]

    for one, size in holdings:
        one.set(size)
    assert sum(size for _, size in wanted) == shares.used
    for one, size in holdings:
        one.end()
        one.set(size)

    assert (0, 0) == (shares.used, shares.holders)


def test_a_party_above_its_share_gets_nothing_more_and_another_does() -> None:
    shares = Shares(100)
    large = Holding(shares, "one")

    large.set(60)

    assert (False, True) == (large.fits(), Holding(shares, "another").fits(40))
    large.set(50)
    assert (True, False) == (large.fits(), large.fits(1))
