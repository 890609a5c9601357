"""Which lane a message takes, and in which order lanes are read.

See docs/design/lanes.md and docs/design/due-lanes.md.
"""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model.ids import LaneId, QueueName
from cassieq_spark.model.lanes import (
    LONGEST_DELAY_US,
    LONGEST_PERIODS,
    YEAR_US,
    DueLane,
    Fixed,
    due_lane,
    finished_below,
    first_period,
    healed_always,
    held_until,
    in_turn,
    longest_delay_us,
    looked_at,
    offered_below,
    periods_end,
    shard_of,
    years,
)

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US
NOW_US = 490_000 * HOUR_US + 17 * 60 * SECOND_US
AFTER_US = 900 * SECOND_US


def fixed(priorities: int, shards: int) -> Fixed:
    ids = [LaneId(UUID(int=at)) for at in range(priorities * shards)]
    return Fixed(ids=ids, priorities=priorities, shards=shards)


@given(st.integers(1, 10), st.integers(1, 6), st.integers(0, 5))
def test_each_lane_is_read_once_in_a_turn_and_no_lower_class_before_a_higher(
    priorities: int, shards: int, first: int
) -> None:
    lanes = fixed(priorities, shards)
    turn = lanes.in_turn(first % shards)
    places = [lanes.class_and_shard(lane) for lane in turn]
    assert sorted(turn) == sorted(lanes.ids)
    assert sorted((priority for priority, _ in places), reverse=True) == [
        priority for priority, _ in places
    ]
    assert {(priority, first % shards) for priority in range(priorities)} == set(places[::shards])


@given(st.lists(st.floats(0, 100)), st.floats(0, 100))
def test_lower_classes_are_held_back_for_all_that_can_be_had_in_time(
    more_at: list[float], until: float
) -> None:
    held = held_until(more_at, until=until)
    in_time = [at for at in more_at if at <= until]
    assert (held is None) == (not in_time)
    assert held is None or (held in in_time and all(at <= held for at in in_time))


def test_u15_the_first_shard_moves_and_so_one_consumer_serves_all() -> None:
    lanes = fixed(1, 3)
    assert {lanes.in_turn(first)[0] for first in range(3)} == set(lanes.ids)


def test_classes_below_what_is_asked_for_are_not_read() -> None:
    lanes = fixed(3, 2)
    assert {1, 2} == {lanes.class_and_shard(lane)[0] for lane in lanes.in_turn(0, at_least=1)}


def test_a_lane_is_named_only_where_a_queue_has_several() -> None:
    queue = QueueName("orders")
    one, two = fixed(1, 1), fixed(2, 1)

    assert "queue 'orders'" == one.title(queue, one.ids[0])
    assert f"lane {two.ids[0]} of queue 'orders'" == two.title(queue, two.ids[0])
    assert f"lane {two.ids[1]} of queue 'orders'" == one.title(queue, two.ids[1])


def test_a_lane_of_another_queue_has_no_place() -> None:
    with pytest.raises(ValueError, match="not in list"):
        fixed(2, 2).class_and_shard(LaneId(UUID(int=99)))


@given(st.text(), st.integers(1, 64))
def test_a_key_has_one_shard_and_it_is_there(key: str, shards: int) -> None:
    assert 0 <= shard_of(key, shards) < shards
    assert shard_of(key, shards) == shard_of(key, shards)


def test_the_shard_of_a_key_never_changes() -> None:
    """It is stored nowhere: another answer would break the order of what is there already."""
    assert [3, 15, 0] == [shard_of(key, 16) for key in ("a", "customer-17", "")]


@given(st.integers(0, 10_000), st.floats(0, 0.5), st.floats(0, 1, exclude_max=True))
def test_a_lower_class_is_offered_its_share_and_never_more_than_half_a_claim(
    at_most: int, fairness: float, coin: float
) -> None:
    offered = offered_below(at_most, fairness, coin)
    assert abs(offered - at_most * fairness) <= 1
    assert offered <= (at_most + 1) // 2


