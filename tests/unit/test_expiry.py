"""What expires when, and what a row says of it: times to live and retention, by pure rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cassieq_spark.model import bucket as bucket_rules
from cassieq_spark.model import expiry
from cassieq_spark.model import lease as rules
from cassieq_spark.model.bucket import Bucket, Returned, SinkRef, Status
from cassieq_spark.model.expiry import DELAY_STEP_US, MINUTE_US, Delayed, Expiring, Life, times_of
from cassieq_spark.model.ids import EMPTY, BucketNo, Runs, union
from cassieq_spark.model.lease import EXPIRY_MARGIN_US, Terms
from cassieq_spark.store.tables import claims
from tests.fixtures.rows import TEN, ids, lease, sealed

NOW = 1_700_000_000_000_000 // MINUTE_US * MINUTE_US
DAY_US = 86_400_000_000
REVISED = (1, 7)


def group(first: int, last: int, *, minutes: int) -> Expiring:
    return Expiring(expires_us=NOW + minutes * MINUTE_US, runs=Runs.span(first, last))


def terms(at_most: int = 100, *, now_us: int = NOW, **more: Any) -> Terms:
    given = {"owner": "me", "run": None, "until_us": now_us + MINUTE_US, **more}
    return Terms(at_most=at_most, now_us=now_us, **given)


EVERYWHERE = sealed(
    fresh=Runs.span(0, 1),
    returned=(Returned(deliveries=2, runs=Runs.span(2, 2)),),
    delayed=(
        Delayed(due_us=NOW - 1, runs=Runs.span(3, 3)),
        Delayed(due_us=NOW + DAY_US, runs=Runs.span(4, 4), deliveries=1),
    ),
    leases=(
        lease(1, Runs.span(5, 6), until_us=NOW + MINUTE_US),
        lease(2, Runs.span(7, 7), until_us=NOW - EXPIRY_MARGIN_US - 1, count=3),
    ),
    revisions=(REVISED, (5, 8)),
    expiring=(group(0, 9, minutes=0),),
)
"""Messages 8 and 9 are acked; all but the leased 5 and 6 have expired."""


@pytest.mark.invariant("I3")
def test_all_that_nobody_holds_expires_and_what_is_leased_stays_its_holders() -> None:
    row, leases = rules.claim(EVERYWHERE, terms(), ids())
    left = group(5, 6, minutes=0)
    expected = sealed(
        changed_us=NOW, leases=EVERYWHERE.leases[:1], revisions=((5, 8),), expiring=(left,)
    )
    assert (expected, ()) == (row, leases)


def test_what_expires_is_dead_where_the_queue_says_so_and_keeps_its_body() -> None:
    row, leases = rules.claim(EVERYWHERE, terms(expired_die=True), ids())
    assert () == leases
    assert [
        ("expired", 0, Runs.of((0, 1), (3, 3))),
        ("expired", 1, Runs.span(4, 4)),
        ("expired", 2, Runs.span(2, 2)),
        ("expired", 3, Runs.span(7, 7)),
    ] == [(part.reason, part.deliveries, part.runs) for part in row.dead]
    assert EVERYWHERE.revisions == row.revisions
    assert {UUID(int=1_000)} == {part.set_id for part in row.dead}


def test_a_message_expires_at_its_minute_and_not_before() -> None:
    row = sealed(fresh=TEN, expiring=(group(0, 3, minutes=0), group(4, 9, minutes=1)))
    before = rules.claim(row, terms(now_us=NOW - 1), ids())[1]
    at_it = rules.claim(row, terms(), ids())[1]
    assert ([TEN], [Runs.span(4, 9)]) == ([one.runs for one in before], [one.runs for one in at_it])
    assert (10, 6) == (rules.claimable(row, now_us=NOW - 1), rules.claimable(row, now_us=NOW))
    ends = [rules.is_dying(row, now_us=at, max_deliveries=None) for at in (NOW - 1, NOW)]
    assert [False, True] == ends


def test_a_message_given_back_after_its_time_is_expired() -> None:
    held = lease(1, TEN, until_us=NOW + MINUTE_US)
    row = sealed(leases=(held,), expiring=(group(0, 9, minutes=0),))
    assert row is rules.claim(row, terms(), ids())[0] or row == replace(
        rules.claim(row, terms(), ids())[0], changed_us=0
    )
    back = rules.release(row, {UUID(int=1): Runs.span(0, 4)}, now_us=NOW)
    assert 0 == rules.claimable(back, now_us=NOW)
    after, leases = rules.claim(back, terms(), ids())
    assert ((), Runs.span(5, 9)) == (leases, after.unacked)


def test_what_is_delayed_beyond_its_time_is_expired_and_not_later() -> None:
    row = sealed(
        delayed=(Delayed(due_us=NOW + DAY_US, runs=TEN, deliveries=1),),
        expiring=(group(0, 4, minutes=0),),
    )
    assert (10, 5) == (rules.later(row, NOW - 1), rules.later(row, NOW))


def test_retention_is_over_for_all_at_once() -> None:
    row = sealed(fresh=TEN, expires_us=NOW)
    assert 10 == rules.claimable(row, now_us=NOW - 1)
    after, leases = rules.claim(row, terms(), ids())
    assert () == leases
    assert Bucket(status=Status.DRAINED, changed_us=NOW, manifest=TEN) == after


def test_nothing_expires_of_a_bucket_that_is_not_sealed() -> None:
    row = sealed(status=Status.PREPARED, fresh=TEN, expires_us=NOW)
    assert EMPTY == rules.expired_of(row, NOW)
    assert not rules.is_dying(row, now_us=NOW, max_deliveries=None)


def test_u7_retention_counts_from_the_latest_put_and_the_latest_due_time() -> None:
    """From the first put, or from the seal, the last one of a bucket would expire early."""
    life = Life(put_us=NOW, retention_us=DAY_US)
    due_us = {3: NOW + 5_000_000, 4: NOW + 2_000_000}
    times = times_of(due_us, life, now_us=NOW + 1)
    assert NOW + 5_000_000 + DAY_US == times.expires_us
    assert NOW + DAY_US == times_of({}, life, now_us=NOW + DAY_US).expires_us
    assert NOW + 5_000_000 + DAY_US == times_of(due_us, life, now_us=NOW + DAY_US).expires_us
    assert times_of(due_us, now_us=NOW).expires_us is None


def test_retention_of_a_batch_counts_from_when_it_becomes_visible() -> None:
    sink = SinkRef(sink_id="s", epoch=1, block_end=BucketNo(1))
    row = bucket_rules.prepared(
        bucket_rules.writing(sink, now_us=NOW),
        manifest=TEN,
        due_us={},
        size_bytes=1,
        now_us=NOW,
        life=Life(put_us=NOW, retention_us=DAY_US),
    )
    assert NOW + DAY_US == row.expires_us
    assert NOW + 3 * DAY_US == bucket_rules.published(row, now_us=NOW + 2 * DAY_US).expires_us


TIMES = st.dictionaries(st.integers(0, 99), st.integers(1, 30 * DAY_US), max_size=60)


@given(due=TIMES, ttl=TIMES, limit=st.integers(60, 2_000))
@settings(deadline=None)
def test_u8_nothing_falls_due_or_expires_early_and_each_lives_its_time(
    due: dict[int, int], ttl: dict[int, int], limit: int
) -> None:
    """However narrow the limit: steps only round up, and a later due time moves the end, too."""
    due_us = {at: NOW + delay for at, delay in due.items()}
    ends_us = {at: due_us.get(at, NOW) + lives for at, lives in ttl.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiry, "GROUPS_BYTES", limit)
        times = times_of(due_us, Life(expires_us=ends_us), now_us=NOW)
    begins = {at: group.due_us for group in times.delayed for at in group.runs.offsets()}
    ends = {at: group.expires_us for group in times.expiring for at in group.runs.offsets()}
    assert due_us.keys() == begins.keys()
    assert ends_us.keys() == ends.keys()
    assert all(begins[at] >= due_us[at] for at in begins)
    assert all(ends[at] - begins.get(at, NOW) >= ttl[at] for at in ends)
    assert all(end % MINUTE_US == 0 for end in ends.values())
    for groups in (
        [one.due_us for one in times.delayed],
        [one.expires_us for one in times.expiring],
    ):
        assert sorted(set(groups)) == groups
    fitting = (expiry.size_of([(one.due_us, one.runs) for one in times.delayed]) <= limit) or (
        len(times.delayed) == 1
    )
    assert fitting or not ttl


@pytest.mark.timeout(20)
def test_groups_of_which_not_even_one_fits_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seal that looked for a wider step for ever would hold up its whole process."""
    monkeypatch.setattr(expiry, "GROUPS_BYTES", expiry.GROUP_BYTES)
    due_us = {0: NOW + 1, 1: NOW + 90_000_000}
    ends_us = {0: NOW + 5_000_000, 1: NOW + 500_000_000}
    times = times_of(due_us, Life(expires_us=ends_us), now_us=NOW)
    assert [1, 1] == [len(times.delayed), len(times.expiring)]


