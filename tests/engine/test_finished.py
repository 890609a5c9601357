"""What is finished costs later looks nothing: its hints are not read again (ADR 37)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark.model.ids import FIRST_BUCKET, BucketNo
from cassieq_spark.model.pointer import MINUTE_US, minute_of
from cassieq_spark.queue.get import hints
from cassieq_spark.queue.get.hints import KEPT_BUCKETS, LEARN_EVERY_S, STUCK_FOR_S, Finished
from cassieq_spark.queue.get.scan import POINTERS_FOR_S
from cassieq_spark.store import portal
from cassieq_spark.store.tables.pointers import FEW_MINUTES
from tests.fixtures.faults import Fault
from tests.fixtures.queues import cost, to_the_next_minute

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.store.tables.pointers import Hints
    from tests.fixtures.queues import Door, OpenDoor

BUCKETS = 6
HOUR_S = 3_600


@pytest.fixture
def other(open_door: OpenDoor) -> Door:
    return open_door()


@pytest.fixture
def door(door: Door, other: Door) -> Door:
    to_the_next_minute(door)
    to_the_next_minute(other)
    return door


@pytest.fixture
def looks(door: Door, monkeypatch: pytest.MonkeyPatch) -> list[list[BucketNo]]:
    """The buckets whose hints each look of this client has read."""
    begin_read = type(door.lane.hints).begin_read
    found: list[list[BucketNo]] = []

    def begin(
        hints: Hints, first: int, last: int, from_bucket: BucketNo = FIRST_BUCKET
    ) -> Callable[[], Awaitable[list[tuple[int, BucketNo]]]]:
        begun = begin_read(hints, first, last, from_bucket)

        async def read() -> list[tuple[int, BucketNo]]:
            rows = await begun()
            if hints._session is door.session:
                found.append([bucket for _, bucket in rows])
            return rows

        return read

    monkeypatch.setattr(type(door.lane.hints), "begin_read", begin)
    return found


def work(door: Door, *bodies: bytes) -> None:
    """One after the other, each in a bucket of its own, whose hint is for this minute."""
    for body in bodies:
        door.put_sealed(body)
        (message,) = door.queue.get(1, visibility_timeout=1)
        assert body == message.body
        door.queue.ack(message)


def work_behind_a_lease(door: Door) -> None:
    """The same, behind a bucket that is leased for long."""
    door.put_sealed(b"held")
    assert 1 == len(door.queue.get(1, visibility_timeout=10 * HOUR_S))
    work(door, *(b"%d" % number for number in range(BUCKETS)))


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_hints_of_what_a_program_has_acked_are_not_read_again(
    door: Door, looks: list[list[BucketNo]]
) -> None:
    work(door, *(b"%d" % number for number in range(BUCKETS)))
    spent = cost(door, lambda: work(door, b"last"))
    assert [] == looks[-1]
    assert 2 == spent["read_bucket"]  # the put's, and that of the bucket it is in


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_what_others_have_finished_is_read_once(
    door: Door, other: Door, looks: list[list[BucketNo]]
) -> None:
    work(other, *(b"%d" % number for number in range(BUCKETS)))
    reader = door.reader()
    spent = [cost(door, lambda: portal.run(reader.get(1)))["read_bucket"] for _ in range(3)]
    assert BUCKETS == spent[0]
    assert [0, 0] == spent[1:]
    assert [BUCKETS, 0, 0] == [len(look) for look in looks]


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("minutes", [0, 1])
def test_what_comes_back_behind_finished_buckets_is_found(
    door: Door, other: Door, minutes: int
) -> None:
    """Nothing is passed over as long as something below it is leased."""
    door.put_sealed(b"held")
    (held,) = other.queue.get(1, visibility_timeout=HOUR_S)
    work(door, *(b"%d" % number for number in range(BUCKETS)))
    for one in (door, other):
        one.clock.advance(60 * minutes + POINTERS_FOR_S)
    other.queue.release(held)
    door.put_sealed(b"last")
    assert [b"held", b"last"] == sorted(one.body for one in door.queue.get(2))


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_buckets_that_were_finished_before_are_learned_where_hints_are_many(
    door: Door, other: Door, looks: list[list[BucketNo]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "MANY_HINTS", BUCKETS - 1)
    work(other, *(b"old %d" % number for number in range(BUCKETS - 2)))
    for one in (door, other):
        one.clock.advance(HOUR_S)
    assert [] == other.queue.get()  # the time pointer passes their hints
    work(other, *(b"%d" % number for number in range(BUCKETS)))
    reader = door.reader()
    read = [cost(door, lambda: portal.run(reader.get(1)))["read_bucket"] for _ in range(3)]
    assert [BUCKETS + BUCKETS - 2, 0, 0] == read
    assert [BUCKETS, 0, 0] == [len(look) for look in looks]


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_bucket_that_is_leased_is_not_learned_of_at_each_look(
    door: Door, other: Door, looks: list[list[BucketNo]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "MANY_HINTS", BUCKETS - 1)
    work_behind_a_lease(other)
    reader = door.reader()
    read = [cost(door, lambda: portal.run(reader.get(1)))["read_bucket"] for _ in range(4)]
    assert [BUCKETS + 1, 0, 0, 0] == read
    door.clock.advance(STUCK_FOR_S)
    assert 1 == cost(door, lambda: portal.run(reader.get(1)))["read_bucket"]
    assert {BUCKETS} == {len(look) for look in looks}


@pytest.mark.invariant("I10")
def test_a_row_that_is_only_to_be_learned_of_keeps_no_get_from_its_answer(
    door: Door, other: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is leased for long, behind all, whose replicas do not answer."""
    monkeypatch.setattr(hints, "MANY_HINTS", BUCKETS - 1)
    work_behind_a_lease(other)
    reader = door.reader()
    assert [] == portal.run(reader.get(1))
    door.clock.advance(STUCK_FOR_S)
    door.faults.plan("read_bucket", Fault.TIMEOUT_BEFORE, times=10)
    asked: list[int] = []
    door.faults.before("read_bucket", lambda: asked.append(1))
    assert [] == portal.run(reader.get(1))
    assert asked  # for that row alone
    assert reader.is_sure
    assert not portal.run(reader.may_find())


