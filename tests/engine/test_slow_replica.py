"""One bucket without a quorum: what is done for the others goes on (ADR 21).

See docs/design/get-and-leases.md.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import CasAmbiguous, ClientClosed, StoreError, StoreTimeout
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import Pointer
from cassieq_spark.queue import consumer as consumers
from cassieq_spark.queue import seal
from cassieq_spark.queue.get.getter import read_in_time
from cassieq_spark.queue.get.scan import AWAY_REMEMBERED_S
from cassieq_spark.queue.settle import batches
from cassieq_spark.queue.settle.settle import AckResult
from cassieq_spark.repair.heal import heal
from cassieq_spark.store import cas, portal, session
from cassieq_spark.testing import wait_until
from tests.fixtures.faults import Away, Fault

if TYPE_CHECKING:
    from cassieq_spark.queue.get.claim import Claimed
    from tests.fixtures.queues import Door, OpenDoor

HOWS = pytest.mark.parametrize("how", [Away.UNAVAILABLE, Away.TIMES_OUT])
BUCKETS = 4
"""Of the queue, with ten messages each."""


@pytest.fixture(autouse=True)
def _short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the 20 s of a bucket that stays away."""
    for room in (cas, session):
        monkeypatch.setattr(room, "DEADLINE_S", 2.0)


pytestmark = pytest.mark.usefixtures("passing_time")


def fill(door: Door) -> None:
    """Four sealed buckets of ten visible messages."""
    for first in range(0, 10 * BUCKETS, 10):
        bucket = door.put(*(b"%d" % (first + at) for at in range(10)))
        portal.run(seal.close(door.lane, bucket))


def claim_all(door: Door, **more: object) -> list[Claimed]:
    reader = door.reader(**more)  # type: ignore[arg-type]
    claimed: list[Claimed] = []
    while found := portal.run(reader.get(100)):
        claimed += found
    return claimed


def leased(door: Door, bucket: int) -> int:
    return sum(lease.runs.count for lease in door.value(bucket).leases)


def version(door: Door, bucket: int) -> int:
    row = door.row(bucket)
    assert row is not None
    return row.version.row_version


