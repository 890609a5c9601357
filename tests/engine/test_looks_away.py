"""Looks and moves over many buckets, one of them without a quorum: the others' turn comes [T5]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import StoreError
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.queue import lane, seal
from cassieq_spark.queue.inspect import facts as looks
from cassieq_spark.repair import dry_run as dry_runs
from cassieq_spark.repair import redrive as redrives
from cassieq_spark.repair import verify as verifies
from cassieq_spark.store import cas, portal, session
from cassieq_spark.store.tables.buckets import Buckets
from tests.engine.test_slow_replica import fill
from tests.fixtures.faults import Away, Fault
from tests.fixtures.queues import Door, OpenDoor

if TYPE_CHECKING:
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.outcome import Stored


pytestmark = [pytest.mark.invariant("I10"), pytest.mark.usefixtures("passing_time")]

AT = pytest.mark.parametrize("away", [0, 2])
NAMED = "bucket {} of queue"
DEADLINE_S = 2.0


@pytest.fixture(autouse=True)
def _short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (cas, session):
        monkeypatch.setattr(room, "DEADLINE_S", DEADLINE_S)


@AT
@pytest.mark.parametrize("is_sealed", [True, False])
def test_t5_a_redrive_moves_what_it_can_reach_and_names_the_bucket_that_is_away(
    open_door: OpenDoor, away: int, is_sealed: bool
) -> None:
    door, target = open_door(), open_door("-to")
    if is_sealed:
        fill(door)
    else:
        for first in range(0, 40, 10):
            door.put(*(b"%d" % (first + at) for at in range(10)))
    door.faults.unreachable(away, lane=door.lane.lane_id, how=Away.UNAVAILABLE)
    done = door.client.redrive(door.queue.name, to=target.queue.name)
    assert (30, 0, {target.queue.name: 30}) == (done.moved, done.waiting, done.by_target)
    (problem,) = done.problems
    assert NAMED.format(away) in problem
    door.faults.reachable()
    again = door.client.redrive(door.queue.name, to=target.queue.name)
    assert (10, []) == (again.moved, again.problems)
    assert 40 == len(target.queue.get(100))


def test_t5_a_redrive_by_ids_does_not_say_gone_of_what_did_not_answer(open_door: OpenDoor) -> None:
    door, target = open_door(), open_door("-to")
    fill(door)
    everything = door.queue.peek(100)
    door.faults.unreachable(1, lane=door.lane.lane_id)
    done = door.client.redrive(door.queue.name, everything, to=target.queue.name)
    assert (30, 0) == (done.moved, done.gone)
    assert NAMED.format(1) in done.problems[0]


def test_t5_a_redrive_goes_on_where_a_buckets_cas_is_not_answered(open_door: OpenDoor) -> None:
    door, target = open_door(), open_door("-to")
    fill(door)
    door.faults.before("update_bucket", lambda: door.faults.unreachable(0, lane=door.lane.lane_id))
    done = door.client.redrive(door.queue.name, to=target.queue.name)
    assert 30 == done.moved
    assert NAMED.format(0) in done.problems[0]


def test_a_redrive_that_can_write_nowhere_gives_up_soon(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrives, "IN_VAIN_AT_MOST", 2)
    door, target = open_door(), open_door("-to")
    fill(door)
    door.faults.plan("update_bucket", Fault.TIMEOUT_BEFORE, times=100_000)
    with pytest.raises(StoreError, match=r"bucket 0 of .*1 more buckets failed"):
        door.client.redrive(door.queue.name, to=target.queue.name)


def test_t5_a_redrive_takes_others_in_place_of_what_it_could_not_take(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, target = open_door(), open_door("-to")
    fill(door)
    read = Buckets.read
    lane_id = door.lane.lane_id

    def away_then(self: Buckets, bucket: BucketNo) -> Stored[Bucket] | None:
        if (self._lane, bucket) == (lane_id, 0):
            door.faults.unreachable(0, lane=lane_id, how=Away.UNAVAILABLE)
        return read(self, bucket)

    monkeypatch.setattr(Buckets, "read", away_then)
    wanted = redrives.RedriveRequest(to=target.queue._lane.queue, at_most=10)
    done = portal.run(redrives.redrive(door.lane, wanted))
    assert 10 == done.moved
    assert NAMED.format(0) in done.problems[0]


@AT
def test_t5_peek_shows_what_it_can_reach(door: Door, away: int) -> None:
    fill(door)
    door.faults.unreachable(away, how=Away.UNAVAILABLE)
    assert {0, 1, 2, 3} - {away} == {one.id // 10 for one in door.queue.peek(100)}
    assert 25 == len(door.queue.peek(25))


def test_t5_peek_says_none_of_nothing_that_did_not_answer(door: Door) -> None:
    portal.run(seal.close(door.lane, door.put(b"a")))
    door.faults.unreachable(0)
    with pytest.raises(StoreError, match=NAMED.format(0)):
        door.queue.peek(1)


def test_t5_browse_yields_all_it_can_reach_before_its_error(door: Door) -> None:
    fill(door)
    door.faults.unreachable(0, how=Away.UNAVAILABLE)
    messages = door.client.browse(door.queue.name)
    assert 30 == len([next(messages) for _ in range(30)])
    with pytest.raises(StoreError, match=NAMED.format(0)):
        next(messages)


@AT
@pytest.mark.parametrize("statement", ["read_bucket", "scan_messages"])
def test_t5_verify_looks_at_all_it_can_reach_and_says_what_it_could_not(
    open_door: OpenDoor, away: int, statement: str
) -> None:
    door, watch = open_door(), open_door()
    fill(door)
    # A finding behind what is away: the reader pointer is past fresh messages of all four.
    for bucket in range(4):
        portal.run(watch.lane.messages.drop(BucketNo(bucket)))
    if statement == "read_bucket":
        door.faults.unreachable(away, how=Away.UNAVAILABLE)
    else:
        door.faults.before(
            statement, lambda: door.faults.unreachable(away, how=Away.UNAVAILABLE), after=away
        )
    found = door.client.verify(door.queue.name)
    assert {0, 1, 2, 3} - {away} == {one.bucket for one in found.findings}
    assert {"manifest_without_rows"} == {one.kind for one in found.findings}
    assert NAMED.format(away) in found.problems[0]


@AT
def test_t5_a_dry_run_foresees_what_it_can_reach(open_door: OpenDoor, away: int) -> None:
    door, holder = open_door(), open_door()
    fill(door)
    holder.queue.get(40, visibility_timeout=5)
    door.clock.advance(60)
    door.faults.unreachable(away, how=Away.UNAVAILABLE)
    report = door.client.repair(door.queue.name, dry_run=True)
    assert 3 == report.queues[0].hints_written
    assert NAMED.format(away) in report.queues[0].problems[0]


def test_t5_messages_of_finished_buckets_are_dropped_beside_one_that_is_away(
    open_door: OpenDoor,
) -> None:
    door, watch = open_door(), open_door()
    fill(door)
    watch.queue.get(1)  # which keeps bucket 0, and with it the repair pointer
    watch.queue.ack(watch.queue.get(39))
    door.faults.before("peek_bucket", lambda: door.faults.unreachable(2, how=Away.UNAVAILABLE))
    report = door.client.repair(door.queue.name)
    assert 2 == report.queues[0].freed
    assert any(NAMED.format(2) in problem for problem in report.queues[0].problems)


# --- how long -----------------------------------------------------------------------------------


def test_t5_a_look_waits_once_for_a_sink_that_does_not_answer(door: Door) -> None:
    """However many of its buckets wait for it."""
    who = door.identity()
    results = [door.task(who, 0, *(b"%d" % at for at in range(10))) for _ in range(6)]
    assert 6 == sum(len(result.buckets) for result in results)
    door.faults.plan("read_sink", Fault.TIMEOUT_BEFORE, times=100_000)
    began = door.clock.monotonic()
    with pytest.raises(StoreError):
        door.queue.peek(1)
    assert door.clock.monotonic() - began < 3 * DEADLINE_S


@pytest.mark.parametrize("look", ["stats", "peek", "verify", "dry_run"])
def test_t5_a_look_waits_once_though_each_of_its_windows_has_a_bucket_that_is_away(
    door: Door, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    monkeypatch.setattr(looks, "WINDOW", 2)
    monkeypatch.setattr(verifies, "WINDOW", 2)
    monkeypatch.setattr(dry_runs, "WINDOW", 2)
    monkeypatch.setattr(lane, "LATER_S", 0.1)
    for _ in range(10):
        portal.run(seal.close(door.lane, door.put(b"m")))
    door.faults.unreachable(*range(0, 10, 2))
    began = door.clock.monotonic()
    match look:
        case "stats":
            with pytest.raises(StoreError):
                door.queue.stats()
        case "peek":
            assert 5 == len(door.queue.peek(100))
        case "verify":
            assert 5 == len(door.client.verify(door.queue.name).problems)
        case _:
            report = door.client.repair(door.queue.name, dry_run=True)
            assert 5 == len(report.queues[0].problems)
    assert door.clock.monotonic() - began < 3 * DEADLINE_S


def test_a_look_waits_once_for_open_buckets_that_refuse_to_say_what_they_hold(door: Door) -> None:
    """Their rows can be read, their messages cannot; each refusal comes at once."""
    for _ in range(6):
        door.put(b"m")
    door.faults.plan("peek_bucket", Fault.TIMEOUT_BEFORE, times=5_000)
    reader = door.reader()
    began = door.clock.monotonic()
    scan = portal.run(reader._scanner.scan(1, peeks=True))
    assert door.clock.monotonic() - began < 3
    assert {} == scan.peeked
    assert 6 == len(reader._scanner.passed_over)
    door.faults._plan.clear()
    reader._scanner.forget_away()
    assert 6 == len(door.drain())
