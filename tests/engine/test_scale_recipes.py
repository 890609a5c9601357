"""The recipes that `bench/scale` reckons with are what the package sends."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from bench.scale.recipes import DROP, Use
from cassieq_spark.store.statements import Kind, every_statement

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor

LWTS = {one.name for one in every_statement() if one.kind is Kind.CAS}
CYCLES = 5
AROUND_DROPS = {"take_lead", "keep_lead", "give_lead_up"}
"""LWTs of a pass of repair, not of a bucket."""


def spent(door: Door, group: int, cycles: int = CYCLES) -> Counter[str]:
    """Statements of so many cycles, the drops of their buckets among them."""
    door.queue.ack([*door.queue.get()] if door.queue.put(b"open") else [])
    before = door.counts
    for _ in range(cycles):
        door.queue.put_many([b"m"] * group)
        door.queue.ack(door.queue.get(group))
    done = door.counts - before
    door.queue.get()
    door.clock.advance(60)
    before = door.counts
    door.client.repair(door.queue.name)
    dropped = door.counts - before
    return done + Counter({"delete_bucket": cycles} if dropped["delete_bucket"] else {})


@pytest.mark.usefixtures("still_time")
def test_messages_that_go_one_by_one_send_the_lwts_of_the_recipe(door: Door) -> None:
    said = Use(name="alone", group=1, bucket=1).statements()

    real = spent(door, 1)

    assert {name: CYCLES * said[name] for name in LWTS if said[name]} == {
        name: count for name, count in real.items() if name in LWTS - AROUND_DROPS
    }


@pytest.mark.usefixtures("still_time")
def test_other_statements_are_as_many_as_the_recipe_says_give_or_take_a_tenth(
    door: Door,
) -> None:
    statements = Use(name="alone", group=1, bucket=1).statements()
    said = sum(statements.values()) - sum(DROP.values())

    real = sum(count for name, count in spent(door, 1).items() if name != "delete_bucket")

    assert abs(real / CYCLES - said) <= 0.1 * said


@pytest.mark.usefixtures("still_time")
def test_a_bucket_that_is_put_and_taken_in_groups_sends_those_of_its_recipe(
    open_door: OpenDoor,
) -> None:
    door = open_door(bucket_size=1_000)
    said = Use(name="groups", group=100, bucket=1_000).statements()
    for _ in range(10):
        door.queue.put_many([b"m"] * 100)
    before = door.counts

    taken = 0
    while taken < 1_000:
        messages = door.queue.get(100)
        door.queue.ack(messages)
        taken += len(messages)

    real = door.counts - before
    for name in ("update_bucket", "fill_bucket", "insert_bucket", "scan_messages", "read_messages"):
        assert said[name] == real[name], name
    assert real["read_bucket"] <= said["read_bucket"]
