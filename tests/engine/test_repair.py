"""A repair pass: the dead move once, what is done goes, what is half-way is finished.

See docs/design/repair.md.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

import cassieq_spark as cassieq
from cassieq_spark.model import dead_letter
from cassieq_spark.model.bucket import Status
from cassieq_spark.model.dead_letter import headers_of
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.moments import time_of, us_of
from cassieq_spark.queue.inspect.letters import conditions
from cassieq_spark.store import portal
from cassieq_spark.store.tables import claims
from tests.fixtures.faults import Fault
from tests.fixtures.transports import run_cql

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor

FIRST = BucketNo(0)


@pytest.fixture(scope="module")
def keyspace() -> str:
    """Passes over all queues: not over those of all other tests."""
    return "cassieq_repair"


class Crash(Exception):
    """Ends a call as a killed process would."""


def crash() -> None:
    raise Crash


def dead_letters(open_door: OpenDoor, *, max_deliveries: int = 2) -> tuple[Door, cassieq.Queue]:
    """A queue with a dead-letter queue of its own."""
    target = open_door(".dead").queue
    return open_door(max_deliveries=max_deliveries, dead_letter_queue=target.name), target


def deliver(door: Door, times: int) -> list[cassieq.Delivery]:
    messages: list[cassieq.Delivery] = []
    for _ in range(times):
        messages = door.queue.get(100, visibility_timeout=5)
        door.clock.advance(6)
    return messages


def test_a_message_out_of_deliveries_moves_with_its_history(open_door: OpenDoor) -> None:
    door, target = dead_letters(open_door)
    message_id = door.queue.put(b"poison", tag="t", headers={"k": "v"}, message_id=UUID(int=3))
    (last,) = deliver(door, 2)
    assert [] == door.queue.get()
    assert 1 == door.queue.stats().dead
    report = door.client.repair(door.queue.name)
    assert (1, []) == (report.queues[0].moved_dead, report.problems)
    assert (0, {"drained": 1}) == (door.queue.stats().dead, door.queue.stats().buckets)
    (moved,) = target.get()
    assert (message_id, b"poison", "t", "v") == (
        moved.message_id,
        moved.body,
        moved.tag,
        moved.headers["k"],
    )
    (hop,) = json.loads(moved.headers[dead_letter.HISTORY])
    assert {
        "source-queue": door.queue.name,
        "source-id": str(last.id),
        "deliveries": "2",
        "first-time": last.enqueued_at.isoformat(),
        "reason": "max_deliveries",
    }.items() <= hop.items()
    assert hop["last-time"] > hop["first-time"]
    assert door.queue.name == moved.headers["cassieq-source-queue"]


@pytest.mark.parametrize("older", [False, True])
def test_each_dead_letter_says_when_it_died_itself(
    open_door: OpenDoor, older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are one set, and move together; a client of an older release may have a hand in it."""
    door, target = dead_letters(open_door, max_deliveries=5)
    other = open_door(max_deliveries=5, dead_letter_queue=target.name)
    door.queue.put_many([b"%d" % number for number in range(4)])
    died_us = []
    for one in sorted(door.queue.get(4, visibility_timeout=600), key=lambda one: one.body):
        by = other if older and one.body == b"2" else door
        if by is other:
            monkeypatch.setattr(claims, "_encode_deaths", lambda _: [])
        for its_clock in (door.clock, other.clock):
            its_clock.advance(50)
        died_us.append(by.clock.now_us())
        by.queue.reject(one, reason="timeout")
        monkeypatch.undo()
    door.clock.advance(50)
    (dead_set,) = door.value(0).dead
    assert Runs.span(0, 3) == dead_set.runs

    door.client.repair(door.queue.name)

    letters = sorted(target.peek(), key=lambda one: one.body)
    found = [us_of(died) for one in letters if (died := headers_of(one.headers).last_time)]
    expected = [died_us[2]] * 3 + died_us[3:] if older else died_us
    assert all(0 <= us - at < 10_000_000 for us, at in zip(found, expected, strict=True))
    if not older:
        before = time_of(died_us[2] - 10_000_000).isoformat()
        after = time_of(died_us[1] - 10_000_000).isoformat()
        is_between = conditions(None, before, after)
        assert [b"1"] == [one.body for one in letters if is_between(one)]


