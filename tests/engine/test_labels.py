"""What the gateway asks of the client: labels, headers for each message, uncounted releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import BodyInvalid, OptionInvalid, QueueNotFound
from cassieq_spark.repair.lead import leading
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def queue(client: cassieq.Client, queue_name: str) -> Iterator[cassieq.Queue]:
    made = client.create_queue(queue_name, labels={"team": "orders"}, linger=0)
    yield made
    made.delete()


def test_labels_are_there_for_everybody_and_change_one_by_one(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    assert {"team": "orders"} == queue.labels

    changed = client.label_queue(queue.name, {"tier": "1", "team": None})

    assert {"tier": "1"} == changed.labels == client.queue(queue.name).labels
    (info,) = [one for one in client.queues() if one.name == queue.name]
    assert {"tier": "1"} == info.labels


def test_settings_and_labels_do_not_touch_each_other(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    altered = client.alter_queue(queue.name, visibility_timeout=7)
    labelled = client.label_queue(queue.name, {"é": 'a "text"'})

    assert {"team": "orders"} == altered.labels
    assert 7.0 == labelled.settings.visibility_timeout_s
    assert {"team": "orders", "é": 'a "text"'} == labelled.labels


def test_an_existing_queue_keeps_its_labels_when_it_is_created_again(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    again = client.create_queue(queue.name, labels={"team": "other"}, linger=0)

    assert {"team": "orders"} == again.labels


def test_labels_that_are_no_texts_or_too_large_are_refused(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    with pytest.raises(OptionInvalid, match="labels must be a dict"):
        client.label_queue(queue.name, ["team"])  # type: ignore[arg-type]  # that is the test
    with pytest.raises(OptionInvalid, match="65,536"):
        client.label_queue(queue.name, {"a": "x" * 65_536})
    with pytest.raises(QueueNotFound):
        client.label_queue("there.is.none", {"a": "b"})
    assert {"team": "orders"} == client.queue(queue.name).labels


def test_each_message_of_a_put_may_have_headers_of_its_own(queue: cassieq.Queue) -> None:
    queue.put_many([b"a", b"b"], headers=[{"n": "1"}, None])

    assert {b"a": {"n": "1"}, b"b": {}} == {one.body: one.headers for one in queue.get(10)}
    with pytest.raises(OptionInvalid, match="2 entries for 1 bodies"):
        queue.put_many([b"a"], headers=[{}, {}])
    with pytest.raises(BodyInvalid):
        queue.put_many(["a"], headers=[{}])  # type: ignore[list-item]  # that is the test


@pytest.mark.parametrize(("count_delivery", "deliveries"), [(True, 2), (False, 1)])
def test_a_release_counts_its_delivery_only_if_somebody_saw_the_message(
    queue: cassieq.Queue, count_delivery: bool, deliveries: int
) -> None:
    queue.put(b"one")
    (got,) = queue.get(1)

    queue.release(got, count_delivery=count_delivery)

    (again,) = queue.get(1)
    assert deliveries == again.delivery_count


def test_a_pass_as_leader_leaves_the_work_to_another_leader(
    client: cassieq.Client, queue: cassieq.Queue
) -> None:
    with portal.entered(leading(client._store)) as is_leader:
        assert is_leader
        assert client.repair_as_leader() is None

    report = client.repair_as_leader()
    assert report is not None
    assert queue.name in {one.queue for one in report.queues}
