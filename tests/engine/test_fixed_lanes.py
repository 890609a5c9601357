"""A queue with priorities and shards: which lane a message takes, which lane is read first.

Bucket 0 exists in every lane of these queues, so each verb that took a bucket number alone for a
place would settle, read or drop another lane's messages [U6] [U18].
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.errors import OptionInvalid, QueueDeleted, SettingFixed, StoreError
from cassieq_spark.model.lanes import shard_of
from cassieq_spark.queue import reserve
from cassieq_spark.queue.find import read_row
from cassieq_spark.queue.get.claim import Holder
from cassieq_spark.queue.get.queue_reader import QueueReader
from cassieq_spark.queue.message import proof_of
from cassieq_spark.store import portal
from cassieq_spark.store.tables.queues import QueueStatus
from tests.fixtures.faults import Away
from tests.fixtures.queues import Crash, crash

if TYPE_CHECKING:
    import cassieq_spark as cassieq
    from tests.fixtures.queues import OpenDoor

STRICT: dict[str, Any] = {"fairness": 0, "linger": 0}


def bodies(messages: list[cassieq.Message]) -> list[bytes]:
    return [message.body for message in messages]


def drained(queue: cassieq.Queue, **wanted: Any) -> list[cassieq.Delivery]:
    """Got and acked, call by call, until there is nothing."""
    found: list[cassieq.Delivery] = []
    while some := queue.get(100, **wanted):
        found += some
        queue.ack(some)
    return found


def test_a_queue_has_a_lane_for_each_priority_and_shard(open_door: OpenDoor) -> None:
    door = open_door(priorities=3, shards=4)

    assert 12 == len(set(door.lane.lanes))
    assert [(at // 4, at % 4) for at in range(12)] == [
        door.lane.fixed.class_and_shard(lane) for lane in door.lane.lanes
    ]
    assert all(portal.run(lane.monotons.read()) is not None for lane in door.lane.all)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"priorities": 0}, "'priorities' of"),
        ({"priorities": 11}, "'priorities' of"),
        ({"shards": 65}, "'shards' of"),
        ({"priorities": 10, "shards": 7}, "'priorities' and 'shards'"),
        ({"fairness": 0.6}, "'fairness' of"),
    ],
)
def test_settings_that_make_no_lanes_are_refused(
    client: cassieq.Client, queue_name: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(OptionInvalid, match=says):
        client.create_queue(queue_name, **settings)
    assert queue_name not in [info.name for info in client.queues()]


def test_priorities_and_shards_cannot_change(client: cassieq.Client, queue_name: str) -> None:
    client.create_queue(queue_name, priorities=2)
    with pytest.raises(SettingFixed, match=r"priorities, shards of queue .* cannot change"):
        client.alter_queue(queue_name, priorities=3, shards=2)
    assert 0.25 == client.alter_queue(queue_name, fairness=0.25).settings.fairness


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"priority": 3}, "priority is 3"),
        ({"priority": -1}, "priority is -1"),
        ({"priority": True}, "priority is True"),
        ({"key": "k" * 1_025}, "key is"),
        ({"key": "é" * 513}, "key is .*, allowed: text of 1 to 1,024 bytes in UTF-8"),
        ({"key": ""}, "key is"),
        ({"key": b"k"}, "key is"),
    ],
)
def test_a_wrong_priority_or_key_is_refused_before_anything_is_written(
    open_door: OpenDoor, wrong: dict[str, Any], says: str
) -> None:
    door = open_door(priorities=3)

    with pytest.raises(OptionInvalid, match=says):
        door.queue.put(b"m", **wrong)
    with pytest.raises(OptionInvalid, match="min_priority is 3"):
        door.queue.get(min_priority=3)
    assert 0 == door.queue.stats().visible


@pytest.mark.invariant("I10")
def test_the_highest_priority_is_handed_out_first(open_door: OpenDoor) -> None:
    queue = open_door(priorities=3, **STRICT).queue
    for priority in (0, 2, 1, 2, 0):
        queue.put(b"%d" % priority, priority=priority)

    got = [message for _ in range(5) for message in queue.get(1)]

    assert [b"2", b"2", b"1", b"0", b"0"] == bodies(got)
    assert [2, 2, 1, 0, 0] == [message.priority for message in got]
    assert len({message.lane for message in got}) == 3


def test_a_get_may_ask_for_the_higher_priorities_only(open_door: OpenDoor) -> None:
    queue = open_door(priorities=3, **STRICT).queue
    for priority in range(3):
        queue.put(b"%d" % priority, priority=priority)

    assert [b"2", b"1"] == bodies(queue.get(min_priority=1))
    assert [] == queue.get(min_priority=1)
    with queue.consumer(min_priority=1) as consumer:
        assert consumer.get(0) is None
    assert [b"0"] == bodies(queue.get())


def test_messages_of_a_key_are_in_one_lane_in_their_order(open_door: OpenDoor) -> None:
    door = open_door(shards=4, **STRICT)
    keys = [f"customer {number}" for number in range(12)]
    for number in range(5):
        for key in keys:
            door.queue.put(f"{key}:{number}".encode(), key=key)

    by_key: dict[str, list[cassieq.Delivery]] = {}
    for message in drained(door.queue):
        by_key.setdefault(message.body.decode().partition(":")[0], []).append(message)

    assert set(keys) == by_key.keys()
    for key, messages in by_key.items():
        assert {door.lane.lanes[shard_of(key, 4)]} == {message.lane for message in messages}
        ids = [message.id for message in messages]
        assert sorted(ids) == ids
        assert [f"{key}:{number}".encode() for number in range(5)] == bodies(messages)


def test_a_producer_keeps_to_one_shard_so_that_a_trickle_fills_one_bucket(
    open_door: OpenDoor,
) -> None:
    door = open_door(shards=8)
    for number in range(20):
        door.queue.put(b"%d" % number)

    assert 1 == len({message.lane for message in door.queue.peek(20)})


def test_one_consumer_serves_all_shards_in_turn(open_door: OpenDoor) -> None:
    door = open_door(shards=4, **STRICT)
    for number in range(40):
        door.queue.put(b"m", key=str(number))

    got = [message.lane for _ in range(8) for message in door.queue.get(1)]

    assert set(door.lane.lanes) == set(got)
    assert set(door.lane.lanes) == set(got[:4])


@pytest.mark.invariant("I10")
def test_a_low_priority_is_slow_and_never_stuck(open_door: OpenDoor) -> None:
    queue = open_door(priorities=2, fairness=0.2, linger=0).queue
    queue.put_many([b"low"] * 200)
    queue.put_many([b"high"] * 400, priority=1)

    one_by_one = Counter(message.body for _ in range(150) for message in queue.get(1))
    at_once = Counter(bodies(queue.get(100)))

    assert 8 <= one_by_one[b"low"] <= 65  # 30 on average
    assert 20 == at_once[b"low"]


@pytest.mark.invariant("I2", "I3", "I4")
def test_receipts_of_the_same_bucket_and_offsets_in_two_lanes_settle_their_own(
    open_door: OpenDoor,
) -> None:
    door = open_door(priorities=3, dead_letter_queue=None, **STRICT)
    for priority in range(3):
        door.queue.put_many([b"%d:%d" % (priority, at) for at in range(4)], priority=priority)
    got = door.queue.get(12)
    assert {0} == {proof_of(message).bucket for message in got}
    by_priority = {at: [one for one in got if one.priority == at] for at in range(3)}

    door.queue.ack(by_priority[0])
    door.queue.release(by_priority[1])
    door.queue.extend(by_priority[2][:2], 60)
    updated = door.queue.update(by_priority[2][2], body=b"new")

    assert [b"1:%d" % at for at in range(4)] == bodies(door.queue.get(12))
    counted = door.queue.stats()
    assert (0, 8) == (counted.visible, counted.in_flight)
    door.queue.ack([*by_priority[2][:2], updated, by_priority[2][3]])
    assert 4 == door.queue.stats().in_flight


def test_receipts_of_all_lanes_are_acked_together_with_a_verdict_each(open_door: OpenDoor) -> None:
    door = open_door(priorities=2, shards=2, **STRICT)
    for number in range(8):
        door.queue.put(b"m", priority=number % 2, key=str(number))
    got = door.queue.get(8)
    door.queue.ack(got[0])

    verdicts = door.queue.ack_each([message.receipt for message in got])

    assert ["already_acked", *["acked"] * 7] == verdicts


def test_a_consumer_hands_out_acks_and_renews_over_lanes(open_door: OpenDoor) -> None:
    door = open_door(priorities=3, shards=2, visibility_timeout=5, linger=0)
    sent = {f"{number}".encode() for number in range(60)}
    for body in sent:
        door.queue.put(body, priority=int(body) % 3, key=body.decode())

    seen: Counter[bytes] = Counter()
    with door.queue.consumer(prefetch=20, idle_timeout=5) as consumer:
        for message in consumer:
            if not seen:
                door.clock.wait(7.5)  # what waits in the consumer is renewed meanwhile
            seen[message.body] += 1
            consumer.ack(message)

    assert dict.fromkeys(sent, 1) == dict(seen)
    counted = door.queue.stats()
    assert (0, 0) == (counted.visible, counted.in_flight)


def test_stats_count_all_lanes_and_each_priority(open_door: OpenDoor) -> None:
    door = open_door(priorities=3, shards=2)
    door.queue.put_many([b"a"] * 5, priority=0, key="x")
    door.queue.put_many([b"b"] * 7, priority=2, key="y")
    door.queue.put_many([b"c"] * 2, priority=2, key="z", delay=60)

    counted = door.queue.stats()

    assert {0: 5, 1: 0, 2: 7} == counted.by_priority
    assert (12, 2, 0) == (counted.visible, counted.delayed, counted.in_flight)


def test_peek_and_browse_show_the_highest_priority_first(
    client: cassieq.Client, open_door: OpenDoor
) -> None:
    door = open_door(priorities=3)
    for priority in (1, 0, 2):
        door.queue.put(b"%d" % priority, priority=priority)

    assert [b"2", b"1", b"0"] == bodies(door.queue.peek())
    assert [b"2", b"1"] == bodies(door.queue.peek(2))
    assert [b"2", b"1", b"0"] == bodies(list(client.browse(door.queue.name)))


def test_purge_drops_the_messages_of_all_lanes(open_door: OpenDoor) -> None:
    door = open_door(priorities=2, shards=3)
    for number in range(12):
        door.queue.put(b"m", priority=number % 2, key=str(number))
    held = door.queue.get(3)

    assert 12 == door.queue.purge()
    assert [] == door.queue.get()
    assert {"already_acked"} == set(door.queue.ack_each(held))


def test_repair_drops_finished_buckets_of_all_lanes_and_finds_nothing_broken(
    client: cassieq.Client, open_door: OpenDoor
) -> None:
    door = open_door(priorities=2, shards=2, bucket_size=5, repair_timeout=0.2, **STRICT)
    for number in range(40):
        door.queue.put(b"m", priority=number % 2, key=str(number))
    assert 40 == len(drained(door.queue))
    door.clock.wait(0.5)

    report = client.repair(door.queue.name)

    assert [] == report.problems
    [done] = report.queues
    assert done.dropped >= 4
    assert 4 == sum(portal.run(lane.read_pointers()).repair > 0 for lane in door.lane.all)
    assert [] == client.verify(door.queue.name).findings


@pytest.mark.invariant("I1")
def test_a_lane_that_does_not_answer_holds_up_no_other(open_door: OpenDoor) -> None:
    door = open_door(priorities=2, **STRICT)
    door.queue.put(b"low")
    door.queue.put(b"high", priority=1)
    high = door.lane.lanes[1]
    door.faults.unreachable(0, lane=high, how=Away.TIMES_OUT)
    assert [b"low"] == bodies(door.queue.get())
    with door.session.within(2), pytest.raises(StoreError):
        door.queue.get()
    door.faults.reachable()
    assert [b"high"] == bodies(door.queue.get())


def test_deleting_a_queue_ends_every_lane(client: cassieq.Client, open_door: OpenDoor) -> None:
    door = open_door(priorities=2, shards=2)
    lanes = door.lane.all
    for number in range(8):
        door.queue.put(b"m", priority=number % 2, key=str(number))
    client.delete_queue(door.queue.name)

    assert all(portal.run(lane.pointers.read()).is_deleted for lane in lanes)
    assert all(portal.run(lane.monotons.find()) is None for lane in lanes)
    for priority in range(2):
        with pytest.raises(QueueDeleted):
            door.queue.put(b"m", priority=priority)
    holder = Holder(owner="test", run=None, visibility_us=10**6)
    with pytest.raises(QueueDeleted):
        portal.run(QueueReader(lanes[0], holder).get(1))


@pytest.mark.invariant("I1")
def test_nothing_of_a_deleted_queue_goes_before_all_its_lanes_are_marked(
    open_door: OpenDoor,
) -> None:
    """It is cut off at the last mark: a put into that lane reads L in vain if others have gone."""
    door = open_door(shards=20)
    lanes, marked = door.lane.all, []
    door.faults.before(
        "delete_monoton",
        lambda: marked.append([portal.run(lane.pointers.read()).is_deleted for lane in lanes]),
    )
    door.faults.before("advance_pointer", crash, after=19)

    with pytest.raises(Crash):
        door.queue.delete()
    door.queue.delete()

    assert [[True] * 20] == marked


@pytest.mark.invariant("I1")
def test_t14_a_queue_in_use_by_its_second_lane_alone_is_not_given_up(open_door: OpenDoor) -> None:
    """Its INSERT has landed late, and somebody puts into a lane that is not the first."""
    door = open_door(priorities=2)
    unused = {lane.lane_id: portal.run(lane.monotons.find()) for lane in door.lane.all}
    door.queue.put(b"kept", priority=1)

    portal.run(reserve.give_up(door.store, unused))

    assert [b"kept"] == bodies(door.queue.get())
    door.queue.put(b"more", priority=1)


@pytest.mark.invariant("I10")
def test_t14_a_queue_in_use_by_its_first_lane_keeps_its_others(open_door: OpenDoor) -> None:
    door = open_door(priorities=2)
    unused = {lane.lane_id: portal.run(lane.monotons.find()) for lane in door.lane.all}
    door.queue.put(b"low")

    portal.run(reserve.give_up(door.store, unused))

    door.queue.put(b"high", priority=1)
    assert {b"low", b"high"} == {message.body for message in drained(door.queue)}


@pytest.mark.invariant("I1")
def test_t14_the_first_lanes_row_may_be_that_of_a_lane_that_has_ended(open_door: OpenDoor) -> None:
    """Its creator dies on the way, and a copy of the row's INSERT lands where the row was."""
    door = open_door(priorities=2)
    first = door.lane.first
    made = portal.run(first.monotons.find())
    assert made is not None
    assert portal.run(reserve.close_unused(door.store, first.lane_id, made))
    portal.run(first.monotons.insert(made.value))

    with pytest.raises(QueueDeleted):
        door.queue.put(b"m", priority=1)


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("is_whole", [True, False])
def test_t14_a_queue_that_was_given_up_takes_no_put_into_any_lane(
    open_door: OpenDoor, is_whole: bool
) -> None:
    """Also if its creator dies before it has closed the second one."""
    door = open_door(priorities=2)
    unused = {lane.lane_id: portal.run(lane.monotons.find()) for lane in door.lane.all}
    if not is_whole:
        door.faults.before("reserve", crash, after=1)

    with nullcontext() if is_whole else pytest.raises(Crash):
        portal.run(reserve.give_up(door.store, unused))

    for priority in range(2):
        with pytest.raises(QueueDeleted):
            door.queue.put(b"m", priority=priority)
    ended = [portal.run(lane.pointers.read()).is_deleted for lane in door.lane.all]
    assert [True, is_whole] == ended
    found = portal.run(read_row(door.store, door.queue.name))
    assert found is not None
    assert QueueStatus.DELETING is found.value.status
