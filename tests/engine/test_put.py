"""Put: what was acknowledged is delivered, whatever comes between its steps.

See docs/design/put.md.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import BodyInvalid, OptionInvalid, StoreUnavailable
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.pointer import DELETED, Pointer
from cassieq_spark.model.sizes import BUCKET_BYTES, MAX_BODY_BYTES
from cassieq_spark.queue import seal
from cassieq_spark.queue.put.producer import Producer, Proof, write
from cassieq_spark.queue.put.together import Where
from cassieq_spark.store import portal, session
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.queues import Door, OpenDoor

STEPS = ("write_message", "read_bucket", "read_pointers")


def everything(door: Door) -> list[cassieq.Delivery]:
    """What is visible: a get may give less than it could."""
    return [one for some in iter(door.queue.get, []) for one in some]


def statements(door: Door) -> Counter[str]:
    return door.counts


@pytest.mark.invariant("I1")
def test_what_was_put_is_found_by_the_next_get_whoever_calls_it(open_door: OpenDoor) -> None:
    producer, consumer = open_door(), open_door()
    message_id = producer.queue.put(b"a", tag="t", headers={"k": "v"})
    (message,) = consumer.queue.get()
    assert (message_id, b"a", "t", {"k": "v"}, 1) == (
        message.message_id,
        message.body,
        message.tag,
        message.headers,
        message.delivery_count,
    )


def test_message_ids_are_those_given_or_made_of_queue_and_id(door: Door) -> None:
    chosen = UUID(int=77)
    ids = door.queue.put_many([b"a", b"b", b"c"], message_ids=[chosen, None, str(chosen)])
    found = {message.body: message for message in door.queue.get()}
    assert [str(chosen), str(chosen)] == [ids[0], ids[2]]
    assert ids == [found[body].message_id for body in (b"a", b"b", b"c")]
    assert 8 == UUID(ids[1]).version


def test_one_producers_ids_ascend(door: Door) -> None:
    for number in range(25):
        door.queue.put(b"%d" % number)
    messages = door.queue.get(100)
    assert [b"%d" % number for number in range(25)] == [
        one.body for one in sorted(messages, key=lambda one: one.id)
    ]


def test_bodies_of_any_size_up_to_the_limit_come_back_whole(door: Door) -> None:
    bodies = [b"", b"\0", bytes(range(256)) * 4_096, b"x" * MAX_BODY_BYTES]
    door.queue.put_many(bodies)
    assert sorted(bodies) == sorted(one.body for one in door.queue.get())


def test_a_bucket_is_left_when_its_bytes_are_full(open_door: OpenDoor) -> None:
    """A bucket is one partition of Cassandra [R15]."""
    import os  # noqa: PLC0415 - bodies that do not compress

    door = open_door(bucket_size=1_000)
    body = os.urandom(BUCKET_BYTES // 3)
    for _ in range(4):
        door.queue.put(body)
    assert {0: 2, 1: 2} == {
        bucket: len(portal.run(door.lane.messages.scan(BucketNo(bucket)))) for bucket in (0, 1)
    }


def test_put_many_fills_buckets_and_goes_on_in_the_next(door: Door) -> None:
    door.queue.put(b"first")
    bodies = [b"%d" % number for number in range(34)]
    ids = door.queue.put_many(bodies)
    assert 34 == len(set(ids))
    assert Counter([b"first", *bodies]) == Counter(one.body for one in door.queue.get(100))


@pytest.mark.usefixtures("still_time")
def test_nothing_is_put_for_an_empty_list(door: Door) -> None:
    before = statements(door)
    assert [] == door.queue.put_many([])
    assert before == statements(door)


@pytest.mark.usefixtures("still_time")
def test_a_put_into_its_own_open_bucket_is_three_round_trips(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=1_000, linger=60)
    door.queue.put(b"first")
    before = statements(door)
    for _ in range(10):
        door.queue.put(b"x")
    assert dict.fromkeys(STEPS, 10) == dict(statements(door) - before)


@pytest.mark.usefixtures("still_time")
def test_a_put_of_many_shares_one_proof(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=10_000, linger=60)
    door.queue.put(b"first")
    before = statements(door)
    door.queue.put_many([b"x"] * 5_000)
    assert {"write_message": 2, "read_bucket": 1, "read_pointers": 1} == dict(
        statements(door) - before
    )


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("step", STEPS)
def test_a_seal_before_any_step_loses_no_put(open_door: OpenDoor, step: str) -> None:
    producer, sealer = open_door(linger=5), open_door(linger=5)
    producer.queue.put(b"early")
    producer.faults.before(step, lambda: portal.run(seal.close(sealer.lane, BucketNo(0))))
    message_id = producer.queue.put(b"late")
    assert [b"early"] == [one.body for one in sealer.queue.get(1)]
    portal.run(seal.close(sealer.lane, BucketNo(1)))
    found = [*sealer.queue.peek(), *sealer.queue.get()]
    assert [b"late", b"late"] == [one.body for one in found]
    assert {message_id} == {one.message_id for one in found}


@pytest.mark.invariant("I1")
def test_a_get_before_any_step_takes_it_or_leaves_it_to_the_next(open_door: OpenDoor) -> None:
    for step in STEPS:
        producer, consumer = open_door(f".{step}", linger=0), open_door(f".{step}", linger=0)
        got: list[cassieq.Delivery] = []
        producer.faults.before(step, lambda: got.extend(consumer.queue.get()))  # noqa: B023
        producer.queue.put(b"m")
        assert [b"m"] == [one.body for one in [*got, *consumer.queue.get()]]


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("fault", [Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.LATE])
def test_p5_a_put_whose_write_is_never_answered_settles_its_own_outcome(
    door: Door, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealing its bucket says whether it is in; once, whatever lands later."""
    monkeypatch.setattr(session, "DEADLINE_S", 0.3)
    door.queue.put(b"before")
    unanswered = {("write_message", at): fault for at in range(2, 1_000)}
    door.faults._plan.update(unanswered)
    door.faults.before("insert_bucket", door.faults._plan.clear)
    message_id = door.queue.put(b"m")
    door.faults.land()
    found = [*door.queue.get(), *door.queue.get()]
    assert [b"before", b"m"] == sorted(one.body for one in found)
    assert message_id in {one.message_id for one in found}


