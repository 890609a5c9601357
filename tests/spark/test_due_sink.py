"""A sink's transaction over due lanes: whole and once, whatever dies, and whatever has ended."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from cassieq_spark.errors import BodyInvalid, CassieqError
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.options import parse_sink
from cassieq_spark.queue import schedule
from cassieq_spark.queue.sink import transaction
from cassieq_spark.queue.sink.writer import Meter
from cassieq_spark.spark import lane_packer, sink
from cassieq_spark.store import portal
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Crash, crash, drain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cassieq_spark.model.sink_txn import Identity, TaskResult
    from tests.fixtures.queues import Door, OpenDoor

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
FIRST, SECOND = 0, 1
"""Batches."""

Rows = list[tuple[bytes, float | None, int]]
"""Body, seconds from now or None, priority."""

WRITES = (
    "insert_monoton",
    "add_to_schedule",
    "reserve",
    "insert_bucket",
    "write_message",
    "fill_bucket",
    "update_sink",
    "update_bucket",
)


def batch_of(door: Door, rows: Rows) -> pa.RecordBatch:
    now_us = door.clock.now_us()
    due = [None if in_s is None else now_us + int(in_s * 1e6) for _, in_s, _ in rows]
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.array([body for body, _, _ in rows], pa.binary()),
            "due_at": pa.array(due, pa.timestamp("us", "UTC")),
            "priority": pa.array([priority for _, _, priority in rows], pa.int32()),
        }
    )


def task(door: Door, who: Identity, batch_id: int, batches: Sequence[pa.RecordBatch]) -> TaskResult:
    """One task attempt, as Spark runs it."""
    admission = portal.run(transaction.admit(door.lane, who, batch_id))
    options = parse_sink({"queue": door.queue.name, "contactPoints": "127.0.0.1"})
    ahead = sink.Ahead(iter(batches))
    return sink._write(door.lane, options, who, admission, ahead, meter=Meter()).result


def put_batch(door: Door, batch_id: int, *rows: Rows, run: str = "r1") -> TaskResult:
    who = door.identity(run)
    result = task(door, who, batch_id, [batch_of(door, some) for some in rows])
    door.commit(who, batch_id, result)
    return result


def delivered_after(door: Door, seconds: float) -> Counter[bytes]:
    door.clock.advance(seconds)
    found = Counter(message.body for message in drain(door.queue))
    if door.queue.stats().in_flight:  # a claim whose answer was lost is over in ten minutes
        door.clock.advance(601)
        found += Counter(message.body for message in drain(door.queue))
    return found


def finish(door: Door, passes: int = 4) -> None:
    """Long after the period: close, rest, drop, finish."""
    door.clock.advance(3 * HOUR_S)
    for _ in range(passes):
        assert [] == door.client.repair(door.queue.name).problems
        door.clock.advance(60)


@pytest.mark.invariant("I7")
def test_each_row_waits_in_the_lane_of_its_period_and_class(open_door: OpenDoor) -> None:
    door = open_door(priorities=2, linger=0, fairness=0)
    now: Rows = [(b"now", None, 0), (b"past", -DAY_S, 1), (b"soon", 60, 0)]
    far: Rows = [(b"day", DAY_S, 0), (b"urgent", DAY_S, 1), (b"month", 30 * DAY_S, 1)]
    result = put_batch(door, FIRST, now, [*now, *far], far)

    lanes = [door.lane.sibling(lane) for lane in {place.lane for place, _ in result.buckets}]
    assert [0, 0, 1, 1, 1] == sorted(lane.priority for lane in lanes)
    assert 3 == len(portal.run(schedule.begun_and_later(door.lane))[1])
    assert Counter({b"now": 2, b"past": 2}) == delivered_after(door, 0)
    assert Counter({b"soon": 2}) == delivered_after(door, 120)
    assert 6 == door.queue.stats().scheduled
    assert Counter({b"day": 2, b"urgent": 2}) == delivered_after(door, DAY_S)
    assert Counter({b"month": 2}) == delivered_after(door, 29 * DAY_S)


def test_a_delay_takes_the_same_lanes_as_a_due_time(open_door: OpenDoor) -> None:
    door = open_door(linger=0)
    delays = pa.RecordBatch.from_pydict(
        {"body": pa.array([b"far", b"now"], pa.binary()), "delay": [2.0 * DAY_S, None]}
    )
    nobody_waits = delays.slice(1)
    who = door.identity()
    result = task(door, who, FIRST, [nobody_waits, delays, nobody_waits])
    door.commit(who, FIRST, result)

    assert 1 == len(portal.run(schedule.begun_and_later(door.lane))[1])
    assert Counter({b"now": 3}) == delivered_after(door, 0)
    assert Counter({b"far": 1}) == delivered_after(door, 2 * DAY_S + 1)


@pytest.mark.parametrize("in_days", [401, 420])
def test_a_row_that_is_due_too_late_is_named_and_nothing_is_written(
    open_door: OpenDoor, in_days: int
) -> None:
    door = open_door()
    with pytest.raises(BodyInvalid, match=r"row 1 .* at most 400 days ahead"):
        put_batch(door, FIRST, [(b"a", DAY_S, 0), (b"b", in_days * DAY_S, 0)])
    assert [] == portal.run(schedule.begun_and_later(door.lane))[1]
    minutes = open_door("minutes", schedule_period=60)
    with pytest.raises(BodyInvalid, match=r"row 0 .* schedule_period=60 .* 6.94444 days"):
        put_batch(minutes, FIRST, [(b"a", 8 * DAY_S, 0)])


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("statement", WRITES)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_batch_that_dies_at_any_statement_is_there_once_after_its_replay(
    open_door: OpenDoor, statement: str, after: int
) -> None:
    door = open_door(linger=0, repair_timeout=0.2)
    rows: Rows = [(b"now", None, 0), (b"day", DAY_S, 0), (b"week", 7 * DAY_S, 0)]
    door.faults.before(statement, crash, after=after)
    for run in ("r1", "r2", "r3", "r4"):  # some statements come so often only in a replay
        with suppress(Crash):
            put_batch(door, FIRST, rows, run=run)

    assert Counter([b"now"]) == delivered_after(door, 1)
    assert Counter([b"day"]) == delivered_after(door, DAY_S + 1)
    assert Counter([b"week"]) == delivered_after(door, 6 * DAY_S + 1)
    report = door.client.verify(door.queue.name)
    assert ([], []) == (report.findings, report.problems)


@pytest.mark.invariant("I7")
def test_a_batch_is_rolled_forward_where_its_driver_died_behind_the_commit(
    open_door: OpenDoor,
) -> None:
    """Nobody looks at the lane before its time: repair or a reader finds it decided then."""
    door = open_door(linger=0)
    who = door.identity()
    result = task(door, who, FIRST, [batch_of(door, [(b"day", DAY_S, 0)])])
    door.faults.before("update_bucket", crash)
    with pytest.raises(Crash):
        door.commit(who, FIRST, result)

    assert Counter([b"day"]) == delivered_after(door, DAY_S + 1)


@pytest.mark.invariant("I7")
def test_u6_a_list_with_a_lane_that_is_over_counts_as_rolled(open_door: OpenDoor) -> None:
    door = open_door(linger=0, repair_timeout=0.2)
    put_batch(door, FIRST, [(b"a", DAY_S, 0), (b"b", 40 * DAY_S, 0)])
    assert Counter([b"a"]) == delivered_after(door, DAY_S + 1)
    finish(door)
    assert 1 == len(portal.run(schedule.begun_and_later(door.lane))[1])

    put_batch(door, SECOND, [(b"c", None, 0), (b"d", 40 * DAY_S, 0)])

    assert Counter([b"c"]) == delivered_after(door, 0)
    assert Counter([b"b", b"d"]) == delivered_after(door, 40 * DAY_S + 1)
    report = door.client.verify(door.queue.name)
    assert ([], []) == (report.findings, report.problems)


@pytest.mark.invariant("I1")
def test_a_transaction_that_nobody_ends_holds_no_due_lane_for_ever(open_door: OpenDoor) -> None:
    door = open_door(linger=0, repair_timeout=0.2)
    who = door.identity()
    task(door, who, FIRST, [batch_of(door, [(b"void", DAY_S, 0)])])
    door.clock.advance(DAY_S)

    assert Counter() == delivered_after(door, 1)
    finish(door, passes=6)
    begun, later = portal.run(schedule.begun_and_later(door.lane))
    assert [] == begun + later


def test_rows_of_a_lane_that_takes_no_more_go_to_an_ordinary_one(open_door: OpenDoor) -> None:
    """By a clock that is behind, a period that repair has closed may look as if it came."""
    door = open_door(linger=0)
    period = (door.clock.now_us() + DAY_S * 1_000_000) // door.lane.settings.period_us
    portal.run(door.lane.pointers.advance(Pointer.SCHEDULE_CLOSED, period + 1))

    put_batch(door, FIRST, [(b"a", DAY_S, 0), (b"b", 0.5 * DAY_S, 0), (b"now", None, 0)])

    assert [] == portal.run(schedule.begun_and_later(door.lane))[1]
    assert Counter([b"now"]) == delivered_after(door, 0)
    assert Counter([b"b"]) == delivered_after(door, 0.5 * DAY_S + 1)
    assert Counter([b"a"]) == delivered_after(door, 0.5 * DAY_S + 1)


def test_a_task_holds_few_lanes_open_and_little_in_memory(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in no order, for 80 lanes: each has a bucket for every time that rows were written."""
    monkeypatch.setattr(lane_packer, "LATER_BYTES", 2_000)
    door = open_door(linger=0, bucket_size=100)
    most = 0

    class Counted(lane_packer.LanePacker):
        def _write_due(self, number: int, rows: pa.RecordBatch) -> None:
            nonlocal most
            super()._write_due(number, rows)
            most = max(most, len(self._open))

    monkeypatch.setattr(sink, "LanePacker", Counted)
    rows: Rows = [(b"%d" % at, DAY_S + HOUR_S * (at * 7 % 80), 0) for at in range(240)]

    put_batch(door, FIRST, *(rows[at : at + 40] for at in range(0, 240, 40)))

    assert lane_packer.MOST_OPEN == most
    assert 80 == len(portal.run(schedule.begun_and_later(door.lane))[1])
    assert 240 == door.queue.stats().scheduled
    assert Counter(body for body, _, _ in rows) == delivered_after(door, 5 * DAY_S)


@pytest.mark.invariant("I7")
def test_a_lost_answer_of_a_birth_doubles_nothing(open_door: OpenDoor) -> None:
    door = open_door(linger=0)
    door.faults.plan("insert_monoton", Fault.TIMEOUT_AFTER)
    with suppress(CassieqError):
        put_batch(door, FIRST, [(b"a", DAY_S, 0)])
    put_batch(door, FIRST, [(b"a", DAY_S, 0)], run="r2")
    assert Counter([b"a"]) == delivered_after(door, DAY_S + 1)
