"""A bucket moves along its diagram and in no other way.

See docs/design/ids-and-buckets.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model import bucket as rules
from cassieq_spark.model import expiry as rules_of_delays
from cassieq_spark.model.bucket import (
    Bucket,
    IllegalMove,
    Lease,
    Returned,
    SinkRef,
    Status,
)
from cassieq_spark.model.dead import DeadSet
from cassieq_spark.model.expiry import DELAY_STEP_US, DELAYED_GROUPS_LIMIT, Delayed
from cassieq_spark.model.ids import EMPTY, BucketNo, Runs

NOW = 1_700_000_000_000_000
SINK = SinkRef(sink_id="s", epoch=3, block_end=BucketNo(9))
THREE = Runs.span(0, 2)
LEASE = Lease(
    lease_id=UUID(int=1), owner="o", run=None, delivery_count=1, runs=THREE, until_us=NOW + 5
)


def row_of(status: Status) -> Bucket:
    return Bucket(status=status, changed_us=NOW, manifest=THREE, fresh=THREE, sink=SINK)


def seal(row: Bucket) -> Bucket:
    return rules.sealed(row, manifest=THREE, due_us={}, size_bytes=9, now_us=NOW)


def prepare(row: Bucket) -> Bucket:
    return rules.prepared(row, manifest=THREE, due_us={}, size_bytes=9, now_us=NOW)


def publish(row: Bucket) -> Bucket:
    return rules.published(row, now_us=NOW)


def void(row: Bucket) -> Bucket:
    return rules.voided(row, now_us=NOW)


DIAGRAM: dict[Callable[[Bucket], Bucket], dict[Status, Status]] = {
    seal: {Status.SEALING: Status.SEALED},
    prepare: {Status.WRITING: Status.PREPARED},
    publish: {Status.PREPARED: Status.SEALED},
    void: {Status.WRITING: Status.VOID, Status.PREPARED: Status.VOID},
}


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("move", DIAGRAM, ids=lambda move: move.__name__)
def test_only_the_moves_of_the_diagram_are_made(
    move: Callable[[Bucket], Bucket], status: Status
) -> None:
    allowed = DIAGRAM[move].get(status)
    if allowed is None:
        with pytest.raises(IllegalMove, match=status.value):
            move(row_of(status))
    else:
        assert allowed is move(row_of(status)).status


@pytest.mark.invariant("I5")
def test_a_seal_fixes_manifest_and_delays_at_once() -> None:
    row = rules.sealed(
        rules.sealing(now_us=NOW),
        manifest=Runs.span(0, 4),
        due_us={3: NOW + 10, 4: NOW + 8},
        size_bytes=77,
        now_us=NOW + 9,
    )
    due = -(-(NOW + 10) // DELAY_STEP_US) * DELAY_STEP_US
    assert row == Bucket(
        status=Status.SEALED,
        changed_us=NOW + 9,
        manifest=Runs.span(0, 4),
        size_bytes=77,
        fresh=Runs.of((0, 2), (4, 4)),
        delayed=(Delayed(due_us=due, runs=Runs.span(3, 3)),),
    )


def test_a_seal_of_nothing_is_drained_at_once() -> None:
    empty = rules.sealed(
        rules.sealing(now_us=NOW), manifest=EMPTY, due_us={}, size_bytes=0, now_us=NOW
    )
    assert Status.DRAINED is empty.status


@pytest.mark.invariant("I5")
def test_what_was_prepared_is_published_as_it_is() -> None:
    prepared = prepare(rules.writing(SINK, now_us=NOW))
    published = rules.published(prepared, now_us=NOW + 1)
    assert replace(prepared, status=Status.SEALED, changed_us=NOW + 1) == published
    assert THREE == published.manifest


@pytest.mark.invariant("I7")
def test_nothing_of_a_void_bucket_is_left_to_deliver() -> None:
    voided = void(prepare(rules.writing(SINK, now_us=NOW)))
    assert Bucket(status=Status.VOID, changed_us=NOW, sink=SINK) == voided
    assert voided.is_empty
    assert voided.is_behind_reader


def test_an_unused_bucket_is_void_from_its_birth() -> None:
    assert Status.VOID is rules.unused(SINK, now_us=NOW).status
    assert SINK == rules.unused(SINK, now_us=NOW).sink


@pytest.mark.parametrize(
    "held",
    [
        {"fresh": THREE},
        {"returned": (Returned(deliveries=1, runs=THREE),)},
        {"delayed": (Delayed(due_us=NOW, runs=THREE),)},
        {"leases": (LEASE,)},
        {"dead": (DeadSet(set_id=UUID(int=2), runs=THREE),)},
    ],
    ids=lambda held: next(iter(held)),
)
@pytest.mark.invariant("I1")
def test_a_bucket_that_holds_anything_is_not_drained(held: dict[str, object]) -> None:
    row = replace(
        Bucket(status=Status.SEALED, changed_us=NOW, manifest=THREE),
        **held,  # type: ignore[arg-type]  # one field of many types
    )
    assert Status.SEALED is rules.drained_if_empty(row).status
    assert not row.is_empty


def test_the_reader_passes_what_has_nothing_fresh_and_stops_at_the_rest() -> None:
    sealed = Bucket(status=Status.SEALED, changed_us=NOW, manifest=THREE)
    assert replace(sealed, leases=(LEASE,)).is_behind_reader
    assert not replace(sealed, fresh=THREE).is_behind_reader
    behind = {status for status in Status if replace(sealed, status=status).is_behind_reader}
    assert {Status.SEALED, Status.DRAINED, Status.VOID} == behind


def test_the_earliest_return_is_now_for_what_is_back_and_never_for_what_is_fresh() -> None:
    sealed = Bucket(status=Status.SEALED, changed_us=NOW, manifest=THREE, fresh=THREE)
    assert sealed.earliest_return_us() is None
    leased = replace(sealed, leases=(LEASE,), delayed=(Delayed(due_us=NOW + 2, runs=THREE),))
    assert NOW + 2 == leased.earliest_return_us()
    assert 0 == replace(leased, returned=(Returned(deliveries=1, runs=THREE),)).earliest_return_us()


def test_a_lease_is_found_by_its_id_only() -> None:
    row = replace(row_of(Status.SEALED), leases=(LEASE,))
    assert LEASE == row.lease(LEASE.lease_id)
    assert row.lease(UUID(int=99)) is None


@given(
    st.dictionaries(
        st.integers(0, 500), st.integers(NOW - 10**7, NOW + 10**10), min_size=1, max_size=50
    )
)
def test_no_message_is_due_before_its_time_and_none_a_step_later(due: dict[int, int]) -> None:
    groups = rules_of_delays.group_delays(due, now_us=NOW)
    grouped = {offset: group.due_us for group in groups for offset in group.runs.offsets()}
    assert {offset for offset, time in due.items() if time > NOW} == set(grouped)
    assert all(due[at] <= time < due[at] + DELAY_STEP_US for at, time in grouped.items())


def test_r7_any_number_of_distinct_delays_fits_a_row_by_wider_steps() -> None:
    many = DELAYED_GROUPS_LIMIT * 3
    due = {offset: NOW + (offset + 1) * DELAY_STEP_US for offset in range(many)}
    groups = rules_of_delays.group_delays(due, now_us=NOW)
    assert len(groups) <= DELAYED_GROUPS_LIMIT
    assert many == sum(group.runs.count for group in groups)
    assert all(
        due[offset] <= group.due_us < due[offset] + 4 * DELAY_STEP_US
        for group in groups
        for offset in group.runs.offsets()
    )


def test_t2_many_delivery_counts_make_no_delay_late_by_hours() -> None:
    """A wider step makes due times fewer, never counts: it would be widened for ever."""
    groups = rules_of_delays.merge_delayed(
        Delayed(due_us=NOW + at * DELAY_STEP_US, runs=Runs.span(at, at), deliveries=at % 5_000)
        for at in range(10_000)
    )
    assert 10_000 == sum(group.runs.count for group in groups)
    latest = max(group.due_us - NOW - group.runs.first * DELAY_STEP_US for group in groups)
    assert latest < 60 * DELAY_STEP_US


def test_r6_returned_messages_are_one_part_per_delivery_count() -> None:
    merged = rules.merge_returned(
        [
            Returned(deliveries=2, runs=Runs.span(5, 6)),
            Returned(deliveries=1, runs=Runs.span(0, 1)),
            Returned(deliveries=2, runs=Runs.span(7, 7)),
            Returned(deliveries=4, runs=EMPTY),
        ]
    )
    assert merged == (
        Returned(deliveries=1, runs=Runs.span(0, 1)),
        Returned(deliveries=2, runs=Runs.span(5, 7)),
    )