@pytest.mark.invariant("I9")
def test_rows_are_learned_of_some_at_a_time(door: Door) -> None:
    known = Finished(door.lane)
    known.end(BucketNo(10))
    for bucket in range(20, 300):
        known.add(BucketNo(bucket))
    hinted = {BucketNo(bucket) for bucket in range(20, 300)}
    assert list(range(10, 20)) == known.to_learn(BucketNo(300), hinted)
    assert [] == known.to_learn(BucketNo(300), hinted)
    door.clock.advance(STUCK_FOR_S)
    assert list(range(10, 15)) == known.to_learn(BucketNo(15), hinted)
    for bucket in range(10, 20):
        known.add(BucketNo(bucket))
    assert 300 == known.end(BucketNo(0))
    door.clock.advance(LEARN_EVERY_S)
    assert [] == known.to_learn(BucketNo(300), hinted)
    far = {BucketNo(300 + KEPT_BUCKETS + at) for at in range(1, 100)}
    for bucket in far:
        known.add(bucket)
    assert [] == known.to_learn(BucketNo(100_000), far)


def test_what_is_remembered_is_bounded(door: Door) -> None:
    known = Finished(door.lane)
    far = KEPT_BUCKETS + 10
    for bucket in range(1, far):
        known.add(BucketNo(bucket))
    assert 0 == known.end(BucketNo(0))
    known.forget(BucketNo(far), {BucketNo(far - 1)})
    assert KEPT_BUCKETS == len(known._buckets)  # one that is hinted, and those before
    known.add(BucketNo(0))
    assert KEPT_BUCKETS == known.end(BucketNo(0))
    known.forget(BucketNo(far), set())
    assert {far - 1} == known._buckets


def test_what_was_dropped_is_finished(door: Door) -> None:
    known = Finished(door.lane)
    assert BucketNo(4) not in known
    assert 5 == known.end(BucketNo(5))
    assert BucketNo(4) in known
    assert 5 == known.end(BucketNo(3))


@pytest.mark.parametrize("minutes", [1, 2, 40])
def test_a_read_of_hints_leaves_out_buckets_below_only(door: Door, minutes: int) -> None:
    """A probe: ``IN`` on the minute and a slice of buckets, over the end of an hour, too."""
    now_us = door.clock.now_us()
    first = (minute_of(now_us) // 60 + 1) * 60 - 1  # the last minute of an hour
    asked = range(first, first + minutes)
    hints = [(BucketNo(bucket), at * MINUTE_US) for at in asked for bucket in (3, 7, 9)]
    portal.run(door.lane.hints.write(hints, now_us=now_us))

    async def read() -> list[tuple[int, BucketNo]]:
        return await door.lane.hints.begin_read(first, asked[-1], BucketNo(7))()

    found = portal.run(read())
    wanted = [(at, bucket) for at in asked for bucket in (7, 9)]
    assert wanted == [hint for hint in found if hint[1] >= 7]
    if minutes <= FEW_MINUTES:
        assert wanted == found
