"""Where a consumer's messages and those who want them meet: nobody is passed over, nothing lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID

import pytest

from cassieq_spark.errors import QueueDeleted, StoreTimeout
from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.model.moments import time_of, us_of
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.queue.shelf import Answer, Held, Shelf, doors
from cassieq_spark.testing import ManualClock
from tests.unit.test_annotations import DELIVERY

LANE = LaneId(UUID(int=1))


def receipt_of(number: int) -> Receipt:
    return Receipt(lane=LANE, bucket=BucketNo(0), lease_id=UUID(int=2), first=number, last=number)


class World:
    """A shelf with room for ten messages; leases are of 30 s."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.clock = ManualClock()
        self.wakes = 0
        self.shelf = Shelf(self.clock, 10, self.wake)

    def wake(self) -> None:
        self.wakes += 1

    def held(self, *numbers: int) -> list[Held]:
        until_us = self.clock.now_us() + 30_000_000
        return [
            Held(
                replace(
                    DELIVERY, id=number, visible_until=time_of(until_us), _proof=receipt_of(number)
                ),
                receipt_of(number),
                until_us,
            )
            for number in numbers
        ]

    def look(self, *numbers: int) -> None:
        self.shelf.begin_look()
        self.shelf.end_look(self.held(*numbers))

    def waiter(self) -> Answer:
        answer: Answer = self._loop.create_future()
        self.shelf.ask(answer)
        return answer

    def leave(self, waiter: Answer) -> None:
        """As the engine does when a caller has left."""
        self.shelf.leave(waiter)
        if (held := waiter.result()) is not None:
            self.shelf.put_back(held)

    def taken(self) -> int:
        found = got(self.waiter())
        assert found is not None
        return found


@pytest.fixture
def world() -> Iterator[World]:
    loop = asyncio.new_event_loop()
    yield World(loop)
    loop.close()


def got(waiter: Answer) -> int | None:
    assert waiter.done()
    held = waiter.result()
    return None if held is None else held.message.id


def test_those_who_wait_are_served_in_the_order_in_which_they_came(world: World) -> None:
    waiters = [world.waiter() for _ in range(3)]
    world.look(7, 8)
    assert [7, 8] == [got(one) for one in waiters[:2]]
    assert not waiters[2].done()
    world.look(9, 10)
    assert 9 == got(waiters[2])
    assert 10 == world.taken()


def test_what_somebody_has_left_is_for_the_next_one_before_all_others(world: World) -> None:
    left, gone, waits = (world.waiter() for _ in range(3))
    world.look(1)
    world.leave(gone)
    world.leave(left)
    assert 1 == got(waits)
    last = world.waiter()
    world.look(2, 3)
    world.leave(last)
    assert [2, 3] == [world.taken(), world.taken()]


def test_none_is_only_told_after_a_look_that_began_after_the_wait_and_found_nothing(
    world: World,
) -> None:
    first, late = world.waiter(), world.waiter()
    world.shelf.begin_look()
    for one in (first, late):
        world.shelf.look_for(one)
    world.shelf.end_look([])
    assert not first.done()
    assert world.shelf.needs_look
    world.look(1)  # who knows whether there was one more
    assert 1 == got(first)
    assert not late.done()
    world.look()
    assert got(late) is None


@pytest.mark.invariant("I2")
def test_what_has_run_out_is_handed_out_to_nobody(world: World) -> None:
    world.look(1)
    world.clock.advance(20)
    world.look(2)
    world.clock.advance(20)
    assert 2 == world.taken()
    waiter = world.waiter()
    world.look(3)
    world.clock.advance(31)
    world.leave(waiter)
    assert not world.waiter().done()


@pytest.mark.invariant("I2")
def test_a_message_whose_lease_was_renewed_says_so_and_one_that_was_refused_is_nobodys(
    world: World,
) -> None:
    world.look(1, 2)
    waiting = {one.receipt: one for one in world.shelf.waiting()}
    refused = {receipt for receipt in waiting if receipt.first == 1}
    until_us = world.clock.now_us() + 90_000_000
    world.shelf.renewed(waiting, refused, until_us)
    world.clock.advance(60)
    held = world.waiter().result()
    assert held is not None
    assert (2, until_us) == (held.message.id, us_of(held.message.visible_until))


@pytest.mark.invariant("I2")
def test_a_message_that_waited_for_its_program_past_its_lease_is_not_taken(world: World) -> None:
    waiter = world.waiter()
    world.look(1)
    held = waiter.result()
    assert held is not None
    assert world.shelf.taken(held)
    world.clock.advance(31)
    assert not world.shelf.taken(held)


def test_a_thread_that_holds_the_lock_knows_it(world: World) -> None:
    """A signal handler that closes a consumer in it must not wait for the event loop."""
    assert not doors.is_mine
    with doors.lock:
        assert doors.is_mine
        with ThreadPoolExecutor(1) as other:
            assert not other.submit(lambda: doors.is_mine).result()
    assert world.shelf.waiting() == []


def test_a_failure_is_raised_in_all_who_wait_or_else_once_and_the_end_every_time(
    world: World,
) -> None:
    waiters = [world.waiter() for _ in range(2)]
    world.shelf.fail(StoreTimeout("both"))
    assert ["both", "both"] == [getattr(one.exception(), "message", "") for one in waiters]
    world.shelf.fail(StoreTimeout("next"))
    with pytest.raises(StoreTimeout, match="next"):
        world.waiter()
    world.leave(world.waiter())
    world.shelf.fail(StoreTimeout("over"))
    world.look()
    world.leave(world.waiter())
    world.shelf.fail(QueueDeleted("gone"))
    for _ in range(2):
        with pytest.raises(QueueDeleted):
            world.waiter()


def test_the_loop_is_woken_once_for_many_messages(world: World) -> None:
    world.look(*range(10))
    for _ in range(10):
        world.taken()
    assert 1 == world.wakes


def test_a_shelf_that_is_closed_answers_everybody_and_what_comes_back_is_given_back(
    world: World,
) -> None:
    waits, has = world.waiter(), world.waiter()
    world.leave(waits)
    world.look(1)
    waits = world.waiter()
    world.shelf.close()
    assert got(waits) is None
    assert got(world.waiter()) is None
    before = world.wakes
    world.leave(has)
    assert before + 1 == world.wakes
    assert [1] == [receipt.first for receipt in world.shelf.clear()]


def test_a_shelf_that_is_closed_hands_out_nothing_that_waits(world: World) -> None:
    """Its leases are renewed no more, and its acks are refused."""
    world.look(0, 1)
    world.shelf.close()

    assert world.shelf.take() is None
    assert world.waiter().result() is None
    assert 2 == len(world.shelf.clear())


def test_threads_that_come_and_go_lose_no_message(world: World) -> None:
    found: list[int] = []
    lock = threading.Lock()

    pause = threading.Event()

    def work(seed: int) -> None:
        for turn in range(200):
            while (held := world.shelf.take()) is None:
                pause.wait(0.001)
            if (turn + seed) % 3 == 0:
                world.shelf.put_back(held)
                continue
            with lock:
                found.append(held.message.id)

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(work, seed) for seed in range(4)]
        number = 0
        while not all(one.done() for one in working):
            if world.shelf.has_room:
                world.look(number)
                number += 1
        for one in working:
            one.result()
    while world.shelf.waiting():
        found.append(world.taken())
    assert list(range(number)) == sorted(found)
