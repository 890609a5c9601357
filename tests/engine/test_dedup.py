"""A key is put once in its window, whoever dies where, and nobody is told "duplicate" of a loss."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import (
    OptionInvalid,
    PutAmbiguous,
    QueueDeleted,
    StoreError,
    StoreTimeout,
)
from cassieq_spark.model.bucket import sealing
from cassieq_spark.model.dedup import stored_key
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.moments import time_of
from cassieq_spark.queue.put import producer
from cassieq_spark.queue.put.dedup import YOUNG_US
from cassieq_spark.queue.put.producer import Producer, Proof
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.faults import Fault, FaultyStore
from tests.fixtures.queues import Crash, crash
from tests.fixtures.transports import intercept, run_cql

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.store.statements import Statement
    from tests.fixtures.queues import Door, OpenDoor

QUICK: dict[str, Any] = {"linger": 0, "repair_timeout": 0.2, "dedup_window": 3_600}
DAY_S = 86_400

STEPS = {"take_key": 0, "write_message": 0, "read_bucket": 1, "read_pointers": 1}
"""The statements of a put with a key behind the look whether its producer's bucket is still open,
and how often that look has sent the same."""


def drained(door: Door) -> list[bytes]:
    found: list[bytes] = []
    while messages := door.queue.get(100):
        found += [one.body for one in messages]
        door.queue.ack(messages)
    return sorted(found)


def dropped(door: Door) -> list[bytes]:
    """What was delivered until L is above all."""
    found = drained(door)
    for _ in range(4):
        door.clock.advance(15)
        assert [] == door.client.repair(door.queue.name).problems
        found += drained(door)
    return found


@pytest.mark.parametrize("how", ["fresh", "delayed", "scheduled", "ranked"])
def test_a_key_is_put_once_and_each_further_put_is_told_the_first_id(
    open_door: OpenDoor, how: str
) -> None:
    door, other = (open_door(priorities=2, shards=2, **QUICK) for _ in range(2))
    options: dict[str, Any] = {
        "fresh": {},
        "delayed": {"delay": 60},
        "scheduled": {"due_at": time_of(door.clock.now_us()) + timedelta(minutes=50)},
        "ranked": {"priority": 1, "key": "k", "message_id": "6f0a3c58-1111-4222-8333-944455556666"},
    }[how]

    first = door.queue.put(b"first", dedup_key="k", **options)
    assert first == door.queue.put(b"second", dedup_key="k")
    assert first == other.queue.put(b"third", dedup_key="k", priority=1)
    assert first != other.queue.put(b"other", dedup_key="l")

    door.clock.advance(3_300)
    assert [b"first", b"other"] == drained(door)
    assert first == door.queue.put(b"late", dedup_key="k")


def test_put_many_says_what_was_new(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    earlier = door.queue.put(b"b", dedup_key="b")

    found = door.queue.put_many(
        [b"a", b"b", b"a again", b"d", b"e", b"c"],
        dedup_keys=["a", "b", "a", None, None, "c"],
    )

    assert [False, True, True, False, False, False] == [one.duplicate for one in found]
    assert earlier == found[1].message_id
    assert found[0].message_id == found[2].message_id
    assert 5 == len({one.message_id for one in found})
    (again,) = door.queue.put_many([b"b"], dedup_keys=["b"])
    assert (earlier, True) == (again, again.duplicate)
    assert door.queue.put(b"b", dedup_key="b").duplicate
    assert [] == door.queue.put_many([], dedup_keys=[])
    by_body = {one.body: one.message_id for one in door.queue.get(100)}
    places = {b"a": 0, b"b": 1, b"d": 3, b"e": 4, b"c": 5}
    assert by_body == {body: found[at].message_id for body, at in places.items()}


def test_many_keys_in_waves_are_each_in_once(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "KEYS_AT_ONCE", 8)
    door = open_door(**QUICK)
    keys = [str(at) for at in range(50)]
    door.queue.put_many([b"early"] * 5, dedup_keys=keys[10:15])
    found = door.queue.put_many([b"%d" % at for at in range(50)], dedup_keys=keys)
    assert list(range(10, 15)) == [at for at, one in enumerate(found) if one.duplicate]
    assert 50 == len(drained(door)) == len({one.message_id for one in found})


def test_after_the_window_a_key_is_put_again(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    first = door.queue.put(b"1", dedup_key="k")
    door.clock.advance(3_590)
    assert first == door.queue.put(b"2", dedup_key="k")
    door.clock.advance(20)
    second = door.queue.put(b"3", dedup_key="k")
    assert first != second == door.queue.put(b"4", dedup_key="k")
    assert [b"1", b"3"] == drained(door)


@pytest.mark.usefixtures("still_time")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"dedup_keys": [""]}, "dedup_key is '', allowed: text of 1 to 1,024 bytes"),
        ({"dedup_keys": ["x" * 1_025]}, "dedup_key is 'x.*1,024 bytes"),
        ({"dedup_keys": ["é" * 513]}, "1,024 bytes in UTF-8"),
        ({"dedup_keys": ["\ud800"]}, "half of a character"),
        ({"dedup_keys": [7]}, "dedup_key is 7, allowed: text"),
        ({"dedup_keys": ["a", "b"]}, "dedup_keys has 2 entries for 1 bodies"),
        ({"dedup_keys": "a"}, "dedup_keys has str for 1 bodies"),
    ],
)
def test_a_wrong_key_is_refused_before_anything_is_written(
    open_door: OpenDoor, wrong: dict[str, Any], says: str
) -> None:
    door = open_door(**QUICK)
    before = door.counts
    with pytest.raises(OptionInvalid, match=says):
        door.queue.put_many([b"m"], **wrong)
    assert before == door.counts


def test_a_key_is_refused_where_nobody_looks_for_duplicates(open_door: OpenDoor) -> None:
    door = open_door(linger=0)
    with pytest.raises(OptionInvalid, match="does not look for duplicates"):
        door.queue.put(b"m", dedup_key="k")
    assert [False] == [one.duplicate for one in door.queue.put_many([b"m"], dedup_keys=[None])]
    door.client.alter_queue(door.queue.name, dedup_window=60)
    altered = door.client.queue(door.queue.name)
    assert altered.put(b"1", dedup_key="k") == altered.put(b"2", dedup_key="k")


@pytest.mark.usefixtures("still_time")
def test_a_key_costs_one_lwt_and_none_costs_nothing(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=1_000, **QUICK)
    door.queue.put(b"0", dedup_key="0")

    def spent(act: Callable[[], object]) -> dict[str, int]:
        before = door.counts
        act()
        return dict(door.counts - before)

    plain = spent(lambda: door.queue.put(b"m"))
    assert {**plain, "take_key": 1} == spent(lambda: door.queue.put(b"m", dedup_key="1"))
    assert plain == spent(lambda: door.queue.put_many([b"m"], dedup_keys=[None]))
    again = spent(lambda: door.queue.put(b"m", dedup_key="1"))
    assert {"take_key": 1, "read_key": 1} == {
        name: times for name, times in again.items() if "key" in name
    }
    assert not {"write_message", "reserve", "insert_bucket"} & again.keys()


@pytest.mark.parametrize("then", ["at once", "delivered", "dropped"])
@pytest.mark.parametrize("statement", STEPS)
@pytest.mark.invariant("I1")
def test_a_put_that_dies_at_any_statement_is_put_again_once(
    open_door: OpenDoor, statement: str, then: str
) -> None:
    door, other = open_door(**QUICK), open_door(**QUICK)
    door.queue.put(b"before")
    door.faults.before(statement, crash, after=STEPS[statement])
    with pytest.raises(Crash):
        door.queue.put(b"dead", dedup_key="k")
    delivered = {"at once": list, "delivered": lambda: drained(other)}.get(
        then, lambda: dropped(other)
    )()

    (result,) = other.queue.put_many([b"again"], dedup_keys=["k"])

    delivered += drained(other)
    assert sorted([b"before", b"dead" if result.duplicate else b"again"]) == sorted(delivered)
    assert result.message_id == other.queue.put(b"third", dedup_key="k")


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.LATE])
@pytest.mark.parametrize("statement", ["take_key", "write_message"])
@pytest.mark.invariant("I1")
def test_a_lost_answer_changes_nothing(open_door: OpenDoor, statement: str, fault: Fault) -> None:
    door, other = open_door(**QUICK), open_door(**QUICK)
    door.queue.put(b"before")
    door.faults.plan(statement, fault)
    with suppress(StoreError):
        door.queue.put(b"first", dedup_key="k")
    (result,) = other.queue.put_many([b"again"], dedup_keys=["k"])
    door.faults.land()

    assert [b"before", b"first" if result.duplicate else b"again"] == drained(other)


@pytest.mark.invariant("I4")
def test_u3_an_entry_that_others_took_behind_a_lost_answer_is_settled(open_door: OpenDoor) -> None:
    """By its tag the row tells that the CAS was applied; but it names another put by now."""
    door, other = open_door(**QUICK), open_door(**QUICK)
    door.queue.put(b"before")
    told: list[cassieq.PutResult] = []

    def meanwhile() -> None:
        for one in (door, other):
            one.clock.advance(1)
        told.extend(other.queue.put_many([b"other"], dedup_keys=["k"]))

    door.faults.plan("take_key", Fault.TIMEOUT_AFTER)
    door.faults.before("take_key", meanwhile, after=1)
    told += door.queue.put_many([b"mine"], dedup_keys=["k"])

    assert [False, True] == [one.duplicate for one in told]
    assert 1 == len({one.message_id for one in told})
    assert [b"before", b"other"] == drained(door)


@pytest.mark.invariant("I1")
def test_what_is_ambiguous_is_put_again_with_its_key_and_is_there_once(
    open_door: OpenDoor,
) -> None:
    """What keys are for: whoever cannot know puts again."""
    door = open_door(**QUICK)
    door.queue.put(b"before")

    class Dead(Producer):
        async def _proven(self, *_: Any) -> Proof:
            """Nothing is answered any more."""
            return Proof(kept=None, failure=StoreTimeout("nothing is answered"))

    producers = door.queue._work.puts.producers
    alive = producers.get(door.lane.lane_id)
    assert alive is not None
    producers.keep(door.lane.lane_id, Dead())
    with pytest.raises(PutAmbiguous):
        door.queue.put(b"m", dedup_key="k")
    producers.keep(door.lane.lane_id, alive)

    door.queue.put(b"m", dedup_key="k")
    assert [b"before", b"m"] == drained(door)


def test_u4_a_producer_whose_bucket_was_closed_moves_its_entry_first(open_door: OpenDoor) -> None:
    """Another settles the put that is on its way, and puts the key itself: one of them is in."""
    door, other = open_door(**QUICK), open_door(**QUICK)
    door.queue.put(b"before")
    told: list[str] = []

    def meanwhile() -> None:
        door.clock.advance(1)
        other.clock.advance(1)
        told.append(other.queue.put(b"other", dedup_key="k"))

    door.faults.before("write_message", meanwhile)
    mine = door.queue.put(b"mine", dedup_key="k")

    assert [mine] == told
    assert [b"before", b"other"] == drained(door)


def test_u4_an_entry_of_a_former_try_is_its_own(open_door: OpenDoor) -> None:
    """A reader closes the bucket between reservation and write: the put goes again."""
    door, other = open_door(**QUICK), open_door(**QUICK)
    door.queue.put(b"before")
    door.faults.before("write_message", lambda: drained(other))
    first = door.queue.put(b"mine", dedup_key="k")
    assert first == other.queue.put(b"other", dedup_key="k")
    assert [b"mine"] == drained(door)


@pytest.mark.usefixtures("passing_time")
@pytest.mark.parametrize("step", ["read_messages", "read_bucket", "read_pointers"])
def test_a_message_that_is_delivered_and_dropped_meanwhile_is_a_duplicate(
    open_door: OpenDoor, step: str
) -> None:
    """Between two looks at what an entry names, all of it is over."""
    door, other, third = (open_door(**{**QUICK, "linger": 5}) for _ in range(3))
    first = door.queue.put(b"first", dedup_key="k")
    third.queue.put(b"bucket", dedup_key="l")
    delivered: list[bytes] = []
    other.clock.advance(10)
    third.faults.before(step, lambda: delivered.extend(dropped(other)))
    assert first == third.queue.put(b"again", dedup_key="k")
    assert [b"bucket", b"first"] == sorted(delivered)
    assert [] == drained(other)


@pytest.mark.invariant("I1")
def test_u3_a_message_that_comes_after_its_bucket_was_sealed_is_no_duplicate(
    open_door: OpenDoor,
) -> None:
    """Who looked at the bucket first would find it open, and then a message that is not in it."""
    door, other, consumer = (open_door(**QUICK) for _ in range(3))
    door.queue.put(b"before")
    door.faults.plan("write_message", Fault.LATE)
    door.faults.before("write_message", crash, after=1)
    with pytest.raises(Crash):
        door.queue.put(b"dead", dedup_key="k")
    delivered: list[bytes] = []

    def seal_and_land() -> None:
        delivered.extend(drained(consumer))
        door.faults.land()

    other.faults.before("read_messages", seal_and_land)
    (result,) = other.queue.put_many([b"again"], dedup_keys=["k"])

    assert [b"before"] == delivered
    assert ([b"again"], False) == (drained(other), result.duplicate)


def test_u5_below_the_repair_pointer_only_what_was_kept_is_believed(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    first = door.queue.put(b"first", dedup_key="k")
    never = door.reserve()
    assert [b"first"] == dropped(door)
    low = portal.run(door.lane.read_pointers()).repair
    assert low > never
    known = portal.run(door.store.dedup.read(door.lane.lane_id, stored_key("k")))
    assert known is not None
    assert known.value.offset in (portal.run(door.lane.kept.read(known.value.bucket)) or ())
    assert None is portal.run(door.lane.kept.read(never))

    # A ghost: a late copy of an INSERT has made the row again, and somebody has sealed it.
    portal.run(door.lane.buckets.insert(known.value.bucket, sealing(now_us=door.clock.now_us())))
    assert first == door.queue.put(b"again", dedup_key="k")


@pytest.mark.parametrize("statement", ["keep", "drop_messages", "advance_pointer", "delete_bucket"])
def test_u5_a_repair_that_dies_at_any_statement_keeps_it(
    open_door: OpenDoor, statement: str
) -> None:
    door, other = open_door(**QUICK), open_door(**QUICK)
    first = door.queue.put(b"first", dedup_key="k")
    assert [b"first"] == drained(other)
    for _ in range(2):
        other.clock.advance(15)
        other.client.repair(other.queue.name)
    other.clock.advance(15)
    other.faults.before(statement, crash)
    with suppress(Crash):
        other.client.repair(other.queue.name)
    assert first == door.queue.put(b"again", dedup_key="k")
    other.faults._plan.clear()
    assert [] == dropped(other)
    assert first == door.queue.put(b"again", dedup_key="k")


def test_u13_what_never_happened_is_no_duplicate_however_young_it_is(open_door: OpenDoor) -> None:
    door, other = open_door(**QUICK), open_door(**QUICK)
    door.queue.put(b"before")
    door.faults.before("write_message", crash)
    with pytest.raises(Crash):
        door.queue.put(b"dead", dedup_key="k")
    (result,) = other.queue.put_many([b"again"], dedup_keys=["k"])
    assert result.duplicate is False


def test_what_was_cancelled_or_purged_or_expired_stays_a_duplicate(open_door: OpenDoor) -> None:
    door = open_door(**QUICK)
    cancelled = door.queue.put(b"c", dedup_key="c")
    assert door.queue.cancel(cancelled)
    purged = door.queue.put(b"p", dedup_key="p")
    door.queue.purge()
    expired = door.queue.put(b"e", dedup_key="e", ttl=60)
    door.clock.advance(180)
    assert [] == dropped(door)

    assert [cancelled, purged, expired] == [
        door.queue.put(b"again", dedup_key=key) for key in ("c", "p", "e")
    ]


def test_a_message_that_was_scheduled_stays_a_duplicate_when_its_lane_is_over(
    open_door: OpenDoor,
) -> None:
    settings = {**QUICK, "dedup_window": 30 * DAY_S}
    door = open_door(**settings)
    first = door.queue.put(b"m", delay=DAY_S, dedup_key="k")
    door.clock.advance(DAY_S + 7_200)
    assert [b"m"] == dropped(door)
    assert 1 << 62 == max(
        portal.run(lane.pointers.read()).repair
        for entry in [portal.run(door.store.dedup.read(door.lane.lane_id, stored_key("k")))]
        if entry is not None
        for lane in [door.lane.sibling(entry.value.lane)]
    )
    assert first == door.queue.put(b"again", dedup_key="k")


def test_another_queue_and_a_queue_created_again_have_keys_of_their_own(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(**QUICK), open_door("other", **QUICK)
    first = door.queue.put(b"m", dedup_key="k")
    assert first != other.queue.put(b"m", dedup_key="k")
    door.queue.delete()
    with pytest.raises(QueueDeleted):
        door.queue.put(b"m", dedup_key="k")
    again = door.client.create_queue(door.queue.name, bucket_size=10, **QUICK)
    assert first != again.put(b"m", dedup_key="k")


@pytest.mark.usefixtures("passing_time")
@pytest.mark.invariant("I1")
def test_clients_that_put_the_same_keys_at_once_have_each_in_once(open_door: OpenDoor) -> None:
    doors = [open_door(bucket_size=40, **QUICK) for _ in range(4)]
    consumer = open_door(bucket_size=40, **QUICK)
    keys = [str(at) for at in range(60)]
    delivered: list[bytes] = []
    stop = threading.Event()

    def consume() -> None:
        while not stop.is_set():
            messages = consumer.queue.get(5)
            delivered.extend(one.body for one in messages)
            consumer.queue.ack(messages)

    def put(one: Door) -> list[cassieq.PutResult]:
        return [
            result
            for start in range(0, len(keys), 10)
            for some in [keys[start : start + 10]]
            for result in one.queue.put_many([key.encode() for key in some], dedup_keys=some)
        ]

    with ThreadPoolExecutor(5) as pool:
        consuming = pool.submit(consume)
        results = [pool.submit(put, one) for one in doors]
        found = [one.result() for one in results]
        stop.set()
        consuming.result()
    delivered += drained(consumer)

    assert sorted(key.encode() for key in keys) == sorted(delivered)
    assert 60 == sum(not one.duplicate for some in found for one in some)
    assert 60 == len({one.message_id for some in found for one in some})


@pytest.mark.usefixtures("still_time")
def test_two_producers_of_a_key_that_write_slowly_do_not_close_each_others_buckets_for_ever(
    open_door: OpenDoor,
) -> None:
    """Each write takes longer than a young put is left alone at first."""
    doors = [open_door(**QUICK), open_door(**QUICK)]
    bodies = {b"one", b"other"}

    class Slow(FaultyStore):
        def around(
            self, statement: Statement, params: tuple[Any, ...], proceed: Callable[[], Any]
        ) -> Any:
            if statement.name == "write_message":
                doors[0].clock.wait(3 * YOUNG_US / 1e6)
            return super().around(statement, params, proceed)

    with ThreadPoolExecutor(2) as pool:
        for door in doors:
            intercept(door.client._session, Slow())
        putting = [
            pool.submit(door.queue.put, body, dedup_key="k")
            for door, body in zip(doors, bodies, strict=True)
        ]
        found = {one.result() for one in putting}

    assert 1 == len(found)
    assert 1 == len(drained(doors[0]))
    assert sum(door.counts["take_key"] for door in doors) <= 12


def test_a_null_condition_is_true_of_no_row_and_all_columns_end_together(door: Door) -> None:
    """What `take_key` rests on: a condition on null holds for a row that is not there."""
    lane, key = door.lane.lane_id, stored_key("probe")

    def take(ttl_s: int) -> bool:
        cql = (
            "UPDATE {ks}.dedup USING TTL ? SET bucket = ?, writer = ? "
            "WHERE lane = ? AND key = ? IF writer = ?"
        )
        (row,) = run_cql(door.session, cql, ttl_s, 1, new_uuid(), lane, key, None)
        return bool(row[0])

    read = "SELECT bucket, writer FROM {ks}.dedup WHERE lane = ? AND key = ?"
    assert take(1)
    assert not take(1)
    wait_until(lambda: not run_cql(door.session, read, lane, key))
    assert take(60)


def test_the_first_bucket_of_a_key_is_not_closed_for_a_put_that_is_on_its_way(
    open_door: OpenDoor,
) -> None:
    """Closing it would make that producer begin again; a young put gets a moment."""
    door, other = open_door(**QUICK), open_door(**QUICK)
    door.queue.put(b"before")
    with ThreadPoolExecutor(1) as pool:
        asked = threading.Event()

        def hold() -> None:
            other.faults.before("read_messages", asked.set)
            waiting.append(pool.submit(other.queue.put, b"other", dedup_key="k"))
            assert asked.wait(30)

        waiting: list[Any] = []
        door.faults.before("write_message", hold)
        mine = door.queue.put(b"mine", dedup_key="k")
        assert mine == waiting[0].result()
    assert None is door.row(BucketNo(0))
