"""The last release and this one side by side: each opens the queues that the other has created."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.options import OPTIONS, Scope
from cassieq_spark.queue.admin import FIXED
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.commands import CommandLine
from tests.fixtures.released import released

if TYPE_CHECKING:
    from typing import Any

    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.released import Released

__all__ = ["released"]

OTHERWISE: dict[str, Any] = {
    "bucket_size": 50_000,
    "priorities": 3,
    "shards": 2,
    "fairness": 0.2,
    "schedule_after": 60,
    "schedule_period": 600,
    "visibility_timeout": 45,
    "max_deliveries": 7,
    "repair_timeout": 20,
    "linger": 0.5,
    "gap_timeout": 12,
    "retention": 86_400,
    "dead_letter_expired": True,
    "dedup_window": 600,
}
"""A default that a release may once have had, for each setting that has no queue for its value."""

STARTS = """
import json, sys
import cassieq_spark as cassieq
with cassieq.connect(sys.argv[1], keyspace=sys.argv[2]) as client:
    client.bootstrap()
    queue = client.create_queue(sys.argv[3], **json.loads(sys.argv[4]))
    queue.put(b"of the last release")
    print(json.dumps([queue.settings.bucket_size, [one.body.decode() for one in queue.get(10)]]))
"""


def test_each_setting_has_another_value_here() -> None:
    settings = {one.name: one.default for one in OPTIONS if Scope.QUEUE in one.scopes}

    assert settings.keys() == {*OTHERWISE, "dead_letter_queue"}
    assert not [name for name, value in OTHERWISE.items() if value == settings[name]]


@pytest.mark.parametrize("given", [{}, OTHERWISE], ids=["its defaults", "other defaults"])
def test_a_program_that_creates_its_queue_when_it_starts_survives_the_upgrade(
    released: Released,
    client: cassieq.Client,
    cassandra: EmbeddedCassandra,
    queue_name: str,
    given: dict[str, Any],
) -> None:
    said = json.loads(
        released.says(STARTS, cassandra.contact_points, KEYSPACE, queue_name, json.dumps(given))
    )
    cassieq_ = CommandLine(cassandra.contact_points)

    queue = client.create_queue(queue_name)
    queue.put(b"of this release")

    assert [queue.settings.bucket_size, ["of the last release"]] == said
    assert [b"of this release"] == [one.body for one in queue.get(10)]
    assert 0 == cassieq_("queue", "create", queue_name).code
    for name, value in given.items():
        assert queue.name == client.create_queue(queue_name, **{name: value}).name


def test_a_program_of_the_last_release_opens_what_this_one_has_created(
    released: Released, client: cassieq.Client, cassandra: EmbeddedCassandra, queue_name: str
) -> None:
    queue = client.create_queue(queue_name)
    queue.put(b"of this release")

    said = json.loads(released.says(STARTS, cassandra.contact_points, KEYSPACE, queue_name, "{}"))

    assert 100_000 == said[0]
    assert {"of this release", "of the last release"} == set(said[1])


def test_only_settings_that_are_named_can_conflict(client: cassieq.Client, queue_name: str) -> None:
    made = client.create_queue(queue_name, **OTHERWISE)

    for name in OTHERWISE:
        default = next(one.default for one in OPTIONS if one.name == name)
        unlike = {"linger": 0.5, name: 9_999 if default is None else default}
        assert made.settings == client.create_queue(queue_name, **{name: None}).settings
        with pytest.raises(cassieq.QueueExists) as caught:
            client.create_queue(queue_name, **unlike)
        assert (name,) == caught.value.differences
        assert (name in FIXED) == ("alter_queue" not in str(caught.value))
