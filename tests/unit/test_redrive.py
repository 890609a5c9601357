"""What a redrive makes of a bucket row: visible messages leave it, all others stay (ADR 16)."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.model import redrive as rules
from cassieq_spark.model import settlement
from cassieq_spark.model.bucket import Returned, Status, without_dead
from cassieq_spark.model.dead import REDRIVE, DeadSet
from cassieq_spark.model.dead_letter import DeadLetterHeaders, headers_of, is_own
from cassieq_spark.model.expiry import Delayed
from cassieq_spark.model.ids import EMPTY, QueueName, Runs, union
from cassieq_spark.model.integrity import broken
from cassieq_spark.model.settlement import Reject
from cassieq_spark.store.tables.claims import decode_dead, encode_dead
from tests.fixtures import rows
from tests.fixtures.rows import TEN, ids, sealed

NOW = 1_700_000_000_000_000
LONG_AGO = 1
A, B = QueueName("a"), QueueName("b")


lease = partial(rows.lease, until_us=NOW + 1)


def test_each_target_and_delivery_count_has_a_set_of_its_own() -> None:
    row = sealed(
        fresh=Runs.span(0, 3),
        returned=(Returned(deliveries=2, runs=Runs.span(4, 5)),),
        leases=(lease(1, Runs.span(6, 7), count=3, until_us=LONG_AGO), lease(2, Runs.span(8, 8))),
        delayed=(Delayed(due_us=NOW + 1, runs=Runs.span(9, 9)),),
    )

    after, sets = rules.send_on(
        row, {A: Runs.span(1, 6), B: Runs.of((0, 0), (8, 9))}, ids(), now_us=NOW
    )

    assert [
        (A, 0, Runs.span(1, 3)),
        (A, 2, Runs.span(4, 5)),
        (A, 3, Runs.span(6, 6)),
        (B, 0, Runs.span(0, 0)),
    ] == [(part.target, part.deliveries, part.runs) for part in sets]
    assert {(NOW, REDRIVE)} == {(part.died_us, part.reason) for part in sets}
    assert 4 == len({part.set_id for part in sets})
    assert sets == after.dead
    assert (EMPTY, ()) == (after.fresh, after.returned)
    assert [(1, Runs.span(7, 7)), (2, Runs.span(8, 8))] == [
        (one.lease_id.int, one.runs) for one in after.leases
    ]
    assert row.delayed == after.delayed


def test_a_second_redrive_finds_nothing_of_what_the_first_has_taken() -> None:
    row, _ = rules.send_on(sealed(fresh=TEN), {A: TEN}, ids(), now_us=NOW)
    assert (row, ()) == rules.send_on(row, {B: TEN}, ids(), now_us=NOW)


def test_a_row_does_not_grow_with_the_number_of_targets() -> None:
    row = sealed(manifest=Runs.span(0, 99), fresh=Runs.span(0, 99))
    chosen = {QueueName(f"q{at:02}"): Runs.span(at, at) for at in range(40)}
    taken = []
    while True:
        row, sets = rules.send_on(row, chosen, ids(), now_us=NOW)
        taken.append(len(sets))
        for part in sets:
            row = without_dead(row, part.set_id, now_us=NOW)
        if len(sets) < rules.SETS_TOGETHER:
            break
    assert [16, 16, 8] == taken
    assert Runs.span(40, 99) == row.fresh


def test_a_bucket_that_is_not_sealed_is_left_alone() -> None:
    row = sealed(status=Status.PREPARED, fresh=TEN)
    assert (row, ()) == rules.send_on(row, {A: TEN}, ids(), now_us=NOW)


PLACES = ("fresh", "returned", "expired", "due", "leased", "delayed", "dead", "acked")
VISIBLE = frozenset(PLACES[:4])


@given(st.lists(st.sampled_from(PLACES), min_size=10, max_size=10), st.sets(st.integers(0, 9)))
def test_nothing_is_lost_doubled_or_taken_from_its_holder(
    places: list[str], wanted: set[int]
) -> None:
    def at(place: str) -> Runs:
        return Runs.from_offsets(offset for offset, one in enumerate(places) if one == place)

    row = sealed(
        fresh=at("fresh"),
        returned=tuple(Returned(deliveries=1, runs=runs) for runs in [at("returned")] if runs),
        delayed=tuple(
            Delayed(due_us=due, runs=runs)
            for due, runs in [(LONG_AGO, at("due")), (NOW + 1, at("delayed"))]
            if runs
        ),
        leases=tuple(
            lease(number, runs, until_us=until)
            for number, until, runs in [
                (1, LONG_AGO, at("expired")),
                (2, NOW + 1, at("leased")),
            ]
            if runs
        ),
        dead=tuple(DeadSet(set_id=UUID(int=9), runs=runs) for runs in [at("dead")] if runs),
    )
    chosen = Runs.from_offsets(wanted)

    after, sets = rules.send_on(row, {A: chosen}, ids(), now_us=NOW)

    expected = Runs.from_offsets(offset for offset in wanted if places[offset] in VISIBLE)
    assert expected == union(part.runs for part in sets)
    assert [] == list(broken(after))
    assert row.unacked == after.unacked
    assert row.dead == after.dead[: len(row.dead)]


def test_a_rejection_that_comes_late_does_not_take_a_redrive_for_its_own() -> None:
    """`reject` may come twice, and finds its own dead set; another's move is no success of it."""
    row, _ = rules.send_on(
        sealed(leases=(lease(1, TEN, until_us=LONG_AGO),)), {A: TEN}, ids(), now_us=NOW
    )
    judged = settlement.judge(row, {UUID(int=1): {Reject(reason="r"): TEN}})
    assert ({}, {UUID(int=1): TEN}) == (judged.repeated, judged.stale)


