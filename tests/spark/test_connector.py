"""The connector's door: whole and once as the other one, whatever Spark's tasks and blocks do (I7).

What happens in Spark happens in one program of its own, ``children/connector_door.py``: a session
with the connector, on a cluster of two hosts. Here is what is in the queues when it has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import ConnectorMissing, StoreUnavailable
from cassieq_spark.model.lanes import shard_of
from cassieq_spark.spark import foreach_batch
from cassieq_spark.store import portal
from tests.children.connector_stops import A_BATCH, BATCHES
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.processes import CHILDREN
from tests.fixtures.streams import bodies

if TYPE_CHECKING:
    from cassieq_spark import Client, Delivery
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.streams import Streams

CHILD = CHILDREN / "connector_door.py"

SCENARIOS = (
    "attempt",
    "deleted",
    "failing",
    "lanes",
    "scheduled",
    "last",
    "lost",
    "outside",
    "refused",
    "replays",
    "secret",
    "speculation",
    "stops",
    "zombie",
)

BUCKET_SIZE = 50

LANES = {"priorities": 2, "shards": 3, "fairness": 0}

# The program starts seven JVMs' worth of Spark: on a busy machine that alone takes a minute.
pytestmark = pytest.mark.timeout(600)


class Door:
    """What the program has said, and the queues it has left."""

    def __init__(self, client: Client, prefix: str, said: dict[str, dict[str, Any]]) -> None:
        self._client = client
        self._prefix = prefix
        self._said = said
        self._drained: dict[str, list[Delivery]] = {}

    def said(self, scenario: str) -> dict[str, Any]:
        return self._said[scenario]

    def queue(self, scenario: str) -> cassieq.Queue:
        return self._client.queue(f"{self._prefix}.{scenario}")

    def drained(self, scenario: str) -> list[Delivery]:
        """All that could be got, acked; the same list each time."""
        if scenario not in self._drained:
            queue = self.queue(scenario)
            found: list[Delivery] = []
            while some := queue.get(1_000):
                found += some
                queue.ack(some)
            self._drained[scenario] = found
        return self._drained[scenario]

    def bodies(self, scenario: str) -> Counter[bytes]:
        return Counter(one.body for one in self.drained(scenario))


@pytest.fixture(scope="module")
def door(
    busy_client: Client,
    cassandra: EmbeddedCassandra,
    spark_environment: dict[str, str],
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
) -> Door:
    prefix, directory = f"connector.{new_uuid().hex[:12]}", tmp_path_factory.mktemp("connector")
    for scenario in SCENARIOS:
        more = {"lanes": LANES, "scheduled": {"priorities": 2}}.get(scenario, {})
        busy_client.create_queue(f"{prefix}.{scenario}", bucket_size=BUCKET_SIZE, **more)
    connection = {"contact_points": cassandra.contact_points, "keyspace": KEYSPACE}
    log = directory / "log"
    with log.open("w") as errors:
        ended = subprocess.run(
            [sys.executable, str(CHILD), json.dumps(connection), prefix, str(directory)],
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=directory,
            env={**os.environ, **spark_environment, "PYTHONPATH": str(pytestconfig.rootpath)},
            check=False,
        )
    if ended.returncode != 0:
        pytest.fail(f"the program ended with {ended.returncode}:\n{log.read_text()[-20_000:]}")
    said = {
        line.pop("scenario"): line for line in map(json.loads, ended.stdout.decode().splitlines())
    }
    said["log"] = {"text": log.read_text()}
    return Door(busy_client, prefix, said)


@pytest.mark.invariant("I7")
def test_batches_of_any_size_are_there_once_and_a_replayed_one_is_skipped(door: Door) -> None:
    """None, one, one again, sixty in chunks of seven with every column, and one of 3 MB."""
    found = {one.body: one for one in door.drained("outside")}

    large = b"0123456789abcdef" * 200_000
    assert {b"m-0", large, *(b"e-%d" % at for at in range(50))} == found.keys()
    assert len(found) == len(door.drained("outside"))
    assert (None, {}) == (found[b"m-0"].tag, found[b"m-0"].headers)
    assert ("t4", {"n": "4"}) == (found[b"e-4"].tag, found[b"e-4"].headers)
    assert (None, {"n": "5"}) == (found[b"e-5"].tag, found[b"e-5"].headers)
    assert {1} == {one.delivery_count for one in found.values()}


@pytest.mark.invariant("I7")
def test_a_batch_goes_into_the_lanes_of_its_priorities_and_keys(door: Door) -> None:
    assert bodies(0, 600) == door.bodies("lanes")
    fixed = door.queue("lanes")._lane.fixed
    for message in door.drained("lanes"):
        number = int(message.body.decode().removeprefix("m-"))
        priority, shard = fixed.class_and_shard(message.lane)
        assert (0 if number % 5 == 4 else number % 2) == priority == message.priority
        assert (f"g{number % 4}" if number % 4 else None, {}) == (message.group, message.headers)
        if number % 3 == 0:
            assert shard_of(f"k{number % 7}", 3) == shard
    assert 6 == len({message.lane for message in door.drained("lanes")})
    assert "has priority 2, allowed: 0 to 1" in door.said("lanes")["wrong"]


@pytest.mark.invariant("I7")
def test_rows_that_are_due_later_go_into_more_due_lanes_than_are_opened_at_once(
    door: Door,
) -> None:
    queue = door.queue("scheduled")
    assert Counter({b"m-%d" % at: 1 for at in range(0, 300, 3)}) == door.bodies("scheduled")
    hours = queue.scheduled()
    assert len(hours) > 64
    assert 200 == sum(hour.messages for hour in hours) == queue.stats().scheduled
    assert {0, 1} == {hour.priority for hour in hours}
    assert "columns 'delay' and 'due_at' both" in door.said("scheduled")["both"]


def test_what_has_a_delay_is_not_there_yet(door: Door) -> None:
    assert len(door.drained("outside")) == 52
    assert 10 == door.queue("outside").stats().delayed


def test_messages_with_one_message_id_are_both_put(door: Door) -> None:
    """A batch is what is put once: a queue compares no message ids, by this door as by others."""
    chosen = "00000000-0000-4000-8000-000000000001"
    found = [one.body for one in door.drained("outside") if one.message_id == chosen]
    assert [b"e-0", b"e-1"] == sorted(found)


def test_without_a_query_and_a_sink_id_there_is_no_transaction(door: Door) -> None:
    unnamed = door.said("outside")["unnamed"]
    assert "[cassieq:usage] this thread belongs to no streaming query" in unnamed


@pytest.mark.invariant("I7")
def test_a_replay_of_every_batch_changes_nothing(door: Door) -> None:
    """Of each after its commit, of one before it, each time by a new run of the query."""
    assert [0, 0, 1, 1, 1, 2, 2] == door.said("replays")["calls"]
    assert bodies(0, 600) == door.bodies("replays")
    assert {"drained"} == door.queue("replays").stats().buckets.keys()


@pytest.mark.invariant("I7")
def test_p8_a_retried_task_changes_nothing(door: Door) -> None:
    """The first attempts fail half-way: those that pack, and those that write."""
    log = door.said("log")["text"]
    assert "packing fails half-way" in log
    assert "writing fails half-way" in log
    assert bodies(0, 400) == door.bodies("failing")


@pytest.mark.invariant("I7")
def test_p8_a_speculative_task_changes_nothing(door: Door) -> None:
    """Two attempts write the same rows at once."""
    assert {"began-0-0", "began-0-1", "ended-0-1"} <= set(door.said("speculation")["notes"])
    assert bodies(0, 400) == door.bodies("speculation")


@pytest.mark.invariant("I7")
def test_p8_a_lost_block_fails_its_batch_and_the_replay_writes_it(door: Door) -> None:
    said = door.said("lost")
    assert 2 == said["killed"]
    assert "Checkpoint block" in said["failure"]
    assert 0 == said["visible"]
    assert bodies(0, 400) == door.bodies("lost")


@pytest.mark.invariant("I7")
def test_p8_a_block_of_another_attempt_than_the_plans_fails_its_batch(door: Door) -> None:
    """Two executors may each have kept one: other chunks, of the same rows. Or none, of none."""
    for failure in door.said("attempt")["failures"]:
        assert "packed by another attempt" in failure
    assert [] == door.drained("attempt")
    assert {"writing"} == door.queue("attempt").stats().buckets.keys()


@pytest.mark.invariant("I7")
def test_a_driver_that_ends_at_every_statement_has_each_batch_in_the_queue_once(
    door: Door,
) -> None:
    """Twenty ends of one query: sent or not, from its admission to its last visible bucket."""
    said = door.said("stops")
    assert {"runs": 20, "failures": 20, "at_the_end": 0} == {
        name: said[name] for name in ("runs", "failures", "at_the_end")
    }
    assert ([], []) == (said["torn"], said["missed"])
    assert bodies(0, BATCHES * A_BATCH) == door.bodies("stops")


@pytest.mark.invariant("I5")
def test_r19_a_zombie_that_writes_after_the_commit_writes_what_is_there(door: Door) -> None:
    """Write times and all; and no setting for a program's other tables reaches these rows."""
    said = door.said("zombie")
    assert said["is_same"]
    assert 6 == said["rows"]
    assert [True] == said["same_times"]
    assert bodies(0, 100) == door.bodies("zombie")