def test_repair_finds_the_dead_that_nobody_asked_for_again(open_door: OpenDoor) -> None:
    door, target = dead_letters(open_door, max_deliveries=1)
    door.queue.put_many([b"%d" % number for number in range(15)])
    deliver(door, 1)
    deliver(door, 1)
    (report,) = door.client.repair(door.queue.name).queues
    assert (15, []) == (report.moved_dead, report.problems)
    assert 15 == len([*target.get(100), *target.get(100)])


def test_a_released_message_is_out_of_deliveries_too(open_door: OpenDoor) -> None:
    door, target = dead_letters(open_door, max_deliveries=1)
    door.queue.put_many([b"at once", b"later"])
    at_once, later = door.queue.get()
    door.queue.release(at_once)
    door.queue.release(later, delay=60)
    assert [] == door.queue.get()
    door.clock.advance(62)
    door.client.repair(door.queue.name)
    assert {b"at once", b"later"} == {one.body for one in target.get()}


def test_an_updated_body_is_what_moves(open_door: OpenDoor) -> None:
    door, target = dead_letters(open_door, max_deliveries=1)
    door.queue.put_many([b"old", b"other"])
    held = {one.body: one for one in door.queue.get()}
    door.queue.update(held[b"old"], body=b"new")
    door.clock.advance(60)
    door.client.repair(door.queue.name)
    assert {b"new", b"other"} == {one.body for one in target.get()}


def test_chained_dead_letter_queues_keep_the_whole_history(open_door: OpenDoor) -> None:
    last = open_door(".last").queue
    middle = open_door(".middle", max_deliveries=1, dead_letter_queue=last.name)
    first = open_door(max_deliveries=1, dead_letter_queue=middle.queue.name)
    first.queue.put(b"m")
    deliver(first, 1)
    first.client.repair(first.queue.name)
    deliver(middle, 1)
    middle.client.repair(middle.queue.name)
    (moved,) = last.get()
    assert [first.queue.name, middle.queue.name] == [
        hop["source-queue"] for hop in json.loads(moved.headers[dead_letter.HISTORY])
    ]


STEPS = (
    "insert_sink",
    "read_messages",
    "insert_bucket",
    "write_message",
    "fill_bucket",
    "update_sink",
    "delete_sink",
)


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("step", STEPS)
def test_p24_a_mover_that_dies_before_any_step_moves_each_once(
    open_door: OpenDoor, step: str
) -> None:
    door, target = dead_letters(open_door)
    other = open_door(max_deliveries=2, dead_letter_queue=target.name)
    door.queue.put_many([b"%d" % number for number in range(5)])
    deliver(door, 2)
    door.queue.get()
    door.faults.before(step, crash)
    with pytest.raises(Crash):
        door.client.repair(door.queue.name)
    other.clock.advance(60)
    other.client.repair(other.queue.name)
    assert [b"%d" % number for number in range(5)] == sorted(one.body for one in target.get(100))
    assert [] == target.get()
    assert 0 == other.queue.stats().dead


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("step", STEPS)
def test_p24_a_mover_that_sleeps_before_any_step_while_another_moves_all(
    open_door: OpenDoor, step: str
) -> None:
    door, target = dead_letters(open_door)
    other = open_door(max_deliveries=2, dead_letter_queue=target.name)
    door.queue.put_many([b"%d" % number for number in range(5)])
    deliver(door, 2)
    door.queue.get()

    def faster() -> None:
        other.clock.advance(60)
        other.client.repair(other.queue.name)

    door.faults.before(step, faster)
    report = door.client.repair(door.queue.name)
    assert [] == report.problems
    assert [b"%d" % number for number in range(5)] == sorted(one.body for one in target.get(100))
    assert [] == target.get()