def test_the_target_is_stored_where_a_set_has_one() -> None:
    sets = (
        DeadSet(set_id=UUID(int=1), runs=TEN, deliveries=2, died_us=NOW),
        DeadSet(set_id=UUID(int=2), runs=TEN, deliveries=2, died_us=NOW, reason="no such order"),
        DeadSet(set_id=UUID(int=3), runs=TEN, deliveries=0, died_us=NOW, reason=REDRIVE, target=A),
        DeadSet(set_id=UUID(int=4), runs=TEN, deliveries=0, died_us=NOW, target=A),
    )
    stored = msgpack.unpackb(msgpack.packb(encode_dead(sets)))
    assert [2, 2, 3, 3] == [len(head) for head in stored[0]]
    assert sets == decode_dead(stored)


def test_headers_that_a_producer_has_made_up_are_read_as_none() -> None:
    nothing = DeadLetterHeaders(
        source_queue=None,
        reason=None,
        deliveries=None,
        priority=None,
        shard=None,
        first_time=None,
        last_time=None,
    )
    assert nothing == headers_of({})
    assert nothing == headers_of(
        {"cassieq-deliveries": "²", "cassieq-last-time": "soon", "cassieq-first-time": ""}
    )
    assert nothing == headers_of({"cassieq-priority": "-1", "cassieq-shard": "9" * 5_000})
    placed = headers_of({"cassieq-priority": "2", "cassieq-shard": "0"})
    assert (2, 0) == (placed.priority, placed.shard)
    found = headers_of({"cassieq-last-time": "2026-01-02T03:04:05", "cassieq-deliveries": "7"})
    assert (7, "2026-01-02T03:04:05+00:00") == (
        found.deliveries,
        found.last_time.isoformat() if found.last_time else None,
    )


@pytest.mark.parametrize(
    ("name", "is_the_queues"),
    [
        *(("cassieq-source-queue", True), ("Cassieq-History", True), ("cassieq-", True)),
        *(("cassieq", False), ("x-cassieq-reason", False), ("", False), ("sqs.type.x", False)),
    ],
)
def test_headers_that_only_the_queue_writes_are_told_by_their_names(
    name: str, is_the_queues: bool
) -> None:
    assert is_the_queues is is_own(name)