@pytest.mark.usefixtures("still_time")
@pytest.mark.invariant("I1")
def test_p6_a_put_into_a_bucket_that_was_dropped_is_ambiguous_and_never_sent_again(
    open_door: OpenDoor,
) -> None:
    """It may have been delivered and dropped: sent again it would come twice."""
    producer, other = open_door(), open_door()
    producer.queue.put(b"early")
    producer.clock.advance(1)  # so that it looks first: the second read is the proof

    def drop() -> None:
        other.queue.ack(other.queue.get())
        other.clock.advance(60)
        assert 1 == other.client.repair(other.queue.name).queues[0].dropped

    producer.faults.before("read_bucket", drop, after=1)
    written = statements(producer)["write_message"]
    with pytest.raises(cassieq.PutAmbiguous) as raised:
        producer.queue.put(b"late", message_id=UUID(int=5))
    assert ((str(UUID(int=5)),), ()) == (raised.value.message_ids, raised.value.stored)
    assert written + 1 == statements(producer)["write_message"]
    message_id = producer.queue.put(b"next")
    assert [message_id] == [one.message_id for one in other.queue.get()]


def test_p13_a_put_never_creates_a_monoton_row(open_door: OpenDoor) -> None:
    producer, other = open_door(), open_door()
    other.queue.delete()
    with pytest.raises(cassieq.QueueDeleted):
        producer.queue.put(b"m")
    assert portal.run(producer.lane.monotons.read()) is None


def test_r25_a_put_that_sleeps_through_a_deletion_is_told_so(open_door: OpenDoor) -> None:
    producer, other = open_door(), open_door()
    producer.queue.put(b"early")
    producer.faults.before("read_bucket", other.queue.delete)
    with pytest.raises(cassieq.QueueDeleted):
        producer.queue.put(b"late")
    assert DELETED == portal.run(other.lane.pointers.read()).repair


