"""A paused queue hands nothing out, whoever was in between (docs/design/pause.md)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.errors import OptionInvalid, QueueDeleted, StoreTimeout
from cassieq_spark.model.pointer import paused_at
from cassieq_spark.queue import pause
from cassieq_spark.queue.get import getter
from cassieq_spark.queue.get.getter import GetRequest
from cassieq_spark.store import portal
from tests.fixtures.faults import AtStatement, Fault
from tests.fixtures.queues import Crash, cost, crash
from tests.fixtures.transports import intercept

if TYPE_CHECKING:
    from cassieq_spark.queue.message import Delivery
    from tests.fixtures.queues import Door, OpenDoor

STRICT: dict[str, Any] = {"fairness": 0, "linger": 0}
DAY_S = 86_400


def registers(door: Door) -> list[int]:
    return [portal.run(lane.pointers.read()).paused for lane in door.lane.all]


def bodies(door: Door, count: int = 10, **wanted: Any) -> list[bytes]:
    return [one.body for one in door.queue.get(count, **wanted)]


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("settings", [{}, {"priorities": 2, "shards": 2}])
@pytest.mark.invariant("I2")
def test_no_get_that_confirms_after_a_pause_hands_anything_out(
    open_door: OpenDoor, settings: dict[str, int], *, is_sealed: bool
) -> None:
    """A pause that comes just before the n-th statement of a get, for each n."""
    number, handed_out = 0, 0
    sent: list[tuple[str, object]] = []
    while number <= len(sent):
        suffix = f"-{number}"
        other, door = (open_door(suffix, **settings, **STRICT) for _ in range(2))
        (other.put_sealed if is_sealed else other.put)(b"a", b"b")
        tried = AtStatement(number, other.queue.pause)
        intercept(door.session, tried)
        got = bodies(door)
        sent = tried.sent
        read = ("read_pointers", door.lane.lane_id)
        confirmed_at = max(at for at, one in enumerate(sent) if one == read)
        if got:
            # It has read the register before, and then the bodies.
            assert number > confirmed_at, sent[number:]
            handed_out += 1
        else:
            has_claimed = any(name in {"update_bucket", "fill_bucket"} for name, *_ in sent)
            assert number <= confirmed_at or not has_claimed
            other.queue.resume()
            again = other.queue.get(10)
            assert [(b"a", 1), (b"b", 1)] == sorted((one.body, one.delivery_count) for one in again)
        number += 1
    assert handed_out >= 1


def test_a_paused_queue_takes_puts_acks_and_extensions(door: Door) -> None:
    door.put(b"a", b"b")
    held = door.queue.get(1)
    door.queue.pause()

    door.queue.put(b"c")
    door.queue.extend(held, 60)
    door.queue.ack(held)
    assert [] == bodies(door)

    stats = door.queue.stats()
    assert (2, 0, (0,)) == (stats.visible, stats.in_flight, stats.paused)
    door.queue.resume()
    assert [b"b", b"c"] == [*bodies(door), *bodies(door)]
    assert () == door.queue.paused() == door.queue.stats().paused


@pytest.mark.usefixtures("still_time")
def test_a_paused_backlog_costs_a_look_one_read_and_no_claim(open_door: OpenDoor) -> None:
    door = open_door()
    for at in range(20):
        door.put_sealed(b"%d" % at)
    door.queue.pause()
    assert {"read_pointers", "read_schedule"} == cost(door, lambda: bodies(door)).keys()
    door.clock.advance(1)
    assert {"read_pointers": 1} == cost(door, lambda: bodies(door))


@pytest.mark.usefixtures("still_time")
def test_a_get_costs_no_read_more_beside_a_pause_that_is_over(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door("-never-paused")
    door.queue.pause()
    bodies(door)
    door.queue.resume()
    for one in (door, other):
        one.put_sealed(b"a")
        bodies(one)  # it learns that it goes on
        one.put_sealed(b"b")
        one.clock.advance(1)
    assert cost(door, lambda: bodies(door)) == cost(other, lambda: bodies(other))


def test_one_priority_is_paused_and_the_others_go_on(open_door: OpenDoor) -> None:
    door = open_door(priorities=3, shards=2, **STRICT)
    for priority in range(3):
        door.queue.put(b"%d" % priority, priority=priority)
    door.queue.pause(2)
    assert (2,) == door.queue.paused()
    assert [b"1", b"0"] == [*bodies(door, 1), *bodies(door, 1)]
    assert [] == bodies(door)
    door.queue.resume(2)
    assert [b"2"] == bodies(door)


def test_a_get_takes_from_a_lower_priority_what_the_paused_one_keeps(open_door: OpenDoor) -> None:
    """The claims that it gives back do not count towards its limit."""
    door, other = open_door(priorities=2, **STRICT), open_door(priorities=2, **STRICT)
    other.queue.put(b"low")
    other.queue.put(b"high", priority=1)
    assert [b"high"] == bodies(door, 1)
    other.queue.put(b"high too", priority=1)
    door.faults.before("insert_bucket", lambda: other.queue.pause(1))
    assert [b"low"] == bodies(door, 1)


def test_due_messages_wait_behind_the_pause_of_their_priority(open_door: OpenDoor) -> None:
    door = open_door(priorities=2, **STRICT)
    door.queue.put(b"due", delay=2 * DAY_S, priority=1)
    door.queue.put(b"now")
    door.queue.pause(1)
    door.clock.advance(2 * DAY_S + 60)
    assert [b"now"] == bodies(door)
    door.queue.resume()
    assert [b"due"] == bodies(door)


def test_a_due_lane_is_confirmed_by_the_register_of_its_priority(open_door: OpenDoor) -> None:
    door, other = open_door(**STRICT), open_door(**STRICT)
    other.queue.put(b"due", delay=2 * DAY_S)
    for one in (door, other):
        one.clock.advance(2 * DAY_S + 60)
    door.faults.before("fill_bucket", other.queue.pause)
    assert [] == bodies(door)
    other.queue.resume()
    (message,) = other.queue.get()
    assert (b"due", 1) == (message.body, message.delivery_count)


def test_opposite_calls_at_the_same_time_make_all_lanes_alike(open_door: OpenDoor) -> None:
    """Each of two calls, stopped before its n-th write, while the other runs to its end."""
    for after in range(4):
        door, other = (open_door(f"-{after}", shards=2, priorities=2) for _ in range(2))
        door.queue.pause()
        door.faults.before("advance_pointer", other.queue.pause, after=after)
        door.queue.resume()
        assert len(set(registers(door))) == 1, registers(door)


def test_a_pause_that_ended_halfway_is_told_and_made_whole_by_the_next(open_door: OpenDoor) -> None:
    door = open_door(shards=3)
    door.faults.before("advance_pointer", crash, after=1)
    with pytest.raises(Crash):
        door.queue.pause()
    assert {0, 1} == {one % 2 for one in registers(door)}
    assert (0,) == door.queue.paused()

    other = open_door(shards=3)
    other.queue.pause()
    assert [1, 1, 1] == [one % 2 for one in registers(other)]
    other.queue.resume()
    assert [0, 0, 0] == [one % 2 for one in registers(other)]


@pytest.mark.parametrize("pauses", [True, False])
def test_what_lands_late_of_an_earlier_call_undoes_no_later_one(
    open_door: OpenDoor, *, pauses: bool
) -> None:
    """Also if the later call finds the queue as it wants it."""
    door, other = open_door(), open_door()
    if not pauses:
        other.queue.pause()
    door.faults.plan("advance_pointer", Fault.LATE, times=99)
    with pytest.raises(StoreTimeout):
        (door.queue.pause if pauses else door.queue.resume)()
    (other.queue.resume if pauses else other.queue.pause)()
    expected = other.queue.paused()
    assert door.faults.land() >= 1
    assert expected == other.queue.paused() == (() if pauses else (0,))


@pytest.mark.parametrize(
    ("registers", "pauses", "now_us", "value"),
    [
        ([0], True, 5_000, 11),
        ([0], False, 5_000, 10),
        ([11, 0, 11], True, 5_000, 13),
        ([11, 0, 11], False, 5_000, 12),
        ([11, 8], True, 9_999, 19),
    ],
)
def test_the_next_value_is_above_all_that_were_read_and_above_the_time(
    registers: list[int], now_us: int, value: int, *, pauses: bool
) -> None:
    assert value == paused_at(registers, pauses=pauses, now_us=now_us)


@pytest.mark.usefixtures("passing_time")
@pytest.mark.invariant("I10")
def test_a_register_that_does_not_answer_keeps_no_other_priority(open_door: OpenDoor) -> None:
    door = open_door(priorities=2, **STRICT)
    door.queue.put(b"low")
    door.queue.put(b"high", priority=1)
    door.queue.pause(1)
    assert [b"low"] == bodies(door)
    door.queue.put(b"low too")
    door.clock.advance(1)
    door.faults.plan("read_pointers", Fault.TIMEOUT_BEFORE, times=1)
    began = door.clock.monotonic()
    assert [b"low too"] == bodies(door)
    assert door.clock.monotonic() - began < 5


def test_the_lanes_of_a_priority_that_has_just_said_so_are_left_out(open_door: OpenDoor) -> None:
    door, other = open_door(shards=8, **STRICT), open_door(shards=8, **STRICT)
    for shard in range(8):
        other.queue.put(b"m", key=f"{shard}")
    bodies(door, 1)
    other.queue.pause()
    tried = AtStatement(10**6, lambda: None)
    intercept(door.session, tried)
    door.clock.advance(1)
    assert [] == bodies(door)
    assert 0 == sum(name in {"update_bucket", "fill_bucket"} for name, *_ in tried.sent)


def test_who_comes_after_a_pause_is_not_given_what_another_one_has_left(door: Door) -> None:
    """The first one leaves while its messages are read."""
    door.put_sealed(b"a", b"b")
    lane = portal.run(door.queue._current())
    wanted = GetRequest.checked(lane.settings, 2, None, None, 0, wait=5)

    async def both() -> list[list[Delivery]]:
        waiting = door.queue._work.waiting
        first = asyncio.ensure_future(waiting.get(lane, wanted))
        held: list[asyncio.Future[list[Delivery]]] = []
        read = getter.read_in_time

        async def leaves(*given: Any) -> list[Delivery]:
            found = await read(*given)
            first.cancel()
            held.append(asyncio.ensure_future(waiting.get(lane, replace(wanted, wait_s=0.2))))
            await asyncio.sleep(0.01)
            await pause.change(lane, None, pauses=True)
            return found

        getter.read_in_time = leaves
        try:
            await asyncio.wait([first])
            return [await held[0]]
        finally:
            getter.read_in_time = read

    assert [[]] == portal.run(both())
    door.queue.resume()
    assert [(b"a", 1), (b"b", 1)] == [(one.body, one.delivery_count) for one in door.queue.get(5)]


def test_a_consumer_gives_back_what_it_has_prefetched(open_door: OpenDoor) -> None:
    door, other = open_door(priorities=2, **STRICT), open_door(priorities=2, **STRICT)
    for at in range(6):
        other.queue.put(b"%d" % at, priority=at % 2)
    with door.queue.consumer(prefetch=10) as consumer:
        first = consumer.get(5)
        assert first is not None
        assert 6 == other.queue.stats().in_flight
        other.queue.pause(1 - first.priority)
        began = door.clock.monotonic()
        while other.queue.stats().in_flight > 3:
            door.clock.wait(0.1)
        assert door.clock.monotonic() - began < 5
        rest = [consumer.get(5), consumer.get(5)]
        assert [first.priority] * 2 == [one.priority for one in rest if one]
        assert consumer.get(0) is None
        other.queue.resume()
        again = [consumer.get(5) for _ in range(3)]
        assert [1] * 3 == [one.delivery_count for one in again if one]


def test_a_long_poll_waits_and_returns_after_the_resume(door: Door) -> None:
    door.queue.put(b"a")
    door.queue.pause()
    assert [] == bodies(door, wait=3)
    door.queue.resume()
    assert [b"a"] == bodies(door, wait=3)


def test_a_purge_and_an_alteration_leave_a_queue_paused_and_a_new_one_is_not(door: Door) -> None:
    door.queue.pause()
    door.queue.purge()
    door.client.alter_queue(door.queue.name, linger=0)
    assert (0,) == door.queue.paused()
    door.queue.delete()
    with pytest.raises(QueueDeleted):
        door.queue.pause()
    assert () == door.client.create_queue(door.queue.name).paused()


def test_a_priority_that_the_queue_has_not_is_refused_before_anything_is_written(
    door: Door,
) -> None:
    with pytest.raises(OptionInvalid, match="priority"):
        door.queue.pause(1)
    with pytest.raises(OptionInvalid, match="priority"):
        door.queue.resume(-1)
    assert [0] == registers(door)