def test_times_are_exact_to_a_second_and_a_minute_while_there_is_room() -> None:
    due_us = {at: NOW + at * DELAY_STEP_US for at in range(1, 50)}
    ends_us = {at: NOW + at * MINUTE_US - 1 for at in range(1, 50)}
    times = times_of(due_us, Life(expires_us=ends_us), now_us=NOW)
    assert [NOW + at * DELAY_STEP_US for at in range(1, 50)] == [
        one.due_us for one in times.delayed
    ]
    assert [NOW + at * MINUTE_US for at in range(1, 50)] == [
        one.expires_us for one in times.expiring
    ]


@pytest.mark.parametrize(
    ("size", "what"),
    [
        (1_000, "ttl"),
        (1_000, "both"),
        (20_000, "ttl"),
        (20_000, "both"),
        pytest.param(100_000, "both", marks=pytest.mark.long),
    ],
)
def test_u8_a_sealed_row_stays_below_128_kib_whatever_its_times(size: int, what: str) -> None:
    """Each message with times of its own, spread so that no two neighbours are alike."""
    spread = 400 * DAY_US
    due_us = {at: NOW + 1 + at * 7_919 * MINUTE_US % (30 * DAY_US) for at in range(size)}
    due_us = {} if what == "ttl" else due_us
    ends_us = {
        at: due_us.get(at, NOW) + 1 + at * 104_729 * MINUTE_US % spread for at in range(size)
    }
    life = Life(expires_us=ends_us, put_us=NOW, retention_us=DAY_US)
    row = bucket_rules.sealed(
        bucket_rules.sealing(now_us=NOW),
        manifest=Runs.span(0, size - 1),
        due_us=due_us,
        size_bytes=1,
        now_us=NOW,
        life=life,
    )
    row, _ = rules.claim(row, terms(at_most=size, owner="o" * 200), ids())
    assert len(claims.encode(row)) < 128 * 1024
    assert size == row.unacked.count
    assert row == replace(row, **claims.decode(claims.encode(row)))


