"""Programs on one lane: rows that a client has left itself need no read, and others' changes count.

What saves a read must not change an answer (ADR 34): each test of the second half fails if a row is
believed because it was right a moment ago.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.model.pointer import minute_of
from cassieq_spark.model.rows.writer import SHARED_FOR_US
from cassieq_spark.queue.get.choice import LEFT_FOR_S
from cassieq_spark.queue.settle.settle import AckResult
from cassieq_spark.store import caller, portal
from cassieq_spark.testing import ManualClock
from tests.fixtures.queues import StillClock, cost, to_the_next_minute

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from cassieq_spark.clock import Clock
    from tests.fixtures.places import Places
    from tests.fixtures.queues import Door, OpenDoor

RIVALS, SECONDS = 4, 3.0


class Hurried:
    """A clock by which ten seconds pass between any two looks at it."""

    def __init__(self, base: Clock) -> None:
        self._base, self._ahead_s = base, 0.0

    def now_us(self) -> int:
        return self._base.now_us()

    def monotonic(self) -> float:
        self._ahead_s += 10
        return self._base.monotonic() + self._ahead_s

    def wait(self, seconds: float) -> None:
        self._base.wait(seconds)

    async def sleep(self, seconds: float) -> None:
        await self._base.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        return self._base.call_later(seconds, call)


@pytest.fixture
def door(open_door: OpenDoor) -> Door:
    """The first client's, to a queue whose messages are all in one bucket."""
    return open_door(bucket_size=200)


@pytest.fixture
def two(open_door: OpenDoor) -> tuple[Door, Door]:
    """Two clients' ways to such a queue."""
    return open_door(bucket_size=200), open_door(bucket_size=200)


def backlog(door: Door, messages: int) -> None:
    """One sealed bucket, of which this client has got and acked one message."""
    door.queue.put_many([b"%d" % number for number in range(messages)])
    door.clock.advance(1)
    (first,) = door.queue.get(1)
    door.queue.ack(first)


# --- what is saved --------------------------------------------------------------------------------


@pytest.mark.usefixtures("still_time")
def test_a_get_and_ack_from_a_backlog_is_two_lwts_and_one_read_beside_its_messages(
    door: Door,
) -> None:
    to_the_next_minute(door)
    backlog(door, 100)

    def ten_times() -> None:
        for _ in range(10):
            found = door.queue.get(5)
            assert 5 == len(found)
            door.queue.ack(found)

    spent = cost(door, ten_times)
    del spent["read_messages"]
    assert {"update_bucket": 20, "read_pointers": 10} == dict(spent)


@pytest.mark.usefixtures("still_time")
def test_a_count_is_the_same_however_much_real_time_passes_in_it(door: Door) -> None:
    """A probe of `StillClock`: with real time, what is old is read again and counts."""
    backlog(door, 100)

    def once() -> None:
        door.queue.ack(door.queue.get(5))

    hurried = Hurried(door.session.clock)
    door.store.clock = ManualClock(hurried)
    began = Counter(door.session.counts)
    once()
    in_real_time = Counter(door.session.counts) - began
    door.store.clock = door.clock = StillClock(hurried)
    once()  # what was old is read again, by id
    once()  # and what that did not leave
    spent = cost(door, once)
    assert {"find_queue", "read_monoton", *spent} <= in_real_time.keys()
    del spent["read_messages"]
    assert {"update_bucket": 2, "read_pointers": 1} == dict(spent)


@pytest.mark.usefixtures("still_time")
def test_a_look_comes_again_after_a_second(door: Door) -> None:
    backlog(door, 100)
    door.clock.advance(LEFT_FOR_S)
    assert 1 == cost(door, lambda: door.queue.get(5))["read_monoton"]
    assert 0 == cost(door, lambda: door.queue.get(5))["read_monoton"]


@pytest.mark.usefixtures("still_time")
def test_a_hint_is_written_once_for_a_bucket_and_a_minute(door: Door) -> None:
    to_the_next_minute(door)
    backlog(door, 100)
    door.queue.get(1, visibility_timeout=600)
    spent = cost(door, lambda: door.queue.get(1, visibility_timeout=600))
    assert 0 == spent["write_hint"]
    minute = minute_of(door.lane.clock.now_us() + 600_000_000)
    assert (minute, 0) in portal.run(door.lane.hints.read(minute - 1, minute + 1))
    assert 1 == cost(door, lambda: door.queue.get(1, visibility_timeout=900))["write_hint"]


