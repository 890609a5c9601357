"""What a message costs, counted at the session (issue: LWTs are what a cluster runs out of)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.store.statements import Kind, every_statement
from tests.fixtures.queues import cost

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor

LWTS = {one.name for one in every_statement() if one.kind is Kind.CAS}


def lwts(spent: Counter[str]) -> int:
    return sum(count for name, count in spent.items() if name in LWTS)


def cycle(door: Door, messages: int) -> None:
    """Put, get and ack so many together."""
    door.queue.put_many([b"m"] * messages)
    found = door.queue.get(messages)
    assert messages == len(found)
    door.queue.ack(found)


@pytest.mark.usefixtures("still_time")
def test_one_message_at_a_time_costs_four_lwts_and_a_fifth_when_its_bucket_is_dropped(
    door: Door,
) -> None:
    cycle(door, 1)

    def ten_times() -> None:
        for _ in range(10):
            cycle(door, 1)

    spent = cost(door, ten_times)
    assert {"reserve": 10, "insert_bucket": 10, "fill_bucket": 10, "update_bucket": 10} == {
        name: count for name, count in spent.items() if name in LWTS
    }
    door.queue.get()
    door.clock.advance(60)
    dropped = cost(door, lambda: door.client.repair(door.queue.name))
    assert 11 == lwts(dropped)


@pytest.mark.usefixtures("still_time")
def test_a_hundred_together_cost_a_twentieth_of_an_lwt_each(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=2_000)
    cycle(door, 100)

    def ten_times() -> None:
        for _ in range(10):
            cycle(door, 100)

    spent = lwts(cost(door, ten_times))
    door.queue.get()
    door.clock.advance(60)
    spent += lwts(cost(door, lambda: door.client.repair(door.queue.name)))
    assert spent <= 0.06 * 1_000


@pytest.mark.usefixtures("still_time")
def test_at_load_a_message_costs_a_fiftieth_of_an_lwt(open_door: OpenDoor) -> None:
    """Buckets of 2,000, runs of 100."""
    door = open_door(bucket_size=2_000)

    def load() -> None:
        for _ in range(5):
            door.queue.put_many([b"m"] * 2_000)
        done = 0
        while done < 10_000:
            messages = door.queue.get(100)
            door.queue.ack(messages)
            done += len(messages)

    assert lwts(cost(door, load)) <= 0.03 * 10_000


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_cost_does_not_grow_with_history(open_door: OpenDoor) -> None:
    """An empty get and a put read no finished bucket: with repair, or as here without."""
    door = open_door(bucket_size=1_000)
    put = cost(door, lambda: door.queue.put(b"first"))
    door.queue.purge()
    door.queue.get()
    get = cost(door, door.queue.get)
    for _ in range(40):
        cycle(door, 1_000)
    door.queue.get()
    assert get == cost(door, door.queue.get)
    door.queue._work.puts.producers.forget(door.lane.lane_id)
    assert put == cost(door, lambda: door.queue.put(b"last"))
