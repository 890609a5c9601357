"""Create, alter, purge, delete: each survives a crash at any step.

See docs/design/repair.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import DeadLetterCycle, OptionInvalid, OptionUnknown, SettingFixed
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.queue.sink import transaction
from cassieq_spark.store import portal
from cassieq_spark.store.tables.queues import QueueStatus
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from cassieq_spark.queue.lane import Lane
    from tests.fixtures.queues import Door, OpenDoor


@pytest.fixture(scope="module")
def keyspace() -> str:
    """Passes over all queues: not over those of all other tests."""
    return "cassieq_life"


class Crash(Exception):
    """Ends a call as a killed process would."""


def crash() -> None:
    raise Crash


def messages_in(lane: Lane, buckets: int) -> int:
    return sum(
        chunk.count
        for bucket in range(buckets)
        for chunk in portal.run(lane.messages.scan(BucketNo(bucket)))
    )


def test_altered_settings_are_seen_by_who_has_the_queue_open(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    door.client.alter_queue(door.queue.name, visibility_timeout=300, linger=0)
    other.queue.put(b"m")
    other.clock.advance(6)
    (message,) = other.queue.get()
    assert message.visible_until.timestamp() - other.clock.now_us() / 1e6 > 290
    assert 300 == other.queue.settings.visibility_timeout_s


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"bucket_size": 11}, SettingFixed, "cannot change"),
        ({"visibility_timeout": -1}, OptionInvalid, "visibility_timeout"),
        ({"visibility": 1}, OptionUnknown, "Did you mean 'visibility_timeout'"),
        ({"dead_letter_queue": "no.such"}, cassieq.QueueNotFound, "no.such"),
    ],
)
def test_what_may_not_change_is_refused_by_name(
    door: Door, changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    before = portal.run(door.store.queues.read(door.lane.queue))
    with pytest.raises(error, match=says):
        door.client.alter_queue(door.queue.name, **changes)
    assert before == portal.run(door.store.queues.read(door.lane.queue))


def test_a_cycle_of_dead_letter_queues_is_refused_where_it_would_close(door: Door) -> None:
    name = door.queue.name
    door.client.create_queue(f"{name}.a", dead_letter_queue=name)
    door.client.create_queue(f"{name}.b", dead_letter_queue=f"{name}.a")
    with pytest.raises(DeadLetterCycle, match="cycle"):
        door.client.alter_queue(name, dead_letter_queue=f"{name}.b")
    with pytest.raises(DeadLetterCycle, match="cycle"):
        door.client.alter_queue(name, dead_letter_queue=name)


def test_none_puts_a_setting_back_to_its_default(door: Door) -> None:
    door.client.alter_queue(door.queue.name, visibility_timeout=5)
    altered = door.client.alter_queue(door.queue.name, visibility_timeout=None)
    assert 30 == altered.settings.visibility_timeout_s


def test_none_asks_create_queue_for_no_value(door: Door) -> None:
    door.client.alter_queue(door.queue.name, visibility_timeout=5)
    again = door.client.create_queue(door.queue.name, visibility_timeout=None)
    assert 5 == again.settings.visibility_timeout_s


# --- purge ----------------------------------------------------------------------------------------


def test_r18_a_purge_drops_all_and_touches_no_open_bucket(open_door: OpenDoor) -> None:
    """Visible, leased, delayed, dead, and what lies in an open bucket."""
    door, other = open_door(), open_door()
    door.queue.put_many([b"%d" % number for number in range(13)])
    held = door.queue.get(3)
    door.queue.put(b"later", delay=600)
    other.queue.put(b"open")
    assert 15 == other.queue.purge()
    stats = door.queue.stats()
    assert (0, 0, 0) == (stats.visible, stats.in_flight, stats.delayed)
    assert {"drained"} == set(stats.buckets)
    assert [cassieq.AckResult.ALREADY_ACKED] * 3 == door.queue.ack_each(held)
    door.clock.advance(3_600)
    assert [] == door.queue.get()
    door.queue.put(b"new")
    assert [b"new"] == [one.body for one in door.queue.get()]


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("step", ["write_message", "read_bucket", "read_pointers"])
def test_r18_a_put_beside_a_purge_is_in_or_goes_to_a_later_bucket(
    open_door: OpenDoor, step: str
) -> None:
    """It is dropped with the rest, or delivered; it is never acknowledged and in neither."""
    producer, other = open_door(), open_door()
    producer.queue.put(b"early")
    dropped: list[int] = []
    producer.faults.before(step, lambda: dropped.append(other.queue.purge()))
    producer.queue.put(b"late")
    assert 2 == dropped[0] + len(other.queue.get())


def test_a_purge_leaves_a_transaction_that_is_being_written(door: Door) -> None:
    door.task(door.identity(), 0, b"a")
    assert 0 == door.queue.purge()
    assert {"prepared": 1} == door.queue.stats().buckets


# --- delete ---------------------------------------------------------------------------------------


def test_a_deleted_queue_is_gone_for_every_client(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    other.queue.put(b"m")
    (held,) = other.queue.get()
    door.queue.delete()
    for use in (
        lambda: other.queue.put(b"x"),
        other.queue.get,
        other.queue.stats,
        other.queue.peek,
        other.queue.purge,
        lambda: other.queue.ack(held),
    ):
        with pytest.raises(cassieq.QueueDeleted):
            use()
    for client in (door.client, other.client):
        with pytest.raises(cassieq.QueueNotFound):
            client.queue(door.queue.name)
        assert door.queue.name not in {one.name for one in client.queues()}
    with pytest.raises(cassieq.QueueNotFound):
        other.queue.delete()


STEPS = (
    "update_queue",
    "advance_pointer",
    "drop_messages",
    "drop_overlays",
    "delete_bucket",
    "delete_monoton",
    "delete_queue",
)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("again", ["delete", "create", "repair"])
def test_p13_a_deletion_that_dies_before_any_step_is_finished_by_whoever_comes(
    open_door: OpenDoor, step: str, again: str
) -> None:
    door, other = open_door(), open_door()
    lane = door.lane
    door.queue.put_many([b"old"] * 25)
    name = door.queue.name
    door.faults.before(step, crash)
    with pytest.raises(Crash):
        door.queue.delete()
    if step == "update_queue":
        assert 25 == len([*other.queue.get(100), *other.queue.get(100)])
        other.queue.delete()
    elif again == "delete":
        other.client.delete_queue(name)
    elif again == "repair":
        assert name in other.client.repair().deletions_finished
    queue = other.client.create_queue(name, bucket_size=10)
    assert [] == queue.get()
    assert 0 == messages_in(lane, 3)
    with pytest.raises(cassieq.QueueDeleted):
        door.queue.put(b"x")
    queue.put(b"new")
    assert [b"new"] == [one.body for one in queue.get()]


def test_a_queue_of_one_name_lives_ten_times_and_sees_no_old_message(door: Door) -> None:
    name = door.queue.name
    for life in range(10):
        queue = door.client.create_queue(name, bucket_size=10)
        queue.put_many([b"%d" % life] * 12)
        found = queue.get(100)
        assert {b"%d" % life} == {one.body for one in found}
        queue.ack(found[:5])
        queue.delete()
    assert [] == door.client.create_queue(name, bucket_size=10).get()


def test_p13_two_may_delete_and_create_at_once(open_door: OpenDoor) -> None:
    """A slow deleter takes nothing from the queue that was created since."""
    door, other = open_door(), open_door()
    door.queue.put(b"old")
    name = door.queue.name

    def faster() -> None:
        other.client.delete_queue(name)
        other.client.create_queue(name, bucket_size=10).put(b"new")

    door.faults.before("delete_monoton", faster)
    door.queue.delete()
    assert [b"new"] == [one.body for one in other.client.queue(name).get()]


def test_a_deletion_whose_answers_are_lost_is_one_deletion(door: Door) -> None:
    door.queue.put_many([b"m"] * 15)
    for step in ("update_queue", "delete_bucket", "delete_monoton", "delete_queue"):
        door.faults.plan(step, Fault.TIMEOUT_AFTER)
    door.queue.delete()
    assert portal.run(door.store.queues.read(door.lane.queue)) is None
    assert portal.run(door.lane.monotons.read()) is None


def test_a_queue_that_is_being_deleted_is_no_dead_letter_queue(door: Door) -> None:
    name = door.queue.name
    door.client.create_queue(f"{name}.dead")
    doomed = door.client.queue(f"{name}.dead")
    door.faults.before("delete_queue", crash)
    with pytest.raises(Crash):
        doomed.delete()
    found = portal.run(door.store.queues.read(doomed._lane.queue))
    assert found is not None
    assert QueueStatus.DELETING is found.value.status
    with pytest.raises(cassieq.QueueNotFound, match="dead-letter queue"):
        door.client.alter_queue(name, dead_letter_queue=f"{name}.dead")


@pytest.mark.invariant("I1")
def test_a_handle_deletes_its_own_queue_and_none_that_was_created_since(
    open_door: OpenDoor,
) -> None:
    old, other = open_door(), open_door()
    other.queue.delete()
    new = other.client.create_queue(old.queue.name, bucket_size=10)
    new.put(b"m")
    with pytest.raises(cassieq.QueueNotFound):
        old.queue.delete()
    assert [b"m"] == [one.body for one in new.get()]


@pytest.mark.invariant("I1")
def test_a_deletion_that_another_client_carries_to_its_end_spares_the_next_queue(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(), open_door()
    made: list[cassieq.Queue] = []

    def create_again() -> None:
        made.append(other.client.create_queue(door.queue.name, bucket_size=10))
        made[0].put(b"m")

    door.faults.before("read_queue", create_again, after=1)
    door.client.delete_queue(door.queue.name)
    assert [b"m"] == [one.body for one in made[0].get()]


def test_a_purge_drops_a_transaction_whose_committer_died_behind_the_commit(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: object, **__: object) -> None:
        """Nothing is done any more."""

    monkeypatch.setattr(transaction, "roll_forward", dies)
    door.put_batch(0, b"a", b"b")
    assert 2 == door.queue.purge()
    assert [] == door.queue.get()


def test_two_alterations_that_would_close_a_cycle_together_are_not_both_made(
    open_door: OpenDoor,
) -> None:
    door = open_door()
    first, second = f"{door.queue.name}.1", f"{door.queue.name}.2"
    for name in (first, second):
        door.client.create_queue(name)
    other = open_door()

    def alter_the_other() -> None:
        other.client.alter_queue(second, dead_letter_queue=first)

    door.faults.before("update_queue", alter_the_other)
    with pytest.raises(DeadLetterCycle, match="cycle"):
        door.client.alter_queue(first, dead_letter_queue=second)
    assert door.client.queue(first).settings.dead_letter_queue is None
    assert first == door.client.queue(second).settings.dead_letter_queue