@pytest.mark.usefixtures("still_time")
def test_a_hint_that_was_not_answered_is_written_again(door: Door) -> None:
    to_the_next_minute(door)
    backlog(door, 100)
    now_us = door.lane.clock.now_us()
    portal.run(
        door.lane.hints.begin_write([(0, now_us + 600_000_000)], now_us=now_us)
    )  # nobody waits for it
    assert 1 == cost(door, lambda: door.queue.get(1, visibility_timeout=600))["write_hint"]


# --- several programs -----------------------------------------------------------------------------


@pytest.mark.usefixtures("still_time")
def test_p28_who_pauses_after_a_lost_race_reads_its_row_again(
    two: tuple[Door, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others go on meanwhile: without it, each try would be as old as the pause before it."""
    mine, theirs = two
    backlog(mine, 199)
    (message,) = mine.queue.get(1)

    def another_is_faster() -> None:
        theirs.queue.ack(theirs.queue.get(1))

    async def pause(_seconds: float) -> None:
        await caller.outside(another_is_faster)

    another_is_faster()
    with monkeypatch.context() as patched:
        patched.setattr(mine.session.clock, "sleep", pause)
        spent = cost(mine, lambda: mine.queue.ack(message))
    assert 3 == spent["update_bucket"]


def test_programs_that_share_a_bucket_all_go_on(
    open_door: OpenDoor, places: Places, keyspace: str
) -> None:
    door = open_door(bucket_size=5_000)
    done, failures = [0] * RIVALS, list[str]()
    door.queue.put_many([b"m"] * 5_000)
    end = threading.Event()

    def work(at: int) -> None:
        with places.connect(keyspace) as client:
            queue = client.queue(door.queue.name)
            while not end.is_set():
                try:
                    found = queue.get(1)
                    queue.ack(found)
                except cassieq.CassieqError as error:
                    failures.append(str(error))
                else:
                    done[at] += len(found)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(RIVALS)]
    for thread in threads:
        thread.start()
    end.wait(SECONDS)
    end.set()
    for thread in threads:
        thread.join()
    assert [] == failures
    assert all(done)


def test_two_programs_end_up_in_buckets_of_their_own(open_door: OpenDoor) -> None:
    one, other = open_door(bucket_size=50), open_door(bucket_size=50)
    one.put_batch(0, *[b"m"] * 200)  # its buckets need no seal

    def round_of_both() -> tuple[set[int], set[int]]:
        places: list[set[int]] = []
        for door in (one, other):
            found = door.queue.get(2)
            places.append({message.id // 50 for message in found})
            door.queue.ack(found)
        return places[0], places[1]

    for _ in range(20):
        mine, theirs = round_of_both()
        if mine.isdisjoint(theirs):
            break
    rounds = [round_of_both() for _ in range(5)]
    assert all(mine.isdisjoint(theirs) for mine, theirs in rounds), rounds


# --- what others change ---------------------------------------------------------------------------


@pytest.mark.invariant("I4")
def test_a_receipt_of_another_client_is_acked_though_the_row_as_left_does_not_know_it(
    two: tuple[Door, Door],
) -> None:
    mine, theirs = two
    backlog(mine, 10)
    (message,) = theirs.queue.get(1)
    assert [AckResult.ACKED] == mine.queue.ack_each([message.receipt])
    assert [AckResult.ALREADY_ACKED] == theirs.queue.ack_each([message.receipt])


@pytest.mark.invariant("I4")
def test_what_another_client_has_acked_is_not_acked_again(two: tuple[Door, Door]) -> None:
    mine, theirs = two
    backlog(mine, 10)
    (message,) = mine.queue.get(1)
    theirs.queue.ack(message.receipt)
    assert [AckResult.ALREADY_ACKED] == mine.queue.ack_each([message])


@pytest.mark.invariant("I3")
def test_what_another_client_has_got_since_is_stale(two: tuple[Door, Door]) -> None:
    mine, theirs = two
    backlog(mine, 3)
    (message,) = mine.queue.get(1, visibility_timeout=5)
    mine.clock.advance(6)
    theirs.clock.advance(10)
    again = theirs.queue.get(3)
    assert message.message_id in {one.message_id for one in again}
    assert [AckResult.STALE] == mine.queue.ack_each([message])


@pytest.mark.invariant("I2")
def test_a_get_from_what_is_left_takes_nothing_that_another_client_holds(
    two: tuple[Door, Door],
) -> None:
    mine, theirs = two
    backlog(mine, 20)
    held = theirs.queue.get(10)
    got = mine.queue.get(10)
    ids = [one.message_id for one in (*held, *got)]
    assert 19 == len(set(ids)) == len(ids)


@pytest.mark.usefixtures("still_time")
def test_after_a_lost_race_rows_are_read_until_they_are_our_own_again(
    open_door: OpenDoor,
) -> None:
    # With a lease that ends in this minute, its hint names the bucket: one read more.
    mine, theirs = (open_door(bucket_size=200, visibility_timeout=600) for _ in range(2))
    backlog(mine, 100)
    theirs.queue.ack(theirs.queue.get(1))
    mine.clock.advance(LEFT_FOR_S)
    mine.queue.ack(mine.queue.get(1))
    theirs.queue.ack(theirs.queue.get(1))

    def cycle() -> None:
        mine.queue.ack(mine.queue.get(1))

    # One claim in vain, on the row as it was left; then a look.
    assert {"update_bucket": 3, "read_monoton": 1}.items() <= cost(mine, cycle).items()
    assert 2 == cost(mine, cycle)["read_bucket"]
    cycle()
    assert 0 == cost(mine, cycle)["read_bucket"]


@pytest.mark.usefixtures("still_time")
def test_rows_are_believed_again_after_a_while(two: tuple[Door, Door]) -> None:
    mine, theirs = two
    backlog(mine, 100)
    theirs.queue.ack(theirs.queue.get(1))
    (message,) = mine.queue.get(1)
    mine.clock.advance(SHARED_FOR_US / 1e6)
    mine.queue.ack(message)
    mine.queue.ack(mine.queue.get(1))
    assert 0 == cost(mine, lambda: mine.queue.ack(mine.queue.get(1)))["read_bucket"]


def test_what_is_left_is_forgotten_with_its_queue(two: tuple[Door, Door]) -> None:
    mine, theirs = two
    backlog(mine, 10)
    theirs.client.delete_queue(theirs.queue.name)
    with pytest.raises(cassieq.QueueDeleted):
        mine.queue.get(1)


def test_what_is_left_is_gone_after_a_purge(two: tuple[Door, Door]) -> None:
    mine, theirs = two
    backlog(mine, 10)
    theirs.queue.purge()
    assert [] == mine.queue.get(5)


def test_a_lane_is_read_in_the_order_of_its_ids_though_another_client_acks(
    open_door: OpenDoor,
) -> None:
    """Who settles what the only consumer got is no rival."""
    consumer, acker = open_door(bucket_size=20), open_door(bucket_size=20)
    consumer.put_batch(0, *(b"%d" % number for number in range(120)))
    seen = []
    for _ in range(12):
        found = consumer.queue.get(10)
        acker.queue.ack([one.receipt for one in found])
        seen += [int(one.body) for one in found]
    assert list(range(120)) == seen


@pytest.mark.invariant("I10")
def test_what_came_back_elsewhere_waits_for_a_second_at_most(open_door: OpenDoor) -> None:
    mine, theirs = open_door(bucket_size=20), open_door(bucket_size=20)
    mine.put_batch(0, *(b"%d" % number for number in range(60)))
    (first,) = theirs.queue.get(1)
    for _ in range(2):
        mine.queue.ack(mine.queue.get(10))
    theirs.queue.release(first)
    mine.clock.advance(LEFT_FOR_S)
    assert first.message_id in {one.message_id for one in mine.queue.get(10)}


@pytest.mark.invariant("I10")
def test_what_came_back_in_several_buckets_comes_first_in_all_of_them(open_door: OpenDoor) -> None:
    mine, theirs = open_door(bucket_size=20), open_door(bucket_size=20)
    mine.put_batch(0, *(b"%d" % number for number in range(100)))
    held = [theirs.queue.get(20) for _ in range(4)]
    back = [messages[0] for messages in held]
    for messages in held:
        theirs.queue.release(messages[0])
    got = [mine.queue.get(1)[0] for _ in range(4)]
    assert {one.message_id for one in back} == {one.message_id for one in got}