def test_u15_a_claim_for_one_message_offers_it_with_the_probability_of_fairness() -> None:
    tried = 1_000
    offered = sum(offered_below(1, 0.1, at / tried) for at in range(tried))
    assert 100 == offered
    assert 0 == sum(offered_below(1, 0.0, at / tried) for at in range(tried))


def test_u12_the_id_of_a_due_lane_follows_from_the_queue_and_is_every_ones() -> None:
    queue, other = LaneId(UUID(int=7)), LaneId(UUID(int=8))
    lanes = [DueLane(period, cls) for period in (0, 1, 490_001, 2**32 - 1) for cls in range(10)]
    ids = [lane.lane_id(queue) for lane in lanes]
    assert lanes == [DueLane.said_by(queue, lane_id) for lane_id in ids]
    assert {8} == {lane_id.version for lane_id in ids}
    assert 2 * len(lanes) == len({*ids, *(lane.lane_id(other) for lane in lanes)})


@given(st.uuids(), st.integers(0, 127))
def test_u12_an_id_that_is_not_exactly_a_due_lanes_is_none_of_the_queue(
    some: UUID, bit: int
) -> None:
    queue = LaneId(UUID(int=7))
    own = DueLane(490_001, 2).lane_id(queue)
    assert DueLane.said_by(queue, LaneId(some)) is None
    assert DueLane.said_by(LaneId(UUID(int=8)), own) is None
    assert DueLane.said_by(queue, LaneId(UUID(int=own.int ^ 1 << bit))) is None


def test_u12_a_queue_has_due_lanes_of_its_classes_only_and_they_come_first_in_their_class() -> None:
    fixed = Fixed(ids=[LaneId(UUID(int=at)) for at in range(4)], priorities=2, shards=2)
    some = [DueLane(period, cls) for period in (9, 5) for cls in (0, 1)]
    due = {(one.period, one.priority): one.lane_id(fixed.first) for one in some}
    assert fixed.has(due[5, 1])
    assert 1 == fixed.priority_of(due[5, 1])
    assert not fixed.has(DueLane(5, 2).lane_id(fixed.first))
    with pytest.raises(ValueError, match="not in list"):
        fixed.priority_of(DueLane(5, 2).lane_id(fixed.first))
    in_order = [due[5, 1], due[9, 1], *fixed.ids[2:], due[5, 0], due[9, 0], *fixed.ids[:2]]
    assert in_order == sorted([*fixed.ids, *due.values()], key=fixed.rank)


