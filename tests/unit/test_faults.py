"""The fault of single keys: which statements it takes, and until when."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from cassandra import OperationTimedOut, Unavailable

from cassieq_spark.store import statements
from cassieq_spark.store.statements import Statement, every_statement
from cassieq_spark.testing import wait_until
from tests.fixtures.faults import Away, FaultyStore, partition_of

LANE, OTHER = UUID(int=1), UUID(int=2)
READ = statements.READ_BUCKET


def test_a_buckets_partition_is_known_of_all_statements_on_it() -> None:
    """Row, messages and overlays; hints lie by hour, lists of keys nowhere."""
    found = {
        one.name: partition_of(one, ("a", "b", LANE, 5) if "SET" in one.cql else (LANE, 5))
        for one in every_statement()
        if one.name
        in (
            "insert_bucket",
            "read_bucket",
            "delete_bucket",
            "scan_messages",
            "peek_bucket",
            "write_message",
            "read_overlay",
            "write_hint",
            "list_buckets",
            "read_pointers",
            "reserve",
        )
        and "SET" not in one.cql
    }
    on_bucket = {name for name, key in found.items() if key == (LANE, 5)}
    assert {
        "insert_bucket",
        "read_bucket",
        "delete_bucket",
        "scan_messages",
        "peek_bucket",
        "write_message",
        "read_overlay",
    } == on_bucket
    update = statements.UPDATE_BUCKET
    before = update.cql.partition("WHERE")[0].count("?")
    assert (LANE, 5) == partition_of(update, (*["x"] * before, LANE, 5, "writer"))
    drop = statements.DROP_MESSAGES
    assert (LANE, 5) == partition_of(drop, (1_700, LANE, 5))


@pytest.mark.parametrize(
    ("how", "error"), [(Away.UNAVAILABLE, Unavailable), (Away.TIMES_OUT, OperationTimedOut)]
)
def test_statements_of_an_unreachable_bucket_are_not_run_until_it_is_reachable(
    how: Away, error: type[Exception]
) -> None:
    faults, run = FaultyStore(), []
    faults.unreachable(1, 2, how=how)
    for bucket in (1, 2):
        with pytest.raises(error, match=f"bucket {bucket}"):
            _send(faults, READ, LANE, bucket, run)
    _send(faults, READ, LANE, 3, run)
    faults.reachable()
    _send(faults, READ, LANE, 1, run)
    assert [3, 1] == run
    assert f"read_bucket: bucket 2 {how.value}" in str(faults)


def test_a_bucket_is_away_in_its_lane_only_where_that_is_named() -> None:
    faults, run = FaultyStore(), []
    faults.unreachable(1, lane=LANE)
    _send(faults, READ, OTHER, 1, run)
    with pytest.raises(OperationTimedOut):
        _send(faults, READ, LANE, 1, run)
    assert [1] == run


def test_what_stands_still_waits_until_the_bucket_is_reachable_and_is_lost_then() -> None:
    faults, run = FaultyStore(), []
    faults.unreachable(1, how=Away.STANDS_STILL)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_send, faults, READ, LANE, 1, run)
        wait_until(lambda: "stands still" in str(faults))
        _send(faults, READ, LANE, 2, run)
        assert not waiting.done()
        faults.reachable()
        with pytest.raises(OperationTimedOut):
            waiting.result()
    assert [2] == run


def _send(
    faults: FaultyStore, statement: Statement, lane: UUID, bucket: int, run: list[int]
) -> None:
    faults.around(statement, (lane, bucket), lambda: run.append(bucket))