def test_answers_that_are_lost_move_nothing_twice(open_door: OpenDoor) -> None:
    door, target = dead_letters(open_door)
    door.queue.put_many([b"a", b"b"])
    deliver(door, 2)
    door.queue.get()
    for step in ("insert_sink", "insert_bucket", "fill_bucket", "update_sink", "delete_sink"):
        door.faults.plan(step, Fault.TIMEOUT_AFTER)
    door.client.repair(door.queue.name)
    assert [b"a", b"b"] == sorted(one.body for one in target.get(100))
    assert 0 == door.queue.stats().dead


# --- drop -----------------------------------------------------------------------------------------


def drain(door: Door, count: int) -> None:
    door.queue.put_many([b"m"] * count)
    while messages := door.queue.get(100):
        door.queue.ack(messages)


def test_what_is_done_is_dropped_when_it_has_rested(door: Door) -> None:
    drain(door, 25)
    door.queue.put(b"left")
    assert 0 == door.client.repair(door.queue.name).queues[0].dropped
    door.clock.advance(60)
    assert 3 == door.client.repair(door.queue.name).queues[0].dropped
    assert {"open": 1} == door.queue.stats().buckets
    assert [b"left"] == [one.body for one in door.queue.get()]


@pytest.mark.invariant("I9")
def test_p14_what_lands_after_the_drop_stays_shadowed(door: Door) -> None:
    """The drop is written a day ahead: late and hinted writes lose against it [P27]."""
    drain(door, 10)
    door.clock.advance(60)
    assert 1 == door.client.repair(door.queue.name).queues[0].dropped
    door.write(FIRST, 0, b"late")
    assert [] == portal.run(door.lane.messages.scan(FIRST))


@pytest.mark.parametrize("step", ["drop_messages", "advance_pointer", "delete_bucket"])
def test_a_drop_that_dies_before_any_step_is_finished_by_the_next(
    open_door: OpenDoor, step: str
) -> None:
    door, other = open_door(), open_door()
    drain(door, 25)
    door.clock.advance(60)
    door.faults.before(step, crash)
    with pytest.raises(Crash):
        door.client.repair(door.queue.name)
    other.clock.advance(60)
    other.client.repair(other.queue.name)
    assert [] == other.queue.get()
    assert 3 == portal.run(other.lane.pointers.read()).repair
    other.queue.put(b"new")
    assert [b"new"] == [one.body for one in other.queue.get()]


def test_p14_a_bucket_above_one_that_waits_is_not_dropped_from_under_it(door: Door) -> None:
    door.queue.put(b"long")
    door.queue.get(visibility_timeout=86_400)
    drain(door, 15)
    door.clock.advance(60)
    assert 0 == door.client.repair(door.queue.name).queues[0].dropped
    assert 1 == door.queue.stats().in_flight


# --- halves ---------------------------------------------------------------------------------------


def test_a_seal_that_was_left_half_way_is_finished(door: Door) -> None:
    door.queue.put(b"m")
    door.faults.before("scan_messages", crash)
    with pytest.raises(Crash):
        door.queue.get()
    assert Status.SEALING is door.value(0).status
    assert 1 == door.client.repair(door.queue.name).queues[0].seals_finished
    assert [b"m"] == [one.body for one in door.queue.get()]


