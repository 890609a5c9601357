"""An embedded node does what a real one does, and what a fault test asks of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psutil
import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy

from cassieq_spark.embedded.running import is_locked
from cassieq_spark.embedded.software import CASSANDRA_VERSION
from cassieq_spark.errors import EmbeddedFailed, OptionInvalid
from cassieq_spark.testing import EmbeddedCassandra
from tests.fixtures.processes import has_ended

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cassandra.cluster import Session

ROWS = 200


@contextlib.contextmanager
def cql_session(cassandra: EmbeddedCassandra) -> Iterator[Session]:
    profile = ExecutionProfile(
        load_balancing_policy=DCAwareRoundRobinPolicy(cassandra.datacenter), request_timeout=60
    )
    cluster = Cluster(
        [node.address for node in cassandra.nodes],
        port=cassandra.nodes[0].port,
        protocol_version=5,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


def make_table(session: Session) -> None:
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS embedded WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}"
    )
    session.execute("CREATE TABLE IF NOT EXISTS embedded.rows (key int PRIMARY KEY, value text)")


def put_rows(session: Session) -> None:
    make_table(session)
    insert = session.prepare("INSERT INTO embedded.rows (key, value) VALUES (?, ?)")
    for key in range(ROWS):
        session.execute(insert, (key, f"value {key}"))


def keys(session: Session) -> list[int]:
    return sorted(row.key for row in session.execute("SELECT key FROM embedded.rows"))


def test_shared_node_runs_the_pinned_version_with_paxos_v2(cassandra: EmbeddedCassandra) -> None:
    with cql_session(cassandra) as session:
        version = session.execute("SELECT release_version FROM system.local").one()
        paxos = session.execute(
            "SELECT value FROM system_views.settings WHERE name = 'paxos_variant'"
        ).one()
    assert version.release_version == CASSANDRA_VERSION
    assert paxos.value == "v2"


def test_second_conditional_insert_is_refused_with_the_first_row(
    cassandra: EmbeddedCassandra,
) -> None:
    with cql_session(cassandra) as session:
        make_table(session)
        session.execute("DELETE FROM embedded.rows WHERE key = -1 IF EXISTS")
        insert = "INSERT INTO embedded.rows (key, value) VALUES (-1, %s) IF NOT EXISTS"
        first = session.execute(insert, ("first",)).one()
        second = session.execute(insert, ("second",)).one()
        session.execute("DELETE FROM embedded.rows WHERE key = -1 IF EXISTS")
    assert first.applied
    assert (second.applied, second.value) == (False, "first")


@pytest.mark.long
def test_killed_node_comes_back_on_its_ports_with_every_acknowledged_row(
    own_cassandra: EmbeddedCassandra,
) -> None:
    contact_points = own_cassandra.contact_points
    with cql_session(own_cassandra) as session:
        put_rows(session)
        own_cassandra.kill()  # at once: nothing but the commit log's fsync has saved the last rows
    assert not own_cassandra.nodes[0].is_running

    own_cassandra.start()

    assert own_cassandra.contact_points == contact_points
    with cql_session(own_cassandra) as session:
        assert keys(session) == list(range(ROWS))


@pytest.mark.long
def test_paused_node_answers_nothing_until_it_is_resumed(own_cassandra: EmbeddedCassandra) -> None:
    node = own_cassandra.nodes[0]
    own_cassandra.pause()
    assert node.is_running
    assert not node.answers
    own_cassandra.resume()
    assert node.answers


@pytest.mark.long
def test_paused_node_can_be_stopped(own_cassandra: EmbeddedCassandra) -> None:
    own_cassandra.pause()
    own_cassandra.stop()
    assert not own_cassandra.nodes[0].is_running


@pytest.mark.long
def test_stop_drains_the_node_and_removes_its_temporary_directory() -> None:
    cassandra = EmbeddedCassandra(heap="768m")
    cassandra.start()
    node, directory = cassandra.nodes[0], cassandra.data_dir
    assert directory is not None
    jvm = psutil.Process(node.pid)
    node.stop()
    assert "Cassandra shutdown complete" in node.log_tail()
    assert has_ended(jvm)
    cassandra.stop()
    assert not directory.exists()


@pytest.mark.long
def test_kept_directory_gives_the_next_cluster_its_ports_and_data(tmp_path: Path) -> None:
    with EmbeddedCassandra(heap="768m", data_dir=tmp_path) as first:
        contact_points = first.contact_points
        with cql_session(first) as session:
            put_rows(session)
        with pytest.raises(EmbeddedFailed, match="already running on"):
            EmbeddedCassandra(data_dir=tmp_path, port=first.nodes[0].port + 1).start()
        assert first.nodes[0].answers
    with pytest.raises(EmbeddedFailed, match="a ring of 1 nodes, but 2 were asked for"):
        EmbeddedCassandra(nodes=2, data_dir=tmp_path).start()
    with EmbeddedCassandra(heap="768m", data_dir=tmp_path) as second:
        assert second.contact_points == contact_points
        with cql_session(second) as session:
            assert keys(session) == list(range(ROWS))


def test_start_that_fails_says_why_in_the_words_of_the_log(tmp_path: Path) -> None:
    cassandra = EmbeddedCassandra(data_dir=tmp_path, settings={"no_such_setting": 1})
    with pytest.raises(
        EmbeddedFailed, match=r"ended with exit code \d+ before it answered CQL"
    ) as failure:
        cassandra.start()
    assert "no_such_setting" in str(failure.value)
    assert not cassandra.nodes[0].is_running
    assert not is_locked(tmp_path / "node1")


def test_port_that_is_taken_is_named_before_a_jvm_is_started(
    cassandra: EmbeddedCassandra,
) -> None:
    taken = cassandra.nodes[0].port
    with pytest.raises(EmbeddedFailed, match=f"port {taken} of 127.0.0.1 cannot be used"):
        EmbeddedCassandra(port=taken).start()


def test_contact_points_before_the_first_start_are_an_error_that_says_so() -> None:
    with pytest.raises(EmbeddedFailed, match=r"Call start\(\)"):
        _ = EmbeddedCassandra().contact_points


@pytest.mark.parametrize("nodes", [0, 10])
def test_number_of_nodes_out_of_range_is_refused(nodes: int) -> None:
    with pytest.raises(OptionInvalid, match=f"nodes={nodes}"):
        EmbeddedCassandra(nodes=nodes)


@pytest.mark.parametrize("node", [0, 3])
def test_variables_of_a_node_that_is_not_there_are_refused(node: int) -> None:
    with pytest.raises(OptionInvalid, match=rf"nodes \[{node}\], but the cluster has nodes 1 to 2"):
        EmbeddedCassandra(nodes=2, environment={node: {"NAME": "value"}})


@pytest.mark.parametrize("names", [(), ("a", "a"), ("a", "b", "c"), ("datacenter1", "b")])
def test_data_centres_that_the_nodes_cannot_be_in_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(OptionInvalid, match=r"datacenters="):
        EmbeddedCassandra(nodes=2, datacenters=names)