@pytest.mark.invariant("I1")
def test_r2_a_producer_that_slept_looks_before_it_writes(open_door: OpenDoor) -> None:
    """Else it would write into a bucket that was dropped long since, and have to say ambiguous."""
    producer, other = open_door(), open_door()
    producer.queue.put(b"early")
    other.queue.ack(other.queue.get())
    other.clock.advance(60)
    assert 1 == other.client.repair(other.queue.name).queues[0].dropped
    producer.clock.advance(60)
    message_id = producer.queue.put(b"late")
    assert [message_id] == [one.message_id for one in other.queue.get()]
    dropped = portal.run(producer.lane.messages.scan(BucketNo(0)))
    assert [] == dropped


@pytest.mark.invariant("I1")
def test_a_put_that_cannot_be_settled_is_ambiguous_by_name(door: Door) -> None:
    """The write is answered, nothing else is any more."""
    door.queue.put(b"early")
    calls: list[Any] = []

    class Dead(Producer):
        async def _proven(self, *args: Any) -> Proof:
            await write(*args)
            calls.append(args)
            return Proof(kept=None)

    door.queue._work.puts.producers.keep(door.lane.lane_id, Dead())
    with pytest.raises(cassieq.PutAmbiguous) as raised:
        door.queue.put_many([b"a", b"b"], message_ids=[UUID(int=1), None])
    assert calls
    assert str(UUID(int=1)) == raised.value.message_ids[0]
    assert 2 == len(raised.value.message_ids)
    assert "[cassieq:put_ambiguous]" in str(raised.value)


def test_each_message_of_a_call_has_its_own_priority_and_delay(open_door: OpenDoor) -> None:
    door = open_door(priorities=3)
    bodies = [b"a", b"b", b"c", b"d"]
    ids = door.queue.put_many(bodies, priority=[0, 2, 1, 2], delay=[0, 0, 0, timedelta(hours=1)])
    found = {one.body: (one.priority, one.message_id) for one in everything(door)}
    assert {b"a": (0, ids[0]), b"b": (2, ids[1]), b"c": (1, ids[2])} == found
    assert 1 == door.queue.stats().scheduled


def test_results_with_keys_stand_where_their_bodies_do(open_door: OpenDoor) -> None:
    door = open_door(priorities=2, dedup_window=60)
    found = door.queue.put_many([b"a", b"b", b"c"], priority=[0, 1, 0], dedup_keys=["x", "x", "y"])
    assert [False, True, False] == [one.duplicate for one in found]
    assert found[0].message_id == found[1].message_id != found[2].message_id
    assert [b"a", b"c"] == sorted(one.body for one in everything(door))


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"priority": [0, 3]}, r"priority\[1\] is 3, allowed: a whole number from 0 to 2"),
        ({"priority": [0, True]}, r"priority\[1\] is True"),
        ({"priority": [0]}, "priority has 1 entries for 2 bodies"),
        ({"priority": []}, "priority has 0 entries for 2 bodies"),
        ({"delay": [0, -1]}, r"delay\[1\] is -1"),
        ({"delay": (0, 0, 0)}, "delay has 3 entries for 2 bodies"),
    ],
)
def test_one_wrong_value_of_a_list_is_named_and_nothing_is_put(
    open_door: OpenDoor, values: dict[str, Any], error: str
) -> None:
    door = open_door(priorities=3)
    with pytest.raises(OptionInvalid, match=error):
        door.queue.put_many([b"a", b"b"], **values)
    with pytest.raises(OptionInvalid):
        door.queue.put(b"a", **values)
    assert [] == door.queue.get()


def test_no_bodies_with_lists_of_nothing_are_nothing(door: Door) -> None:
    assert [] == door.queue.put_many([], priority=[], delay=[])