def test_a_lease_whose_hint_is_lost_comes_back(door: Door) -> None:
    door.queue.put(b"m")
    door.faults.before("write_hint", lambda: None)
    message = door.queue.get(visibility_timeout=5)
    hours = {int(one.visible_until.timestamp()) // 3_600 for one in message if one.visible_until}
    for hour in hours:
        forget = "DELETE FROM {ks}.expiry WHERE lane = ? AND hour = ?"
        run_cql(door.session, forget, door.lane.lane_id, hour)
    door.clock.advance(6)
    assert [] == door.queue.get()
    assert 1 == door.client.repair(door.queue.name).queues[0].hints_written
    assert [b"m"] == [one.body for one in door.queue.get()]


def test_one_queue_that_cannot_be_healed_stops_no_other(open_door: OpenDoor) -> None:
    door, target = dead_letters(open_door, max_deliveries=1)
    door.queue.put(b"m")
    deliver(door, 1)
    target.delete(force=True)
    report = door.client.repair()
    assert any("dead" in problem for problem in report.problems)
    assert door.queue.name in {one.queue for one in report.queues}
    assert json.dumps(report.to_dict())
    assert 1 == door.queue.stats().dead


def test_a_queue_that_is_not_there_is_named(door: Door) -> None:
    with pytest.raises(cassieq.QueueNotFound, match=r"no\.such"):
        door.client.repair("no.such")


def test_r14_the_row_of_a_move_goes_when_the_move_is_over(open_door: OpenDoor) -> None:
    door, target = dead_letters(open_door)
    door.queue.put(b"m")
    deliver(door, 2)
    door.queue.get()
    (part,) = door.value(0).dead
    door.client.repair(door.queue.name)
    assert portal.run(door.store.sinks.read(f"dead:{part.set_id}")) is None
    assert [b"m"] == [one.body for one in target.get()]


@pytest.mark.parametrize("history", ["not json", "5", "[]"])
def test_a_header_of_the_producers_that_is_called_history_stops_no_repair(
    open_door: OpenDoor, history: str
) -> None:
    dead = open_door(".dead")
    door = open_door(max_deliveries=1, dead_letter_queue=dead.queue.name)
    door.queue.put(b"m", headers={"cassieq-history": history})
    door.queue.get(visibility_timeout=1)
    door.clock.advance(60)
    assert [] == door.client.repair(door.queue.name).problems
    (moved,) = dead.queue.get()
    assert [door.queue.name] == [
        hop["source-queue"] for hop in json.loads(moved.headers["cassieq-history"])
    ]


def test_the_dead_of_a_queue_that_has_lost_its_dead_letter_queue_are_reported_and_wait(
    open_door: OpenDoor,
) -> None:
    dead = open_door(".dead")
    door = open_door(max_deliveries=1, dead_letter_queue=dead.queue.name)
    door.queue.put(b"m")
    door.queue.get(visibility_timeout=1)
    door.clock.advance(60)
    door.queue.get()
    door.client.alter_queue(door.queue.name, dead_letter_queue=None)
    (problem,) = door.client.repair(door.queue.name).problems
    assert "until it has one again" in problem
    door.client.alter_queue(door.queue.name, dead_letter_queue=dead.queue.name)
    assert [] == door.client.repair(door.queue.name).problems
    assert [b"m"] == [one.body for one in dead.queue.get()]


@pytest.mark.invariant("I7")
@pytest.mark.parametrize(
    ("step", "after", "is_committed"),
    [
        ("update_sink", 0, False),
        ("update_bucket", 0, False),  # not even closed
        ("update_bucket", 1, True),  # committed, and visible to nobody yet
        ("update_bucket", 2, True),  # visible there, and not taken out here
    ],
)
def test_a_dead_letter_queue_that_is_altered_in_mid_move_has_them_once(
    open_door: OpenDoor, step: str, after: int, *, is_committed: bool
) -> None:
    """The set's sink row names the former one: committed there, or void there and moved anew."""
    door, former = dead_letters(open_door)
    later = open_door(".later")
    other = open_door(max_deliveries=2, dead_letter_queue=former.name)
    door.queue.put_many([b"a", b"b"])
    deliver(door, 2)
    door.queue.get()
    door.faults.before(step, crash, after=after)
    with pytest.raises(Crash):
        door.client.repair(door.queue.name)
    other.client.alter_queue(other.queue.name, dead_letter_queue=later.queue.name)
    other.clock.advance(3_600)  # the mover is silent
    assert [] == other.client.repair(other.queue.name).problems
    other.client.repair(former.name)
    found = [[one.body for one in queue.get(100)] for queue in (former, later.queue)]
    assert ([[b"a", b"b"], []] if is_committed else [[], [b"a", b"b"]]) == found
    assert 0 == other.queue.stats().dead
