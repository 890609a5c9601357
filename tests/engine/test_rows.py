"""A client's threads at one bucket row: who does what, and what goes together (ADR 39)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.queue.settle import ack_buffer
from cassieq_spark.store import portal, rows
from cassieq_spark.testing import wait_until

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor


@pytest.fixture
def door(open_door: OpenDoor) -> Door:
    """To a queue whose messages are all in one bucket."""
    return open_door(bucket_size=1_000)


class Held:
    """Holds up one statement until it is let go."""

    def __init__(self, door: Door, statement: str) -> None:
        self.has_come, self.go_on = threading.Event(), threading.Event()
        door.faults.before(statement, self._hold)

    def _hold(self) -> None:
        self.has_come.set()
        assert self.go_on.wait(60)


def waiting(door: Door) -> int:
    """How many callers are at the rows of this client."""
    return sum(len(row._callers) for row in door.store.rows._rows.values())


def acked(door: Door) -> int:
    """Of 100 messages."""
    stats = door.queue.stats()
    return 100 - stats.visible - stats.in_flight


@pytest.mark.usefixtures("still_time")
def test_what_comes_during_a_cas_goes_together_in_the_next_one(door: Door) -> None:
    door.queue.put_many([b"m"] * 60)
    messages = door.queue.get(50)
    held = Held(door, "update_bucket")
    before = door.counts["update_bucket"]
    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(door.queue.ack, messages[0])
        assert held.has_come.wait(60)
        others = [pool.submit(door.queue.ack, one) for one in messages[1:6]]
        others.append(pool.submit(door.queue.extend, messages[6], 60))
        others.append(pool.submit(door.queue.release, messages[7]))
        wait_until(lambda: waiting(door) == 8)
        held.go_on.set()
        for one in (first, *others):
            one.result()
    assert 2 == door.counts["update_bucket"] - before
    assert {"sealed": 1} == door.queue.stats().buckets


@pytest.mark.invariant("I2")
def test_claims_of_one_row_that_go_together_share_leases_and_nothing_else(door: Door) -> None:
    door.queue.put_many([b"%d" % at for at in range(40)])
    (first,) = door.queue.get(1)
    held = Held(door, "update_bucket")
    with ThreadPoolExecutor(8) as pool:
        ack = pool.submit(door.queue.ack, first)
        assert held.has_come.wait(60)
        # As consumers look: gets of one client would share one look.
        wanted = door.queue._ways(3, None, None, 0).wanted(door.lane)
        look = door.queue._work.waiting.getter.look
        gets = [pool.submit(lambda: portal.run(look(door.lane, wanted))) for _ in range(5)]
        wait_until(lambda: waiting(door) == 6)
        held.go_on.set()
        ack.result()
        got = [one.result() for one in gets]
    assert 15 == len({message.id for some in got for message in some})
    door.queue.release(got[0])  # frees nothing that others hold
    door.queue.ack([message for some in got[1:] for message in some])
    assert 27 == door.queue.stats().visible


@pytest.mark.invariant("I10")
def test_t5_an_ack_waits_a_second_for_anothers_hint_and_no_longer(door: Door) -> None:
    door.queue.put_many([b"m"] * 3)
    messages = door.queue.get(3, visibility_timeout=60)
    wait_until(lambda: door.session.counts["write_hint"] > 0)  # the hint of that get is on its way
    held = Held(door, "write_hint")
    with ThreadPoolExecutor(2) as pool:
        extended = pool.submit(door.queue.extend, messages[0], 3_600)
        assert held.has_come.wait(60)
        pool.submit(door.queue.ack, messages[1]).result(timeout=60)
        assert not extended.done()
        held.go_on.set()
        extended.result()
    assert 2 == door.queue.stats().in_flight


def test_acks_that_wait_go_with_the_next_claim_of_their_bucket(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_buffer, "ACK_WITHIN_S", 30.0)  # they would go alone after that
    door.queue.put_many([b"m"] * 100)
    with door.queue.consumer(prefetch=20, visibility_timeout=600) as consumer:
        for _ in range(90):
            message = consumer.get(wait=30)
            assert message is not None
            consumer.ack(message)
        wait_until(lambda: acked(door) >= 60)
    assert 90 == acked(door)


@pytest.mark.invariant("I4")
def test_acks_that_went_with_a_claim_that_was_lost_are_stored_all_the_same(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(bucket_size=1_000), open_door(bucket_size=1_000)
    door.queue.put_many([b"m"] * 100)
    with door.queue.consumer(prefetch=10) as consumer:
        messages = [consumer.get(wait=30) for _ in range(5)]
        for number in range(8):
            door.faults.before("update_bucket", lambda: other.queue.get(1), after=number)
        for message in messages:
            assert message is not None
            consumer.ack(message)
        consumer.flush()
        assert 5 == acked(door)


@pytest.mark.invariant("I10")
def test_acks_that_would_wait_for_a_claims_hint_go_alone(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_buffer, "ACK_WITHIN_S", 30.0)
    door.queue.put_many([b"m"] * 100)
    with door.queue.consumer(prefetch=20, visibility_timeout=600) as consumer:
        for _ in range(5):
            message = consumer.get(wait=30)
            assert message is not None
            consumer.ack(message)
        door.clock.advance(90)
        held = Held(door, "write_hint")
        for _ in range(6):
            assert consumer.get(wait=30) is not None
        assert held.has_come.wait(60)
        wait_until(lambda: acked(door) >= 5)
        held.go_on.set()


def test_a_row_that_is_not_kept_goes_on(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others push it out while a caller is at its hint."""
    monkeypatch.setattr(rows, "KEPT_ROWS", 2)
    door.queue.put_many([b"m"] * 3)
    (message, *others) = door.queue.get(3, visibility_timeout=60)
    held = Held(door, "write_hint")
    with ThreadPoolExecutor(1) as pool:
        extended = pool.submit(door.queue.extend, message, 3_600)
        assert held.has_come.wait(60)
        for _ in range(4):
            door.put_sealed(b"elsewhere")
            door.queue.get(1)
        held.go_on.set()
        extended.result(timeout=60)
    door.queue.ack([message, *others])
