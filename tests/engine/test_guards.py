"""What keeps a queue from being deleted: other queues that need it, and what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import QueueInUse, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    import cassieq_spark as cassieq
    from tests.fixtures.queues import OpenDoor


def names(client: cassieq.Client) -> list[str]:
    return [one.name for one in client.queues()]


def test_a_dead_letter_queue_that_a_queue_names_is_only_deleted_by_force(
    client: cassieq.Client, queue_name: str
) -> None:
    dead = client.create_queue(f"{queue_name}.dead")
    source = client.create_queue(queue_name, max_deliveries=3, dead_letter_queue=dead.name)

    with pytest.raises(QueueInUse, match=f"dead-letter queue of '{queue_name}'"):
        dead.delete()
    with pytest.raises(QueueInUse, match="force=True"):
        client.delete_queue(dead.name)
    source.put(b"still")
    assert 1 == source.stats().visible

    client.delete_queue(dead.name, force=True)
    assert dead.name not in names(client)


def test_a_dead_letter_queue_whose_sources_are_gone_is_deleted(
    client: cassieq.Client, queue_name: str
) -> None:
    dead = client.create_queue(f"{queue_name}.dead")
    client.create_queue(queue_name, max_deliveries=3, dead_letter_queue=dead.name).delete()

    dead.delete()

    assert dead.name not in names(client)


def name_by_a_new_queue(client: cassieq.Client, source: str, target: str) -> str:
    return client.create_queue(f"{source}.new", dead_letter_queue=target).name


def name_by_a_queue_that_is_there(client: cassieq.Client, source: str, target: str) -> str:
    return client.alter_queue(source, dead_letter_queue=target).name


WAYS = [(name_by_a_new_queue, "insert_queue"), (name_by_a_queue_that_is_there, "update_queue")]


@pytest.mark.parametrize("name_it", [way for way, _ in WAYS])
def test_a_queue_that_is_named_between_the_check_and_the_deletion_is_not_deleted(
    open_door: OpenDoor, name_it: Callable[[cassieq.Client, str, str], str]
) -> None:
    door, other = open_door(".dead"), open_door(".source")
    target, source = door.queue.name, other.queue.name
    door.faults.before("update_queue", lambda: name_it(other.client, source, target))

    with pytest.raises(QueueInUse, match=f"is the dead-letter queue of '{source}"):
        door.queue.delete()

    door.queue.put(b"still there")
    door.client.delete_queue(target, force=True)


@pytest.mark.parametrize(("name_it", "step"), WAYS)
def test_a_queue_that_is_deleted_between_the_check_and_its_naming_is_not_named(
    open_door: OpenDoor, name_it: Callable[[cassieq.Client, str, str], str], step: str
) -> None:
    door, other = open_door(".source"), open_door(".dead")
    source, target = door.queue.name, other.queue.name
    door.faults.before(step, other.queue.delete)

    with pytest.raises(QueueNotFound, match=f"dead-letter queue '{target}'"):
        name_it(door.client, source, target)

    names = [one.settings.dead_letter_queue for one in door.client.queues()]
    assert target not in names


def test_a_queue_whose_dead_letter_queue_is_gone_can_be_altered(
    client: cassieq.Client, queue_name: str
) -> None:
    dead = client.create_queue(f"{queue_name}.dead")
    client.create_queue(queue_name, max_deliveries=3, dead_letter_queue=dead.name)
    client.delete_queue(dead.name, force=True)

    altered = client.alter_queue(queue_name, visibility_timeout=60)

    assert (60, dead.name) == (
        altered.settings.visibility_timeout_s,
        altered.settings.dead_letter_queue,
    )


def test_a_queue_is_deleted_only_if_empty_or_unused_where_that_is_asked_for(
    client: cassieq.Client, queue_name: str
) -> None:
    queue = client.create_queue(queue_name, linger=0)
    queue.put(b"delayed", delay=600)
    with pytest.raises(QueueInUse, match="holds 1 messages"):
        queue.delete(if_empty=True)

    queue.put(b"held")
    queue.get(1)
    with pytest.raises(QueueInUse, match="1 messages in flight"):
        client.delete_queue(queue_name, if_unused=True)

    queue.purge()
    queue.delete(if_empty=True, if_unused=True)
    with pytest.raises(QueueNotFound):
        client.queue(queue_name)


def test_a_handle_of_a_former_queue_is_not_refused_for_what_the_later_one_holds(
    client: cassieq.Client, queue_name: str
) -> None:
    former = client.create_queue(queue_name, linger=0)
    client.delete_queue(queue_name)
    client.create_queue(queue_name, linger=0).put(b"later")

    with pytest.raises(QueueNotFound, match="Nothing was deleted"):
        former.delete(if_empty=True)