def test_a_row_that_cannot_be_put_fails_its_batch_and_is_named(door: Door) -> None:
    said = door.said("refused")
    assert "[cassieq:body_invalid] row 3 of its input partition has a null body" in said["null"]
    assert "[cassieq:option_invalid] column 'body' (binary) is missing" in said["column"]


def test_r26_a_second_write_of_a_batch_needs_another_sink_id(door: Door) -> None:
    """It would be taken for a replay of the first, and lost."""
    assert "[cassieq:sink_id_reused]" in door.said("refused")["twice"]
    assert bodies(0, 5) == door.bodies("refused")


def test_a_queue_deleted_in_mid_batch_is_told(door: Door) -> None:
    assert door.said("deleted")["failure"].startswith("[cassieq:queue_deleted]")
    with pytest.raises(cassieq.QueueNotFound):
        door.queue("deleted")


def test_no_password_is_in_what_spark_keeps_or_logs(door: Door) -> None:
    said = door.said("secret")
    assert said["is_about_writes"]
    assert "no write succeeds" in said["failure"]
    assert "the-password-nobody-may-see" not in said["failure"]
    assert not said["is_kept"]
    assert "the-password-nobody-may-see" not in door.said("log")["text"]
    assert bodies(0, 5) == door.bodies("secret")


