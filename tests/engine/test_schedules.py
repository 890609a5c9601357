"""Schedules put each occurrence exactly once (I11); see docs/design/schedules.md."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgpack
import pytest

from cassieq_spark import metrics
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import (
    CasAmbiguous,
    OptionInvalid,
    OptionUnknown,
    QueueDeleted,
    QueueNotFound,
    ScheduleExists,
    ScheduleNotFound,
    StoreError,
)
from cassieq_spark.model.moments import time_of, us_of
from cassieq_spark.queue.schedules.dispatch import dispatch, lateness
from cassieq_spark.queue.schedules.touch import Toucher
from cassieq_spark.store import portal
from cassieq_spark.store.tables import timetable
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Crash, crash

if TYPE_CHECKING:
    from collections.abc import Iterator

    import cassieq_spark as cassieq
    from tests.fixtures.queues import Door, OpenDoor

pytestmark = pytest.mark.invariant("I11")

QUICK: dict[str, Any] = {"linger": 0, "repair_timeout": 0.2, "bucket_size": 1_000}
HOUR_S = 3_600.0
MINUTES_AHEAD = 180
"""What a minute's schedule puts ahead: three horizons of an hour."""


@pytest.fixture(scope="module")
def keyspace() -> str:
    """A pass goes over all schedules."""
    return f"schedules_{new_uuid().hex[:8]}"


@pytest.fixture(autouse=True)
def _alone(client: cassieq.Client) -> Iterator[None]:
    """No test's passes find schedules of others."""
    yield
    table = client.store.timetable
    for one in portal.run(table.glance()):
        row = portal.run(table.find(one.name))
        if row is not None:
            portal.run(table.delete(row))


@pytest.fixture
def name() -> str:
    return f"s{new_uuid().hex[:12]}"


