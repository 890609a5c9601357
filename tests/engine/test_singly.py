"""Messages that come one by one: what their producer and their reader need not ask (ADR 29)."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import QueueDeleted
from cassieq_spark.queue.get.unsealed import AGAIN
from cassieq_spark.queue.reserve import ALWAYS
from cassieq_spark.store import portal
from cassieq_spark.store.tables.buckets import Buckets
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.model.ids import BucketNo
    from cassieq_spark.queue.get.reader import Reader
    from tests.fixtures.queues import Door, OpenDoor

SINGLY = ALWAYS + 2
"""Messages until a producer knows that they come singly: the first two prove nothing."""


def sent_until(door: Door, name: str) -> Counter[str]:
    """What is sent from now on until the next statement of that name: filled just before it."""
    began, sent = door.counts, Counter[str]()
    door.faults.before(name, lambda: sent.update(door.counts - began))
    return sent


def sent_before(door: Door, name: str, *, put: bytes) -> dict[str, int]:
    """What a put sends before the first statement of that name, settings that are old apart."""
    door.clock.advance(1)
    portal.run(door.queue._current())  # they are read again here
    sent = sent_until(door, name)
    door.queue.put(put)
    return dict(sent)


def put_singly(producer: Door, consumer: Door, messages: int = SINGLY) -> None:
    """Each is taken, and so its bucket is closed, before the next is put."""
    for number in range(messages):
        producer.clock.advance(1)
        producer.queue.put(b"%d" % number)
        assert [b"%d" % number] == [one.body for one in consumer.queue.get()]


def unawaited_looks(monkeypatch: pytest.MonkeyPatch) -> list[BucketNo]:
    """The next look at a bucket says nothing; the list has the bucket once it is waited for."""
    waits: list[BucketNo] = []
    begin = Buckets.begin_read_some

    def once(table: Buckets, buckets: list[BucketNo]) -> Callable[[], tuple[object, object]]:
        monkeypatch.setattr(Buckets, "begin_read_some", begin)
        begin(table, buckets)
        return lambda: (waits.extend(buckets) or {}, {})

    monkeypatch.setattr(Buckets, "begin_read_some", once)
    return waits


@pytest.fixture
def producer(open_door: OpenDoor) -> Door:
    return open_door()


@pytest.fixture
def consumer(open_door: OpenDoor) -> Door:
    return open_door()


# --- the producer -------------------------------------------------------------------------------


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_put_of_a_single_message_waits_for_no_read_before_its_write(
    producer: Door, consumer: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_singly(producer, consumer)
    waits = unawaited_looks(monkeypatch)
    assert {"read_bucket": 1, "reserve": 1} == sent_before(producer, "write_message", put=b"m")
    assert not waits
    assert [b"m"] == [one.body for one in consumer.queue.get()]


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_bucket_that_was_left_while_it_was_open_is_left_once(
    producer: Door, consumer: Door
) -> None:
    """The consumer has gone: from then on puts share a bucket, as they did before."""
    put_singly(producer, consumer)
    reserved = producer.counts["reserve"]
    for number in range(5):
        producer.clock.advance(1)
        producer.queue.put(b"%d" % number)
    assert reserved + 2 == producer.counts["reserve"]
    found = [one.body for _ in range(2) for one in consumer.queue.get(10)]
    assert [b"%d" % number for number in range(5)] == found


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_where_another_producer_comes_one_cas_is_in_vain(
    open_door: OpenDoor, producer: Door, consumer: Door
) -> None:
    put_singly(producer, consumer)
    open_door().queue.put(b"other")
    assert [b"other"] == [one.body for one in consumer.queue.get()]
    spent = sent_before(producer, "write_message", put=b"refused")
    assert 2 == spent["reserve"]
    assert [b"refused"] == [one.body for one in consumer.queue.get()]
    spent = sent_before(producer, "write_message", put=b"next")
    assert {"reserve": 1, "read_bucket": 1, "read_monoton": 1} == spent
    assert [b"next"] == [one.body for one in consumer.queue.get()]


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_where_others_reserve_the_row_is_read_beside_the_bucket(
    open_door: OpenDoor, producer: Door, consumer: Door
) -> None:
    other = open_door()
    for _ in range(SINGLY):
        put_singly(producer, consumer, 1)
        put_singly(other, consumer, 1)
    seen = sent_until(producer, "read_bucket")
    spent = sent_before(producer, "write_message", put=b"m")
    assert {"reserve": 1, "read_bucket": 1, "read_monoton": 1} == spent
    assert 1 == seen["read_monoton"]
    assert [b"m"] == [one.body for one in consumer.queue.get()]


@pytest.mark.invariant("I1", "I6")
@pytest.mark.parametrize("fault", [Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.LATE])
def test_a_reservation_without_a_read_that_goes_unanswered_loses_nothing(
    producer: Door, consumer: Door, fault: Fault
) -> None:
    put_singly(producer, consumer)
    producer.faults.plan("reserve", fault)
    for body in (b"a", b"b"):
        producer.clock.advance(1)
        producer.queue.put(body)
        producer.faults.land()
        assert [body] == [one.body for one in consumer.queue.get()]
    assert [] == consumer.queue.get()


def test_a_put_without_a_read_into_a_queue_that_was_deleted_is_told_so(
    producer: Door, consumer: Door
) -> None:
    put_singly(producer, consumer)
    consumer.queue.delete()
    producer.clock.advance(1)
    with pytest.raises(QueueDeleted):
        producer.queue.put(b"m")


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I10")
def test_where_the_bucket_that_was_left_does_not_answer_the_next_put_looks_again(
    producer: Door, consumer: Door
) -> None:
    put_singly(producer, consumer)
    producer.faults.unreachable(SINGLY - 1)
    assert {"reserve": 1} == sent_before(producer, "write_message", put=b"m")
    producer.faults.reachable()
    assert {"read_bucket": 1, "read_pointers": 1} == sent_before(
        producer, "write_message", put=b"n"
    )
    assert [b"m", b"n"] == [one.body for one in consumer.queue.get(10)]


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_duplicates_leave_no_bucket_each(open_door: OpenDoor) -> None:
    """They store nothing, so each would leave an empty bucket behind."""
    producer, consumer = open_door(dedup_window=60), open_door(dedup_window=60)
    put_singly(producer, consumer)
    producer.queue.put(b"m", dedup_key="k")
    reserved = producer.counts["reserve"]
    for _ in range(5):
        producer.clock.advance(1)
        producer.queue.put(b"m", dedup_key="k")
    assert producer.counts["reserve"] <= reserved + 1
    assert [b"m"] == [one.body for one in consumer.queue.get(10)]


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I1", "I6")
def test_threads_that_put_singly_share_what_is_known(producer: Door, consumer: Door) -> None:
    put_singly(producer, consumer)
    producer.clock.advance(1)
    bodies = [b"thread %d" % number for number in range(8)]
    reserved = producer.counts["reserve"]
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(producer.queue.put, bodies))
    assert 8 == len(set(ids))
    # A slow one among them may leave the bucket once more, in vain.
    assert producer.counts["reserve"] - reserved <= 2
    assert sorted(bodies) == sorted(one.body for one in consumer.queue.get(10))


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I1")
def test_each_lane_has_a_memory_of_its_own(open_door: OpenDoor) -> None:
    producer, consumer = open_door(priorities=2), open_door(priorities=2)
    for number in range(SINGLY):
        for priority in (0, 1):
            producer.clock.advance(1)
            producer.queue.put(b"%d" % number, priority=priority)
            assert [b"%d" % number] == [one.body for one in consumer.queue.get()]
    for priority in (1, 0):
        producer.clock.advance(1)
        read = producer.counts["read_monoton"]
        producer.queue.put(b"m", priority=priority)
        assert read == producer.counts["read_monoton"]
        assert [b"m"] == [one.body for one in consumer.queue.get()]


# --- the reader ---------------------------------------------------------------------------------


def reader_of_singles(door: Door, consumer: Door) -> Reader:
    """A reader that has sealed the last bucket itself, and is quiet."""
    reader = consumer.reader(visibility_s=3_600)
    for number in range(2):
        consumer.clock.advance(1)
        door.put(b"%d" % number)
        assert [b"%d" % number] == consumer.bodies(portal.run(reader.get(1)))
    assert [] == portal.run(reader.get(1))
    assert not portal.run(reader.may_find())
    consumer.clock.advance(1)
    return reader


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_l_is_read_and_the_bucket_peeked_into_beside_its_row(
    producer: Door, consumer: Door
) -> None:
    reader = reader_of_singles(producer, consumer)
    producer.put(b"m")
    assert portal.run(reader.may_find())
    began, seen = consumer.counts, sent_until(consumer, "read_bucket")
    assert [b"m"] == consumer.bodies(portal.run(reader.get(1)))
    assert (1, 1) == (seen["read_pointers"], seen["peek_bucket"])
    spent = consumer.counts - began
    assert 1 == spent["peek_bucket"]
    assert 3 == spent["read_pointers"]  # of the look, the seal and the claim


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_message_whose_write_is_on_its_way_is_found_by_the_look_that_saw_its_id(
    producer: Door, consumer: Door
) -> None:
    reader = reader_of_singles(producer, consumer)
    bucket = producer.reserve()
    assert portal.run(reader.may_find())
    consumer.faults.before("peek_bucket", lambda: producer.write(bucket, 0, b"m"), after=AGAIN)
    looked = consumer.counts["read_monoton"]
    assert [b"m"] == consumer.bodies(portal.run(reader.get(1)))
    assert looked == consumer.counts["read_monoton"]


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_a_bucket_of_which_nothing_comes_is_peeked_into_a_few_times(
    producer: Door, consumer: Door
) -> None:
    reader = reader_of_singles(producer, consumer)
    producer.reserve()
    assert portal.run(reader.may_find())
    began = consumer.counts["peek_bucket"]
    assert [] == portal.run(reader.get(1))
    first = consumer.counts["peek_bucket"] - began
    assert 1 + AGAIN == first
    assert [] == portal.run(reader.get(1))
    assert consumer.counts["peek_bucket"] - began - first <= 2


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I9")
def test_where_others_seal_too_nothing_is_asked_beside(open_door: OpenDoor) -> None:
    producer, consumer, other = open_door(), open_door(), open_door()
    reader = reader_of_singles(producer, consumer)
    producer.put(b"theirs")
    assert [b"theirs"] == other.bodies(portal.run(other.reader(visibility_s=3_600).get(1)))
    assert [] == portal.run(reader.get(1))
    producer.put(b"next")
    assert portal.run(reader.may_find())
    seen = sent_until(consumer, "read_bucket")
    assert [b"next"] == consumer.bodies(portal.run(reader.get(1)))
    assert (0, 0) == (seen["read_pointers"], seen["peek_bucket"])


@pytest.mark.invariant("I2", "I3")
@pytest.mark.parametrize("at", ["read_bucket", "insert_bucket"])
def test_g5_a_bucket_that_is_dropped_beside_its_read_is_claimed_by_nobody(
    open_door: OpenDoor, at: str
) -> None:
    """L as read beside the row does not know it yet; the seal's does."""
    producer, consumer, other = open_door(), open_door(), open_door()
    reader = reader_of_singles(producer, consumer)
    bucket: BucketNo = producer.put(b"m")
    assert portal.run(reader.may_find())

    def drop() -> None:
        other.clock.advance(7_200)
        other.drain()
        other.clock.advance(7_200)
        other.client.repair(other.queue.name)
        assert bucket < portal.run(other.lane.read_pointers()).repair
        assert other.row(bucket) is None

    consumer.faults.before(at, drop)
    assert [] == consumer.bodies(portal.run(reader.get(1)))


@pytest.mark.invariant("I10")
def test_a_get_whose_wait_for_a_young_message_ends_a_moment_early_waits_again(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed of the simulation found it: in virtual time the wait was 2e-17 s too short."""
    door, other = open_door(linger=0.5), open_door()
    other.queue.put(b"young")
    sleep, ended_early = door.clock.sleep, []

    async def early(seconds: float) -> None:
        if not ended_early and seconds > 0.2:
            ended_early.append(seconds)
            seconds -= 0.05
        await sleep(seconds)

    monkeypatch.setattr(door.clock, "sleep", early)
    assert [b"young"] == [one.body for one in door.queue.get()]
    assert ended_early
