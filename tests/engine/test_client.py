"""What a client does with whole queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import (
    ClientClosed,
    DeadLetterCycle,
    OptionInvalid,
    QueueExists,
    QueueNotFound,
    SinkIdReused,
    UsageError,
)
from cassieq_spark.model.pointer import DELETED, Pointer
from cassieq_spark.queue import admin
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor


def test_a_queue_is_created_once_and_found_again(client: cassieq.Client, queue_name: str) -> None:
    created = client.create_queue(queue_name, visibility_timeout=7)
    again = client.create_queue(queue_name, visibility_timeout=7)
    found = client.queue(queue_name)

    assert created._lane.lane_id == again._lane.lane_id == found._lane.lane_id
    assert 7 == found.settings.visibility_timeout_s
    assert [queue_name] == [info.name for info in client.queues() if info.name == queue_name]


def test_other_settings_for_a_queue_that_exists_are_named(
    client: cassieq.Client, queue_name: str
) -> None:
    client.create_queue(queue_name, visibility_timeout=7, bucket_size=10)
    with pytest.raises(
        QueueExists, match=r"bucket_size=10, but you asked for bucket_size=20"
    ) as caught:
        client.create_queue(queue_name, visibility_timeout=7, bucket_size=20)
    assert ("bucket_size",) == caught.value.differences
    assert 10 == client.queue(queue_name).settings.bucket_size


def test_a_queue_that_is_not_there_says_how_to_create_it(client: cassieq.Client) -> None:
    with pytest.raises(QueueNotFound, match=r"create_queue\('nobody'\)"):
        client.queue("nobody")


def test_a_misspelt_queue_is_told_with_the_one_that_was_meant(
    client: cassieq.Client, queue_name: str
) -> None:
    client.create_queue(queue_name)
    misspelt = f"{queue_name[:-2]}{queue_name[-1]}"
    for call in (client.queue, client.delete_queue):
        with pytest.raises(QueueNotFound, match=f"Did you mean '{queue_name}'"):
            call(misspelt)
    with pytest.raises(QueueNotFound, match=r"in keyspace '\w+'\. Create it") as caught:
        client.queue(f"account/{misspelt}")  # an account learns nothing of others' queues
    assert queue_name not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "é", "q" * 201])
def test_a_name_that_is_none_is_refused(client: cassieq.Client, name: str) -> None:
    with pytest.raises(UsageError):
        client.create_queue(name)


@pytest.mark.parametrize("name", [".", "..", "account/..", "account/."])
def test_a_new_queue_has_no_name_that_is_a_step_of_a_path(
    client: cassieq.Client, name: str
) -> None:
    with pytest.raises(OptionInvalid, match="nobody could reach it over HTTP"):
        client.create_queue(name)


def test_a_queue_of_an_older_release_with_such_a_name_stays_usable(
    client: cassieq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(admin, "_check_new_name", lambda _: None)
        client.create_queue("..")
    queue = client.create_queue("..")
    queue.put(b"m")
    assert [b"m"] == [one.body for one in client.queue("..").get()]
    client.delete_queue("..")


@pytest.mark.parametrize(
    "settings",
    [{"max_deliveries": 5}, {"dead_letter_expired": True}],
    ids=lambda one: next(iter(one)),
)
def test_a_setting_without_its_dead_letter_queue_is_told(
    client: cassieq.Client,
    queue_name: str,
    settings: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told() -> list[str]:
        found = [
            one for one in caplog.records if one.message.startswith("dead_letter_queue_missing")
        ]
        caplog.clear()
        assert {"WARNING"} >= {one.levelname for one in found}
        return [one.fields["settings"] for one in found]

    client.create_queue(queue_name, **settings)
    assert [*settings] == told()
    client.create_queue(queue_name, **settings)  # nothing is new
    client.create_queue(f"{queue_name}.dead")
    client.alter_queue(queue_name, dead_letter_queue=f"{queue_name}.dead")
    assert [] == told()
    client.alter_queue(queue_name, dead_letter_queue=None)
    assert [*settings] == told()


def test_a_priority_that_a_queue_has_not_says_how_to_have_more(
    client: cassieq.Client, queue_name: str
) -> None:
    queue = client.create_queue(queue_name)
    told = r"priority is 5, allowed: .* 0 to 0: the queue was created with priorities=1"
    with pytest.raises(OptionInvalid, match=told):
        queue.put(b"m", priority=5)


def test_dead_letter_queues_must_exist_and_end(client: cassieq.Client, queue_name: str) -> None:
    with pytest.raises(QueueNotFound, match="Create it first"):
        client.create_queue(queue_name, max_deliveries=2, dead_letter_queue="nobody")
    with pytest.raises(DeadLetterCycle, match="cycle"):
        client.create_queue(queue_name, max_deliveries=2, dead_letter_queue=queue_name)
    assert queue_name not in [info.name for info in client.queues()]


def test_stats_tell_the_places_of_messages_apart(door: Door) -> None:
    door.put_batch(0, b"a", b"b", b"c")
    door.put(b"open")
    door.put(b"later", delay_s=60)
    claimed = portal.run(door.reader().get(2))
    stats = door.queue.stats()
    counts = (stats.visible, stats.in_flight, stats.delayed, stats.dead)
    assert (2, 2, 1, 0) == counts
    door.ack(claimed)
    assert (2, 0) == (door.queue.stats().visible, door.queue.stats().in_flight)


def test_forget_sink_knows_whose_sink_it_is(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door(".other")
    who = door.identity(sink_id=f"{door.queue.name}.sink")
    result = door.task(who, 0, b"a")
    assert 1 == door.commit(who, 0, result)

    door.client.forget_sink(door.queue.name, "nobody's")
    with pytest.raises(QueueNotFound):
        door.client.forget_sink("nobody", who.sink_id)
    wrong: list[Any] = [None, 0, b"s", "", " s", "s" * 401, "\ud800", [], who, object()]
    for sink_id in wrong:
        with pytest.raises(OptionInvalid, match="sink_id is"):
            door.client.forget_sink(door.queue.name, sink_id)
    with pytest.raises(SinkIdReused, match="another queue"):
        door.client.forget_sink(other.queue.name, who.sink_id)
    assert [b"a"] == door.drain()

    portal.run(door.lane.pointers.advance(Pointer.REPAIR, DELETED))
    door.client.forget_sink(other.queue.name, who.sink_id)
    assert 1 == other.commit(
        other.identity("r2", sink_id=who.sink_id),
        0,
        other.task(other.identity("r2", sink_id=who.sink_id), 0, b"b"),
    )
    assert [b"b"] == other.drain()


def test_the_labels_of_a_queue_are_not_changed_by_its_handle(
    client: cassieq.Client, queue_name: str
) -> None:
    queue = client.create_queue(queue_name, labels={"owner": "billing"})
    with pytest.raises(TypeError, match="cannot be changed"):
        queue.labels["owner"] = "me"  # type: ignore[index]  # that is the point
    assert {"owner": "billing"} == queue.labels


def test_every_call_of_a_closed_client_says_so_at_once(open_door: OpenDoor) -> None:
    door = open_door()
    door.queue.put_many([b"m"] * 12)
    held = door.queue.get(12)
    door.client.close()
    for call in (
        lambda: door.queue.put(b"m"),
        door.queue.get,
        lambda: door.queue.get(wait=1),
        lambda: door.queue.ack(held),
        door.queue.stats,
        door.client.repair,
        door.client.bootstrap,
    ):
        with pytest.raises(ClientClosed, match="client is closed"):
            call()