def whole_minute(door: Door) -> datetime:
    """The present minute's begin, by the door's clock; half a minute of it is over afterwards."""
    now_us = door.clock.now_us()
    door.clock.advance(60 - now_us % 60_000_000 / 1e6 + 30)
    return time_of(door.clock.now_us() // 60_000_000 * 60_000_000)


def minutes(first: datetime, count: int) -> list[datetime]:
    return [first + timedelta(minutes=at) for at in range(1, count + 1)]


def slots(door: Door) -> list[datetime]:
    """Take all that is visible; return its slots, in order."""
    found = []
    while messages := door.queue.get(1_000):
        assert all(
            datetime.fromisoformat(one.headers["cassieq-due"]) <= time_of(door.clock.now_us())
            for one in messages
        )
        found += [datetime.fromisoformat(one.headers["cassieq-slot"]) for one in messages]
        door.queue.ack(messages)
    return sorted(found)


def waiting(door: Door) -> int:
    stats = door.queue.stats()
    return stats.visible + stats.delayed + stats.scheduled


def test_a_schedule_is_put_ahead_and_each_slot_comes_when_it_is_due(
    open_door: OpenDoor, name: str
) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    made = door.client.schedules.create(
        name,
        queue=door.queue.name,
        cron="* * * * *",
        body=b"report",
        tag="t",
        headers={"a": "b"},
        group="g",
    )
    assert ("active", MINUTES_AHEAD) == (made.status, made.occurrences)
    assert begin + timedelta(minutes=1) == made.next_at
    assert minutes(begin, 3) == door.client.schedules.next_times(name, 3)
    assert MINUTES_AHEAD == waiting(door)
    assert [] == slots(door)
    door.clock.advance(3 * 60)
    (one, *_) = messages = door.queue.get(10)
    assert (b"report", "t", "g") == (one.body, one.tag, one.group)
    assert {"a": "b", "cassieq-schedule": name}.items() <= one.headers.items()
    assert minutes(begin, 3) == [
        datetime.fromisoformat(one.headers["cassieq-slot"]) for one in messages
    ]
    door.queue.ack(messages)
    # Passes fill it again when less than one to two horizons are left.
    assert 0 == door.client.schedules.dispatch().put
    found = []
    for _ in range(40):
        door.clock.advance(600)
        assert {} == dict(door.client.schedules.dispatch().problems)
        found += slots(door)
    assert minutes(begin + timedelta(minutes=3), 400) == found


def test_to_create_it_again_changes_nothing_and_another_definition_is_refused(
    open_door: OpenDoor, name: str
) -> None:
    door, other = open_door(**QUICK), open_door("-other", **QUICK)
    schedules = door.client.schedules
    first = schedules.create(name, queue=door.queue.name, every=60)
    again = other.client.schedules.create(name, queue=door.queue.name, every=60)
    assert first.occurrences == again.occurrences == waiting(door)
    with pytest.raises(ScheduleExists, match="another definition"):
        schedules.create(name, queue=door.queue.name, every=61)
    with pytest.raises(ScheduleExists, match="another queue"):
        schedules.create(name, queue=other.queue.name, every=60)
    assert [name] == [one.name for one in schedules.list(door.queue.name)]
    with pytest.raises(ScheduleNotFound, match=r"no schedule 'nobody'"):
        schedules.get("nobody")
    with pytest.raises(QueueNotFound):
        schedules.create("nowhere", queue="nowhere", every=60)


def test_an_alteration_takes_back_what_was_put_ahead(open_door: OpenDoor, name: str) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    schedules = door.client.schedules
    schedules.create(name, queue=door.queue.name, cron="* * * * *", body=b"old")
    door.clock.advance(120)
    altered = schedules.alter(name, cron="*/10 * * * *", body=b"new", horizon=3 * HOUR_S)
    assert 2 + 54 == altered.occurrences == waiting(door)
    assert (b"new", timedelta(hours=3)) == (altered.body, altered.horizon)
    assert minutes(begin, 2) == slots(door)  # they were due, and stay
    door.clock.advance(HOUR_S)
    assert {b"new"} == {one.body for one in door.queue.get(10)}
    seen = dict(door.session.counts)
    same = schedules.alter(name, body=b"new")
    assert altered.occurrences + 6 == same.occurrences  # it is filled, and not taken back
    assert seen["define_timetable"] == door.session.counts["define_timetable"]


def test_a_pause_leaves_out_what_comes_until_it_ends(open_door: OpenDoor, name: str) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    schedules = door.client.schedules
    schedules.create(name, queue=door.queue.name, cron="* * * * *", misfire="all")
    door.clock.advance(60)
    paused = schedules.pause(name)
    assert ("paused", None, 1) == (paused.status, paused.next_at, waiting(door))
    door.clock.advance(5 * HOUR_S)
    schedules.dispatch()
    assert minutes(begin, 1) == slots(door)
    resumed = schedules.resume(name)
    later = begin + timedelta(hours=5, minutes=1)
    assert later + timedelta(minutes=1) == resumed.next_at
    door.clock.advance(120)
    assert minutes(later, 2) == slots(door)


def test_a_schedule_that_is_deleted_takes_all_back_and_its_name_is_free(
    open_door: OpenDoor, name: str
) -> None:
    door = open_door(**QUICK)
    schedules = door.client.schedules
    schedules.create(name, queue=door.queue.name, every=60)
    schedules.delete(name)
    assert (0, []) == (waiting(door), schedules.list(door.queue.name))
    with pytest.raises(ScheduleNotFound):
        schedules.delete(name)
    assert MINUTES_AHEAD == schedules.create(name, queue=door.queue.name, every=120).occurrences * 2
    door.client.delete_queue(door.queue.name, force=True)
    assert {} == dict(schedules.dispatch().problems)  # it is not its time
    door.clock.advance(2 * HOUR_S)
    assert "there is no queue" in schedules.dispatch().problems[name]
    schedules.delete(name)
    assert [] == schedules.list(door.queue.name)


def test_a_queue_that_is_created_again_gets_what_was_put_ahead(
    open_door: OpenDoor, name: str
) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    door.client.schedules.create(name, queue=door.queue.name, cron="* * * * *")
    door.clock.advance(120)
    assert minutes(begin, 2) == slots(door)
    door.client.delete_queue(door.queue.name, force=True)
    door.queue = door.client.create_queue(door.queue.name, **QUICK)
    assert MINUTES_AHEAD == door.client.schedules.dispatch().put
    door.clock.advance(120)
    assert minutes(begin + timedelta(minutes=2), 2) == slots(door)


@pytest.mark.parametrize(
    ("misfire", "wanted"), [("latest", [600]), ("all", [599, 600]), ("skip", [600])]
)
def test_what_was_missed_comes_as_the_schedule_says(
    open_door: OpenDoor, name: str, misfire: str, wanted: list[int]
) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    door.client.schedules.create(
        name, queue=door.queue.name, cron="* * * * *", misfire=misfire, catch_up=2
    )
    door.clock.advance(600 * 60)  # nobody dispatches
    assert minutes(begin, MINUTES_AHEAD) == slots(door)
    door.client.schedules.dispatch()
    assert [begin + timedelta(minutes=at) for at in wanted] == slots(door)
    if misfire == "skip":
        door.clock.advance(5 * HOUR_S + 60)  # the last one is more than a minute old
        slots(door)
        door.clock.advance(90)
        before = time_of(door.clock.now_us())
        door.client.schedules.dispatch()
        assert all(one > before - timedelta(minutes=1) for one in slots(door))


def test_count_end_and_jitter_are_kept(open_door: OpenDoor, name: str) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    schedules = door.client.schedules
    end = begin + timedelta(minutes=4, seconds=59)
    made = schedules.create(
        name, queue=door.queue.name, cron="* * * * *", start=begin + timedelta(minutes=2), end=end
    )
    assert 3 == made.occurrences
    other = f"{name}-jitter"
    schedules.create(other, queue=door.queue.name, cron="* * * * *", count=5, jitter=50)
    assert 8 == waiting(door)
    due = []
    for _ in range(60):
        door.clock.advance(10)
        messages = door.queue.get(100)
        due += [
            datetime.fromisoformat(one.headers["cassieq-due"])
            - datetime.fromisoformat(one.headers["cassieq-slot"])
            for one in messages
            if one.headers["cassieq-schedule"] == other
        ]
        door.queue.ack(messages)
    assert 5 == len(due)
    assert timedelta() <= min(due) < max(due) <= timedelta(seconds=50)
    assert [None, None] == [schedules.get(one).next_at for one in (name, other)]
    assert (0, 0) == (schedules.dispatch().put, waiting(door))


def test_past_times_are_put_once_more(open_door: OpenDoor, name: str) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    schedules = door.client.schedules
    before = schedules.create(name, queue=door.queue.name, cron="* * * * *").occurrences
    hour = timedelta(hours=1)
    assert 61 == schedules.backfill(name, begin - hour, begin)
    assert minutes(begin - hour - timedelta(minutes=1), 61) == slots(door)
    assert before == schedules.get(name).occurrences
    assert 0 == schedules.backfill(name, begin + hour, begin + 2 * hour)  # they are to come


STEPS = [
    "glance_timetable",
    "read_timetable",
    "read_monoton",
    "reserve",
    "insert_monoton",
    "add_to_schedule",
    "touch_timetable",
    "write_message",
    "read_bucket",
    "read_pointers",
]


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["killed", "not sent", "not answered"])
def test_a_dispatcher_that_dies_anywhere_loses_and_doubles_nothing(
    open_door: OpenDoor, name: str, step: str, after: int, how: str
) -> None:
    """Whoever comes next carries it on."""
    door, other = open_door(**QUICK), open_door(**QUICK)
    begin = whole_minute(door)
    other.clock.advance((door.clock.now_us() - other.clock.now_us()) / 1e6)
    door.client.schedules.create(
        name, queue=door.queue.name, cron="* * * * *", misfire="all", catch_up=500
    )
    for one in (door, other):
        one.clock.advance(3 * HOUR_S)
    if how == "killed":
        door.faults.before(step, crash, after=after)
    else:
        fault = Fault.TIMEOUT_BEFORE if how == "not sent" else Fault.TIMEOUT_AFTER
        door.faults.plan(step, fault, after=after, times=1)
    with suppress(Crash, StoreError):
        portal.run(dispatch(door.store))
    found = slots(other)
    for _ in range(3):
        other.client.schedules.dispatch()
        found += slots(other)
    other.clock.advance(2 * HOUR_S)
    found += slots(other)
    assert minutes(begin, len(found)) == sorted(found)
    assert len(found) >= 300


