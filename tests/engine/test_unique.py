"""A key that stands for a message until that is acked, or leased.

See docs/design/deduplication.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.errors import OptionInvalid
from tests.fixtures.queues import cost

if TYPE_CHECKING:
    from collections.abc import Callable

    import cassieq_spark as cassieq
    from tests.fixtures.queues import Door, OpenDoor

QUICK: dict[str, Any] = {"linger": 0, "repair_timeout": 0.2, "dedup_window": 3_600}


def is_new(door: Door, until: str, body: bytes = b"again") -> bool:
    return not door.queue.put(body, dedup_key="k", dedup_until=until).duplicate


def released(door: Door, message: cassieq.Delivery) -> None:
    door.queue.release(message)


def extended(door: Door, message: cassieq.Delivery) -> None:
    door.queue.extend(message, 60)


def run_out(door: Door, message: cassieq.Delivery) -> None:
    del message
    door.clock.advance(120)


def acked(door: Door, message: cassieq.Delivery) -> None:
    door.queue.ack(message)


def rejected(door: Door, message: cassieq.Delivery) -> None:
    door.queue.reject(message)


def dropped(door: Door, message: cassieq.Delivery) -> None:
    door.queue.ack(message)
    for _ in range(4):
        door.clock.advance(15)
        assert [] == door.client.repair(door.queue.name).problems


@pytest.mark.parametrize(
    ("what", "frees_acked", "frees_leased"),
    [
        (extended, False, True),
        (released, False, False),
        (run_out, False, False),
        (acked, True, True),
        (rejected, True, True),
        (dropped, True, True),
    ],
)
def test_what_becomes_of_a_message_frees_its_key(
    open_door: OpenDoor,
    what: Callable[[Door, cassieq.Delivery], None],
    *,
    frees_acked: bool,
    frees_leased: bool,
) -> None:
    for until, frees in (("window", False), ("acked", frees_acked), ("leased", frees_leased)):
        dead = open_door(f"-{until}-dead")
        door = open_door(f"-{until}", dead_letter_queue=dead.queue.name, **QUICK)
        assert is_new(door, until)
        assert not is_new(door, until), "its bucket is open"
        (message,) = door.queue.get()
        assert is_new(door, until) == (until == "leased")
        if until == "leased":
            door = open_door(f"-{until}-more", dead_letter_queue=dead.queue.name, **QUICK)
            assert is_new(door, until)
            (message,) = door.queue.get()
        what(door, message)
        assert frees == is_new(door, until), until
        assert not is_new(door, "window"), "who asks later decides"


@pytest.mark.parametrize("until", ["acked", "leased"])
def test_a_cancelled_and_an_expired_message_free_their_key(open_door: OpenDoor, until: str) -> None:
    door = open_door(**QUICK)
    first = door.queue.put(b"first", dedup_key="k", dedup_until=until, delay=60)
    assert not is_new(door, until)
    assert door.queue.cancel(first)
    assert is_new(door, until)
    door.queue.ack(door.queue.get(10))

    again = {"dedup_key": "l", "dedup_until": until}
    door.queue.put(b"short", ttl=1, **again)
    assert door.queue.put(b"again", **again).duplicate
    door.clock.advance(120)
    assert [] == door.client.repair(door.queue.name).problems  # it seals the bucket
    assert not door.queue.put(b"again", **again).duplicate


def test_of_two_that_find_it_free_at_once_one_is_put(open_door: OpenDoor) -> None:
    door, other = open_door(**QUICK), open_door(**QUICK)
    assert is_new(door, "acked")
    door.queue.ack(door.queue.get())
    found: list[bool] = []
    door.faults.before(
        "take_key", lambda: found.append(is_new(other, "acked", b"other's")), after=1
    )
    assert not is_new(door, "acked")
    assert [True] == found
    assert [b"other's"] == [one.body for one in door.queue.get(10)]


@pytest.mark.usefixtures("still_time")
def test_it_costs_two_reads_for_a_duplicate_and_nothing_for_a_new_key(open_door: OpenDoor) -> None:
    costs = {}
    for until in ("window", "acked"):
        door = open_door(f"-{until}", **QUICK)
        new = cost(door, lambda door=door, until=until: is_new(door, until))
        again = cost(door, lambda door=door, until=until: is_new(door, until))
        costs[until] = new, again
    assert costs["window"][0] == costs["acked"][0]
    assert {"read_bucket": 1, "read_pointers": 1} == costs["acked"][1] - costs["window"][1]


def test_puts_that_go_together_keep_their_own_terms(door: Door) -> None:
    with pytest.raises(OptionInvalid, match="dedup_until is 'done', allowed: 'window', 'acked'"):
        door.queue.put(b"m", dedup_until="done")
    assert not door.queue.get()