@given(st.integers(0, 490_000), st.integers(0, 10_000), st.integers(60 * SECOND_US, DAY_US))
def test_a_slice_of_the_schedule_reads_each_year_of_its_periods_and_no_other(
    first: int, count: int, period_us: int
) -> None:
    read = list(years(first, first + count, period_us))
    periods = (first, first + count // 2, first + count - 1)
    some = {DueLane(period, 0).year(period_us) for period in periods}
    assert (some <= set(read)) if count else not read
    assert len(read) <= 1 + max(1, -(-count * period_us // YEAR_US))


@given(st.integers(DAY_US, 10**16), st.integers(60 * SECOND_US, DAY_US))
def test_u2_what_repair_finishes_nobody_is_to_be_born_in(now_us: int, period_us: int) -> None:
    end = finished_below(now_us, period_us)
    assert end * period_us <= now_us - 3_600 * SECOND_US
    assert end < looked_at(now_us, period_us) <= healed_always(now_us, period_us)
    far = due_lane(now_us + DAY_US * 2, 0, now_us=now_us, after_us=AFTER_US, period_us=period_us)
    assert far is not None
    assert far.period >= healed_always(now_us, period_us)
    assert periods_end(now_us, period_us) > (now_us + longest_delay_us(period_us)) // period_us


@given(
    st.integers(DAY_US, 10**16),
    st.integers(60 * SECOND_US, DAY_US),
    st.lists(st.integers(1, 30 * HOUR_US), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_repair_goes_through_each_period_once_a_day(
    now_us: int, period_us: int, sleeps: list[int], where: float
) -> None:
    """A pass that was away for longer than a day goes through all of them, once."""
    end_us = now_us + sum(sleeps)
    first, end = healed_always(end_us, period_us), periods_end(now_us, period_us)
    period = first + int(where * (end - first - 1))
    looked_us: list[int] = [now_us]
    for sleep_us in sleeps:
        since_us, now_us = now_us, now_us + sleep_us
        parts = in_turn(
            healed_always(now_us, period_us),
            periods_end(now_us, period_us),
            since_us=since_us,
            now_us=now_us,
            period_us=period_us,
        )
        found = sum(a <= period < b for a, b in parts)
        assert found <= 1
        assert found or sleep_us < DAY_US
        looked_us += [now_us] * found
    looked_us.append(now_us)
    # From its turn to the pass that takes it may be one sleep, and so may be the next.
    assert all(b - a <= DAY_US + max(sleeps) for a, b in pairwise(looked_us))
    assert len(looked_us) - 2 <= 1 + (end_us - looked_us[0]) // DAY_US + len(
        [sleep_us for sleep_us in sleeps if sleep_us >= DAY_US]
    )


def test_repair_takes_few_lanes_of_a_year_in_each_pass() -> None:
    first, end = healed_always(NOW_US, HOUR_US), periods_end(NOW_US, HOUR_US)
    since_us = NOW_US - 10 * 60 * SECOND_US
    parts = in_turn(first, end, since_us=since_us, now_us=NOW_US, period_us=HOUR_US)
    assert 66 <= sum(b - a for a, b in parts) <= 68
    assert [] == in_turn(first, end, since_us=NOW_US, now_us=NOW_US, period_us=HOUR_US)


def test_births_and_readers_begin_at_the_same_period() -> None:
    assert 7 == first_period(0, created_us=7 * HOUR_US + 1, period_us=HOUR_US)
    assert 9 == first_period(9, created_us=7 * HOUR_US, period_us=HOUR_US)


def test_u16_the_time_pointer_of_a_due_lane_starts_just_before_its_period() -> None:
    lane = DueLane(490_001, 0)
    assert 490_001 * HOUR_US == lane.begins_us(HOUR_US)
    assert 60 * SECOND_US == lane.begins_us(HOUR_US) - lane.created_us(HOUR_US)


@given(st.integers(0, LONGEST_DELAY_US), st.integers(60 * SECOND_US, DAY_US))
def test_a_message_takes_a_due_lane_only_if_it_is_far_off_and_is_due_within_its_period(
    delay_us: int, period_us: int
) -> None:
    due_us = NOW_US + delay_us
    lane = due_lane(due_us, 1, now_us=NOW_US, after_us=AFTER_US, period_us=period_us)
    if lane is None:
        begins_us = due_us // period_us * period_us
        assert delay_us <= AFTER_US or begins_us <= NOW_US + 60 * SECOND_US
    else:
        assert delay_us > AFTER_US
        assert (
            lane.begins_us(period_us) <= due_us < DueLane(lane.period + 1, 1).begins_us(period_us)
        )
        assert lane.begins_us(period_us) > NOW_US + 60 * SECOND_US
        assert lane.period >= looked_at(NOW_US, period_us)  # nobody reads it yet


@pytest.mark.parametrize(
    ("period_us", "longest_us"),
    [(60 * SECOND_US, LONGEST_PERIODS * 60 * SECOND_US), (DAY_US, LONGEST_DELAY_US)],
)
def test_the_farthest_due_time_is_bounded_by_time_and_by_periods(
    period_us: int, longest_us: int
) -> None:
    assert longest_us == longest_delay_us(period_us)


def test_readers_look_at_a_period_half_a_minute_before_it_begins() -> None:
    begins_us = 490_001 * HOUR_US
    assert 490_001 == looked_at(begins_us - 31 * SECOND_US, HOUR_US)
    assert 490_002 == looked_at(begins_us - 30 * SECOND_US, HOUR_US)