def test_two_dispatchers_at_once_put_each_slot_once(open_door: OpenDoor, name: str) -> None:
    door, other = open_door(**QUICK), open_door(**QUICK)
    begin = whole_minute(door)
    other.clock.advance((door.clock.now_us() - other.clock.now_us()) / 1e6)
    door.client.schedules.create(name, queue=door.queue.name, cron="* * * * *", misfire="all")
    for one in (door, other):
        one.clock.advance(2 * HOUR_S)
    found = slots(door)
    door.faults.before("write_message", other.client.schedules.dispatch)
    door.client.schedules.dispatch()
    door.client.schedules.dispatch()
    door.clock.advance(2 * HOUR_S)
    found += slots(door)
    assert minutes(begin, 240) == sorted(found)[:240]
    assert len(set(found)) == len(found)


def test_who_does_not_lead_only_reads(open_door: OpenDoor) -> None:
    door, other = open_door(**QUICK), open_door(**QUICK)
    assert door.client.schedules.dispatch_as_leader() is not None
    before = dict(other.session.counts)
    assert other.client.schedules.dispatch_as_leader() is None
    after = dict(other.session.counts)
    assert after.get("take_lead", 0) == before.get("take_lead", 0)
    assert after.get("keep_lead", 0) == before.get("keep_lead", 0)
    portal.run(door.client.schedules._lead.give_up())
    assert other.client.schedules.dispatch_as_leader() is not None


def test_slots_of_a_summer_morning_come_by_the_local_clock(open_door: OpenDoor, name: str) -> None:
    door = open_door(**QUICK)
    made = door.client.schedules.create(
        name, queue=door.queue.name, cron="30 9 1 1,7 *", timezone="Europe/Berlin"
    )
    assert made.next_at is not None
    for one in door.client.schedules.next_times(name, 4):
        assert (9, 30) == (one.hour, one.minute)
        assert {1: 8, 7: 7}[one.month] == one.astimezone(UTC).hour
    assert us_of(made.next_at) > door.clock.now_us()


# --- found by a reader with fresh eyes ------------------------------------------------------------


def test_a_dispatcher_that_held_a_queue_that_is_gone_moves_nothing_back(
    open_door: OpenDoor, name: str
) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    door.client.schedules.create(name, queue=door.queue.name, cron="* * * * *", misfire="all")
    stale = Toucher(door.lane)
    door.clock.advance(120)
    found = slots(door)
    door.client.delete_queue(door.queue.name, force=True)
    door.queue = door.client.create_queue(door.queue.name, **QUICK)
    assert MINUTES_AHEAD == door.client.schedules.dispatch().put
    (touched,) = portal.run(stale.touch([name]))
    assert isinstance(touched.problem, QueueDeleted)
    door.client.schedules.dispatch()
    door.clock.advance(600)
    assert minutes(begin, 12) == found + slots(door)