def test_a_batch_leaves_no_blocks_and_no_thread(door: Door) -> None:
    assert {"kept": [True, False], "beating": []} == door.said("end")


def test_a_session_without_the_connector_is_told_before_anything_is_reserved(
    streams: Streams,
) -> None:
    put = foreach_batch(
        queue=streams.queue.name,
        sink_id=streams.queue.name,
        contact_points=streams.options["contactPoints"],
        keyspace=KEYSPACE,
    )

    with pytest.raises(ConnectorMissing, match=r"spark\.jars\.packages=com\.datastax\.spark:"):
        put(streams.numbered(0, 1), 0)

    monoton = portal.run(streams.lane.monotons.read())
    assert monoton is not None
    assert 0 == monoton.value.next_id
    assert portal.run(streams.lane.store.sinks.read(streams.queue.name)) is None


def test_a_driver_without_pandas_is_told_what_to_install(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cassieq_spark.spark.connector.writer.find_spec", lambda _: None)
    put = foreach_batch(queue=streams.queue.name, contact_points=streams.options["contactPoints"])
    with pytest.raises(cassieq.UsageError, match=r"cassieq_spark\[connector\]"):
        put(streams.numbered(0, 1), 0)


def test_a_host_without_an_address_is_named(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cassieq_spark.spark.connector.writer._check_session", lambda *_: None)
    put = foreach_batch(queue=streams.queue.name, contact_points="no-such-host.invalid")
    with pytest.raises(StoreUnavailable, match=r"'no-such-host\.invalid'"):
        put(streams.numbered(0, 1), 0)


def test_tls_by_pem_files_alone_is_refused_before_anything_is_reserved(streams: Streams) -> None:
    """Else the connector would send the messages in the clear."""
    put = foreach_batch(
        queue=streams.queue.name,
        contact_points=streams.options["contactPoints"],
        ssl_ca_file="/nowhere/ca.pem",
    )
    with pytest.raises(cassieq.UsageError, match="keytool") as refused:
        put(streams.numbered(0, 1), 0)
    assert "spark.cassandra.connection.ssl.trustStore.path" in str(refused.value)