@pytest.mark.parametrize("pointers_answer", [True, False])
@pytest.mark.invariant("I10")
def test_t22_a_get_that_misses_bodies_asks_once_which_leases_it_still_holds(
    door: Door, *, pointers_answer: bool
) -> None:
    """One read for the lane, and what is not known of a lease keeps back no other's messages."""
    fill(door)
    claimed = portal.run(door.reader(visibility_s=600).get(40))
    door.faults.unreachable(1)
    if not pointers_answer:
        door.faults.plan("read_pointers", Fault.TIMEOUT_BEFORE, times=10_000)
    before = door.faults._seen["read_pointers"]
    found = portal.run(read_in_time(door.lane, claimed))
    assert {0, 2, 3} == {one.id // 10 for one in found}
    assert not pointers_answer or before + 1 == door.faults._seen["read_pointers"]


# --- get ----------------------------------------------------------------------------------------


@HOWS
@pytest.mark.invariant("I10")
def test_t5_a_get_hands_out_what_lies_behind_a_bucket_that_does_not_answer(
    open_door: OpenDoor, how: Away
) -> None:
    door, watch = open_door(), open_door()
    fill(door)
    door.faults.unreachable(0, how=how)
    found = [one for _ in range(3) for one in door.queue.get(10)]
    assert {1, 2, 3} == {one.id // 10 for one in found}
    assert 30 == len(found)
    with pytest.raises(StoreError, match="bucket 0 of queue"):
        door.queue.get(10)  # not "none": nobody knows
    assert 0 == portal.run(door.lane.read_pointers()).reader
    door.faults.reachable()
    assert 10 == len(door.queue.get(10))
    assert 40 == watch.queue.stats().in_flight


@pytest.mark.invariant("I10")
def test_t22_leases_that_other_buckets_granted_are_handed_out_beside_an_ambiguous_claim(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, watch = open_door(), open_door()
    fill(door)
    reader = door.reader(run=new_uuid())
    portal.run(reader.look_ahead(40))
    monkeypatch.setattr(cas, "DEADLINE_S", 0.1)  # it is ambiguous while others are waited for
    door.faults.unreachable(1)
    claimed = portal.run(reader.get(40))
    assert {0, 2, 3} == {one.bucket for one in claimed}
    assert [10, 10, 10] == [leased(watch, bucket) for bucket in (0, 2, 3)]
    door.ack(claimed)
    door.faults.reachable()
    # What was not granted burnt no delivery.
    assert {1} == {one.delivery_count for one in watch.queue.get(40)}


@pytest.mark.invariant("I10")
def test_t22_a_claim_that_is_answered_when_nobody_waits_any_more_is_given_back_uncounted(
    open_door: OpenDoor,
) -> None:
    """A get that has messages does not wait for the last of them; their leases run."""
    door, watch = open_door(), open_door()
    fill(door)
    reader = door.reader(run=new_uuid())
    portal.run(reader.look_ahead(40))
    door.faults.unreachable(1, how=Away.STANDS_STILL)
    claimed = portal.run(reader.get(40))
    assert {0, 2, 3} == {one.bucket for one in claimed}
    assert 10 == watch.queue.stats().visible
    before = version(watch, 1)
    door.faults.reachable()
    wait_until(lambda: version(watch, 1) == before + 2, describe=lambda: str(watch.row(1)))
    assert [(10, 1)] == [
        (one.lease.runs.count, one.lease.delivery_count)
        for one in portal.run(watch.reader().get(40))
    ]


@pytest.mark.invariant("I10")
def test_t22_a_seal_that_is_not_answered_takes_no_lease_with_it(open_door: OpenDoor) -> None:
    door, watch = open_door(), open_door()
    portal.run(seal.close(door.lane, door.put(*(b"sealed" for _ in range(10)))))
    for _ in range(2):
        door.reserve()  # gaps, to be closed
    reader = door.reader()
    door.faults.plan("insert_bucket", Fault.TIMEOUT_BEFORE, times=100)
    door.clock.advance(60)
    claimed = portal.run(reader.get(100))
    assert "insert_bucket" in str(door.faults).partition("to do")[0]
    assert [b"sealed"] * 10 == door.bodies(claimed)
    assert 10 == leased(watch, 0)


@pytest.mark.invariant("I10")
def test_t22_what_is_claimed_is_given_back_uncounted_where_it_cannot_be_confirmed(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, watch = open_door(), open_door()
    fill(door)
    reader = door.reader()
    confirm = reader._claimer._confirmed

    def fails(_claimed: list[Claimed]) -> list[Claimed]:
        raise StoreTimeout("the pointers were not read")

    monkeypatch.setattr(type(reader._claimer), "_confirmed", lambda _, claimed: fails(claimed))
    with pytest.raises(StoreTimeout):
        portal.run(reader.get(40))
    monkeypatch.setattr(type(reader._claimer), "_confirmed", lambda _, claimed: confirm(claimed))
    assert 40 == watch.queue.stats().visible
    assert {1} == {one.delivery_count for one in watch.queue.get(40)}


@pytest.mark.invariant("I10")
def test_t22_what_was_claimed_is_handed_out_though_no_more_hints_can_be_written(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(bucket_size=400), open_door(bucket_size=400)
    for _ in range(2):  # hints of several buckets are written together, before their claims
        portal.run(seal.close(door.lane, door.put(*(b"%d" % at for at in range(200)))))
    held = other.queue.get(400)
    other.queue.ack(held[::2])
    other.queue.release(held[1::2])  # 100 runs in each: a claim takes 64
    door.faults.plan("write_hint", Fault.TIMEOUT_BEFORE, after=2, times=100_000)
    door.faults.before("update_bucket", lambda: door.clock.advance(60))  # the next hint is another
    of_spark = door.reader(run=new_uuid(), visibility_s=600)  # a program takes all runs at once
    claimed = portal.run(of_spark.get(200))
    assert 128 == sum(one.lease.runs.count for one in claimed)


@pytest.mark.invariant("I10")
def test_t22_what_was_claimed_is_given_back_uncounted_where_the_rest_of_the_call_fails(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, watch = open_door(), open_door()
    fill(door)
    door.reserve()
    reader = door.reader()

    def fails(*_args: object, **_more: object) -> None:
        raise StoreTimeout("the open buckets were not looked at")

    with monkeypatch.context() as patched:
        patched.setattr(reader._open, "ripe", fails)
        with pytest.raises(StoreTimeout):
            portal.run(reader.get(100))
    assert 40 == watch.queue.stats().visible
    assert {1} == {one.delivery_count for one in watch.queue.get(40)}


@pytest.mark.invariant("I10")
def test_t5_the_time_pointer_does_not_pass_a_minute_of_a_bucket_that_was_not_read(
    open_door: OpenDoor,
) -> None:
    """Its hint is all that finds what comes back there."""
    door, watch = open_door(), open_door()
    fill(door)
    assert 40 == len(watch.queue.get(40, visibility_timeout=30))
    for one in (door, watch):
        one.clock.advance(3_600)
    door.faults.unreachable(2)
    found = [one for _ in range(3) for one in door.queue.get(10)]
    assert {0, 1, 3} == {one.id // 10 for one in found}
    with pytest.raises(StoreError):
        door.queue.get(10)  # nothing but that bucket is due in that minute now
    door.faults.reachable()
    assert {2} == {one.id // 10 for one in watch.queue.get(100)}


# --- ack, extend, release, reject ---------------------------------------------------------------


@HOWS
@pytest.mark.invariant("I10")
def test_t5_acks_of_other_buckets_are_stored_and_told_and_one_is_unknown(
    open_door: OpenDoor, how: Away
) -> None:
    door, watch = open_door(), open_door()
    fill(door)
    messages = door.queue.get(40)
    door.faults.unreachable(1, how=how)
    verdicts = door.queue.ack_each(messages)
    unknown = [
        one.id // 10
        for one, verdict in zip(messages, verdicts, strict=True)
        if verdict is AckResult.UNKNOWN
    ]
    assert [1] * 10 == unknown
    assert 30 == verdicts.count(AckResult.ACKED)
    with pytest.raises(StoreError, match="bucket 1 of queue"):
        door.queue.ack(messages)
    assert 10 == watch.queue.stats().in_flight
    door.faults.reachable()
    door.queue.ack(messages)


@pytest.mark.invariant("I10")
def test_t5_nobody_waits_for_another_threads_ack_of_another_bucket(open_door: OpenDoor) -> None:
    door, watch = open_door(), open_door()
    fill(door)
    messages = door.queue.get(40)
    stuck = [one for one in messages if one.id < 10]
    others = [one for one in messages if one.id >= 10]
    door.faults.unreachable(0, how=Away.STANDS_STILL)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(door.queue.ack, stuck)
        try:
            wait_until(lambda: "stands still" in str(door.faults), describe=str(door.faults))
            door.queue.ack(others)
            assert not waiting.done()
            assert 10 == watch.queue.stats().in_flight
        finally:
            door.faults.reachable()
        waiting.result()
    assert 0 == watch.queue.stats().in_flight


@pytest.mark.parametrize("verb", ["extend", "release", "reject"])
@pytest.mark.invariant("I10")
def test_t5_what_is_done_with_other_buckets_is_done_before_one_is_told_to_have_failed(
    open_door: OpenDoor, verb: str
) -> None:
    dead = open_door(".dead")
    door, watch = (open_door(dead_letter_queue=dead.queue.name) for _ in range(2))
    fill(door)
    messages = door.queue.get(40)
    door.faults.unreachable(0)
    arguments = (3_600,) if verb == "extend" else ()
    with pytest.raises(StoreError, match="bucket 0 of queue"):
        getattr(door.queue, verb)(messages, *arguments)
    now_us = door.clock.now_us()
    for bucket in (1, 2, 3):
        row = watch.value(bucket)
        if verb == "extend":
            assert {True} == {lease.until_us > now_us + 3_000_000_000 for lease in row.leases}
        else:
            assert () == row.leases
    assert 10 == leased(watch, 0)


@pytest.mark.invariant("I10")
def test_t5_more_stuck_buckets_than_threads_at_once_hold_up_no_other(open_door: OpenDoor) -> None:
    """Sixteen items at once, of those that get on."""
    door, watch = open_door(bucket_size=1), open_door(bucket_size=1)
    for _ in range(40):
        portal.run(seal.close(door.lane, door.put(b"x")))
    claimed = claim_all(door)
    assert 40 == len(claimed)
    door.faults.unreachable(*range(20), how=Away.STANDS_STILL)
    by_bucket = {one.place: {one.lease.lease_id: None} for one in claimed}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(portal.run, batches.ack_leases(door.lane, by_bucket))
        try:
            wait_until(lambda: 20 == watch.queue.stats().in_flight)
            assert not waiting.done()
        finally:
            door.faults.reachable()
        assert 40 == waiting.result().count


@pytest.mark.invariant("I10")
def test_t5_listed_buckets_are_rolled_forward_beside_one_that_is_away(open_door: OpenDoor) -> None:
    door, watch = open_door(), open_door()
    who = door.identity()
    result = door.task(who, 0, *(b"%d" % at for at in range(30)))
    first = min(place for place, _ in result.buckets)
    door.faults.before("update_sink", lambda: door.faults.unreachable(first.bucket))
    assert 30 == door.commit(who, 0, result)  # it is: whoever comes by rolls the rest forward
    assert 20 == sum(
        watch.value(place).fresh.count for place, _ in result.buckets if place != first
    )
    door.faults.reachable()
    assert 30 == len(watch.drain())  # a reader rolls the rest


# --- a consumer ---------------------------------------------------------------------------------


@pytest.mark.invariant("I10")
def test_t5_a_consumer_renews_and_acks_other_buckets_while_one_stands_still(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in (cas, session):
        monkeypatch.setattr(room, "DEADLINE_S", 20.0)
    door, watch = open_door(), open_door()
    fill(door)
    with door.queue.consumer(visibility_timeout=60, prefetch=40) as consumer:
        wait_until(lambda: 40 == len(consumer._ahead.shelf.waiting()))
        assert [0, 10, 20, 30] == [one.message.id for one in consumer._ahead.shelf.waiting()][::10]
        others = [one.message for one in consumer._ahead.shelf.waiting() if one.receipt.bucket]
        door.faults.unreachable(0, how=Away.STANDS_STILL)
        for one in (door, watch):
            one.clock.advance(31)
        consumer._ahead._loop.call_soon_threadsafe(consumer._ahead._renew)
        try:
            soon_us = door.clock.now_us() + 50_000_000
            wait_until(
                lambda: all(
                    lease.until_us > soon_us
                    for bucket in (1, 2, 3)
                    for lease in watch.value(bucket).leases
                ),
                describe=lambda: str([watch.value(bucket).leases for bucket in range(4)]),
            )
            assert consumer._ahead.shelf._untold is None  # that bucket's is under way still
            consumer.ack(others)
            wait_until(lambda: 10 == watch.queue.stats().in_flight)
        finally:
            door.faults.reachable()


@pytest.mark.invariant("I10")
def test_t5_acks_that_came_while_another_buckets_are_unanswered_are_stored(
    open_door: OpenDoor,
) -> None:
    door, watch = open_door(), open_door()
    fill(door)
    with door.queue.consumer(prefetch=40) as consumer:
        wait_until(lambda: 40 == len(consumer._ahead.shelf.waiting()))
        messages = [one.message for one in consumer._ahead.shelf.waiting()]
        door.faults.unreachable(0, how=Away.STANDS_STILL)
        consumer.ack([one for one in messages if one.id < 10])
        wait_until(lambda: "stands still" in str(door.faults))
        try:
            consumer.ack([one for one in messages if one.id >= 10])
            wait_until(lambda: 10 == watch.queue.stats().in_flight)
        finally:
            door.faults.reachable()
        consumer.flush()
        assert 0 == watch.queue.stats().in_flight


@pytest.mark.invariant("I4")
def test_t16_an_ack_that_close_comes_between_is_stored_or_refused(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program had looked whether it is open, and the other thread closes it then."""
    door.queue.put(b"a")
    with door.queue.consumer() as consumer:
        message = consumer.get(wait=30)
        assert message is not None
        add, closed = consumer._ahead.acks.add, threading.Event()

        def late(receipts: list[object]) -> None:
            assert closed.wait(30)
            add(receipts)  # type: ignore[arg-type]

        monkeypatch.setattr(consumer._ahead.acks, "add", late)
        with ThreadPoolExecutor(1) as pool:
            acking = pool.submit(consumer.ack, message)
            consumer.close()
            closed.set()
            with pytest.raises(ClientClosed, match="this consumer is closed"):
                acking.result()
    assert 1 == door.queue.stats().in_flight


@pytest.mark.invariant("I4")
def test_t24_close_stores_acks_first_and_waits_for_no_get_for_long(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that get finds at last is given back, and nobody has counted it."""
    door, watch = open_door(), open_door()
    monkeypatch.setattr(consumers, "CLOSE_S", 1.0)
    door.queue.put(b"first")
    arrives = threading.Event()
    with door.queue.consumer(prefetch=1) as consumer:
        message = consumer.get(wait=30)
        assert message is not None
        looks = door.session.counts["read_pointers"]
        door.faults.before("read_pointers", lambda: arrives.wait(60))
        wait_until(lambda: str(door.faults).count("an action before it"))
        assert looks == door.session.counts["read_pointers"]
        watch.queue.put(b"second")
        consumer.ack(message)
        try:
            consumer.close()
            assert 0 == watch.queue.stats().in_flight  # the ack is stored
            assert consumer._ahead._looking  # and that get is under way still
        finally:
            arrives.set()
    (second,) = watch.queue.get(wait=30)
    assert (b"second", 1) == (second.body, second.delivery_count)


@pytest.mark.invariant("I4")
def test_t5_close_sends_the_acks_of_a_bucket_that_answers_beside_one_that_does_not(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its acks were under way, and more had gathered behind them."""
    door, watch = open_door(), open_door()
    monkeypatch.setattr(consumers, "CLOSE_S", 3.0)
    for room in (cas, session):
        monkeypatch.setattr(room, "DEADLINE_S", 20.0)  # for longer than the close
    fill(door)
    go = threading.Event()
    consumer = door.queue.consumer(prefetch=40)
    consumer.__enter__()  # no block: its end would close it once more
    got = [one for _ in range(40) if (one := consumer.get(wait=30)) is not None]
    away, first, behind = (next(m for m in got if m.id == at) for at in (0, 10, 11))
    door.faults.before("update_bucket", lambda: go.wait(30))
    consumer.ack(first)
    wait_until(lambda: "an action before it" in str(door.faults))
    door.faults.unreachable(0, how=Away.STANDS_STILL)
    consumer.ack(away)
    wait_until(lambda: door.place(0) in consumer._ahead.acks._flying)
    consumer.ack(behind)
    threading.Timer(0.3, go.set).start()
    with pytest.raises(StoreError):
        consumer.close()
    wait_until(lambda: 8 == watch.value(1).unacked.count)
    assert door.place(0) in consumer._ahead.acks._flying  # that one is under way still
    door.faults.reachable()


@pytest.mark.invariant("I4")
def test_t24_close_waits_for_no_ack_that_was_under_way_before_it_for_long(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was begun with a patience of its own. It is stored at last, or comes again."""
    door, watch = open_door(), open_door()
    monkeypatch.setattr(consumers, "CLOSE_S", 1.0)
    door.queue.put(b"first")
    with door.queue.consumer(prefetch=1) as consumer:
        message = consumer.get(wait=30)
        assert message is not None
        door.faults.unreachable(0, how=Away.STANDS_STILL)
        consumer.ack(message)
        wait_until(lambda: consumer._ahead.acks._flying)
        wait_until(lambda: "bucket 0 stands still" in str(door.faults))
        began = door.clock.monotonic()
        with pytest.raises(StoreError, match="not answered yet"):
            consumer.close()
        assert door.clock.monotonic() - began < 10
        door.faults.reachable()
    wait_until(lambda: 0 == watch.queue.stats().in_flight)


@pytest.mark.invariant("I2")
def test_t5_close_renews_what_waits_while_an_ack_of_another_bucket_is_not_answered(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has seen it, so its delivery does not count."""
    door, watch = open_door(), open_door()
    monkeypatch.setattr(consumers, "CLOSE_S", 600.0)
    for room in (cas, session):
        monkeypatch.setattr(room, "DEADLINE_S", 600.0)
    fill(door)
    go = threading.Event()
    consumer = door.queue.consumer(prefetch=40, visibility_timeout=20)
    consumer.__enter__()  # no block: its end would close it once more
    ahead, shelf = consumer._ahead, consumer._ahead.shelf
    first = consumer.get(wait=30)
    assert first is not None
    wait_until(lambda: 39 == len(shelf.waiting()))
    others = [one for one in shelf.waiting() if one.message.id // 10 != first.id // 10]
    with ThreadPoolExecutor(1) as pool:
        try:
            door.faults.before("update_bucket", lambda: go.wait(60))
            consumer.ack(first)
            wait_until(lambda: "an action before it" in str(door.faults))
            closing = pool.submit(consumer.close)
            wait_until(lambda: shelf.is_closed)
            for _ in range(2):
                for one in (door, watch):
                    one.clock.advance(12)
                ahead._loop.call_soon_threadsafe(ahead._renew)  # its timer is in real time
                soon_us = door.clock.now_us() + 10_000_000
                wait_until(lambda soon_us=soon_us: all(one.until_us > soon_us for one in others))
        finally:
            go.set()
        closing.result()
    counts = {one.id: one.delivery_count for one in watch.queue.get(40)}
    assert dict.fromkeys((one.message.id for one in others), 1).items() <= counts.items()


# --- repair -------------------------------------------------------------------------------------


@pytest.mark.invariant("I10")
def test_t5_repair_heals_other_buckets_and_says_which_one_it_could_not(
    open_door: OpenDoor,
) -> None:
    dead = open_door(".dead")
    door, watch = (open_door(dead_letter_queue=dead.queue.name, max_deliveries=1) for _ in range(2))
    fill(door)
    assert 40 == len(door.queue.get(40, visibility_timeout=10))
    for one in (door, watch, dead):
        one.clock.advance(60)
    door.faults.unreachable(1, lane=door.lane.lane_id)
    report = portal.run(heal(door.store, [door.queue.name]))
    (done,) = report.queues
    assert 30 == done.moved_dead
    assert [problem for problem in done.problems if "bucket 1 of" in problem]
    door.faults.reachable()
    assert 10 == portal.run(heal(door.store, [door.queue.name])).queues[0].moved_dead


@pytest.mark.invariant("I10")
def test_t5_repair_drops_what_lies_below_a_bucket_that_is_away(open_door: OpenDoor) -> None:
    door = open_door(repair_timeout=0.2)
    fill(door)
    assert 40 == len(door.drain())
    portal.run(door.reader().get(1))
    for _ in range(2):
        door.clock.advance(60)
        portal.run(door.reader().get(1))
    door.faults.unreachable(2)
    assert 2 == portal.run(heal(door.store, [door.queue.name])).queues[0].dropped
    assert 2 == portal.run(door.lane.read_pointers()).repair
    door.faults.reachable()
    assert 2 == portal.run(heal(door.store, [door.queue.name])).queues[0].dropped


def test_t5_stats_read_all_they_can_and_name_the_bucket_that_is_away(door: Door) -> None:
    fill(door)
    door.faults.unreachable(2)
    with pytest.raises(StoreError, match="bucket 2 of"):
        door.queue.stats()


def test_t5_a_purge_drops_all_it_can_reach_and_names_the_bucket_that_is_away(door: Door) -> None:
    fill(door)
    door.faults.unreachable(0)
    with pytest.raises(StoreError, match="bucket 0 of"):
        door.queue.purge()
    door.faults.reachable()
    assert sorted(b"%d" % number for number in range(10)) == sorted(door.drain())


# --- what a second review found -------------------------------------------------------------------


def forget_in_mid_look(door: Door) -> None:
    """A bucket is remembered as away for five seconds: they end when a look has passed it over."""
    door.clock.advance(AWAY_REMEMBERED_S - 2)
    door.faults.before("read_bucket", lambda: door.clock.advance(4))


@pytest.mark.invariant("I10")
def test_t5_the_time_pointer_stays_at_a_bucket_that_was_passed_over(open_door: OpenDoor) -> None:
    door, watch = open_door(), open_door()
    fill(door)
    assert 40 == len(watch.queue.get(40, visibility_timeout=30))
    watch.queue.get(1)
    for one in (door, watch):
        one.clock.advance(3_600)
    door.faults.unreachable(2)
    assert {0, 1, 3} == {one.id // 10 for one in door.queue.get(100)}
    forget_in_mid_look(door)
    with pytest.raises(StoreError):
        door.queue.get(10)
    door.faults.reachable()
    assert {2} == {one.id // 10 for one in watch.queue.get(100)}


@pytest.mark.invariant("I10")
def test_t5_a_get_says_none_of_nothing_that_it_has_passed_over(door: Door) -> None:
    fill(door)
    door.faults.unreachable(2)
    # No hint of these leases is due: the look reads their rows where it passes bucket 2 over.
    assert 30 == len(door.queue.get(100, visibility_timeout=3_600))
    forget_in_mid_look(door)
    with pytest.raises(StoreError, match="bucket 2 of"):
        door.queue.get(10)


@pytest.mark.invariant("I10")
@HOWS
def test_t5_a_producer_whose_bucket_does_not_answer_takes_another(door: Door, how: Away) -> None:
    door.queue.put(b"a")
    door.clock.advance(1)  # its proof is old: it looks before it writes
    door.faults.unreachable(0, how=how)
    for body in (b"b", b"c"):
        door.queue.put(body)
    door.faults.reachable()
    assert [b"a", b"b", b"c"] == sorted(door.drain())


@pytest.mark.parametrize("pointer", ["reader", "time"])
def test_t22_what_was_claimed_is_handed_out_though_a_pointer_cannot_be_written(
    open_door: OpenDoor, pointer: str
) -> None:
    door, other = open_door(), open_door()
    fill(door)
    if pointer == "time":
        assert 40 == len(other.queue.get(40, visibility_timeout=30))
        for one in (door, other):
            one.clock.advance(3_600)
    door.faults.plan("advance_pointer", Fault.TIMEOUT_BEFORE, times=1_000)
    assert 40 == len(door.queue.get(40))


# --- the drifts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["extend", "release", "delay", "update"])
@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.invariant("I3")
def test_what_nobody_holds_any_more_has_expired_and_nothing_is_said_of_another_delivery(
    open_door: OpenDoor, verb: str, is_dropped: bool
) -> None:
    """It was acked; nobody gets it again."""
    door = open_door()
    door.put(b"a")
    (message,) = door.queue.get()
    door.queue.ack(message)
    if is_dropped:
        portal.run(door.lane.pointers.advance(Pointer.REPAIR, 1))
        portal.run(door.lane.buckets.delete(BucketNo(0)))
    act = {
        "extend": lambda: door.queue.extend(message, 60),
        "release": lambda: door.queue.release(message),
        "delay": lambda: door.queue.release(message, delay=60),
        "update": lambda: door.queue.update(message, body=b"b"),
    }[verb]
    with pytest.raises(cassieq.ReceiptExpired, match="expired") as raised:
        act()
    assert "again" not in str(raised.value)
    assert (message.receipt,) == raised.value.refused


def test_messages_that_an_ack_finds_acked_are_not_counted_again(door: Door) -> None:
    fill(door)
    claimed = claim_all(door)
    before = metrics.MESSAGES_ACKED.value
    by_bucket = {one.place: {one.lease.lease_id: None} for one in claimed}
    assert 40 == portal.run(batches.ack_leases(door.lane, by_bucket)).count
    assert 0 == portal.run(batches.ack_leases(door.lane, by_bucket)).count
    assert 40 == metrics.MESSAGES_ACKED.value - before


# --- one CAS ------------------------------------------------------------------------------------


@pytest.mark.invariant("I3")
def test_t23_a_cas_whose_row_cannot_be_read_after_a_refused_resend_is_ambiguous(
    door: Door,
) -> None:
    """It may have been applied when it was first sent: it was, here."""
    fill(door)
    (row, other) = (door.row(0), door.row(1))
    assert row is not None
    assert other is not None
    door.faults.plan("update_bucket", Fault.TIMEOUT_AFTER)
    door.faults.plan("read_bucket", Fault.TIMEOUT_BEFORE, times=1_000)
    with pytest.raises(CasAmbiguous, match="may have been applied"):
        portal.run(door.lane.buckets.update(BucketNo(0), row, row.value))
    door.faults._plan.clear()
    now = door.row(0)
    assert now is not None
    assert row.version.row_version + 1 == now.version.row_version


def test_t23_a_cas_that_was_refused_at_once_and_not_read_since_is_no_ambiguous_one(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(), open_door()
    fill(door)
    row = door.row(0)
    assert row is not None
    portal.run(other.store.lane(door.lane.lane_id).buckets.update(BucketNo(0), row, row.value))
    door.faults.plan("read_bucket", Fault.TIMEOUT_BEFORE, times=1_000)
    with pytest.raises(StoreTimeout):
        portal.run(door.lane.buckets.update(BucketNo(0), row, row.value))
    door.faults._plan.clear()


def test_t23_a_resend_that_the_server_will_not_run_is_ambiguous(door: Door) -> None:
    fill(door)
    row = door.row(0)
    assert row is not None
    door.faults.plan("update_bucket", Fault.TIMEOUT_AFTER)
    door.faults.plan("update_bucket", Fault.REFUSE, after=1)
    with pytest.raises(CasAmbiguous, match="may have been applied"):
        portal.run(door.lane.buckets.update(BucketNo(0), row, row.value))


@pytest.mark.parametrize("statement", ["update_bucket", "reserve"])
def test_t5_what_waits_for_another_cas_of_the_same_row_waits_for_one_deadline(
    door: Door, statement: str
) -> None:
    """A bucket's row has a writer of its own, which says so; CASes of all other rows take turns."""
    fill(door)
    row, counter = door.row(0), portal.run(door.lane.monotons.read())
    assert row is not None
    assert counter is not None
    arrives = threading.Event()
    door.faults.before(statement, lambda: arrives.wait(10))

    def update() -> object:
        if statement == "update_bucket":
            return portal.run(door.lane.buckets.update(BucketNo(0), row, row.value))
        return portal.run(door.lane.monotons.update(counter, counter.value))

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(update)
        wait_until(lambda: "an action before it" in str(door.faults))
        with pytest.raises(StoreTimeout, match="Nothing was sent"):
            update()
        arrives.set()
        first.result()