def test_a_dispatcher_of_another_queue_leaves_a_schedule_of_that_name_alone(
    open_door: OpenDoor, name: str
) -> None:
    door, other = open_door(**QUICK), open_door("-other", **QUICK)
    held = Toucher(door.lane)
    door.client.schedules.create(name, queue=door.queue.name, cron="* * * * *")
    door.client.schedules.delete(name)
    other.client.schedules.create(name, queue=other.queue.name, cron="* * * * *")
    assert [0, 0] == [one.put for one in portal.run(held.touch([name, "nobody"]))]
    assert (0, MINUTES_AHEAD) == (waiting(door), waiting(other))


def test_a_schedule_that_cannot_be_computed_stops_no_other_and_can_be_deleted(
    open_door: OpenDoor, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another host has newer time zone data."""
    door = open_door(**QUICK)
    schedules, broken = door.client.schedules, f"{name}-broken"
    for one in (name, broken):
        schedules.create(one, queue=door.queue.name, cron="* * * * *")
    row = portal.run(door.store.timetable.find(broken))
    assert row is not None
    there = replace(row.value.its, timezone="Mars/Base")
    portal.run(door.store.timetable.define(row, replace(row.value, definition=there, touch_us=0)))
    door.clock.advance(2 * HOUR_S)
    done = schedules.dispatch()
    assert (2, 120) == (done.looked_at, done.put)
    assert [broken] == list(done.problems)
    assert "Mars/Base" in done.problems[broken]
    assert "schedule_failed" in caplog.text
    assert {name, broken} == {one.name for one in schedules.list(door.queue.name)}
    with pytest.raises(OptionInvalid, match="time zone data"):
        schedules.next_times(broken)
    schedules.delete(broken)
    assert [name] == [one.name for one in schedules.list(door.queue.name)]


@pytest.mark.parametrize("what", ["status", "definition", "runs"])
def test_what_a_later_release_has_written_is_left_alone(
    open_door: OpenDoor, name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = open_door(**QUICK)
    schedules = door.client.schedules
    schedules.create(name, queue=door.queue.name, every=60)
    row = portal.run(door.store.timetable.find(name))
    assert row is not None
    later = timetable._defined(row.value)
    queue, lane, status, definition, state, _ = later
    if what == "status":
        status = "asleep"
    elif what == "definition":
        definition = msgpack.packb({**msgpack.unpackb(definition), "lunar": True})
    else:
        found = msgpack.unpackb(state)
        state = msgpack.packb({**found, "runs": [[*run, "later"] for run in found["runs"]]})
    columns = (queue, lane, status, definition, state, 0)
    monkeypatch.setattr(timetable, "_defined", lambda _: columns)
    portal.run(door.store.timetable.define(row, row.value))
    monkeypatch.undo()
    before = door.session.counts["touch_timetable"], door.session.counts["define_timetable"]
    door.clock.advance(5 * HOUR_S)
    assert (0, {}) == (schedules.dispatch().put, dict(schedules.dispatch().problems))
    with pytest.raises(ScheduleNotFound):
        schedules.alter(name, every=90)
    after = door.session.counts["touch_timetable"], door.session.counts["define_timetable"]
    assert before == after


def test_an_alteration_counts_from_now_on_in_another_zone_too(
    open_door: OpenDoor, name: str
) -> None:
    door = open_door(**QUICK)
    whole_minute(door)
    schedules = door.client.schedules
    schedules.create(
        name, queue=door.queue.name, cron="0 9 * * *", timezone="Asia/Tokyo", misfire="all"
    )
    door.clock.advance(26 * HOUR_S)
    now = time_of(door.clock.now_us())
    west = now.astimezone(ZoneInfo("America/New_York")) + timedelta(minutes=90)
    altered = schedules.alter(
        name, cron=f"{west.minute} {west.hour} * * *", timezone="America/New_York"
    )
    assert altered.next_at == west.replace(second=0, microsecond=0)
    before = slots(door)
    assert all(one.astimezone(ZoneInfo("Asia/Tokyo")).hour == 9 for one in before)
    door.clock.advance(2 * HOUR_S)
    assert [west.replace(second=0, microsecond=0)] == slots(door)


def test_neither_a_pause_nor_a_deletion_puts_what_was_missed(
    open_door: OpenDoor, name: str
) -> None:
    door = open_door(**QUICK)
    whole_minute(door)
    schedules = door.client.schedules
    for one in (name, f"{name}-2"):
        schedules.create(one, queue=door.queue.name, cron="* * * * *", misfire="all")
    door.clock.advance(24 * HOUR_S)
    assert 2 * MINUTES_AHEAD == len(slots(door))
    schedules.pause(name)
    schedules.delete(f"{name}-2")
    assert [] == slots(door)
    later = whole_minute(door)
    schedules.resume(name)
    door.clock.advance(60)
    assert minutes(later, 1) == slots(door)


def test_after_a_purge_an_alteration_puts_all_that_comes(open_door: OpenDoor, name: str) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    schedules = door.client.schedules
    schedules.create(name, queue=door.queue.name, cron="* * * * *")
    door.queue.purge()
    assert 0 == waiting(door)
    schedules.alter(name, body=b"again")
    door.clock.advance(600)
    assert minutes(begin, 10) == slots(door)


def test_a_quick_schedule_never_runs_dry(open_door: OpenDoor, name: str) -> None:
    door = open_door(**QUICK)
    schedules = door.client.schedules
    schedules.create(name, queue=door.queue.name, every=1, horizon=150)
    found = slots(door)
    for _ in range(30):
        door.clock.advance(30)
        schedules.dispatch()
        found += slots(door)
    assert len(found) >= 899
    assert {timedelta(seconds=1)} == {b - a for a, b in pairwise(sorted(found))}


def test_a_backfill_whose_answer_is_lost_puts_once(open_door: OpenDoor, name: str) -> None:
    door, other = open_door(**QUICK), open_door(**QUICK)
    begin = whole_minute(door)
    other.clock.advance((door.clock.now_us() - other.clock.now_us()) / 1e6)
    door.client.schedules.create(name, queue=door.queue.name, cron="* * * * *")
    door.faults.plan("touch_timetable", Fault.TIMEOUT_AFTER)
    # Before it is sent again, somebody else settles what it has named.
    door.faults.before(
        "touch_timetable", lambda: other.client.schedules.alter(name, body=b"x"), after=1
    )
    assert 6 == door.client.schedules.backfill(name, begin - timedelta(minutes=5), begin)
    assert minutes(begin - timedelta(minutes=6), 6) == slots(other)


def test_a_schedule_on_a_recreated_queue_puts_again_what_jitter_had_kept_back(
    open_door: OpenDoor, name: str
) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    door.client.schedules.create(
        name, queue=door.queue.name, cron="* * * * *", jitter=1200, misfire="all"
    )
    door.clock.advance(1200)
    found = slots(door)
    door.client.delete_queue(door.queue.name, force=True)
    door.queue = door.client.create_queue(door.queue.name, **QUICK)
    door.client.schedules.dispatch()
    door.clock.advance(2400)
    found += slots(door)
    assert minutes(begin, 40) == sorted(found)[:40]
    assert len(set(found)) == len(found)


# --- at once --------------------------------------------------------------------------------------


def test_a_schedule_runs_at_once_beside_its_times(open_door: OpenDoor, name: str) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    schedules = door.client.schedules
    before = schedules.create(name, queue=door.queue.name, cron="* * * * *", count=500, body=b"b")
    first, second = schedules.run_now(name), schedules.run_now(name)
    assert begin < first <= second <= time_of(door.clock.now_us())
    messages = door.queue.get(10)
    assert [b"b", b"b"] == [one.body for one in messages]
    assert [first, second] == sorted(
        datetime.fromisoformat(one.headers["cassieq-slot"]) for one in messages
    )
    assert {name} == {one.headers["cassieq-schedule"] for one in messages}
    assert all(one.headers["cassieq-due"] == one.headers["cassieq-slot"] for one in messages)
    door.queue.ack(messages)
    assert replace(before, last_at=second) == schedules.get(name)
    schedules.pause(name)
    paused = schedules.run_now(name)
    assert [paused] == slots(door)
    assert (before.occurrences - MINUTES_AHEAD, "paused") == (
        schedules.get(name).occurrences,
        schedules.get(name).status,
    )
    with pytest.raises(ScheduleNotFound):
        schedules.run_now("nobody")


def test_a_run_at_the_moment_of_a_slot_has_a_slot_of_its_own(
    open_door: OpenDoor, name: str
) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    door.client.schedules.create(name, queue=door.queue.name, cron="* * * * *", misfire="all")
    minute = begin + timedelta(minutes=1)
    door.clock.advance((us_of(minute) - door.clock.now_us()) / 1e6)
    ran = door.client.schedules.run_now(name)
    assert minute != ran
    assert sorted([ran, minute]) == slots(door)


@pytest.mark.parametrize("step", STEPS[1:])
@pytest.mark.parametrize("how", ["killed", "not sent", "not answered"])
def test_a_run_that_dies_anywhere_is_put_once_or_never(
    open_door: OpenDoor, name: str, step: str, how: str
) -> None:
    """And once if the call has returned; whoever comes next carries it on."""
    door, other = open_door(**QUICK), open_door(**QUICK)
    begin = whole_minute(door)
    other.clock.advance((door.clock.now_us() - other.clock.now_us()) / 1e6)
    door.client.schedules.create(
        name, queue=door.queue.name, cron="* * * * *", misfire="all", catch_up=500
    )
    if how == "killed":
        door.faults.before(step, crash)
    else:
        fault = Fault.TIMEOUT_BEFORE if how == "not sent" else Fault.TIMEOUT_AFTER
        door.faults.plan(step, fault)
    ran = None
    with suppress(Crash, StoreError):
        ran = door.client.schedules.run_now(name)
    for _ in range(2):
        other.client.schedules.dispatch()
    other.client.schedules.alter(name, body=b"other")
    other.clock.advance(60)
    found = slots(other)
    at_once = [one for one in found if one not in minutes(begin, 2)]
    assert at_once == [ran] if ran else len(at_once) <= 1
    assert minutes(begin, len(found) - len(at_once)) == [one for one in found if one not in at_once]
    assert MINUTES_AHEAD == other.client.schedules.get(name).occurrences


def test_an_alteration_by_a_clock_that_is_behind_takes_no_run_back(
    open_door: OpenDoor, name: str
) -> None:
    """Its clock says that the run is still to come."""
    door, other = open_door(**QUICK), open_door(**QUICK)
    whole_minute(door)
    other.clock.advance((door.clock.now_us() - other.clock.now_us()) / 1e6 - 30)
    schedules = door.client.schedules
    schedules.create(name, queue=door.queue.name, cron="0 0 1 1 *")
    door.faults.before("touch_timetable", crash, after=1)  # it is not noted as proven
    with suppress(Crash):
        schedules.run_now(name)
    other.client.schedules.alter(name, cron="0 0 2 1 *")
    assert 1 == len(slots(door))
    assert 0 == schedules.get(name).occurrences


@pytest.mark.parametrize("others", [7, 8])
def test_a_run_whose_answer_is_lost_among_many_others_is_never_put_twice(
    open_door: OpenDoor, name: str, others: int
) -> None:
    """The row remembers eight calls: with more in between, it is unknown whether it was put."""
    door, other = open_door(**QUICK), open_door(**QUICK)
    whole_minute(door)
    door.client.schedules.create(name, queue=door.queue.name, cron="0 0 1 1 *")
    door.faults.plan("touch_timetable", Fault.TIMEOUT_AFTER)

    def run() -> None:
        for _ in range(others):
            other.client.schedules.run_now(name)

    door.faults.before("touch_timetable", run, after=1)
    if others == 7:
        door.client.schedules.run_now(name)
    else:
        with pytest.raises(CasAmbiguous, match="too many other calls"):
            door.client.schedules.run_now(name)
    assert others + 1 == len(slots(door))


# --- what nothing is kept of ----------------------------------------------------------------------


@pytest.mark.parametrize(("days", "is_sure"), [(29, True), (31, False)])
def test_what_was_named_and_nothing_is_kept_of_counts_as_put_and_is_told(
    open_door: OpenDoor, name: str, days: int, is_sure: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its dispatcher died before it wrote; its buckets were dropped, and nobody came for a month.

    For so long an absent manifest proves that nothing was put. After that it proves nothing.
    """
    door = open_door(**QUICK)
    begin = whole_minute(door)
    for after in range(3):
        door.faults.before("write_message", crash, after=after)
    with suppress(Crash):
        door.client.schedules.create(
            name, queue=door.queue.name, cron="* * * * *", count=3, misfire="all"
        )
    row = portal.run(door.store.timetable.find(name))
    assert row is not None
    (run,) = row.value.state.unproven
    for _ in range(3):
        door.clock.advance(HOUR_S)
        door.client.repair(full=True)
    assert 3 == len(run.slots)
    assert portal.run(door.lane.is_dropped(run.place.bucket))
    door.clock.advance(days * 24 * HOUR_S)
    assert (3 if is_sure else 0) == door.client.schedules.dispatch().put
    assert (minutes(begin, 3) if is_sure else []) == slots(door)
    assert 3 == door.client.schedules.get(name).occurrences
    events = [
        one.fields for one in caplog.records if getattr(one, "event", "") == "schedule_unsure"
    ]
    assert ([] if is_sure else [{"schedule": name, "messages": 3}]) == events


# --- what the doors say ---------------------------------------------------------------------------


def test_a_bad_schedule_name_is_named_as_one(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    for bad in ("a b", "", "x" * 201, "a/b/c", None):
        with pytest.raises(OptionInvalid, match="is not a schedule name"):
            door.client.schedules.create(bad, queue=door.queue.name, every=60)  # type: ignore[arg-type]  # as a program may
        with pytest.raises(OptionInvalid, match="is not a schedule name"):
            door.client.schedules.get(bad)  # type: ignore[arg-type]  # as above
    with pytest.raises(OptionInvalid, match="is not a queue name"):
        door.client.schedules.create("good", queue="a b", every=60)


def test_a_schedule_is_read_once_before_it_is_created(open_door: OpenDoor, name: str) -> None:
    """And once more by the touch that puts its first messages."""
    door = open_door(**QUICK)
    for _ in range(2):
        before = door.session.counts["read_timetable"]
        door.client.schedules.create(name, queue=door.queue.name, every=60)
        assert 2 == door.session.counts["read_timetable"] - before


# --- what an owner declares -----------------------------------------------------------------------


def acts(changes: Any) -> dict[str, str]:
    return {one.name: one.action for one in changes}


def test_what_is_declared_is_made_once_and_pruned_by_its_owner_only(
    open_door: OpenDoor,
) -> None:
    door = open_door(**QUICK)
    schedules, queue = door.client.schedules, door.queue.name
    schedules.create("hand", queue=queue, every=60)
    schedules.apply("others", {"theirs": {"queue": queue, "cron": "0 1 * * *"}})
    declared: dict[str, Any] = {
        "a": {"queue": queue, "cron": "* * * * *", "body": b"x", "tag": "t"},
        "b": {"queue": queue, "every": 60},
    }
    planned = schedules.apply("mine", declared, dry_run=True)
    assert {"a": "create", "b": "create"} == acts(planned)
    assert ["hand", "theirs"] == [one.name for one in schedules.list()]
    assert planned == schedules.apply("mine", declared)
    assert ["mine", "mine", None, "others"] == [one.owner for one in schedules.list()]

    door.clock.advance(600)
    schedules.pause("b")
    before, counts = schedules.list(), dict(door.session.counts)
    for dry_run in (True, False):
        again = schedules.apply("mine", declared, prune=True, dry_run=dry_run)
        assert {"a": "keep", "b": "keep"} == acts(again)
        assert all(not one.before and not one.after for one in again)
    assert before == schedules.list()
    for write in ("define_timetable", "touch_timetable", "insert_timetable", "delete_timetable"):
        assert counts.get(write, 0) == door.session.counts[write]

    del declared["a"]["tag"]
    declared = {"a": {**declared["a"], "cron": "*/2 * * * *"}, "c": {"queue": queue, "every": 60}}
    (a, c) = schedules.apply("mine", declared)
    assert ("alter", "create") == (a.action, c.action)
    assert ({"cron": "* * * * *", "tag": "t"}, {"cron": "*/2 * * * *", "tag": None}) == (
        dict(a.before),
        dict(a.after),
    )
    assert {"a": "keep", "b": "delete", "c": "keep"} == acts(
        schedules.apply("mine", declared, prune=True)
    )
    assert ["a", "c", "hand", "theirs"] == [one.name for one in schedules.list()]
    assert {"a": "delete", "c": "delete"} == acts(schedules.apply("mine", {}, prune=True))
    assert ["hand", "theirs"] == [one.name for one in schedules.list()]


def test_what_is_not_the_owners_is_refused_before_anything_is_written(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(**QUICK), open_door("-other", **QUICK)
    schedules, queue = door.client.schedules, door.queue.name
    schedules.create("hand", queue=queue, every=60)
    schedules.create("theirs", queue=queue, every=60, owner="others")
    good = {"queue": queue, "every": 60}
    for bad, error, says in [
        ({"hand": good}, ScheduleExists, "belongs to no owner"),
        ({"theirs": good}, ScheduleExists, "belongs to 'others'"),
        ({"z": {"every": 60}}, OptionInvalid, "is not a queue name"),
        ({"z": {"queue": "nowhere", "every": 60}}, QueueNotFound, "nowhere"),
        ({"z": {"queue": queue}}, OptionInvalid, "schedule 'z': a schedule needs one of"),
        ({"z": {**good, "evry": 1}}, OptionUnknown, "schedule 'z'.*'evry'"),
        ({"z z": good}, OptionInvalid, "is not a schedule name"),
    ]:
        with pytest.raises(error, match=says):
            schedules.apply("mine", {"a": good, **bad}, prune=True)
    for bad_owner in ("", " x", "x" * 201, None):
        with pytest.raises(OptionInvalid, match="owner"):
            schedules.apply(bad_owner, {"a": good})  # type: ignore[arg-type]  # as a program may
    assert ["hand", "theirs"] == [one.name for one in schedules.list()]

    schedules.alter("hand", owner="mine")
    assert {"hand": "keep"} == acts(schedules.apply("mine", {"hand": good}))
    with pytest.raises(ScheduleExists, match="into another queue"):
        schedules.apply("mine", {"hand": {**good, "queue": other.queue.name}})


def test_a_schedule_that_got_another_owner_meanwhile_is_neither_altered_nor_pruned(
    open_door: OpenDoor, name: str
) -> None:
    door, other = open_door(**QUICK), open_door(**QUICK)
    schedules, good = door.client.schedules, {"queue": door.queue.name, "every": 60}
    for left in ({name: {**good, "every": 90}}, {}):
        schedules.apply("mine", {name: good})
        door.faults.before(
            "read_timetable",
            lambda: other.client.schedules.alter(name, owner="others"),
            after=1 if left else 0,
        )
        with pytest.raises(ScheduleExists, match="belongs to 'others'"):
            schedules.apply("mine", left, prune=True)
        assert ("others", timedelta(minutes=1)) == (
            schedules.get(name).owner,
            schedules.get(name).every,
        )
        schedules.alter(name, owner="mine")


def test_a_declaration_that_was_cut_off_is_carried_on_by_the_next_call(
    open_door: OpenDoor, name: str
) -> None:
    door, other = open_door(**QUICK), open_door(**QUICK)
    good = {"queue": door.queue.name, "every": 60}
    declared = {f"{name}-{one}": good for one in "abc"}
    for step in ("insert_timetable", "define_timetable", "write_message"):
        door.faults.before(step, crash, after=1)
        with suppress(Crash):
            door.client.schedules.apply("mine", declared)
        other.client.schedules.apply("mine", declared)
        assert dict.fromkeys(declared, "keep") == acts(
            other.client.schedules.apply("mine", declared, prune=True)
        )
        other.client.schedules.dispatch()
        assert 3 * MINUTES_AHEAD == waiting(other)
        other.client.schedules.apply("mine", {}, prune=True)
        assert 0 == waiting(other)


def test_a_declared_time_that_is_over_stays_as_it_is(open_door: OpenDoor, name: str) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    declared = {name: {"queue": door.queue.name, "at": begin + timedelta(minutes=2)}}
    door.client.schedules.apply("mine", declared)
    door.clock.advance(600)
    assert {name: "keep"} == acts(door.client.schedules.apply("mine", declared))
    assert [begin + timedelta(minutes=2)] == slots(door)


# --- what is seen of them -------------------------------------------------------------------------


def test_a_schedule_says_when_it_was_last_due_and_since_when_it_is_late(
    open_door: OpenDoor, name: str
) -> None:
    door = open_door(**QUICK)
    begin = whole_minute(door)
    schedules = door.client.schedules
    made = schedules.create(name, queue=door.queue.name, cron="* * * * *", jitter=5)
    assert (None, None) == (made.last_at, made.missed_at)
    door.clock.advance(120)
    assert (begin + timedelta(minutes=2), None) == (
        schedules.get(name).last_at,
        schedules.get(name).missed_at,
    )
    assert (1, 0.0) == portal.run(lateness(door.store))

    before = metrics.SCHEDULE_MISFIRES.value
    door.clock.advance(4 * HOUR_S)  # nobody dispatches
    late = schedules.get(name)
    assert (begin + timedelta(minutes=MINUTES_AHEAD), begin + timedelta(minutes=181)) == (
        late.last_at,
        late.missed_at,
    )
    assert late.missed_at is not None
    count, late_s = portal.run(lateness(door.store))
    expected_s = (door.clock.now_us() - us_of(late.missed_at)) / 1e6
    assert (1, True) == (count, expected_s - 1 < late_s <= expected_s)
    assert before == metrics.SCHEDULE_MISFIRES.value

    passes = metrics.SCHEDULE_PASSES.value
    schedules.dispatch()
    assert (passes + 1, before + 1) == (
        metrics.SCHEDULE_PASSES.value,
        metrics.SCHEDULE_MISFIRES.value,
    )
    again = schedules.get(name)
    assert (None, begin + timedelta(minutes=242)) == (again.missed_at, again.last_at)
    assert (1, 0.0) == portal.run(lateness(door.store))
    schedules.dispatch()
    assert before + 1 == metrics.SCHEDULE_MISFIRES.value

    door.clock.advance(5 * HOUR_S)
    schedules.pause(name)
    assert (None, (1, 0.0)) == (schedules.get(name).missed_at, portal.run(lateness(door.store)))


def test_what_cannot_be_filled_is_counted_and_late(open_door: OpenDoor, name: str) -> None:
    door = open_door(**QUICK)
    whole_minute(door)
    door.client.schedules.create(name, queue=door.queue.name, cron="* * * * *")
    door.client.delete_queue(door.queue.name, force=True)
    door.clock.advance(5 * HOUR_S)
    before = metrics.SCHEDULE_FAILURES.value
    door.client.schedules.dispatch()
    assert before + 1 == metrics.SCHEDULE_FAILURES.value
    assert portal.run(lateness(door.store))[1] > HOUR_S


def test_a_row_that_does_not_say_when_it_was_last_due_is_read(
    open_door: OpenDoor, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a former release has written it."""
    door = open_door(**QUICK)
    schedules = door.client.schedules
    schedules.create(name, queue=door.queue.name, every=60)
    row = portal.run(door.store.timetable.find(name))
    assert row is not None
    *defined, state, touch_us = timetable._defined(row.value)
    former = {key: one for key, one in msgpack.unpackb(state).items() if key != "last"}
    columns = (*defined, msgpack.packb(former), touch_us)
    monkeypatch.setattr(timetable, "_defined", lambda _: columns)
    portal.run(door.store.timetable.define(row, row.value))
    monkeypatch.undo()
    assert (None, None) == (schedules.get(name).last_at, schedules.get(name).owner)
    door.clock.advance(60)
    assert schedules.get(name).last_at is not None
    assert schedules.alter(name, body=b"y").last_at == schedules.get(name).last_at