PLACES = st.sampled_from(["fresh", "returned", "due", "later", "held", "lapsed", "acked"])


@given(
    places=st.lists(PLACES, min_size=10, max_size=10),
    minutes=st.lists(st.sampled_from([None, -1, 0, 1]), min_size=10, max_size=10),
    kept=st.sampled_from([None, None, -1, 1]),
    dies=st.booleans(),
)
def test_a_claim_hands_out_all_that_lives_and_nothing_that_expired(
    places: list[str], minutes: list[int | None], kept: int | None, dies: bool
) -> None:
    def at(place: str) -> Runs:
        return Runs.from_offsets(one for one, where in enumerate(places) if where == place)

    over = Runs.from_offsets(
        at for at, end in enumerate(minutes) if (end is not None and end <= 0) or kept == -1
    )
    row = sealed(
        fresh=at("fresh"),
        returned=tuple(Returned(deliveries=1, runs=runs) for runs in [at("returned")] if runs),
        delayed=tuple(
            Delayed(due_us=due_us, runs=runs)
            for due_us, place in ((NOW - 1, "due"), (NOW + DAY_US, "later"))
            if (runs := at(place))
        ),
        leases=tuple(
            lease(number, runs, until_us=until_us)
            for number, until_us, place in (
                (1, NOW + DAY_US, "held"),
                (2, NOW - DAY_US, "lapsed"),
            )
            if (runs := at(place))
        ),
        expiring=tuple(
            Expiring(
                expires_us=NOW + minute * MINUTE_US,
                runs=Runs.from_offsets(one for one, end in enumerate(minutes) if end == minute),
            )
            for minute in (-1, 0, 1)
        ),
        expires_us=None if kept is None else NOW + kept,
    )
    after, leases = rules.claim(row, terms(expired_die=dies), ids())
    out = union(one.runs for one in leases)
    waiting = union([row.fresh, at("returned"), at("due"), at("lapsed")])
    assert waiting - over == out
    assert rules.claimable(row, now_us=NOW) == out.count
    gone = (waiting | at("later")) & over
    assert gone == rules.expired_of(row, NOW)
    dead = union(part.runs for part in after.dead)
    assert (gone if dies else EMPTY) == dead
    assert row.unacked - after.unacked == (EMPTY if dies else gone)
    assert EMPTY == rules.expired_of(after, NOW)
    if after.status is Status.SEALED:
        assert at("held").issubset(union(one.runs for one in after.leases))
