"""Get, ack, extend, release, update by receipt: one delivery at a time.

See docs/design/get-and-leases.md.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import BodyInvalid, CasAmbiguous, CasContention, StoreTimeout
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.queue.get import reader
from cassieq_spark.queue.message import proof_of
from cassieq_spark.store import cas, portal, session
from cassieq_spark.testing import wait_until
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.fixtures.queues import Door, OpenDoor

A_MONTH = timedelta(days=30)


def bodies(messages: Iterable[cassieq.Message]) -> list[bytes]:
    return [message.body for message in messages]


def one_held(door: Door, body: bytes = b"m", **more: object) -> cassieq.Delivery:
    door.queue.put(body)
    (message,) = door.queue.get(**more)  # type: ignore[arg-type]
    return message


# --- get ------------------------------------------------------------------------------------------


@pytest.mark.invariant("I2")
def test_a_held_message_is_nobody_elses_until_its_visibility_is_over(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    first = one_held(door, visibility_timeout=20)
    assert [] == other.queue.get()
    other.clock.advance(21)
    (again,) = other.queue.get()
    assert (first.id, 1, 2) == (again.id, first.delivery_count, again.delivery_count)
    assert first.receipt != again.receipt
    assert first.fence < again.fence


def test_visible_until_is_the_end_of_the_lease(door: Door) -> None:
    message = one_held(door, visibility_timeout=timedelta(minutes=10))
    left = message.visible_until.timestamp() - door.clock.now_us() / 1e6
    assert 590 < left <= 600
    assert message.enqueued_at.tzinfo is not None


def test_what_ran_out_first_comes_back_first(door: Door) -> None:
    for number in range(4):
        one_held(door, b"%d" % number, visibility_timeout=40 - 10 * number)
    door.clock.advance(60)
    assert [b"3", b"2", b"1", b"0"] == [door.queue.get(1)[0].body for _ in range(4)]


def test_what_ran_out_in_one_bucket_comes_back_in_the_order_of_its_ends(door: Door) -> None:
    door.queue.put_many([b"0", b"1", b"2", b"3"])
    for timeout in (40, 20, 30, 10):
        door.queue.get(1, visibility_timeout=timeout)
    door.clock.advance(60)
    assert [b"3", b"1", b"2", b"0"] == [door.queue.get(1)[0].body for _ in range(4)]


@pytest.mark.invariant("I10")
def test_a_message_that_is_invisible_for_a_month_blocks_nobody(door: Door) -> None:
    one_held(door, b"long", visibility_timeout=A_MONTH)
    for number in range(12):
        door.queue.put(b"%d" % number)
        door.queue.ack(door.queue.get())
    assert [] == door.queue.get()
    assert {"drained": 12, "sealed": 1} == door.queue.stats().buckets
    door.clock.advance(A_MONTH.total_seconds() + 1)
    assert [b"long"] == bodies(door.queue.get())


def test_a_long_poll_ends_with_the_first_message(open_door: OpenDoor) -> None:
    producer, consumer = open_door(), open_door()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.queue.get, wait=60)
        producer.queue.put(b"m")
        assert [b"m"] == bodies(waiting.result())


@pytest.mark.parametrize("how", ["put", "release", "expiry", "delay", "bulk", "early"])
def test_a_long_poll_on_a_quiet_queue_notices_whatever_becomes_visible(
    open_door: OpenDoor, how: str
) -> None:
    door, other = open_door(), open_door()
    other.queue.put_many([b"a", b"b"])
    a, b = other.queue.get(visibility_timeout=60)
    if how != "early":
        other.queue.ack(b)
    assert [] == door.queue.get(wait=0.3)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(door.queue.get, wait=600)
        match how:
            case "put":
                other.queue.put(b"a")
            case "release" | "early":
                other.queue.release(a)
            case "expiry":
                door.clock.advance(61)
            case "delay":
                other.queue.put(b"a", delay=1)
            case "bulk":
                other.put_batch(0, b"a")
        assert [b"a"] == bodies(waiting.result())


def test_an_idle_consumer_costs_less_than_five_reads_a_second(door: Door) -> None:
    door.queue.ack(one_held(door))
    door.queue.get(wait=1)
    before = door.session.counts.total()
    began = door.clock.monotonic()
    for _ in range(6):
        assert [] == door.queue.get(wait=1)
    elapsed = door.clock.monotonic() - began
    assert elapsed >= 6
    assert door.session.counts.total() - before < 5 * elapsed


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_an_empty_get_costs_the_same_after_many_messages_as_on_the_first_day(door: Door) -> None:
    def cost() -> Counter[str]:
        before = door.counts
        assert [] == door.queue.get()
        return door.counts - before

    door.queue.ack(one_held(door))
    door.queue.get()
    first = cost()
    for _ in range(30):
        door.queue.put_many([b"m"] * 20)
        while messages := door.queue.get(100):
            door.queue.ack(messages)
    assert first == cost()


def test_one_get_of_many_buckets_takes_them_all(door: Door) -> None:
    door.queue.put_many([b"%d" % number for number in range(75)])
    assert 75 == len({message.id for message in door.queue.get(200)})


def test_bodies_that_cannot_be_read_are_given_back_uncounted(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "DEADLINE_S", 0.2)
    door.put_sealed(b"m")
    door.faults.plan("read_messages", Fault.TIMEOUT_BEFORE, times=500)
    with pytest.raises(StoreTimeout):
        door.queue.get()
    door.faults._plan.clear()
    (message,) = door.queue.get()
    assert 1 == message.delivery_count


def test_consumers_are_named_in_stats(door: Door) -> None:
    door.queue.put_many([b"m"] * 5)
    door.queue.get(2, consumer="billing")
    door.queue.get(1, consumer="mail")
    assert {"billing": 2, "mail": 1} == door.queue.stats().consumers


# --- ack ------------------------------------------------------------------------------------------


@pytest.mark.invariant("I4")
def test_an_acked_message_is_never_delivered_again(door: Door) -> None:
    door.queue.ack(one_held(door))
    door.clock.advance(3_600)
    assert [] == door.queue.get()


def test_an_ack_is_harmless_the_second_time(door: Door) -> None:
    message = one_held(door)
    door.queue.ack(message)
    door.queue.ack(message.receipt)
    assert [cassieq.AckResult.ALREADY_ACKED] == door.queue.ack_each([message])


@pytest.mark.invariant("I3")
def test_a_list_is_acked_but_for_what_is_stale_and_that_is_named(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    door.queue.put_many([b"%d" % number for number in range(6)])
    messages = door.queue.get(visibility_timeout=30)
    door.queue.release(messages[2])
    (again,) = other.queue.get(1, visibility_timeout=600)
    with pytest.raises(cassieq.ReceiptExpired) as raised:
        door.queue.ack(messages)
    assert (messages[2].receipt,) == raised.value.refused
    assert (0, 1) == (other.queue.stats().visible, other.queue.stats().in_flight)
    other.queue.ack(again)
    assert {"drained": 1} == other.queue.stats().buckets


def test_each_message_has_its_verdict(door: Door) -> None:
    door.queue.put_many([b"%d" % number for number in range(4)])
    messages = door.queue.get()
    door.queue.ack(messages[0])
    door.queue.release(messages[1])
    assert [
        cassieq.AckResult.ALREADY_ACKED,
        cassieq.AckResult.STALE,
        cassieq.AckResult.ACKED,
        cassieq.AckResult.ACKED,
    ] == door.queue.ack_each(messages)


def test_an_ack_after_the_bucket_was_dropped_says_already_acked(door: Door) -> None:
    message = one_held(door)
    door.queue.ack(message)
    door.queue.get()
    door.clock.advance(60)
    assert 1 == door.client.repair(door.queue.name).queues[0].dropped
    assert [cassieq.AckResult.ALREADY_ACKED] == door.queue.ack_each([message])


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (cas, session):
        monkeypatch.setattr(room, "DEADLINE_S", 0.3)


@pytest.mark.usefixtures("passing_time")
def test_where_the_store_cannot_say_the_verdict_is_unknown_and_asking_again_is_safe(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch)
    message = one_held(door)
    door.faults.plan("update_bucket", Fault.TIMEOUT_BEFORE, times=500)
    assert [cassieq.AckResult.UNKNOWN] == door.queue.ack_each([message])
    with pytest.raises(CasAmbiguous):
        door.queue.ack(one_held(door, b"other"))
    door.faults._plan.clear()
    assert [cassieq.AckResult.ACKED] == door.queue.ack_each([message])


def test_an_ack_whose_answers_are_lost_is_told_by_its_tag_that_it_happened(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch)
    message = one_held(door)
    door.faults.plan("update_bucket", Fault.TIMEOUT_AFTER, times=500)
    assert [cassieq.AckResult.ACKED] == door.queue.ack_each([message])


@pytest.mark.usefixtures("still_time")
@pytest.mark.parametrize("at", ["one", "two"])
def test_concurrent_acks_share_their_cas(open_door: OpenDoor, at: str) -> None:
    door = open_door(f".{at}", bucket_size=1_000)
    door.queue.put_many([b"m"] * 200)
    messages = door.queue.get(200)
    before = door.counts["update_bucket"]
    start = threading.Barrier(20)

    def ack(part: int) -> None:
        start.wait(30)
        for message in messages[part::20]:
            door.queue.ack(message)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(ack, range(20)))
    assert {"drained": 1} == door.queue.stats().buckets
    assert door.counts["update_bucket"] - before < 150  # of 200


# --- receipts -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("still_time")
def test_receipts_of_others_are_refused_before_anything_is_acked(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door(".other")
    mine, theirs = one_held(door), one_held(other)
    receipt = Receipt.decode(mine.receipt)
    beyond = Receipt(
        lane=receipt.lane,
        bucket=receipt.bucket,
        lease_id=receipt.lease_id,
        first=receipt.first,
        last=1_000_000,
    ).encode()
    for wrong in (
        theirs,
        beyond,
        "",
        "x" * 71,
        str(mine.receipt)[:-1],
        None,
        7,
        b"bytes",
        object(),
        door.queue.peek,
        [[mine]],
    ):
        before = door.counts
        for use in (
            lambda held: door.queue.ack([mine, held]),
            lambda held: door.queue.ack_each([mine, held]),
            lambda held: door.queue.extend([mine, held], 60),
            lambda held: door.queue.release([mine, held]),
        ):
            with pytest.raises(cassieq.ReceiptInvalid, match=r"\[cassieq:receipt_invalid\]"):
                use(wrong)
        assert before == door.counts
    door.queue.ack(mine)


NO_LISTS: list[Any] = [
    *({}, {"a": 1}, Counter(), os.environ, set(), frozenset(), {"receipt"}),
    *(b"", b"receipt", bytearray(), memoryview(b""), None, 0, 7, 1.5, True, object(), str),
]
"""Empty ones would pass for an empty list, and a caller for done."""


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I3")
@pytest.mark.parametrize("wrong", NO_LISTS, ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_list_of_messages_is_refused_before_anything_is_asked(
    open_door: OpenDoor, wrong: Any
) -> None:
    door, other = open_door(), open_door()
    door.queue.put(b"m")
    (looked_at,) = door.queue.peek()
    (mine,) = door.queue.get()
    with pytest.raises(cassieq.ReceiptInvalid, match="no receipt"):
        door.queue.ack([looked_at, wrong])
    # A consumer looks for messages all the while, so its statements are counted apart.
    with other.queue.consumer() as consumer:
        before = door.counts
        for use in (
            door.queue.ack,
            door.queue.ack_each,
            lambda held: door.queue.extend(held, 60),
            door.queue.release,
            door.queue.reject,
            consumer.ack,
        ):
            with pytest.raises(cassieq.ReceiptInvalid, match=r"list"):
                use(wrong)
        with pytest.raises(BodyInvalid, match="list"):
            door.queue.put_many(wrong)
        with pytest.raises(cassieq.ReceiptInvalid):
            door.queue.update(wrong, body=b"x")
        assert before == door.counts
    assert all(name.startswith(("read_", "find_")) for name in other.counts), other.counts
    door.queue.ack(mine)


def test_lists_tuples_generators_and_views_of_messages_are_taken(door: Door) -> None:
    door.queue.put_many([b"x"] * 5)
    found = door.queue.get(5)
    by_receipt = {one.receipt: one for one in found}
    door.queue.ack(tuple(found[:1]))
    door.queue.ack(one for one in found[:2])
    door.queue.ack(by_receipt.keys())
    door.queue.ack(by_receipt.values())
    door.queue.ack([])
    assert ["already_acked"] * 5 == door.queue.ack_each(iter(found))
    assert [] == door.queue.put_many(())


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("end", ["ack", "release", "update"])
def test_a_message_that_nobody_holds_has_expired_and_is_not_said_to_come_again(
    door: Door, end: str
) -> None:
    mine = one_held(door)
    door.queue.update(mine, body=b"new") if end == "update" else getattr(door.queue, end)(mine)

    for use in (
        lambda: door.queue.release(mine, delay=60),
        lambda: door.queue.release(mine),
        lambda: door.queue.extend(mine, 60),
        lambda: door.queue.extend(mine, 0),
        lambda: door.queue.update(mine, body=b"x"),
        lambda: door.queue.update(mine, visibility_timeout=0),
    ):
        with pytest.raises(cassieq.ReceiptExpired, match="have expired: nobody holds") as refused:
            use()
        assert "delivered again" not in str(refused.value)
        assert (mine.receipt,) == refused.value.refused


def test_a_receipt_of_a_former_life_is_refused(door: Door) -> None:
    message = one_held(door)
    door.queue.delete()
    queue = door.client.create_queue(door.queue.name, bucket_size=10)
    with pytest.raises(cassieq.ReceiptInvalid, match="an earlier queue of this name"):
        queue.ack(message)


# --- extend, release, update ----------------------------------------------------------------------


def test_extend_counts_from_now_for_that_message_alone_and_keeps_the_receipt(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(), open_door()
    door.queue.put_many([b"a", b"b", b"c"])
    a, b, c = door.queue.get(visibility_timeout=30)
    until = door.queue.extend(a, 100)
    door.queue.extend(c, 5)
    assert 99 < until.timestamp() - door.clock.now_us() / 1e6 <= 100
    other.clock.advance(6)
    assert [c.id] == [one.id for one in other.queue.get()]
    other.clock.advance(26)
    assert {b.id, c.id} >= {one.id for one in other.queue.get()}
    door.queue.ack(a)


def test_extending_by_nothing_is_a_release(door: Door) -> None:
    message = one_held(door)
    door.queue.extend(message, 0)
    assert [cassieq.AckResult.STALE] == door.queue.ack_each([message])
    assert [2] == [one.delivery_count for one in door.queue.get()]


def test_release_gives_back_at_once_or_after_a_delay_and_uses_up_the_delivery(door: Door) -> None:
    door.queue.put_many([b"now", b"later"])
    now, later = door.queue.get()
    door.queue.release(now)
    door.queue.release(later, delay=600)
    assert (1, 1) == (door.queue.stats().visible, door.queue.stats().delayed)
    assert [(b"now", 2)] == [(one.body, one.delivery_count) for one in door.queue.get()]
    with pytest.raises(cassieq.ReceiptExpired):
        door.queue.release(later)
    door.clock.advance(300)
    door.queue.get()
    door.clock.advance(302)
    found = {one.body: one.delivery_count for one in door.queue.get()}
    assert 2 == found[b"later"]


@pytest.mark.invariant("I3")
def test_what_was_delivered_again_can_be_neither_extended_nor_released(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    first = one_held(door, visibility_timeout=5)
    other.clock.advance(6)
    (second,) = other.queue.get()
    for use in (
        lambda: door.queue.extend(first, 60),
        lambda: door.queue.release(first),
        lambda: door.queue.update(first, body=b"x"),
        lambda: door.queue.ack(first),
    ):
        with pytest.raises(cassieq.ReceiptExpired) as raised:
            use()
        assert (first.receipt,) == raised.value.refused
    other.queue.ack(second)


@pytest.mark.invariant("I2")
def test_p26_an_update_outlives_its_lease(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    door.queue.put_many([b"a", b"b"], tag="t", headers={"k": "v"})
    a, b = door.queue.get(visibility_timeout=5)
    new = door.queue.update(a, body=b"A2", visibility_timeout=10)
    assert (b"A2", "t", {"k": "v"}, 1) == (new.body, new.tag, new.headers, new.delivery_count)
    assert a.receipt != new.receipt
    with pytest.raises(cassieq.ReceiptExpired):
        door.queue.ack(a)
    other.clock.advance(11)
    assert {b"A2", b"b"} == set(bodies(other.queue.get()))
    other.clock.advance(60)
    newest = {one.body: one for one in other.queue.get()}
    newer = other.queue.update(newest[b"A2"], body=b"")
    assert b"" == newer.body
    other.clock.advance(60)
    assert {b"", b"b"} == set(bodies(other.queue.peek()))
    assert b.id + 1 == a.id + 2


def test_an_update_keeps_what_it_does_not_name(door: Door) -> None:
    message = one_held(door, visibility_timeout=50)
    longer = door.queue.update(message, visibility_timeout=500)
    assert message.body == longer.body
    other = door.queue.update(longer, body=b"other")
    assert longer.visible_until == other.visible_until


def test_an_update_to_no_time_gives_the_message_back(door: Door) -> None:
    message = one_held(door)
    given_back = door.queue.update(message, body=b"new", visibility_timeout=0)
    assert (b"new", message.receipt) == (given_back.body, given_back.receipt)
    with pytest.raises(cassieq.ReceiptExpired):
        door.queue.extend(given_back, 5)
    (again,) = door.queue.get()
    assert (b"new", 2) == (again.body, again.delivery_count)


def test_bodies_of_every_size_can_be_updated(door: Door) -> None:
    message = one_held(door)
    for body in (b"", b"x" * (3 << 20), b"y"):
        message = door.queue.update(message, body=body)
    door.queue.release(message)
    assert [b"y"] == bodies(door.queue.get())
    assert 0 == len(door.value(0).revisions_of(Runs.span(1, 9)))


def test_a_revision_is_forgotten_with_its_message(door: Door) -> None:
    door.queue.put_many([b"a", b"b"])
    a, b = door.queue.get()
    door.queue.ack(door.queue.update(a, body=b"new"))
    assert () == door.value(0).revisions
    door.queue.ack(b)


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I8")
def test_what_a_spark_batch_holds_is_not_updated(door: Door) -> None:
    door.queue.put(b"m")
    (claimed,) = portal.run(door.reader(run=UUID(int=9)).get(1))
    receipt = Receipt(
        lane=door.lane.lane_id,
        bucket=claimed.bucket,
        lease_id=claimed.lease.lease_id,
        first=0,
        last=0,
    ).encode()
    seen = _as_spark_names_it(door, receipt)
    before = door.counts["write_overlay"]
    with pytest.raises(cassieq.UsageError, match="Spark batch"):
        door.queue.update(seen, body=b"x")
    assert before == door.counts["write_overlay"]


def _as_spark_names_it(door: Door, receipt: str) -> cassieq.Delivery:
    return replace(one_held(door, b"other"), _proof=Receipt.decode(receipt))


# --- peek, delays ---------------------------------------------------------------------------------


def test_peek_shows_what_is_visible_and_changes_nothing(door: Door) -> None:
    door.queue.put_many([b"%d" % number for number in range(15)])
    door.queue.get(2)
    before = door.queue.stats()
    seen = door.queue.peek(5)
    assert 5 == len(seen)
    assert not any(isinstance(one, cassieq.Delivery) for one in seen)
    assert 13 == len(door.queue.peek(100))
    assert before.visible == door.queue.stats().visible
    with pytest.raises(cassieq.ReceiptInvalid, match="no receipt"):
        door.queue.ack(seen[0])  # type: ignore[arg-type]  # that is the point


def test_a_delayed_put_is_nobodys_before_its_time_and_counts_its_first_delivery_as_one(
    door: Door,
) -> None:
    door.queue.put(b"later", delay=timedelta(minutes=30))
    assert [] == door.queue.get()
    counted = door.queue.stats()
    assert (1, 0) == (counted.delayed + counted.scheduled, counted.visible)
    door.clock.advance(900)
    assert [] == door.queue.get()
    door.clock.advance(902)
    (message,) = door.queue.get()
    assert 1 == message.delivery_count


def test_stats_know_the_age_of_the_oldest(door: Door) -> None:
    assert door.queue.stats().oldest_age is None
    door.queue.put(b"old")
    door.clock.advance(100)
    door.queue.put(b"young")
    age = door.queue.stats().oldest_age
    assert age is not None
    assert 100 <= age < 130
    old = next(one for one in door.queue.get() if one.body == b"old")
    door.queue.ack(old)
    younger = door.queue.stats().oldest_age
    assert younger is not None
    assert younger < 60


def test_spark_and_programs_share_buckets(door: Door) -> None:
    """What a sink has put is got by a program, beside what a program has put."""
    door.put_batch(0, b"bulk", b"bulk")
    door.queue.put(b"single")
    found = [*door.queue.get(), *door.queue.get()]
    assert [b"bulk", b"bulk", b"single"] == sorted(bodies(found))
    door.queue.ack(found)
    assert 0 == door.queue.stats().visible
    assert BucketNo(0) == 0


# --- found by review ------------------------------------------------------------------------------


def test_a_get_says_none_only_where_there_is_none_however_many_buckets_hold_later_ones(
    open_door: OpenDoor,
) -> None:
    door = open_door()
    for _ in range(33):
        bucket = door.reserve()
        door.write(bucket, 0, b"later", delay_s=3_600)
    door.queue.put(b"now")
    wait_until(lambda: len(door.queue.peek()) == 1)
    assert [b"now"] == bodies(door.queue.get())


def test_a_get_that_loses_every_race_says_so_and_not_none(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_REFUSALS", 3)
    door, other = open_door(bucket_size=1_000), open_door(bucket_size=1_000)
    door.queue.put_many([b"m"] * 1_000)
    other.queue.get(1)
    for number in range(30):
        door.faults.before("update_bucket", lambda: other.queue.get(1), after=number)
    with pytest.raises(CasContention):
        door.queue.get(5)


@pytest.mark.invariant("I4")
def test_a_get_that_slept_through_its_lease_hands_out_nothing_and_raises_nothing(
    open_door: OpenDoor,
) -> None:
    """Meanwhile another client had it, acked it, and repair dropped it."""
    door, other = open_door(), open_door()
    door.put_sealed(b"m")

    def sleep_long() -> None:
        for one in (door, other):
            one.clock.advance(60)
        other.queue.ack(other.queue.get())
        for one in (door, other):
            one.clock.advance(60)
        assert 1 == other.client.repair(door.queue.name).queues[0].dropped

    door.faults.before("read_messages", sleep_long)
    assert [] == door.queue.get(visibility_timeout=20)


def test_peek_passes_over_what_was_updated_acked_and_dropped_meanwhile(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(), open_door()
    held = one_held(other)
    other.queue.update(held, body=b"new", visibility_timeout=0)

    def take_it() -> None:
        other.queue.ack(other.queue.get())
        for one in (door, other):
            one.clock.advance(60)
        other.client.repair(door.queue.name)

    door.faults.before("read_overlay", take_it)
    assert [] == door.queue.peek()


def test_a_receipt_of_a_bucket_that_cannot_be_is_refused(door: Door) -> None:
    held = one_held(door)
    forged = replace(proof_of(held), bucket=BucketNo(1 << 63)).encode()
    for verb in (door.queue.ack, door.queue.release, lambda one: door.queue.extend(one, 5)):
        with pytest.raises(cassieq.ReceiptInvalid, match="never existed"):
            verb(forged)


@pytest.mark.usefixtures("passing_time")
@pytest.mark.invariant("I3")
def test_a_receipt_of_no_delivery_has_another_verdict_than_a_store_that_cannot_say(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch)
    good, proof = one_held(door), proof_of(one_held(door, b"other"))
    no_bucket = replace(proof, bucket=BucketNo(77)).encode()
    no_message = replace(proof, lease_id=new_uuid(), first=9, last=9).encode()

    assert [
        cassieq.AckResult.ACKED,
        cassieq.AckResult.INVALID,
        cassieq.AckResult.INVALID,
    ] == door.queue.ack_each([good, no_bucket, no_message])
    for never in (no_bucket, no_message):
        with pytest.raises(cassieq.ReceiptInvalid, match="never existed"):
            door.queue.ack([never])
    with door.queue.consumer() as consumer:
        consumer.ack([no_bucket, no_message])
        consumer.flush()
        assert 2 == consumer.stale
    door.faults.plan("update_bucket", Fault.TIMEOUT_BEFORE, times=500)
    assert [cassieq.AckResult.UNKNOWN, cassieq.AckResult.INVALID] == door.queue.ack_each(
        [proof.encode(), no_bucket]
    )
    door.faults._plan.clear()


def test_of_threads_that_ack_together_only_the_one_that_was_interrupted_is(door: Door) -> None:
    """A Ctrl-C in one thread, whose ack is on its way with those of others."""
    door.queue.put_many([b"0", b"1", b"2"])
    first, second, third = door.queue.get()
    started, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        started.set()
        assert go_on.wait(60)

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    door.faults.before("update_bucket", hold_up)
    door.faults.before("update_bucket", interrupt, after=1)
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(door.queue.ack, first)
        assert started.wait(60)
        follower = pool.submit(door.queue.ack, third)
        (row,) = door.store.rows._rows.values()

        def all_are_there() -> None:
            wait_until(lambda: len(row._callers) == 3)
            go_on.set()

        watching = pool.submit(all_are_there)
        with pytest.raises(KeyboardInterrupt):
            door.queue.ack(second)
        for one in (watching, leader, follower):
            one.result()
    wait_until(lambda: {"drained": 1} == door.queue.stats().buckets)
    door.queue.ack([first, second, third])
