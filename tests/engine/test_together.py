"""Puts of several threads of one client go together, and each is told of its own messages."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import PutAmbiguous, QueueDeleted, StoreTimeout
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.queue import seal
from cassieq_spark.queue.put import producer
from cassieq_spark.store import portal, session, side_by_side
from cassieq_spark.testing import wait_until
from tests.engine.test_due_lanes import DAY_S, QUICK, finish
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.fixtures.queues import Door, OpenDoor

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _nothing_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a put may take longer than that, and the next one begins."""
    monkeypatch.setattr(side_by_side, "SLOW_S", 60.0)


def put_together(
    door: Door,
    first: Callable[[], object],
    others: Sequence[Callable[[], T]],
    meanwhile: Callable[[], object] = lambda: None,
) -> list[T | BaseException]:
    """Hold the first put before its write, until all others have gathered."""
    is_held = threading.Event()

    def gathered() -> bool:
        waiting = [line.last for line in door.queue._work.puts._lines.values()]
        return len(others) == sum(len(one.asked) for one in waiting if one is not None)

    def hold() -> None:
        is_held.set()
        wait_until(gathered)
        meanwhile()

    door.faults.before("write_message", hold)
    with ThreadPoolExecutor(len(others) + 1) as pool:
        held = pool.submit(first)
        assert is_held.wait(30)
        begun = [pool.submit(one) for one in others]
        held.exception()
        return [one.exception() or one.result() for one in begun]


def bodies(messages: Sequence[cassieq.Message]) -> list[bytes]:
    return sorted(one.body for one in messages)


@pytest.mark.usefixtures("still_time")
def test_sixty_four_puts_at_once_are_two_writes_and_two_proofs(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=1_000, linger=60)
    door.queue.put(b"before")
    before = door.counts
    others = [partial(door.queue.put, b"%d" % at) for at in range(63)]

    ids = put_together(door, partial(door.queue.put, b"first"), others)

    counts = door.counts - before
    assert {"write_message": 2, "read_bucket": 2, "read_pointers": 2} == dict(counts)
    portal.run(seal.close(door.lane, BucketNo(0)))
    found = {one.body: one.message_id for one in door.queue.get(100)}
    assert {b"%d" % at: one for at, one in enumerate(ids)}.items() <= found.items()
    assert 65 == len(set(found.values()))


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("fault", [Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.LATE])
def test_a_write_of_several_that_is_never_answered_is_settled_for_all_of_them(
    open_door: OpenDoor, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "DEADLINE_S", 0.3)
    door = open_door(**QUICK)

    def lose() -> None:
        door.faults.plan("write_message", fault, times=1_000)
        door.faults.before("insert_bucket", door.faults._plan.clear)

    others = [partial(door.queue.put, b"%d" % at) for at in range(3)]
    ids = put_together(door, partial(door.queue.put, b"first"), others, lose)
    door.faults.land()

    got = [one for some in iter(door.queue.get, []) for one in some]
    assert [b"0", b"1", b"2", b"first"] == bodies(got)
    assert set(ids) <= {one.message_id for one in got}


@pytest.mark.invariant("I1")
def test_p6_what_cannot_be_settled_is_told_to_each_caller_by_its_own_ids(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "DEADLINE_S", 0.3)
    monkeypatch.setattr(session, "AFTERWARDS_S", 0.3)
    door = open_door(**QUICK)
    chosen = [UUID(int=at) for at in range(1, 5)]
    others: list[Callable[[], object]] = [
        partial(door.queue.put_many, [b"a", b"b"], message_ids=chosen[:2]),
        partial(door.queue.put_many, [b"c"], message_ids=[chosen[2]]),
        partial(door.queue.put, b"d"),
        partial(door.queue.put, b"e", message_id=chosen[2]),  # the same, by somebody else
    ]

    told = put_together(
        door,
        partial(door.queue.put, b"first"),
        others,
        lambda: door.faults.before("write_message", lambda: door.faults.unreachable(0)),
    )

    assert all(isinstance(one, PutAmbiguous) for one in told)
    named = [(one.message_ids, one.stored) for one in told if isinstance(one, PutAmbiguous)]
    assert [tuple(map(str, chosen[:2])), (str(chosen[2]),)] == [one for one, _ in named[:2]]
    assert (str(chosen[2]),) == named[3][0]
    ((made,), stored) = named[2]
    assert 8 == UUID(made).version
    assert () == stored


@pytest.mark.invariant("I1")
def test_what_was_not_sent_behind_messages_of_unknown_outcome_is_not_stored(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are taken in waves, and after a wave that cannot be settled there is no other."""
    monkeypatch.setattr(session, "DEADLINE_S", 0.3)
    monkeypatch.setattr(session, "AFTERWARDS_S", 0.3)
    monkeypatch.setattr(producer, "KEYS_AT_ONCE", 2)
    door = open_door(dedup_window=60, **QUICK)
    others = [partial(door.queue.put, b"%d" % at, dedup_key=str(at)) for at in range(4)]

    told = put_together(
        door,
        partial(door.queue.put, b"first", dedup_key="first"),
        others,
        lambda: door.faults.before("write_message", lambda: door.faults.unreachable(0)),
    )

    assert [PutAmbiguous, PutAmbiguous, StoreTimeout, StoreTimeout] == sorted(
        map(type, told), key=lambda one: one.__name__
    )
    door.faults.reachable()
    for put in others:
        put()
    got = [one for some in iter(door.queue.get, []) for one in some]
    assert [b"0", b"1", b"2", b"3", b"first"] == bodies(got)


def test_a_key_that_two_callers_put_is_new_to_one_of_them(open_door: OpenDoor) -> None:
    door = open_door(dedup_window=60, **QUICK)
    before = door.queue.put(b"before", dedup_key="old")

    def put(key: str) -> cassieq.PutResult:
        return door.queue.put_many([key.encode()], dedup_keys=[key])[0]

    others = [partial(put, key) for key in ("k", "l", "k", "old")]
    told = put_together(door, partial(put, "first"), others)

    found = [one for one in told if isinstance(one, cassieq.PutResult)]
    assert 4 == len(found)
    assert found[0].message_id == found[2].message_id != found[1].message_id
    assert [False, True] == sorted([found[0].duplicate, found[2].duplicate])
    assert [False, True] == [found[1].duplicate, found[3].duplicate]
    assert before == found[3].message_id
    got = [one for some in iter(door.queue.get, []) for one in some]
    assert [b"before", b"first", b"k", b"l"] == bodies(got)


@pytest.mark.invariant("I1")
def test_what_a_due_lane_takes_no_more_goes_elsewhere_and_each_learns_its_id(
    open_door: OpenDoor,
) -> None:
    door = open_door(**QUICK)
    later = timedelta(seconds=DAY_S)

    def end() -> None:
        door.clock.advance(DAY_S)
        finish(door)

    others = [partial(door.queue.put, b"%d" % at, delay=later) for at in range(3)]
    told = put_together(door, partial(door.queue.put, b"first", delay=later), others, end)

    got = door.queue.get()
    assert [b"0", b"1", b"2"] == bodies(got)
    assert {b"%d" % at: one for at, one in enumerate(told)} == {
        one.body: one.message_id for one in got
    }


def test_a_queue_that_is_gone_is_gone_for_all(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    others = [partial(door.queue.put, b"%d" % at) for at in range(3)]

    told = put_together(door, partial(door.queue.put, b"first"), others, other.queue.delete)

    assert [QueueDeleted] * 3 == [type(one) for one in told]