def test_a_part_that_fails_after_another_is_stored_says_what_is(open_door: OpenDoor) -> None:
    door = open_door(priorities=2)
    put = door.queue._work.puts.parts
    lanes = [part.lane for part in put(door.lane, Where([0, 1], None, 0, None, True), 2)]

    class Broken(Producer):
        def put(self, *_: Any, **__: Any) -> Any:
            raise StoreUnavailable("no node answers")

    door.queue._work.puts.producers.keep(lanes[1].lane_id, Broken())
    ids = [UUID(int=one) for one in (1, 2, 3)]
    with pytest.raises(cassieq.PutAmbiguous, match="no node answers") as raised:
        door.queue.put_many([b"a", b"b", b"c"], priority=[0, 1, 0], message_ids=ids)
    assert ((), (str(ids[0]), str(ids[2]))) == (raised.value.message_ids, raised.value.stored)
    with pytest.raises(StoreUnavailable):
        door.queue.put_many([b"d", b"e"], priority=[1, 0])
    assert [b"a", b"c"] == sorted(one.body for one in everything(door))


@pytest.mark.invariant("I1")
def test_threads_may_share_a_client(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=50)
    reader = open_door(bucket_size=50)
    stop = threading.Event()
    got: list[bytes] = []

    def consume() -> None:
        while True:
            is_over = stop.is_set()
            messages = reader.queue.get(100)
            got.extend(one.body for one in messages)
            reader.queue.ack(messages)
            if is_over and not messages:
                return

    def produce(thread: int) -> list[str]:
        return [door.queue.put(b"%d-%d" % (thread, number)) for number in range(40)]

    with ThreadPoolExecutor(9) as pool:
        consumer = pool.submit(consume)
        ids = [one for ids in pool.map(produce, range(8)) for one in ids]
        stop.set()
        consumer.result()
    assert 320 == len(set(ids))
    expected = Counter(b"%d-%d" % (thread, number) for thread in range(8) for number in range(40))
    assert expected == Counter(got)


def test_p15_each_client_has_a_bucket_of_its_own(open_door: OpenDoor) -> None:
    one, other = open_door(), open_door()
    for door in (one, other, one, other):
        door.queue.put(b"m")
    assert [2, 2] == [
        len(portal.run(one.lane.messages.scan(BucketNo(bucket)))) for bucket in (0, 1)
    ]
    assert 0 == portal.run(one.lane.pointers.read()).repair
    assert Pointer.REPAIR.value == "repair"


def test_two_handles_of_one_client_share_its_bucket(door: Door) -> None:
    for _ in range(3):
        door.client.queue(door.queue.name).put(b"m")
    assert 3 == len(portal.run(door.lane.messages.scan(BucketNo(0))))


# --- found by review ------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [5, "text", {"a"}, {"a": 1}, iter([None])])
def test_message_ids_that_are_no_list_are_refused(door: Door, ids: object) -> None:
    with pytest.raises(OptionInvalid, match="message_ids must be a list"):
        door.queue.put_many([b"m"], message_ids=ids)  # type: ignore[arg-type]


def test_a_memoryview_that_was_released_is_refused(door: Door) -> None:
    view = memoryview(b"m")
    view.release()
    with pytest.raises(BodyInvalid, match="released"):
        door.queue.put(view)  # type: ignore[arg-type]


def test_headers_may_be_any_mapping(door: Door) -> None:
    door.queue.put(b"m", headers=MappingProxyType({"k": "v"}))
    assert {"k": "v"} == door.queue.get()[0].headers


def test_an_error_of_the_callers_own_generator_comes_out_as_it_is(door: Door) -> None:
    def broken() -> Iterator[bytes]:
        yield b"m"
        raise TypeError("the caller's own")

    with pytest.raises(TypeError, match="the caller's own"):
        door.queue.put_many(broken())


@pytest.mark.usefixtures("still_time")
def test_what_tag_and_headers_need_counts_for_the_size_of_a_row(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=1_000)
    before = door.counts["write_message"]
    door.queue.put_many([b""] * 6, headers={"k": "v" * 500_000})
    assert 6 == door.counts["write_message"] - before


@pytest.mark.invariant("I1")
def test_a_put_whose_client_is_closed_after_its_write_may_be_delivered(door: Door) -> None:
    """Whoever were told that it failed would put it twice."""
    session = door.session
    door.faults.before("write_message", lambda: setattr(session, "is_closed", True))
    with pytest.raises(cassieq.PutAmbiguous):
        door.queue.put(b"m")
    session.is_closed = False
    assert [b"m"] == [one.body for one in door.queue.get(1, wait=5)]
